"""Ensemble: several retrievers over one corpus whose lists become one. They share the rows of the ensemble.

A subclass says what its parts are and how their lists are merged: the hybrid and the forest.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from callslip import settings as settings_of
from callslip.corpus.documents import Corpus, Document, Query
from callslip.index.retriever import Found, Retriever
from callslip.storage.rows import Parts

PART = "part.json"


class Ensemble(Retriever):
    """Asks all its parts."""

    parts: list[Retriever]

    def remade(self, method: str, values: dict[str, Any]) -> Retriever:
        """A part that was saved under this name and with these settings, not yet loaded."""
        raise NotImplementedError

    def depth(self, k: int) -> int:
        """How many hits each part is asked for, where k are wanted."""
        return k

    def merged(self, rankings: list[Found], explain: bool) -> Found:
        """The parts' lists for one query as one."""
        raise NotImplementedError

    @property
    def reads_histories(self) -> bool:
        return all(part.reads_histories for part in self.parts)

    def could_read(self, *, histories: bool) -> bool:
        return all(part.could_read(histories=histories) for part in self.parts)

    def build(self, corpus: Corpus) -> None:
        for number, part in enumerate(self.parts):
            part.rows = self.rows
            part.fit(corpus, self.checkpoints and self.checkpoints.part(f"{number}-{part.method}"))

    def find(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        lists = [part.find(queries, self.depth(k), mask, explain) for part in self.parts]
        return [self.merged([ranking[number] for ranking in lists], explain) for number in range(len(queries))]

    def prepare(self, documents: list[Document]) -> Parts:
        made = [part.prepare(documents) for part in self.parts]
        return {f"{number}.{name}": value for number, one in enumerate(made) for name, value in one.items()}

    def extend(self, documents: list[Document], parts: Parts) -> None:
        for number, part in enumerate(self.parts):
            mine = f"{number}."
            part.extend(documents, {k.removeprefix(mine): v for k, v in parts.items() if k.startswith(mine)})

    def forget(self, rows: list[int]) -> None:
        for part in self.parts:
            part.forget(rows)

    def keep(self, rows: np.ndarray) -> None:
        for part in self.parts:
            part.keep(rows)

    def codes_by_row(self) -> np.ndarray | None:
        return next((codes for part in self.parts if (codes := part.codes_by_row()) is not None), None)

    def save_files(self, folder: Path) -> None:
        for place, part in zip(self._places(folder), self.parts, strict=True):
            place.mkdir()
            what = {"method": part.method, "settings": settings_of.to_dict(part.settings)}
            (place / PART).write_text(json.dumps(what, indent=2) + "\n", encoding="utf-8")
            part.save_files(place)

    def load_files(self, folder: Path) -> None:
        places = self._places(folder)
        described = [json.loads((place / PART).read_text(encoding="utf-8")) for place in places]
        self.parts = [self.remade(what["method"], what["settings"]) for what in described]
        for part, place in zip(self.parts, places, strict=True):
            part.rows = self.rows
            part.load_files(place)

    def _places(self, folder: Path) -> list[Path]:
        return [folder / f"{number}-{part.method}" for number, part in enumerate(self.parts)]
