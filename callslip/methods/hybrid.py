"""Hybrid: reciprocal rank fusion of any retrievers, so that generative + BM25 is one line."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from callslip import settings as settings_of
from callslip.errors import BadSetting, UnknownName
from callslip.index.ensemble import Ensemble
from callslip.index.retriever import Found, Retriever
from callslip.methods import make, make_saved
from callslip.settings import check_range


@dataclass(frozen=True)
class HybridSettings:
    """Which methods are fused, and how."""

    parts: tuple[str, ...] = ("bm25", "dense")
    """Names of the methods to fuse."""
    options: tuple[str, ...] = ()
    """Settings of the parts, as part.key=value; on the command line write --set part.key=value."""
    constant: float = 60.0
    """Constant added to each rank before it is inverted: the larger, the smaller the advantage of top ranks."""
    depth: int = 100
    """Number of hits of each part that are fused (at least k)."""

    def __post_init__(self) -> None:
        check_range(self, constant=0, depth=1)


class Hybrid(Ensemble):
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

    def remade(self, method: str, values: dict[str, Any]) -> Retriever:
        return make_saved(method, values)

    def depth(self, k: int) -> int:
        return max(k, self.settings.depth)

    def merged(self, rankings: list[Found], explain: bool) -> Found:
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
