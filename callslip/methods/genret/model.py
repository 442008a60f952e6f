"""The model of GenRet: a code writer whose heads are codebooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from callslip.decoders.writer import CodeWriter


class CodebookWriter(CodeWriter):
    """A level's logits are the products of the decoder's state with the rows of the level's codebook.

    All states have norm D^¼. Without this constraint the products would grow until every softmax saturates, and tokens
    would change in every batch.
    """

    def __init__(self, input_dim: int, widths: Sequence[int], **shape: Any) -> None:
        super().__init__(input_dim, widths, **shape)
        size = len(self.begin)
        self.heads = nn.ModuleList(nn.Linear(size, head.out_features, bias=False) for head in self.heads)  # type: ignore[arg-type]
        nn.init.constant_(self.norm.weight, size**-0.25)
        self.norm.requires_grad_(False)
