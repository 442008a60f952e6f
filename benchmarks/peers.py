"""Other ways to decode under constraints, to compare with: transformers' `generate`, and the plain loop that most
published code has: a Python trie walked from its root for every beam and step, a mask over the whole vocabulary, and
no cache of keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Trie = dict[int, Any]


class Allowed:
    """`prefix_allowed_tokens_fn` by a dictionary of prefixes."""

    def __init__(self, codes: np.ndarray, ids: np.ndarray) -> None:
        """`ids[level, token]` is the place of a token in the vocabulary."""
        self.children: dict[tuple[int, ...], list[int]] = {}
        whole = ids[np.arange(codes.shape[1]), codes]
        for level in range(codes.shape[1]):
            for row in np.unique(whole[:, : level + 1], axis=0).tolist():
                self.children.setdefault(tuple(row[:-1]), []).append(row[-1])

    def __call__(self, batch: int, sequence: torch.Tensor) -> list[int]:
        return self.children[tuple(sequence[1:].tolist())]


def by_generate(t5: Any, ids: torch.Tensor, allowed: Allowed, beam: int, length: int, renormalise: bool) -> Any:
    """The best `beam` codes by transformers."""
    with torch.inference_mode():
        return t5.generate(
            ids, attention_mask=torch.ones_like(ids), num_beams=beam, num_return_sequences=beam,
            max_new_tokens=length, prefix_allowed_tokens_fn=allowed, length_penalty=0.0, do_sample=False,
            eos_token_id=None, return_dict_in_generate=True, output_scores=True, renormalize_logits=renormalise,
        )  # fmt: skip


def python_trie(codes: np.ndarray, ids: np.ndarray) -> Trie:
    root: Trie = {}
    for code in codes.tolist():
        node = root
        for level, token in enumerate(code):
            node = node.setdefault(int(ids[level, token]), {})
    return root


def by_plain_loop(t5: Any, query: torch.Tensor, root: Trie, beam: int, length: int) -> list[tuple[list[int], float]]:
    """One query: the whole prefix is decoded again at every step, and everything not allowed is set to -inf."""
    with torch.inference_mode():
        read = t5.encoder(input_ids=query)
        prefixes, totals = [[0]], torch.zeros(1)
        for _ in range(length):
            states = read.last_hidden_state.expand(len(prefixes), -1, -1)
            logits = t5(encoder_outputs=(states,), decoder_input_ids=torch.tensor(prefixes), use_cache=False).logits
            scores = logits[:, -1].log_softmax(-1)
            mask = torch.full_like(scores, -torch.inf)
            for row, prefix in enumerate(prefixes):
                node = root
                for token in prefix[1:]:
                    node = node[token]
                mask[row, list(node)] = 0
            flat = (scores + mask + totals[:, None]).view(-1)
            totals, best = flat.topk(min(beam, int((flat > -torch.inf).sum())))
            size = scores.shape[1]
            prefixes = [[*prefixes[index // size], index % size] for index in best.tolist()]
    return [(prefix[1:], total) for prefix, total in zip(prefixes, totals.tolist(), strict=True)]
