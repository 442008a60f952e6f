"""The figures against naive loops, and the doctor against patients whose illness is known."""

import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import identifiers as naive

from callslip.errors import BadSetting
from callslip.identifiers import (
    END,
    HierarchicalKMeans,
    Identifiers,
    average_partition_entropy,
    diagnose,
    diversity,
    keyword_codes,
    measure,
    random_codes,
    verdict,
)
from callslip.identifiers.quality import attainable_diversity, code_gini, gini, perplexity, usage

tokens = st.lists(st.integers(0, 6), min_size=1, max_size=40)


@given(tokens, st.integers(7, 12))
def test_level_figures_equal_the_naive_loops(values, k):
    counts = usage(values, k)
    assert counts.tolist() == [values.count(j) for j in range(k)]
    assert diversity(values, k) == pytest.approx(naive.diversity(values, k))
    assert gini(counts) == pytest.approx(naive.gini(counts.tolist()))
    assert perplexity(counts) == pytest.approx(naive.perplexity(counts.tolist()))
    assert diversity(values, k) <= attainable_diversity(len(values), k) + 1e-12


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=20))
def test_codes_that_nobody_has_count_as_far_as_there_are_documents(codes):
    counts = Counter(codes)
    all_codes = [(a, b) for a in range(3) for b in range(3)]
    possible = min(9, len(codes))
    some = sorted((counts[code] for code in all_codes), reverse=True)[: max(possible, len(counts))]
    assert measure(codes, 3).gini == pytest.approx(naive.gini(some))


def test_inequality_of_codes_at_its_ends():
    assert measure([[0, 0], [0, 1], [2, 0]], 3).gini == 0  # each has its own
    assert code_gini(np.array([5, 5, 5, 5]), 4) == 0  # all codes are full
    assert code_gini(np.array([1000]), 10**6) == pytest.approx(0.999)  # one code has everything


def test_diversity_at_its_ends():
    assert diversity([0, 1, 2, 3] * 5, 4) == pytest.approx(1.0)
    assert diversity([2] * 20, 4) == pytest.approx(0.25)
    assert diversity([0, END, 1, END], 2) == pytest.approx(1.0)  # END is no token
    assert attainable_diversity(3, 12) == pytest.approx(0.25)
    for refused in (([], 3), ([3], 3), ([-2], 3), ([0.5], 3)):
        with pytest.raises(BadSetting):
            diversity(*refused)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=20), st.data())
def test_average_partition_entropy(codes, data):
    row = st.integers(0, len(codes) - 1)
    positives = data.draw(st.lists(st.lists(row, min_size=1, max_size=8), min_size=1, max_size=5))
    expected = naive.average_partition_entropy(codes, positives)
    assert average_partition_entropy(codes, positives) == pytest.approx(expected, abs=1e-12)
    assert average_partition_entropy(codes, [*positives, []]) == pytest.approx(expected, abs=1e-12)


def test_average_partition_entropy_by_hand():
    codes = [[0, 0], [0, 0], [0, 1], [1, 0]]
    assert average_partition_entropy(codes, [[0, 1]]) == 0.0
    assert average_partition_entropy(codes, [[0, 2], [0, 1]]) == pytest.approx(math.log(2) / 2)
    for refused in ([[4]], [[-1]], [], [[]]):
        with pytest.raises(BadSetting):
            average_partition_entropy(codes, refused)


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=30))
def test_measure_equals_the_naive_loops(sequences):
    table = Identifiers.from_sequences([str(i) for i in range(len(sequences))], sequences, length=3)
    figures = measure(table, widths=4)
    sizes = Counter(map(tuple, sequences))
    assert figures.documents == len(sequences) and figures.unique == len(sizes)
    assert figures.uniqueness == pytest.approx(len(sizes) / len(sequences))
    assert figures.collision_rate == pytest.approx(sum(n for n in sizes.values() if n > 1) / len(sequences))
    assert figures.bucket_max == max(sizes.values())
    assert figures.bucket_mean == pytest.approx(sum(sizes.values()) / len(sizes))
    assert figures.bucket_histogram == Counter(sizes.values())
    assert figures.capacity == 64 and figures.length == 3
    for level, one in enumerate(figures.levels):
        column = [code[level] for code in sequences if len(code) > level]
        counts = [column.count(token) for token in range(4)]
        groups = Counter(naive.padded(code, 3)[:level] for code in sequences)
        shared = sum(n for n in groups.values() if n > 1)
        assert one.undecided == pytest.approx(shared / len(sequences))
        assert (one.documents, one.used, one.dead) == (len(column), 4 - counts.count(0), counts.count(0))
        if column:
            assert one.diversity == pytest.approx(naive.diversity(column, 4))
            assert one.perplexity == pytest.approx(naive.perplexity(counts))
            assert one.gini == pytest.approx(naive.gini(counts))
    plain = json.loads(json.dumps(figures.to_dict()))
    assert plain["unique"] == figures.unique and "usage" not in plain["levels"][0]
    assert measure(table.codes, widths=[4, 4, 4]) == figures


def test_measure_refuses_nonsense():
    for codes, widths in ((np.zeros((0, 2), int), None), ([[0, 5]], 4), ([[0, 1]], [4])):
        with pytest.raises(BadSetting):
            measure(codes, widths)


def said(codes, widths=None):
    findings = diagnose(measure(codes, widths))
    return verdict(findings), [(finding.severity, finding.problem) for finding in findings]


class TestDoctor:
    def test_random_and_atomic_codes_are_healthy(self):
        assert said(random_codes(3000, 3, 32), 32) == ("healthy", [])
        assert said(np.arange(500)[:, None]) == ("healthy", [])

    def test_a_small_corpus_in_a_wide_space_is_healthy(self):
        for documents in (20, 100, 300, 1000):
            assert said(random_codes(documents, 2, 256), 256) == ("healthy", [])

    def test_few_documents(self):
        assert said([[3, 1]])[0] == "healthy"

    def test_clusters_of_clusters_are_healthy_though_their_last_level_is_idle(self):
        rng = np.random.default_rng(0)
        vectors = rng.normal(size=(600, 8)).astype(np.float32)
        result, findings = said(HierarchicalKMeans(16, 4).fit(vectors))
        assert result == "healthy" and {severity for severity, _ in findings} == {"note"}

    def test_balanced_buckets_in_a_small_space_are_usable(self):
        result, findings = said(random_codes(4000, 2, 16), 16)
        assert result == "usable"
        assert [problem for _, problem in findings if "uniqueness" in problem]

    def test_uniqueness_below_nine_tenths(self):
        codes = random_codes(1000, 3, 16)
        codes[:300] = codes[300:600]
        result, findings = said(codes, 16)
        assert result == "usable" and "uniqueness 0.70" in findings[0][1]

    def test_one_code_for_all(self):
        result, findings = said(np.zeros((200, 2), int), 16)
        problems = " | ".join(problem for severity, problem in findings if severity == "ill")
        assert result == "ill"
        assert "uniqueness" in problems and "level 1 has collapsed" in problems and "200 documents" in problems

    def test_a_collapsed_second_level(self):
        codes = random_codes(2000, 3, 32)
        codes[:, 1:] = 0
        result, findings = said(codes, 32)
        assert result == "ill" and any("level 2 has collapsed" in problem for _, problem in findings)

    def test_a_giant_bucket(self):
        codes = random_codes(1000, 2, 64)
        codes[:200] = codes[0]
        result, findings = said(codes, 64)
        assert result == "ill" and any("one code holds 200" in problem for _, problem in findings)
        codes = random_codes(1000, 2, 64)
        codes[:40] = codes[0]
        assert said(codes, 64)[0] == "usable"

    def test_dead_tokens(self):
        result, findings = said(random_codes(2000, 3, 20), 32)
        assert result == "usable"
        assert [problem for _, problem in findings] == [f"level {n}: 12 of 32 tokens are dead" for n in (1, 2, 3)]

    def test_uneven_use(self):
        rng = np.random.default_rng(0)
        skewed = np.minimum(rng.zipf(1.5, 5000) - 1, 63)
        codes = np.stack([skewed, np.arange(5000) % 71, np.arange(5000) // 71], axis=1)
        result, findings = said(codes, [64, 71, 71])
        assert result == "usable" and "level 1 is used very unevenly" in findings[0][1]

    def test_every_finding_has_a_remedy_and_the_worst_is_first(self):
        codes = random_codes(1000, 3, 64)
        codes[:500] = codes[0]
        codes[:, 2] = 0
        findings = diagnose(measure(codes, 64))
        order = [("ill", "warning", "note").index(finding.severity) for finding in findings]
        assert order == sorted(order) and all(finding.remedy for finding in findings)

    def test_words_are_not_ill(self):
        rng = np.random.default_rng(0)
        words = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(600)]
        texts = [" ".join(words[int(600 * x * x)] for x in rng.random(30)) for _ in range(800)]
        figures = measure(keyword_codes(texts, 3, str.split).codes)
        assert verdict(diagnose(figures)) == "usable"  # as numbers they would be too uneven
        assert verdict(diagnose(figures, words=True)) == "healthy"


def test_one_code_for_everything_is_ill_however_small_the_code_space():
    figures = measure(np.zeros((50, 2), dtype=np.int32))
    assert verdict(diagnose(figures)) == "ill"


def test_a_capacity_of_many_digits_is_rounded_in_reports():
    figures = measure(np.array([[255] * 96, [0] * 96]))
    assert figures.capacity == 256**96 and figures.to_dict()["capacity"] == float(256**96)
    assert len(str(figures.to_dict()["capacity"])) < 25
    assert measure(np.array([[255] * 200])).to_dict()["capacity"] == 1e300
    assert measure(np.array([[3, 3]])).to_dict()["capacity"] == 16
