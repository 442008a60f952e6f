"""DSI: a decoder that learns to write a code which was fixed beforehand (Tay et al., 2022).

Four kinds of codes, from the control to the paper's best: random tokens, one token per document (atomic), the
row number digit by digit (naive), and paths in a tree of k-means clusters (semantic). Documents that share a
semantic code are ranked by the inner product of their vectors with the query's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from callslip.corpus.documents import Corpus
from callslip.identifiers import levels_for
from callslip.index.generative import CodeMaker, GenerativeRetriever, GenerativeSettings


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
        "text": {"pseudo_queries": ("lead", "spans")},
        "paper": {"pseudo_queries": ("spans",), "width": 10, "leaf": 1},
    }

    def make_codes(self, corpus: Corpus) -> np.ndarray:
        from callslip import identifiers as make

        s, count = self.settings, len(corpus)
        if s.codes == "atomic":
            return make.atomic_codes(count)
        if s.codes == "naive":
            return make.naive_codes(corpus.doc_ids, digits=True)
        if s.codes == "random":
            return make.random_codes(count, self._length(count), s.width, seed=s.seed)
        return super().make_codes(corpus)

    def code_maker(self, documents: int) -> CodeMaker | None:
        from callslip.identifiers import HierarchicalKMeans

        s = self.settings
        if s.codes != "semantic":
            return None
        return HierarchicalKMeans(width=s.width, length=self._length(documents), seed=s.seed)

    def _length(self, documents: int) -> int:
        return self.settings.length or levels_for(documents, self.settings.width, self.settings.leaf)


@dataclass(frozen=True)
class DSIQGSettings(DSISettings):
    """DSI-QG's own: documents are known by the queries made from them alone."""

    pseudo_queries: tuple[str, ...] = ("title", "sentences")
    """Texts made from each document to train on: title, lead, sentences, spans, keywords; empty for none, as when
    `doc2query` writes them all."""
    train_on_documents: bool = False
    """Whether the document's own text is a training example, too; DSI-QG says no."""


class DSIQG(DSI):
    """DSI whose training texts look like what will be searched for (Zhuang et al., 2022)."""

    Settings = DSIQGSettings
    settings: DSIQGSettings
    presets = {"quick": DSI.presets["quick"]}  # noqa: RUF012
