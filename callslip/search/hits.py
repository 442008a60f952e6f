"""Hits, the results of a search."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Hit:
    """A result: its doc_id, score, rank from 1, the code that the model wrote for it (if any), and an explanation."""

    doc_id: str
    score: float
    rank: int = 0
    code: tuple[int, ...] | None = None
    title: str = ""
    text: str = ""
    why: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        values["code"] = list(self.code) if self.code is not None else None
        return values


class Hits(list[Hit]):
    """Hits, best first."""

    confidence: float | None = None
    """Share of held-out queries with an answer for which the evidence was weaker; None if the index is not
    calibrated."""
    unsure: bool = False
    """Whether the confidence is so low that probably nothing in the index answers the query."""

    @property
    def doc_ids(self) -> list[str]:
        return [hit.doc_id for hit in self]

    @property
    def scores(self) -> list[float]:
        return [hit.score for hit in self]

    def to_dicts(self) -> list[dict[str, Any]]:
        return [hit.to_dict() for hit in self]

    @classmethod
    def ranked(cls, hits: Iterable[Hit]) -> Hits:
        """Number the hits from 1 in the order given."""
        numbered = cls(hits)
        for rank, hit in enumerate(numbered, start=1):
            hit.rank = rank
        return numbered
