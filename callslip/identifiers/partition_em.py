"""Codes from the relations of queries and items alone: the greedy algorithm of URI (Section 4.1, Appendix D), and the
EM algorithm around it, which minimises the average partition entropy.

Items are rows of a relation matrix [N, m]: 1 where an item answers a query. Given the distribution Q of each query over
the buckets, the greedy algorithm puts an item into the bucket that its queries prefer on average. EM alternates: the
E-step computes Q from the present buckets, as a model that has memorised them would give it; the M-step assigns the
items anew, evenly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from callslip.errors import BadSetting
from callslip.identifiers.balancing import balanced_assignment
from callslip.identifiers.levels import prefix_groups

FLAT = 1e-12
"""A smaller change of the entropy is none."""
PATIENCE = 2
"""Rounds without a lower entropy that leave-one-out may have: items that move at once may miss one another."""


def relations_of(positives: Sequence[np.ndarray], items: int) -> Any:
    """The relation matrix [N, m] of queries given as arrays of row numbers, as a sparse array."""
    from scipy.sparse import csr_array

    rows = np.concatenate([np.unique(some) for some in positives] or [np.zeros(0, np.int64)]).astype(np.int64)
    queries = np.repeat(np.arange(len(positives)), [len(np.unique(some)) for some in positives])
    return csr_array((np.ones(len(rows)), (rows, queries)), shape=(items, len(positives)))


def query_counts(relations: Any, tokens: np.ndarray, k: int) -> np.ndarray:
    """Appendix D: M = W H, how many items each query has in each of k buckets, [m, k]."""
    return np.asarray(relations.T @ np.eye(k)[tokens])


def greedy_scores(relations: Any, counts: np.ndarray) -> np.ndarray:
    """Appendix D: the sums of the counts [m, k] of each item's queries, [N, k]; the largest is the item's bucket."""
    return np.asarray(relations @ counts)


def expected_distribution(relations: Any, counts: np.ndarray) -> np.ndarray:
    """Section 4.1: the mean distribution of each item's queries over the buckets, [N, k]; 0 without queries."""
    distributions = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    queries = np.asarray(relations.sum(axis=1)).reshape(-1, 1)
    return np.asarray(relations @ distributions) / np.maximum(queries, 1)


def recovered(relations: Any, tokens: np.ndarray, k: int) -> float:
    """The share of items that have queries whose bucket the greedy algorithm finds again from the queries' counts."""
    asked = np.asarray(relations.sum(axis=1)).reshape(-1) > 0
    found = greedy_scores(relations, query_counts(relations, tokens, k)).argmax(axis=1)
    return float((found == tokens)[asked].mean()) if asked.any() else 0.0


def recovery_queries(items: int, k: int, density: float, tolerance: float = 0.05) -> float:
    """Theorem 1: with at least so many queries, each related to an item with probability `density`, the greedy
    algorithm finds each item's bucket, of k even ones, again with probability 1 - tolerance."""
    if not 0 < density < 1 or not 0 < tolerance < 1:
        raise BadSetting(f"density {density} and tolerance {tolerance} must be between 0 and 1")
    quantile = NormalDist().inv_cdf(1 - tolerance)
    return quantile**2 * (1 + 2 * items / k * density * (1 + density)) / (density * (1 - density))


def itself(relations: Any) -> np.ndarray:
    """What each item adds to the expected distribution at its own bucket, [N]: the mean of 1 / items of its queries."""
    sizes = np.asarray(relations.sum(axis=0)).reshape(-1)
    queries = np.asarray(relations.sum(axis=1)).reshape(-1)
    return np.asarray(relations @ (1 / np.maximum(sizes, 1))) / np.maximum(queries, 1)


class PartitionEM:
    """Codes of `length` tokens by EM, level by level, inside the items of each prefix; the best of several starts.

    An item is among the items of its own queries, so the paper's M-step holds it where it is. `leave_one_out` subtracts
    the item itself from the distribution that it is assigned by; this is not in the paper, and finds better buckets.
    """

    def __init__(
        self,
        length: int = 2,
        width: int = 32,
        seed: int = 0,
        *,
        rounds: int = 50,
        starts: int = 4,
        leave_one_out: bool = False,
    ) -> None:
        if min(length, width, rounds, starts) < 1:
            raise BadSetting(f"invalid EM: length {length}, width {width}, rounds {rounds}, starts {starts}")
        self.length, self.width, self.seed, self.rounds, self.starts = length, width, seed, rounds, starts
        self.leave_one_out = leave_one_out
        self.codes = np.zeros((0, length), np.int32)
        self.relations: Any = None

    def fit(self, vectors: Any) -> np.ndarray:
        """Codes of items, int32 [N, length]; `vectors` is their relation matrix [N, m], dense or sparse."""
        from scipy.sparse import csr_array

        self.relations = csr_array(vectors)
        codes = np.zeros((self.relations.shape[0], 0), np.int64)
        for level in range(self.length):
            groups, tokens = prefix_groups(codes), np.zeros(len(codes), np.int64)
            for group in range(int(groups.max(initial=-1)) + 1):
                own = np.flatnonzero(groups == group)
                tokens[own] = self.partition(self.relations[own], self.seed + 1000 * level + group)
            codes = np.column_stack([codes, tokens])
        self.codes = codes.astype(np.int32)
        return self.codes

    def partition(self, relations: Any, seed: int) -> np.ndarray:
        """One level: even buckets of items [n, m] with the lowest entropy of the queries' distributions, [n]."""
        best, least = np.zeros(relations.shape[0], np.int64), math.inf
        for start in range(self.starts):
            rng = np.random.default_rng([seed, start])
            tokens = rng.permutation(np.arange(relations.shape[0]) % self.width)
            tokens, entropy = self.improved(relations, tokens)
            if entropy < least - FLAT:
                best, least = tokens, entropy
        return best

    def improved(self, relations: Any, tokens: np.ndarray) -> tuple[np.ndarray, float]:
        """EM from given buckets until the entropy no longer falls; the best buckets, and their entropy."""
        best, least, worse = tokens, entropy_of(query_counts(relations, tokens, self.width)), 0
        for _ in range(self.rounds):
            expected = expected_distribution(relations, query_counts(relations, tokens, self.width))
            if self.leave_one_out:
                expected[np.arange(len(tokens)), tokens] -= itself(relations)
            tokens = balanced_assignment(expected)
            entropy = entropy_of(query_counts(relations, tokens, self.width))
            worse = worse + 1 if entropy >= least - FLAT else 0
            if worse > PATIENCE * self.leave_one_out:
                break
            if not worse:
                best, least = tokens, entropy
        return best, least

    def assign(self, vectors: Any) -> np.ndarray:
        """Codes of other items with relations [n, m] to the same queries, by the greedy algorithm, int32 [n, length]:
        among the items of the prefix so far, the bucket that the new item's queries prefer."""
        from scipy.sparse import csr_array

        new, found = csr_array(vectors), []
        if new.shape[1] != self.relations.shape[1]:
            raise BadSetting(f"relations to {new.shape[1]} queries, where {self.relations.shape[1]} were fitted")
        for row in range(new.shape[0]):
            code: list[int] = []
            for level in range(self.length):
                own = np.flatnonzero((self.codes[:, :level] == code).all(axis=1))
                counts = query_counts(self.relations[own], self.codes[own, level], self.width)
                scores = expected_distribution(new[[row]], counts)[0]
                scores[np.bincount(self.codes[own, level], minlength=self.width) == 0] = -1  # no item is there
                code.append(int(scores.argmax()))
            found.append(code)
        return np.array(found, np.int32).reshape(-1, self.length)

    def state(self) -> dict[str, np.ndarray]:
        settings = [self.length, self.width, self.seed, self.rounds, self.starts, self.leave_one_out]
        settings.append(self.relations.shape[1])
        return {
            "settings": np.asarray(settings, np.int64), "codes": self.codes,
            "indices": self.relations.indices.astype(np.int64), "indptr": self.relations.indptr.astype(np.int64),
            "values": self.relations.data,
        }  # fmt: skip

    @classmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> PartitionEM:
        from scipy.sparse import csr_array

        length, width, seed, rounds, starts, alone, queries = (int(value) for value in state["settings"])
        maker = cls(length, width, seed, rounds=rounds, starts=starts, leave_one_out=bool(alone))
        maker.codes = state["codes"]
        parts = (state["values"], state["indices"], state["indptr"])
        maker.relations = csr_array(parts, shape=(len(maker.codes), queries))
        return maker


def entropy_of(counts: np.ndarray) -> float:
    """The mean entropy (natural log) of the queries' distributions over buckets, given counts [m, k]; queries without
    items are ignored."""
    counts = counts[counts.sum(axis=1) > 0]
    share = counts / counts.sum(axis=1, keepdims=True)
    logs = np.log(np.where(share > 0, share, 1.0))
    return float(-(share * logs).sum(axis=1).mean()) if len(share) else 0.0
