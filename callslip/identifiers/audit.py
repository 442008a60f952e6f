"""What a table of codes keeps of other things: the encoder's neighbourhoods, popular and rare items, an older table.

`quality` counts tokens; these figures need more than the table: vectors, how often items are asked for, a second table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from callslip.errors import BadSetting
from callslip.identifiers.table import END, Identifiers

NEAREST, SAMPLE, HEAD = 10, 2000, 0.2


@dataclass(frozen=True)
class Neighbours:
    """How many of a document's nearest vectors share a prefix of its code."""

    nearest: int
    documents: int
    """Number of documents whose neighbours were counted."""
    shared: tuple[float, ...]
    """Share of the neighbours that have the same first 1, 2, … tokens."""
    by_chance: tuple[float, ...]
    """The same of any two documents."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Share:
    """Codes of some of the documents."""

    documents: int
    uniqueness: float
    """Number of distinct codes per document."""
    collision_rate: float
    """Share of documents that share their code with any other document."""
    bucket_mean: float
    """Mean number of documents that have the code of one of these."""


@dataclass(frozen=True)
class HeadAndTail:
    """The most popular fifth of the documents, against the others."""

    head: Share
    tail: Share

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Churn:
    """What has changed from an older table to a newer one."""

    common: int
    added: int
    removed: int
    changed: tuple[float, ...]
    """Share of the documents of both tables whose first 1, 2, … tokens are others."""
    regrouped: float
    """Share of the pairs of documents with one code, in either table, that have one code in only one of them. Renaming
    tokens does not change it."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def neighbours(codes: np.ndarray, vectors: np.ndarray, nearest: int = NEAREST, sample: int = SAMPLE) -> Neighbours:
    """Compare codes [N, L] with the vectors [N, dim] of the same rows."""
    count = len(codes)
    if len(vectors) != count:
        raise BadSetting(f"{len(vectors):,} vectors for {count:,} codes", "Give a vector for each document.")
    if count < 2:
        raise BadSetting("one document has no neighbours", "Give at least two documents.")
    nearest = min(nearest, count - 1)
    rows = np.random.default_rng(0).permutation(count)[:sample]
    shared = np.zeros(codes.shape[1])
    for start in range(0, len(rows), 256):
        some = rows[start : start + 256]
        scores = vectors[some] @ vectors.T
        scores[np.arange(len(some)), some] = -np.inf
        near = np.argpartition(-scores, nearest - 1, axis=1)[:, :nearest]
        same = np.cumprod(codes[near] == codes[some][:, None], axis=2)
        shared += same.sum(axis=(0, 1))
    chance = []
    for length in range(1, codes.shape[1] + 1):
        _, sizes = np.unique(codes[:, :length], axis=0, return_counts=True)
        chance.append(float((sizes * (sizes - 1.0)).sum() / (count * (count - 1.0))))
    return Neighbours(nearest, len(rows), tuple(float(s) for s in shared / (len(rows) * nearest)), tuple(chance))


def head_and_tail(identifiers: Identifiers, popularity: Mapping[str, int], head: float = HEAD) -> HeadAndTail | None:
    """Compare the codes of the most popular documents with the others'; None if all are equally popular."""
    doc_ids, codes = identifiers.in_row_order()
    counts = np.array([popularity.get(doc_id, 0) for doc_id in doc_ids])
    if len(counts) < 2 or counts.min() == counts.max():
        return None
    _, bucket, sizes = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
    bucket = bucket.reshape(-1)
    order = np.argsort(-counts, kind="stable")
    cut = min(max(1, round(head * len(order))), len(order) - 1)
    return HeadAndTail(_share(order[:cut], bucket, sizes), _share(order[cut:], bucket, sizes))


def _share(rows: np.ndarray, bucket: np.ndarray, sizes: np.ndarray) -> Share:
    held = sizes[bucket[rows]]
    distinct = len(np.unique(bucket[rows]))
    return Share(len(rows), distinct / len(rows), float((held > 1).mean()), float(held.mean()))


def churn(old: Identifiers, new: Identifiers) -> Churn:
    """Compare two tables of (partly) the same documents."""
    (old_ids, old_codes), (new_ids, new_codes) = old.in_row_order(), new.in_row_order()
    row_of = {doc_id: row for row, doc_id in enumerate(old_ids)}
    pairs = np.array([(row_of[doc_id], row) for row, doc_id in enumerate(new_ids) if doc_id in row_of], np.int64)
    if not len(pairs):
        raise BadSetting("the two tables have no document in common", "Compare codes of the same documents.")
    length = max(old_codes.shape[1], new_codes.shape[1])
    before, after = (
        np.pad(codes[rows], ((0, 0), (0, length - codes.shape[1])), constant_values=END)
        for codes, rows in ((old_codes, pairs[:, 0]), (new_codes, pairs[:, 1]))
    )
    same = np.cumprod(before == after, axis=1).mean(axis=0)
    return Churn(
        common=len(pairs),
        added=len(new_ids) - len(pairs),
        removed=len(old_ids) - len(pairs),
        changed=tuple(float(1 - share) for share in same),
        regrouped=_regrouped(before, after),
    )


def _regrouped(before: np.ndarray, after: np.ndarray) -> float:
    def pairs(codes: np.ndarray) -> int:
        _, sizes = np.unique(codes, axis=0, return_counts=True)
        return int((sizes.astype(np.int64) * (sizes - 1) // 2).sum())

    both = pairs(np.concatenate([before, after], axis=1))
    either = pairs(before) + pairs(after) - both
    return 1 - both / either if either else 0.0
