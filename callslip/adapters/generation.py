"""transformers' `generate` over our trie: a `LogitsProcessor` that allows the codes of an index and nothing else.

It gives the same lists as `prefix_allowed_tokens_fn`, for encoder-decoder and decoder-only models, without a Python set
per prefix: the children of a node are a slice. Filters and deletions are the trie's live masks.

    processor = TrieLogitsProcessor(identifiers.trie(), token_ids(identifiers.widths, first=len(tokenizer)), eos=2,
                                    prompt=inputs.input_ids.shape[1])
    model.generate(**inputs, num_beams=20, logits_processor=[processor])
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import LogitsProcessor

from callslip.errors import BadSetting
from callslip.identifiers.table import END, Identifiers
from callslip.identifiers.trie import Trie


def token_ids(widths: Sequence[int], first: int) -> list[np.ndarray]:
    """Vocabulary ids of the tokens of each level, if they were appended to a vocabulary of `first` tokens."""
    starts = np.cumsum([first, *widths])[:-1]
    return [np.arange(start, start + width) for start, width in zip(starts, widths, strict=True)]


def live_nodes(identifiers: Identifiers, mask: np.ndarray) -> list[np.ndarray]:
    """A mask of rows (a filter, or what is not deleted) as masks of the trie's nodes."""
    return identifiers.trie().live(np.asarray(mask)[identifiers.rows])


class TrieLogitsProcessor(LogitsProcessor):
    """Allows, after each prefix, the tokens that continue it to a code of the trie.

    `ids` are the vocabulary ids of each level's tokens; `prompt` is the number of tokens before the code (for an
    encoder-decoder model 1, its start token). A shorter code ends with `eos`, as does every code once it is whole.
    `live` masks the trie's nodes and may be replaced between two calls of `generate`.
    """

    def __init__(
        self,
        trie: Trie,
        ids: Sequence[np.ndarray],
        *,
        eos: int,
        prompt: int = 1,
        live: Sequence[np.ndarray] | None = None,
    ) -> None:
        if len(ids) != trie.length:
            raise BadSetting(f"ids of {len(ids)} levels for codes of {trie.length}", "Give an array for each level.")
        self.trie, self.eos, self.prompt, self.live = trie, eos, prompt, live
        self.ids = [np.asarray(level, np.int64) for level in ids]
        self.tokens = [{int(id): token for token, id in enumerate(level)} for level in self.ids]

    def allowed(self, written: Sequence[int]) -> np.ndarray:
        """Vocabulary ids that may follow what has been written after the prompt."""
        level, node = 0, 0
        for id in written:
            token = END if id == self.eos else self.tokens[level].get(id) if level < self.trie.length else None
            if token is None or (node := self.trie.child(level - 1, node, token)) < 0 or token == END:
                return np.array([self.eos])  # the code has ended, or the beam is a dead one that fills a place
            level += 1
        if level == self.trie.length:
            return np.array([self.eos])
        children = self.trie.children_of(level - 1, node)
        tokens = self.trie.tokens[level][children].astype(np.int64)
        if self.live is not None:
            tokens = tokens[self.live[level][children]]
        inner = tokens[tokens != END]
        found = self.ids[level][inner]
        return np.append(found, self.eos) if len(inner) < len(tokens) else found

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        masked = torch.full_like(scores, float("-inf"))
        for row, written in enumerate(input_ids[:, self.prompt :].tolist()):
            may = torch.from_numpy(self.allowed(written)).to(scores.device)
            masked[row, may] = scores[row, may]
        return masked  # type: ignore[return-value]
