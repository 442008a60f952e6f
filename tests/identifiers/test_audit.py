"""Neighbours that share a prefix, head and tail, and churn: against naive loops, and as the doctor tells them."""

import itertools

import numpy as np
import pytest

from callslip.errors import BadSetting
from callslip.identifiers import Identifiers, doctor
from callslip.identifiers.audit import churn, head_and_tail, neighbours
from callslip.identifiers.table import END


def test_neighbours_by_a_naive_loop():
    rng = np.random.default_rng(1)
    vectors, codes = rng.standard_normal((30, 5)), rng.integers(0, 3, (30, 3))
    found = neighbours(codes, vectors, nearest=4)
    shared = np.zeros(3)
    for row in range(30):
        near = sorted((r for r in range(30) if r != row), key=lambda r: -vectors[row] @ vectors[r])[:4]
        for other, length in itertools.product(near, (1, 2, 3)):
            shared[length - 1] += tuple(codes[row][:length]) == tuple(codes[other][:length])
    np.testing.assert_allclose(found.shared, shared / 120)
    pairs = list(itertools.permutations(range(30), 2))
    chance = [np.mean([tuple(codes[a][:n]) == tuple(codes[b][:n]) for a, b in pairs]) for n in (1, 2, 3)]
    np.testing.assert_allclose(found.by_chance, chance)
    assert neighbours(codes, vectors, nearest=99).nearest == 29
    with pytest.raises(BadSetting):
        neighbours(codes, vectors[1:])


def test_codes_that_follow_the_encoder_are_well_and_random_ones_are_not():
    rng = np.random.default_rng(0)
    topics = np.repeat(np.arange(8), 25)
    vectors = np.eye(8)[topics] + 0.1 * rng.standard_normal((200, 8))
    rest = rng.integers(0, 30, (200, 1))
    follow = neighbours(np.column_stack([topics, rest]), vectors)
    scatter = neighbours(np.column_stack([rng.permutation(topics), rest]), vectors)
    assert follow.shared[0] == 1.0 and abs(scatter.shared[0] - 1 / 8) < 0.05
    assert doctor.audit(follow) == []
    (finding,) = doctor.audit(scatter)
    assert finding.severity == "warning" and "nearest neighbours" in finding.problem


def test_head_and_tail():
    """Ten documents: the two popular ones share a code, the others have their own."""
    codes = [[0], [0], *([n] for n in range(1, 9))]
    names = [f"d{n}" for n in range(10)]
    popularity = {"d0": 9, "d1": 5, "d2": 1}
    both = head_and_tail(Identifiers(names, codes), popularity)
    assert (both.head.documents, both.head.uniqueness, both.head.collision_rate, both.head.bucket_mean) == (
        2,
        0.5,
        1,
        2,
    )
    assert (both.tail.documents, both.tail.uniqueness, both.tail.collision_rate, both.tail.bucket_mean) == (8, 1, 0, 1)
    (finding,) = doctor.audit(head_and_tail=both)
    assert "popular documents collide more" in finding.problem
    other = head_and_tail(Identifiers(names, codes), {f"d{n}": n for n in range(10)})
    assert "rare documents" in doctor.audit(head_and_tail=other)[0].problem
    assert head_and_tail(Identifiers(names, codes), {}) is None


def test_churn():
    old = Identifiers.from_sequences(["a", "b", "c", "d", "gone"], [[0, 1], [0, 1], [1, 2], [1, 3], [5, 5]])
    new = Identifiers.from_sequences(["b", "a", "c", "d", "new"], [[0, 1], [0, 2], [1, 2], [2, 3], [7]])
    found = churn(old, new)
    assert (found.common, found.added, found.removed) == (4, 1, 1)
    assert found.changed == (0.25, 0.5)
    assert found.regrouped == 1.0  # a and b were together, nobody is now
    renamed = Identifiers(old.in_row_order()[0], 9 - old.in_row_order()[1])
    assert churn(old, renamed).changed[0] == 1.0 and churn(old, renamed).regrouped == 0.0
    assert churn(old, old).changed == (0.0, 0.0) and doctor.audit(churn=churn(old, old)) == []
    assert "50% of 4 documents" in doctor.audit(churn=found)[0].problem
    longer = Identifiers.from_sequences(["a", "b"], [[0, 1, 4], [0, 1]])
    assert churn(old, longer).changed == (0.0, 0.0, 0.5) and END == -1
    with pytest.raises(BadSetting, match="no document in common"):
        churn(old, Identifiers(["z"], [[1]]))
