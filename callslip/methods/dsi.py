"""DSI: a decoder that learns to write precomputed codes (Tay et al., 2022).

Four kinds of codes, from the control to the paper's best: random tokens, one token per document (atomic), the row
number digit by digit (naive), and paths in a tree of k-means clusters (semantic). Documents that share a semantic code
are ranked by the inner product of their vectors with the query's.

DSI-QG (Zhuang et al., 2022) is DSI without `document` among its `training_texts`: a document is represented by its
pseudo-queries alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from callslip.corpus.documents import Corpus
from callslip.errors import UnknownName
from callslip.identifiers import atomic_codes, levels_for, naive_codes, random_codes
from callslip.identifiers.makers import CodeMaker, code_maker, known_makers
from callslip.index.generative import GenerativeRetriever
from callslip.index.settings import GenerativeSettings, HistoryQuerySettings, SavedCodesSettings, T5Settings
from callslip.settings import check_range

WITHOUT_VECTORS = ("random", "atomic", "naive")
KINDS = ("semantic", *WITHOUT_VECTORS)


@dataclass(frozen=True)
class DSISettings(GenerativeSettings, T5Settings, HistoryQuerySettings, SavedCodesSettings):
    """Settings of DSI: the codes."""

    codes: str = "semantic"
    """Kind of codes: `semantic` (paths in a tree of k-means clusters), `random`, `atomic` (one token per document),
    `naive` (the row number, digit by digit), or a maker of codes: residual-quantization, or one of another package."""
    width: int = 32
    """Tokens per level, for semantic and random codes."""
    length: int | None = None
    """Number of levels of semantic and random codes; none chooses it so that about `leaf` documents share a code."""
    leaf: int = 5
    """Target number of documents per code when `length` is none."""
    collisions: Literal["bucket", "level"] = "bucket"
    """Documents of the same semantic code: ranked in their `bucket`, or distinguished by one more `level`, the place in
    it, as in the paper."""
    seq2seq_codes: Literal["tokens", "codebooks"] = "tokens"
    """With `seq2seq`: code tokens as new tokens of T5's vocabulary, or codebooks per level."""

    def check(self) -> None:
        check_range(self, width=1, length=1, leaf=1)
        if self.codes not in KINDS and self.codes not in known_makers():
            raise UnknownName("kind of codes", self.codes, (*KINDS, *known_makers()))


class DSI(GenerativeRetriever):
    """Codes first, then a decoder that writes them."""

    Settings = DSISettings
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"epochs": 8, "decoder_width": 128},
        "text": {"training_texts": ("document", "lead", "spans")},
    }

    def make_codes(self, corpus: Corpus) -> np.ndarray:
        s, count = self.settings, len(corpus)
        if s.codes == "atomic":
            return atomic_codes(count)
        if s.codes == "naive":
            return naive_codes(corpus.doc_ids, digits=True)
        if s.codes == "random":
            return random_codes(count, self._length(count), s.width, seed=s.seed)
        return super().make_codes(corpus)

    @property
    def codes_of_vectors(self) -> bool:
        return super().codes_of_vectors and self.settings.codes not in WITHOUT_VECTORS

    def code_maker(self, documents: int) -> CodeMaker | None:
        s = self.settings
        if s.codes in WITHOUT_VECTORS:
            return None
        length = self._length(documents)
        if s.codes != "semantic":
            return code_maker(s.codes, width=s.width, length=length, seed=s.seed)
        last: Any = {"leaf": "rank"} if s.collisions == "level" else {}
        return code_maker("hierarchical-kmeans", width=s.width, length=length + bool(last), seed=s.seed, **last)

    def _length(self, documents: int) -> int:
        return self.settings.length or levels_for(documents, self.settings.width, self.settings.leaf)
