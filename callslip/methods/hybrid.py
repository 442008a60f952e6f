"""Hybrid: reciprocal rank fusion of any retrievers, so that generative + BM25 is one line."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from callslip import settings as settings_of
from callslip.corpus.documents import Corpus, Document, Query
from callslip.errors import BadSetting, UnknownName
from callslip.methods import make
from callslip.retriever import Found, Retriever
from callslip.storage.rows import Parts

PART = "part.json"


@dataclass(frozen=True)
class HybridSettings:
    """Which methods are fused, and how."""

    parts: tuple[str, ...] = ("bm25", "dense")
    """Names of the methods to fuse."""
    options: tuple[str, ...] = ()
    """Settings of the parts, as part.key=value; on the command line write --set part.key=value."""
    constant: float = 60.0
    """Added to each rank before it is inverted: the larger, the less the first places count."""
    depth: int = 100
    """How many hits of each part are fused (at least k)."""


class Hybrid(Retriever):
    """Ranks a document by the sum of 1 / (constant + rank) over the parts that found it."""

    Settings = HybridSettings
    search_settings = frozenset({"constant", "depth"})
    settings: HybridSettings

    def __init__(self, settings: Any = None, *, method: str = "", parts: list[Retriever] | None = None) -> None:
        if parts is not None:
            settings = replace(settings or HybridSettings(), parts=tuple(part.method for part in parts))
        super().__init__(settings, method=method)
        self.parts = parts if parts is not None else [self._part(name) for name in self.settings.parts]
        if len(self.parts) < 2:
            raise BadSetting("a hybrid needs at least two methods", "For example --method bm25+dsi-semantic.")

    def _part(self, name: str) -> Retriever:
        given = settings_of.parse_assignments(list(self.settings.options))
        for key in given:
            if key.partition(".")[0] not in self.settings.parts:
                raise UnknownName("part of the hybrid", key.partition(".")[0], self.settings.parts)
        own = {key.partition(".")[2]: value for key, value in given.items() if key.partition(".")[0] == name}
        return make(name, own)

    @property
    def reads_histories(self) -> bool:
        return all(part.reads_histories for part in self.parts)

    def could_read(self, *, histories: bool) -> bool:
        return all(part.could_read(histories=histories) for part in self.parts)

    def _fit(self, corpus: Corpus) -> None:
        for number, part in enumerate(self.parts):
            part.fit(corpus, self.checkpoints and self.checkpoints.part(f"{number}-{part.method}"))

    def _search(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        depth = max(k, self.settings.depth)
        for part in self.parts:
            part._row_of = self.row_of()  # a history's items are the rows that are alive here
        lists = [part._search(queries, depth, mask, explain) for part in self.parts]
        return [self._fuse([ranking[number] for ranking in lists], explain) for number in range(len(queries))]

    def _fuse(self, rankings: list[Found], explain: bool) -> Found:
        scores: dict[int, float] = defaultdict(float)
        ranks: dict[int, dict[str, int]] = defaultdict(dict)
        codes: dict[int, tuple[int, ...]] = {}
        for part, found in zip(self.parts, rankings, strict=True):
            for rank, row in enumerate(map(int, found.rows), start=1):
                scores[row] += 1.0 / (self.settings.constant + rank)
                ranks[row][part.method] = rank
                if found.codes is not None:
                    codes.setdefault(row, found.codes[rank - 1])
        rows = sorted(scores, key=lambda row: (-scores[row], row))
        return Found(
            rows,
            [scores[row] for row in rows],
            [codes.get(row, ()) for row in rows] if codes else None,
            [{"ranks": ranks[row]} for row in rows] if explain else None,
        )

    def _prepare(self, documents: list[Document]) -> Parts:
        made = [part._prepare(documents) for part in self.parts]
        return {f"{number}.{name}": value for number, one in enumerate(made) for name, value in one.items()}

    def _extend(self, documents: list[Document], parts: Parts) -> None:
        for number, part in enumerate(self.parts):
            part._documents = self._documents
            mine = f"{number}."
            part._extend(documents, {k.removeprefix(mine): v for k, v in parts.items() if k.startswith(mine)})

    def _keep(self, rows: np.ndarray) -> None:
        for part in self.parts:
            part._documents = self._documents
            part._keep(rows)

    def _codes(self) -> np.ndarray | None:
        return next((codes for part in self.parts if (codes := part._codes()) is not None), None)

    def _save(self, folder: Path) -> None:
        for number, part in enumerate(self.parts):
            place = folder / f"{number}-{part.method}"
            place.mkdir()
            what = {"method": part.method, "settings": settings_of.to_dict(part.settings)}
            (place / PART).write_text(json.dumps(what, indent=2) + "\n", encoding="utf-8")
            part._save(place)

    def _load(self, folder: Path) -> None:
        places = [folder / f"{number}-{name}" for number, name in enumerate(self.settings.parts)]
        described = [json.loads((place / PART).read_text(encoding="utf-8")) for place in places]
        self.parts = [make(what["method"], what["settings"]) for what in described]
        for part, place in zip(self.parts, places, strict=True):
            part._remember(self.documents)
            part._load(place)
