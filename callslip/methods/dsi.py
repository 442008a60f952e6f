"""DSI: a decoder that learns to write a code which was fixed beforehand (Tay et al., 2022).

Four kinds of codes, from the control to the paper's best: random tokens, one token per document (atomic), the
row number digit by digit (naive), and paths in a tree of k-means clusters (semantic). Documents that share a
semantic code are ranked by the inner product of their vectors with the query's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from callslip.corpus.documents import Corpus, Document
from callslip.errors import BadSetting
from callslip.generative import GenerativeRetriever, GenerativeSettings

CLUSTERS = "clusters.safetensors"


@dataclass(frozen=True)
class DSISettings(GenerativeSettings):
    """DSI's own: what the codes are."""

    codes: Literal["semantic", "random", "atomic", "naive"] = "semantic"
    """Where codes come from."""
    width: int = 32
    """Tokens per level, of semantic and random codes."""
    length: int | None = None
    """Levels, of semantic and random codes; none is as many as leave about `leaf` documents to a code."""
    leaf: int = 5
    """Documents to aim at per code when `length` is not given."""


class DSI(GenerativeRetriever):
    """Codes first, then a decoder that writes them."""

    Settings = DSISettings
    settings: DSISettings
    presets = {  # noqa: RUF012  (a class constant, never changed)
        "quick": {"epochs": 8, "decoder_width": 128},
        "paper": {"pseudo_queries": ("spans",), "width": 10, "leaf": 1},
    }

    def make_codes(self, corpus: Corpus) -> np.ndarray:
        from callslip import identifiers as make

        s, count = self.settings, len(corpus)
        self._clusters: Any = None
        if s.codes == "atomic":
            return make.atomic_codes(count)
        if s.codes == "naive":
            return make.naive_codes(corpus.doc_ids, digits=True)
        length = s.length or levels_for(count, s.width, s.leaf)
        if s.codes == "random":
            return make.random_codes(count, length, s.width, seed=s.seed)
        self._clusters = make.HierarchicalKMeans(width=s.width, length=length, seed=s.seed)
        return self._clusters.fit(self.vectors)

    def assign(self, documents: list[Document], vectors: np.ndarray) -> np.ndarray:
        if self._clusters is None:
            return super().assign(documents, vectors)
        return self._clusters.assign(vectors)

    def _save(self, folder: Path) -> None:
        super()._save(folder)
        if self._clusters is not None:
            from safetensors.numpy import save_file

            save_file(self._clusters.state(), folder / CLUSTERS)

    def _load(self, folder: Path) -> None:
        super()._load(folder)
        self._clusters = None
        if (folder / CLUSTERS).exists():
            from safetensors.numpy import load_file

            from callslip.identifiers import HierarchicalKMeans

            self._clusters = HierarchicalKMeans.from_state(load_file(folder / CLUSTERS))


def levels_for(documents: int, width: int, leaf: int) -> int:
    """How many levels of `width` tokens leave about `leaf` documents to each code."""
    if width < 2:
        raise BadSetting(f"setting 'width': {width} tokens cannot tell documents apart", "Use at least 2.")
    return max(1, round(math.log(max(2.0, documents / max(1, leaf))) / math.log(width)))
