"""Ultron with product-quantisation codes (Zhou et al., 2022): each sub-vector of the document's vector gives one token.

Unlike paths in a tree, the tokens of a code do not depend on one another: token 7 of level 3 means the same after every
prefix. Everything else is the default `fit`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from callslip.identifiers.makers import CodeMaker, code_maker
from callslip.index.generative import GenerativeRetriever
from callslip.index.settings import GenerativeSettings, HistoryQuerySettings, SavedCodesSettings, T5Settings
from callslip.settings import check_range


@dataclass(frozen=True)
class UltronPQSettings(GenerativeSettings, T5Settings, HistoryQuerySettings, SavedCodesSettings):
    """Settings of Ultron: the product quantiser."""

    width: int = 32
    """Centroids of each sub-vector: tokens per level."""
    length: int = 3
    """Sub-vectors that a vector is split into: levels."""
    seq2seq_codes: Literal["tokens", "codebooks"] = "tokens"
    """With `seq2seq`: code tokens as new tokens of T5's vocabulary, or codebooks per level."""

    def check(self) -> None:
        check_range(self, width=1, length=1)


class UltronPQ(GenerativeRetriever):
    """Product-quantisation codes, and the decoder that writes them."""

    Settings = UltronPQSettings
    presets: ClassVar[dict[str, dict[str, Any]]] = {"quick": {"epochs": 8, "decoder_width": 128}}

    def code_maker(self, documents: int) -> CodeMaker:
        s = self.settings
        return code_maker("product-quantization", length=s.length, width=s.width, seed=s.seed)
