"""Hybrid: convex or reciprocal rank fusion of any retrievers, so that generative + BM25 is one line."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from callslip import settings as settings_of
from callslip.corpus.documents import Corpus
from callslip.errors import BadSetting, UnknownName, Unsupported
from callslip.index.ensemble import Ensemble
from callslip.index.retriever import Found, Learned, Retriever
from callslip.methods import make, make_saved
from callslip.search import fusion
from callslip.settings import check_range

WEIGHTS = "weights.json"
AT_MOST = 1000
"""Judged train queries that weights are fitted on; of more, a random sample."""


@dataclass(frozen=True)
class HybridSettings:
    """Which methods are fused, and how."""

    former_defaults: ClassVar[dict[str, Any]] = {"fusion": "rrf"}
    """Indexes that were saved before there was a choice fused ranks, and still do."""

    parts: tuple[str, ...] = ("bm25", "dense")
    """Names of the methods to fuse."""
    options: tuple[str, ...] = ()
    """Settings of the parts, as part.key=value; on the command line write --set part.key=value."""
    fusion: Literal["convex", "rrf"] = "convex"
    """`convex` adds the weighted scores of the parts, each scaled to 1 at the part's first and 0 at its last of `depth`
    hits; `rrf` (reciprocal rank fusion) adds 1 / (constant + rank) and ignores scores."""
    weights: tuple[float, ...] | None = None
    """Convex: one weight per part; only their proportions matter. None fits them on the judged train queries, if there
    are at least 30 and no part was trained on them; otherwise all parts count the same."""
    constant: float = 60.0
    """Reciprocal rank fusion: constant added to each rank before it is inverted. The larger, the smaller the advantage
    of top ranks."""
    depth: int = 100
    """Number of hits of each part that are fused (at least k)."""

    def __post_init__(self) -> None:
        check_range(self, constant=0, depth=1)
        if self.weights is not None and (min(self.weights, default=-1) < 0 or sum(self.weights) <= 0):
            raise BadSetting(f"setting 'weights' is {self.weights}", "Use numbers of at least 0 that are not all 0.")


class Hybrid(Ensemble):
    """Ranks a document by what its parts say: the weighted sum of scaled scores, or of 1 / (constant + rank)."""

    Settings = HybridSettings
    search_settings = frozenset({"fusion", "weights", "constant", "depth"})
    settings: HybridSettings
    fitted: np.ndarray | None
    """The weights of the parts that were fitted on judged queries; None if none were."""

    def __init__(self, settings: Any = None, *, method: str = "", parts: list[Retriever] | None = None) -> None:
        if parts is not None:
            settings = replace(settings or HybridSettings(), parts=tuple(part.method for part in parts))
        super().__init__(settings, method=method)
        self.parts = parts if parts is not None else [self._part(name) for name in self.settings.parts]
        self.fitted = None
        if len(self.parts) < 2:
            raise BadSetting("a hybrid needs at least two methods", "For example --method bm25+dsi-semantic.")
        self._check_weights()

    def _part(self, name: str) -> Retriever:
        given = settings_of.parse_assignments(list(self.settings.options))
        for key in given:
            if key.partition(".")[0] not in self.settings.parts:
                raise UnknownName("part of the hybrid", key.partition(".")[0], self.settings.parts)
        own = {key.partition(".")[2]: value for key, value in given.items() if key.partition(".")[0] == name}
        return make(name, own)

    def _check_weights(self) -> None:
        given = self.settings.weights
        if given is not None and len(given) != len(self.parts):
            raise BadSetting(
                f"setting 'weights' has {len(given)} numbers for {len(self.parts)} parts",
                f"Give one for each of {', '.join(part.method for part in self.parts)}.",
            )

    def adjusted(self, names: frozenset[str]) -> None:
        self._check_weights()

    def remade(self, method: str, values: dict[str, Any]) -> Retriever:
        return make_saved(method, values)

    def learn_answers(self, answers: Mapping[str, Sequence[str]]) -> Learned:
        raise Unsupported(
            f"a hybrid ({self.method}) cannot learn: its parts have no folder of their own to remember in",
            "Fit tied-residual alone, which ranks by words, meaning and memory in one: "
            "callslip fit CORPUS --method tied-residual --out DIR.",
        )

    # Weights.

    @property
    def weights(self) -> np.ndarray:
        """The weight of each part, with a sum of 1: the setting's, else the fitted ones, else equal ones."""
        chosen = self.fitted if self.settings.weights is None else np.asarray(self.settings.weights, np.float64)
        return np.full(len(self.parts), 1 / len(self.parts)) if chosen is None else chosen / chosen.sum()

    def build(self, corpus: Corpus) -> None:
        super().build(corpus)
        self.fitted = None
        if self.settings.fusion == "convex" and self.settings.weights is None:
            self.fitted = self.fit_weights(corpus)

    def fit_weights(self, corpus: Corpus) -> np.ndarray | None:
        """Weights that rank the answers of judged train queries first. None if these are few, or if a part has learned
        from them: its scores of queries that it knows would earn it a trust that it does not deserve on others."""
        from callslip.training.fusion import ENOUGH, fit_weights, judged_queries

        asked, graded = judged_queries(corpus, AT_MOST)
        if len(asked) < ENOUGH or any(part.learns_from_queries for part in self.parts):
            return None
        depth = min(self.settings.depth, len(corpus))
        lists = [part.find(asked, depth, None, False) for part in self.parts]
        tables, gains = [], []
        for number, grades in enumerate(graded):
            table = self.scaled_scores([ranking[number] for ranking in lists])
            tables.append(np.asarray(list(table.values())).reshape(len(table), len(self.parts)))
            gains.append(np.asarray([grades.get(row, 0) for row in table], np.float64))
        fitted = fit_weights(tables, gains, np.full(len(self.parts), 1 / len(self.parts)))
        return fitted if fitted.sum() > 0 else None

    # Search.

    def depth(self, k: int) -> int:
        return max(k, self.settings.depth)

    def scaled_scores(self, rankings: list[Found]) -> dict[int, np.ndarray]:
        """row -> its scaled score in each part, which is 0 where a part did not find it."""
        table: dict[int, np.ndarray] = defaultdict(lambda: np.zeros(len(self.parts)))
        for place, found in enumerate(rankings):
            if not len(found.rows):
                continue
            scores = np.asarray(found.scores, np.float64)
            scaled = fusion.scaled(scores, scores[: self.settings.depth])
            for row, score in zip(map(int, found.rows), scaled, strict=True):
                table[row][place] = score
        return table

    def merged(self, rankings: list[Found], explain: bool) -> Found:
        ranks: dict[int, dict[str, int]] = defaultdict(dict)
        codes: dict[int, tuple[int, ...]] = {}
        for part, found in zip(self.parts, rankings, strict=True):
            for rank, row in enumerate(map(int, found.rows), start=1):
                ranks[row][part.method] = rank
                if found.codes is not None:
                    codes.setdefault(row, found.codes[rank - 1])
        if self.settings.fusion == "rrf":
            shares = self.reciprocal_ranks(rankings)
            rows = sorted(shares, key=lambda row: (-sum(shares[row]), row))
        else:
            weights = self.weights
            shares = {row: (weights * scaled).tolist() for row, scaled in self.scaled_scores(rankings).items()}
            # Beyond `depth` every score is 0: the best rank decides.
            rows = sorted(shares, key=lambda row: (-sum(shares[row]), min(ranks[row].values()), row))
        names = [part.method for part in self.parts]
        return Found(
            rows,
            [sum(shares[row]) for row in rows],
            [codes.get(row, ()) for row in rows] if codes else None,
            [{"ranks": ranks[row], "shares": dict(zip(names, shares[row], strict=True))} for row in rows]
            if explain
            else None,
        )

    def reciprocal_ranks(self, rankings: list[Found]) -> dict[int, list[float]]:
        """row -> 1 / (constant + rank) in each part, which is 0 where a part did not find it."""
        shares: dict[int, list[float]] = defaultdict(lambda: [0.0] * len(self.parts))
        for place, found in enumerate(rankings):
            for rank, row in enumerate(map(int, found.rows), start=1):
                shares[row][place] = 1.0 / (self.settings.constant + rank)
        return shares

    # The saved folder.

    def save_files(self, folder: Path) -> None:
        super().save_files(folder)
        if self.fitted is not None:
            (folder / WEIGHTS).write_text(json.dumps({"fitted": self.fitted.tolist()}) + "\n", encoding="utf-8")

    def load_files(self, folder: Path) -> None:
        super().load_files(folder)
        held = folder / WEIGHTS
        self.fitted = np.asarray(json.loads(held.read_text(encoding="utf-8"))["fitted"]) if held.exists() else None
