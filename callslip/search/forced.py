"""Forced decoding: a model's score for each token of a given code, whether or not a search would have reached it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from callslip.decoders.scores import as_scores
from callslip.errors import BadSetting
from callslip.search.beam import CodeModel
from callslip.search.selection import log_sum
from callslip.search.trees import LevelMasks, tree_of

if TYPE_CHECKING:
    from callslip.identifiers.trie import Trie


def forced_scores(
    model: CodeModel, query: Any, trie: Trie, code: Sequence[int], live: LevelMasks | None = None
) -> np.ndarray:
    """Log-probability of each token of `code` [L], END included, given its prefix; 0 after END.

    `query` is a batch of one. Probabilities are renormalised over the allowed children whenever a search would do so.
    """
    if len(query) != 1 or len(code) != trie.length:
        raise BadSetting(f"{len(query)} queries and a code of {len(code)} tokens for codes of {trie.length}")
    gains = np.zeros(trie.length, np.float32)
    with torch.inference_mode():
        state, first = model.start(query)
        step = as_scores(first)
        renormalise = not step.normalised
        tree = tree_of(trie, step.device, live, 1)
        node = torch.zeros((1, 1), dtype=torch.long, device=step.device)
        none = torch.zeros((1, 1), dtype=torch.long, device=step.device)
        for level, wanted in enumerate(code):
            owner, child, token = tree.expand(level, node)
            gain = step.of(owner, token)
            if renormalise:
                gain = gain - log_sum(gain, owner, 1)[owner]
            found = (token == wanted).nonzero().view(-1)
            if not len(found):
                raise BadSetting(f"no code has the prefix {list(code[: level + 1])}, or a mask excludes it")
            gains[level] = float(gain[found[0]])
            if wanted < 0 or level + 1 == trie.length:
                break
            node = child[found[:1]].view(1, 1)
            step = as_scores(model.advance(state, none, token[found[:1]].view(1, 1)))
    return gains
