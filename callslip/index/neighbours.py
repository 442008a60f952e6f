"""Item-to-item evidence as sparse matrices: decayed pairs of a log, sums over histories, and their files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from callslip.corpus.sequences import Sequences
from callslip.errors import BadSetting

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


def check_decay(name: str, value: float) -> None:
    """Raise an error unless a factor per step is more than 0 and at most 1."""
    if not 0 < value <= 1:
        raise BadSetting(f"setting {name!r} is {value}", "Use more than 0, and at most 1.")


def decayed_pairs(
    sequences: Sequences, count: int, *, gap: float, back: float, user_power: float, window: int
) -> csr_matrix:
    """How often item j comes after item i, [count, count]; the diagonal is 0.

    A pair at distance d in the sequence of a user with n interactions counts gap^(d-1) · n^-user_power, and `back`
    times as much in the other direction.
    """
    from scipy.sparse import csr_matrix

    lengths = np.diff(sequences.bounds)
    owner = np.repeat(np.arange(len(sequences)), lengths)
    weight = np.maximum(lengths, 1.0) ** -user_power
    total = csr_matrix((count, count), dtype=np.float64)
    for distance in range(1, min(window, int(lengths.max(initial=0)) - 1) + 1):
        same = owner[:-distance] == owner[distance:]
        first, second = sequences.items[:-distance][same], sequences.items[distance:][same]
        values = gap ** (distance - 1) * weight[owner[:-distance][same]]
        total = total + csr_matrix((values, (first, second)), shape=(count, count))
    total = (total + back * total.T).tocsr()
    total.setdiag(0)
    total.eliminate_zeros()
    return total


def normalised(pairs: csr_matrix, counts: np.ndarray, popularity_power: float, neighbour_power: float) -> csr_matrix:
    """Pairs divided by n_i^popularity_power · n_j^neighbour_power, where n counts the interactions of an item."""
    from scipy.sparse import diags

    users = np.maximum(counts, 1).astype(np.float64)
    return (diags(users**-popularity_power) @ pairs @ diags(users**-neighbour_power)).tocsr()


def age_weights(length: int, decay: float) -> np.ndarray:
    """The weight of each item of a history: 1 for the last one, `decay` times as much for each one before."""
    return decay ** np.arange(length - 1, -1, -1, dtype=np.float64)


def history_matrix(histories: Sequence[np.ndarray], count: int, decay: float) -> csr_matrix:
    """The decayed items of histories, given as rows in order of time: [B, count]."""
    from scipy.sparse import csr_matrix

    lengths = [len(history) for history in histories]
    weights = np.concatenate([np.zeros(0), *(age_weights(length, decay) for length in lengths)])
    items = np.concatenate([np.zeros(0, np.int64), *histories])
    return csr_matrix((weights, items, np.cumsum([0, *lengths])), shape=(len(histories), count))


def because(parts: np.ndarray, names: Sequence[str]) -> list[dict[str, Any]]:
    """For each column of parts [history, hits], the items of the history that contributed, with how much."""
    return [
        {"because": {name: round(float(part), 6) for name, part in zip(names, column, strict=True) if part > 0}}
        for column in parts.T
    ]


def save_matrix(matrix: csr_matrix, path: Path) -> None:
    """Write a square sparse matrix."""
    from safetensors.numpy import save_file

    parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
    save_file({name: np.ascontiguousarray(part) for name, part in parts.items()}, path)


def load_matrix(path: Path) -> csr_matrix:
    """Read what `save_matrix` wrote."""
    from safetensors.numpy import load_file
    from scipy.sparse import csr_matrix

    parts = load_file(path)
    count = len(parts["indptr"]) - 1
    return csr_matrix((parts["data"], parts["indices"], parts["indptr"]), shape=(count, count))
