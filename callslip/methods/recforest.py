"""RecForest: several balanced trees of the items, and a model for each that reads a history and writes the next item's
path (Feng et al., 2022).

Items are split into K balanced clusters by their vectors, and each cluster again, until every item has its own path. An
item on the boundary of a cluster in one tree is inside a cluster of another, so the score of an item is the sum of the
probabilities of its paths in all trees.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import numpy as np

from callslip.corpus.documents import Corpus, Document
from callslip.identifiers.partitions import even_tree
from callslip.identifiers.table import Identifiers
from callslip.index.ensemble import Ensemble
from callslip.index.generative import GenerativeRetriever
from callslip.index.readers import HistoryReader
from callslip.index.retired import saved_settings
from callslip.index.retriever import Found, Retriever
from callslip.index.settings import GenerativeSettings, HistoryQuerySettings, Ranking, SavedCodesSettings, T5Settings
from callslip.settings import check_range


@dataclass(frozen=True)
class RecForestSettings(GenerativeSettings, T5Settings, HistoryQuerySettings, SavedCodesSettings):
    """RecForest's own: how many trees, and how many branches. Everything else is the same in all trees."""

    trees: int = 2
    """Number of trees, each with a model of its own; the first has the seed, the next the seed plus one, and so on."""
    width: int = 32
    """Branches of each node (K)."""
    ranking: Ranking = "bucket"
    """Order of hits in each tree: `bucket` is the model's order of paths, as in the paper; `sum` and `union` use the
    inner product of history and item, too."""
    start: Literal["none", "counts"] = "counts"  # type: ignore[assignment]
    """Where scores begin: at what `counts` say (sequential rules, their factors and the items' texts), to which the
    trained model is added as far as held-out training items show that it helps; or at nothing (`none`), as in the
    paper. With `epochs=0` the index ranks as the counts do."""
    seq2seq_codes: Literal["tokens", "codebooks"] = "tokens"
    """With `seq2seq`: code tokens as new tokens of T5's vocabulary, or codebooks per level."""

    def check(self) -> None:
        check_range(self, trees=1, width=2)


class Tree(GenerativeRetriever):
    """One tree of the forest, and the model that writes its paths."""

    Settings = RecForestSettings
    codes_near = True

    def make_codes(self, corpus: Corpus) -> np.ndarray:
        return even_tree(self.vectors, self.settings.width, self.settings.seed).astype(np.int32)

    def assign(self, documents: list[Document], vectors: np.ndarray) -> np.ndarray:
        """A new item shares the path of the nearest one: the model has learned to write no other there."""
        if self.settings.codes_from is not None or (
            isinstance(self.reader, HistoryReader) and not self.reader.has_texts
        ):
            return super().assign(documents, vectors)  # raises: without vectors there is no nearest item
        nearest = (self.vectors @ vectors.T).argmax(axis=0)
        return self.identifiers.in_row_order()[1][nearest]


class RecForest(Ensemble):
    """Ranks an item by the sum of the probabilities of its paths, one in each tree."""

    Settings = RecForestSettings
    search_settings = GenerativeRetriever.search_settings
    presets: ClassVar[dict[str, dict[str, Any]]] = {"quick": {"epochs": 6, "decoder_width": 128}}

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        super().__init__(settings, method=method)
        self._paths: tuple[Identifiers, np.ndarray] | None = None
        s = self.settings
        self.parts = [Tree(replace(s, seed=s.seed + n), method=f"tree-{n + 1}") for n in range(s.trees)]

    def remade(self, method: str, values: dict[str, Any]) -> Retriever:
        return Tree(saved_settings(RecForestSettings, values), method=method)

    def adjusted(self, names: frozenset[str]) -> None:
        for part in self.parts:
            part.adjust({name: getattr(self.settings, name) for name in names})

    @property
    def code_settings(self) -> Mapping[str, Any]:
        return {"ranking": "share", "bucket_limit": None}

    def merged(self, rankings: list[Found], explain: bool) -> Found:
        scores: dict[int, list[float]] = defaultdict(list)
        first: dict[int, int] = {}  # items that share a path are in order of similarity
        trees: dict[int, dict[str, Any]] = defaultdict(dict)
        for part, found in zip(self.parts, rankings, strict=True):
            for place, row in enumerate(map(int, found.rows)):
                scores[row].append(float(found.scores[place]))
                first[row] = min(place, first.get(row, place))
                if found.why is not None:
                    trees[row][part.method] = found.why[place]
        total = {row: summed(some, len(self.parts)) for row, some in scores.items()}
        rows = sorted(total, key=lambda row: (-total[row], first[row], row))
        return Found(
            rows,
            [total[row] for row in rows],
            self._first_paths()[rows],
            [{"trees": trees[row]} for row in rows] if explain else None,
        )

    def _first_paths(self) -> np.ndarray:
        """The path of every row in the first tree, which hits show whichever tree found them."""
        table = cast(Tree, self.parts[0]).identifiers
        if self._paths is None or self._paths[0] is not table:
            self._paths = (table, table.in_row_order()[1])
        return self._paths[1]


def summed(scores: list[float], trees: int) -> float:
    """Log of the mean probability over trees; a tree that did not reach the item contributes 0."""
    return float(np.logaddexp.reduce(scores) - np.log(trees))
