"""Decoding: find a model's best codes by beam search, or exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from callslip.search.beam import Beams, CodeModel, beam_search
from callslip.search.exact import exact_search, table_search

if TYPE_CHECKING:
    from callslip.identifiers.trie import Trie
    from callslip.search.trees import LevelMasks

ROWS = 4096
"""Maximum number of beams advanced at once; more would take memory without gaining speed."""


def best_codes(
    model: CodeModel,
    queries: Any,
    trie: Trie,
    n: int,
    live: LevelMasks | None = None,
    *,
    exact: bool = False,
) -> list[Beams]:
    """The n best codes for each query (a tensor of vectors). A model with a `table`, whose scores do not depend on
    earlier tokens, is searched exactly at the cost of a lookup."""
    found: list[Beams] = []
    with torch.inference_mode():
        if exact and not hasattr(model, "table"):
            for number in range(len(queries)):
                found.append(exact_search(model, queries[number : number + 1], trie, n, live))
            return found
        size = max(1, ROWS // n)
        masks: Sequence[LevelMasks | None] | None = None if live is None else [live]
        for start in range(0, len(queries), size):
            some = queries[start : start + size]
            if exact:
                found += table_search(model.table(some), trie, n, live)  # type: ignore[attr-defined]
            else:
                found += beam_search(model, some, trie, n, masks)
    return found
