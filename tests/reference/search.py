"""Brute force: every code scored token by token, one query and one code at a time."""

from __future__ import annotations

import torch

END = -1


def score_every_code(model, query: torch.Tensor, codes: list[tuple[int, ...]]) -> dict[tuple[int, ...], float]:
    """log P(code | query) by teacher forcing, without cache, batch or trie. What follows an END costs nothing."""
    scores = {}
    for code in codes:
        with torch.inference_mode():
            logits = model(query[None], torch.tensor([code]))
        total = 0.0
        for level, token in enumerate(code):
            total += float(torch.log_softmax(logits[level][0], dim=-1)[token])
            if token == END:
                break
        scores[code] = total
    return scores


def ranked(scores: dict[tuple[int, ...], float]) -> list[tuple[int, ...]]:
    return sorted(scores, key=lambda code: (-scores[code], code))


def step_by_step_beam(model, query: torch.Tensor, codes: list[tuple[int, ...]], beam: int) -> list[tuple[int, ...]]:
    """Plain beam search over prefixes kept in a set: no trie, no cache, one prefix at a time.

    A candidate that ends among the best `beam` is finished; the best `beam` of the others go on.
    """
    length = len(codes[0])
    alive: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    finished: list[tuple[tuple[int, ...], float]] = []
    for level in range(length):
        grown = []
        for prefix, score in alive:
            padded = torch.zeros((1, length), dtype=torch.long)
            padded[0, : len(prefix)] = torch.tensor(prefix, dtype=torch.long)
            with torch.inference_mode():
                step = torch.log_softmax(model(query[None], padded)[level][0], dim=-1)
            for token in sorted({code[level] for code in codes if code[:level] == prefix}):
                grown.append(((*prefix, token), score + float(step[token])))
        grown.sort(key=lambda item: (-item[1], item[0]))
        for prefix, score in grown[:beam]:
            if prefix[-1] == END or level + 1 == length:
                finished.append(((*prefix, *[END] * (length - len(prefix))), score))
        alive = [item for item in grown if item[0][-1] != END][:beam]
    return [code for code, _ in sorted(finished, key=lambda item: (-item[1], item[0]))[:beam]]
