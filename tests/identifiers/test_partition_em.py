"""URI's greedy algorithm and its explicit EM: against exhaustive search, planted buckets, and Theorem 1."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from callslip.errors import BadSetting
from callslip.identifiers import average_partition_entropy
from callslip.identifiers.makers import code_maker
from callslip.identifiers.partition_em import (
    PartitionEM,
    entropy_of,
    expected_distribution,
    greedy_scores,
    itself,
    query_counts,
    recovered,
    recovery_queries,
    relations_of,
)


def drawn(items: int, queries: int, share: float, seed: int) -> list[np.ndarray]:
    """The items of each query, at least one."""
    rng = np.random.default_rng(seed)
    return [np.flatnonzero(row) for row in rng.random((queries, items)) < share if row.any()]


def least_entropy(positives: list[np.ndarray], items: int, k: int) -> float:
    """The lowest average partition entropy of all even allocations."""
    most, best = -(-items // k), math.inf
    for tokens in itertools.product(range(k), repeat=items):
        if tokens[0] == 0 and max(map(tokens.count, range(k))) <= most:
            best = min(best, average_partition_entropy(np.array(tokens)[:, None], positives))
    return best


@pytest.mark.parametrize(("items", "k"), [(6, 2), (6, 3), (7, 2)])
@pytest.mark.parametrize("seed", range(5))
def test_em_from_many_starts_finds_the_best_even_allocation(items, k, seed):
    positives = drawn(items, 7, 0.4, seed)
    codes = PartitionEM(1, k, seed, starts=64).fit(relations_of(positives, items))
    assert np.bincount(codes[:, 0]).max() <= -(-items // k)
    found = average_partition_entropy(codes, positives)
    assert found == pytest.approx(least_entropy(positives, items, k), abs=1e-9)


def test_em_never_ends_worse_than_it_starts_and_mostly_better():
    better = []
    for seed in range(20):
        relations = relations_of(drawn(40, 60, 0.1, seed), 40)
        start = np.random.default_rng(seed).permutation(np.arange(40) % 5)
        tokens, entropy = PartitionEM(1, 5).improved(relations, start)
        before = entropy_of(query_counts(relations, start, 5))
        assert entropy == pytest.approx(entropy_of(query_counts(relations, tokens, 5)))
        assert entropy <= before and np.bincount(tokens).max() == 8
        better.append(entropy < before)
    assert np.mean(better) > 0.8


def test_entropy_counts_scores_and_distributions_equal_plain_loops():
    positives = drawn(9, 12, 0.3, 1)
    tokens = np.array([0, 1, 2, 0, 1, 2, 2, 1, 0])
    relations = relations_of(positives, 9)
    counts = [[sum(int(tokens[i] == j) for i in some) for j in range(3)] for some in positives]
    np.testing.assert_allclose(query_counts(relations, tokens, 3), counts)
    for item in range(9):
        own = [row for row, some in zip(counts, positives, strict=True) if item in some]
        sums = [sum(row[j] for row in own) for j in range(3)]
        mean = [sum(row[j] / sum(row) for row in own) / max(1, len(own)) for j in range(3)]
        np.testing.assert_allclose(greedy_scores(relations, np.array(counts))[item], sums)
        np.testing.assert_allclose(expected_distribution(relations, np.array(counts))[item], mean)
    assert entropy_of(np.array(counts, float)) == pytest.approx(average_partition_entropy(tokens[:, None], positives))


def test_buckets_that_queries_never_mix_are_found():
    """Queries ask for items of one of four topics: the entropy can be 0, and EM from a few starts gets there."""
    rng, topic = np.random.default_rng(0), np.arange(40) % 4
    positives = [rng.choice(np.flatnonzero(topic == one), 4, replace=False) for one in np.arange(80) % 4]
    codes = PartitionEM(1, 4, 0, starts=32).fit(relations_of(positives, 40))
    assert average_partition_entropy(codes, positives) < 0.05


# Theorem 1.


def bound(items: int, k: int, p: float, delta: float) -> float:
    return NormalDist().inv_cdf(1 - delta) ** 2 * (1 + 2 * items / k * p * (1 + p)) / (p * (1 - p))


@pytest.mark.parametrize(("items", "k", "p"), [(60, 3, 0.1), (48, 6, 0.2)])
def test_with_the_queries_of_theorem_1_the_greedy_algorithm_finds_the_buckets_again(items, k, p):
    needed = recovery_queries(items, k, p, 0.05)
    assert needed == pytest.approx(bound(items, k, p, 0.05))
    rng, shares = np.random.default_rng(0), []
    for _ in range(30):
        tokens = rng.permutation(np.arange(items) % k)
        wanted = (rng.random((items, math.ceil(needed))) < p).astype(float)
        shares.append(recovered(wanted, tokens, k))
    # The theorem is about one wrong bucket; an item has k - 1 of them.
    assert np.mean(shares) >= 1 - 0.05 * (k - 1)
    few = [
        recovered((rng.random((items, 5)) < p).astype(float), rng.permutation(np.arange(items) % k), k)
        for _ in range(30)
    ]
    assert np.mean(few) < np.mean(shares)


def test_a_density_of_0_or_1_has_no_bound():
    for density in (0.0, 1.0):
        with pytest.raises(BadSetting, match="density"):
            recovery_queries(10, 2, density)


# As a maker of codes.


def test_levels_split_the_items_of_each_prefix_evenly():
    positives = drawn(50, 90, 0.08, 3)
    codes = code_maker("partition-em", length=2, width=4, seed=1).fit(relations_of(positives, 50))
    assert codes.dtype == np.int32 and codes.shape == (50, 2)
    assert np.bincount(codes[:, 0]).max() <= 13
    for token in range(4):
        inside = codes[codes[:, 0] == token, 1]
        assert np.bincount(inside, minlength=4).max() <= -(-len(inside) // 4)
    again = code_maker("partition-em", length=2, width=4, seed=1).fit(relations_of(positives, 50).toarray())
    assert np.array_equal(codes, again)  # dense and sparse relations alike
    random = np.random.default_rng(0).integers(0, 4, (50, 2))
    assert average_partition_entropy(codes, positives) < average_partition_entropy(random, positives)


def test_a_new_item_goes_where_its_queries_have_their_items_also_after_a_file(tmp_path):
    relations = np.kron(np.eye(4), np.ones((5, 6)))  # four topics of five items, six queries each
    maker = PartitionEM(2, 4, 0, starts=32)
    codes = maker.fit(relations)
    assert average_partition_entropy(codes[:, :1], [np.arange(5 * n, 5 * n + 5) for n in range(4)]) == 0
    save_file(maker.state(), tmp_path / "maker.safetensors")
    loaded = PartitionEM.from_state(load_file(tmp_path / "maker.safetensors"))
    new = np.zeros((2, 24))
    new[0, 0:3], new[1, 18:20] = 1, 1
    for one in (maker, loaded):
        found = one.assign(new)
        assert found[0, 0] == codes[0, 0] and found[1, 0] == codes[-1, 0]
        assert {tuple(code) for code in found} <= {tuple(code) for code in codes}
    with pytest.raises(BadSetting, match="queries"):
        maker.assign(new[:, :5])
    with pytest.raises(BadSetting, match="starts 0"):
        PartitionEM(starts=0)


def test_leaving_an_item_out_of_its_own_queries_finds_better_buckets():
    positives = drawn(60, 90, 0.06, 5)
    relations = relations_of(positives, 60)
    own = [np.mean([1 / len(some) for some in positives if item in some] or [0.0]) for item in range(60)]
    np.testing.assert_allclose(itself(relations), own)
    found = []
    for alone in (False, True):
        maker = PartitionEM(1, 6, 0, leave_one_out=alone)
        found.append(average_partition_entropy(maker.fit(relations), positives))
        assert PartitionEM.from_state(maker.state()).leave_one_out is alone
    assert found[1] < 0.95 * found[0]
