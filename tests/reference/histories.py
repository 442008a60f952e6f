"""Histories and examples by plain loops."""

from __future__ import annotations


def sequential(sequences, longest):
    """(history, target, user) of each item but the first."""
    examples = []
    for user, items in enumerate(sequences):
        for place in range(1, len(items)):
            examples.append((list(items[max(0, place - longest) : place]), items[place], user))
    return examples


def general(sequences, longest):
    examples = []
    for user, items in enumerate(sequences):
        for place in range(len(items)):
            others = [item for n, item in enumerate(items) if n != place]
            if others:
                examples.append((others[-longest:], items[place], user))
    return examples


def softmax_loss(positive, negative, same):
    """Cross-entropy of the positive among itself and the negatives that are others, one row at a time."""
    import math

    total = 0.0
    for score, others, equal in zip(positive, negative, same, strict=True):
        weights = [math.exp(score)] + [math.exp(s) for s, e in zip(others, equal, strict=True) if not e]
        total -= math.log(weights[0] / sum(weights))
    return total / len(positive)


def goes_on(history, target, after, width):
    """Whether a history is the one before it and that one's target, cut at the width."""
    return list(after) == [*history, target][-width:]
