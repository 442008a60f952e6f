"""Ultron with product-quantisation codes (Zhou et al., 2022): each stretch of the document's vector gives one token.

Unlike paths in a tree, the tokens of a code do not depend on one another: token 7 of level 3 means the same after every
prefix. Everything else is the default `fit`.
"""

from __future__ import annotations

from dataclasses import dataclass

from callslip.index.generative import CodeMaker, GenerativeRetriever, GenerativeSettings
from callslip.settings import check_range


@dataclass(frozen=True)
class UltronPQSettings(GenerativeSettings):
    """Ultron's own: how the vector is cut."""

    width: int = 32
    """Centroids of each stretch: tokens per level."""
    length: int = 3
    """Stretches that the vector is cut into: levels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, width=1, length=1)


class UltronPQ(GenerativeRetriever):
    """Product-quantisation codes, and the decoder that writes them."""

    Settings = UltronPQSettings
    settings: UltronPQSettings
    presets = {  # noqa: RUF012  (a class constant, never changed)
        "quick": {"epochs": 8, "decoder_width": 128},
        "paper": {"width": 256, "length": 24},
    }

    def code_maker(self, documents: int) -> CodeMaker:
        from callslip.identifiers import ProductQuantizer

        return ProductQuantizer(length=self.settings.length, width=self.settings.width, seed=self.settings.seed)
