"""Codes that do not depend on the documents' content: controls, and the plain strings of the first papers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from callslip.errors import BadSetting
from callslip.identifiers.table import END, Identifiers, check_codes, pad


def random_codes(n: int, length: int, width: int | Sequence[int], seed: int = 0) -> np.ndarray:
    """Control: random codes without meaning, int32 [n, length].

    Codes are unique if the code space allows it; otherwise bucket sizes differ by at most one, so that the control is
    as strong as possible.
    """
    widths = [width] * length if isinstance(width, int) else list(width)
    if n < 0 or length < 1 or len(widths) != length or min(widths) < 1:
        raise BadSetting(f"invalid random codes: {n} documents, length {length}, width {width}")
    rng = np.random.default_rng(seed)
    capacity = math.prod(widths)
    if capacity <= 2 * n:  # (nearly) every code is needed: concatenate shuffled permutations of all codes
        decks = [rng.permutation(capacity) for _ in range(math.ceil(n / capacity))]
        numbers = np.concatenate([np.zeros(0, np.int64), *decks])[:n]
        return np.stack(np.unravel_index(numbers, widths), axis=1).astype(np.int32).reshape(n, length)
    codes = rng.integers(0, widths, (n, length), dtype=np.int32)
    while True:  # at most half of the codes are used, so each round resolves about half of the collisions
        _, first = np.unique(codes, axis=0, return_index=True)
        clash = np.ones(n, bool)
        clash[first] = False
        if not clash.any():
            return codes
        codes[clash] = rng.integers(0, widths, (int(clash.sum()), length), dtype=np.int32)


def atomic_codes(n: int) -> np.ndarray:
    """One token per document: length 1, width n."""
    return np.arange(n, dtype=np.int32)[:, None]


def naive_codes(doc_ids: Sequence[str], digits: bool = False) -> np.ndarray:
    """Plain strings as codes, END-padded: the UTF-8 bytes of the doc_id (width 256), so new documents need no fit.

    `digits=True` is DSI's naive string: the row number in decimal, tokens 0 to 9.
    """
    if digits:
        return pad([[int(digit) for digit in str(row)] for row in range(len(doc_ids))])
    return pad([list(doc_id.encode("utf-8", "surrogatepass")) for doc_id in doc_ids])


def ranks_in_buckets(codes: np.ndarray) -> np.ndarray:
    """For each row, the number of earlier rows with the same code."""
    table = Identifiers(map(str, range(len(codes))), codes)
    starts = table.buckets()
    ranks = np.empty(len(codes), np.int64)
    ranks[table.rows] = np.arange(len(codes)) - np.repeat(starts[:-1], np.diff(starts))
    return ranks


def disambiguate(codes: npt.ArrayLike, first_rank: int | None = None) -> np.ndarray:
    """Make codes unique by an extra token, the rank in the bucket (by row); the token of rank 0 is `first_rank`.

    Codes of equal length get one more level, [N, L + 1], with ranks from 0. With codes of different lengths a rank
    could be mistaken for a token of a longer code, so ranks are new tokens above all others, appended to the code of
    every document except the first of its bucket. With a vocabulary, pass its length as `first_rank`, so that ranks
    are not shown as words.
    """
    array = check_codes(codes)
    ranks = ranks_in_buckets(array)
    if not (array == END).any():
        tokens = ranks + (first_rank or 0)
        return np.concatenate([array, tokens[:, None].astype(np.int32)], axis=1)
    lowest = int(array.max()) + 1
    if first_rank is not None and first_rank < lowest:
        raise BadSetting(f"ranks from {first_rank} would be mistaken for tokens", f"Use {lowest} or more.")
    tokens = np.where(ranks > 0, ranks + (lowest if first_rank is None else first_rank), END)
    longer = np.concatenate([array, np.full((len(array), 1), END, np.int32)], axis=1)
    longer[np.arange(len(array)), (array != END).sum(axis=1)] = tokens
    return longer if (longer[:, -1] != END).any() else longer[:, :-1]
