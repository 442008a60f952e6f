"""Settings of tied residual codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from callslip.errors import BadSetting
from callslip.index.segment_table import MOST
from callslip.index.settings import EncoderSettings
from callslip.settings import check_range, check_share


@dataclass(frozen=True)
class TiedResidualSettings(EncoderSettings):
    """Codes, the sources that rank, and the fit of their weights."""

    heading: ClassVar[str] = "Codes and ranking"

    length: int = 96
    """Tokens of a code, a byte each: at 48, similarity is within 0.02 of dense retrieval's nDCG@10, at 96 within
    0.005."""
    tree: int | None = None
    """Number of tokens that form the tree that search walks; the rest ranks inside. None uses 1 up to 20,000 documents
    and 2 above."""
    segments: int = 8
    """Maximum number of segments of a document that get short codes of their own, from the pass that encodes the
    document; 0 for none. The nearest segment then counts beside the whole text. Encoders that do not pool by the mean
    give no segments."""
    segment_length: int = 16
    """Tokens of the code of a segment, a byte each."""
    passages: int = 0
    """Maximum number of passages of a document that get codes of their own, beside the whole text. A document is as
    near as the nearest of them. Costs as much encoding again as the document."""
    candidates: int | None = 16_384
    """Number of codes read for each query, in the best prefixes of the tree; none reads all codes."""
    words: bool = True
    """Whether BM25 takes part in the ranking."""
    k1: float = 1.2
    """BM25: term-frequency saturation."""
    b: float = 0.75
    """BM25: document-length normalisation, from 0 (none) to 1 (full)."""
    memory: bool = True
    """Whether the judged queries of the train split are remembered: documents that answered queries near the present
    one rank higher, as far as held-out queries say that this helps."""
    depth: int = 100
    """Number of candidates that each source (codes, words, memory) contributes, at least k."""
    held_out: int = 1000
    """Maximum number of judged train queries that the weights of the sources are fitted on, each without its own
    memory. Without judged queries, sentences taken out of their documents stand for them."""
    correction: bool = False
    """Whether a correction of the query's vector is trained on judged train queries. It begins at zero, and is used as
    far as held-out ones gain by it."""
    seed: int = 0
    """Random seed of codebooks and of the queries that weights are fitted on."""

    def check(self) -> None:
        check_range(
            self,
            length=1,
            tree=1,
            segments=0,
            segment_length=1,
            passages=0,
            candidates=1,
            k1=0,
            depth=1,
            held_out=0,
            seed=0,
        )
        check_share(self, "b")
        if self.segments > MOST:
            raise BadSetting(f"setting 'segments' is {self.segments}", f"Use at most {MOST}.")
        if self.tree is not None and self.tree > min(2, self.length):
            raise BadSetting(f"setting 'tree' is {self.tree}", "Use 1 or 2, and at most `length`.")


PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"length": 48, "held_out": 200},
    "codes": {"words": False, "memory": False, "held_out": 0},
}
"""`codes` ranks by codes alone."""
