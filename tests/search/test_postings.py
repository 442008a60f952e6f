"""BM25 over postings: against bm25s, and against the same documents indexed at once."""

from __future__ import annotations

import tempfile
from pathlib import Path

import bm25s
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.errors import IndexCorrupt
from callslip.search import postings
from callslip.search.postings import Postings

VOCABULARY = ["otter", "heron", "beetle", "harbour", "desert", "naïve", "川"]
texts = st.lists(st.lists(st.sampled_from(VOCABULARY), max_size=9).map(" ".join), min_size=1, max_size=9)
FORMULAS = ["lucene", "robertson", "atire", "bm25l", "bm25+"]
queries = st.lists(st.sampled_from([*VOCABULARY, "absent"]), max_size=5).map(" ".join)


def new() -> Postings:
    return Postings(k1=1.2, b=0.75)


def asked(words: Postings, query: str) -> dict[int, float]:
    found = words.matches(words.tokenize([query])[0])
    assert (np.diff(found.rows) > 0).all()
    return dict(zip(found.rows.tolist(), found.scores.tolist(), strict=True))


@settings(deadline=None)
@given(texts, queries, st.sampled_from(FORMULAS))
def test_scores_are_those_of_bm25s(written, query, formula):
    words = Postings(k1=1.2, b=0.75, formula=formula).index(written)
    stems = words.tokenize(written)
    if not any(stems):
        assert not asked(words, query)
        return
    oracle = bm25s.BM25(k1=1.2, b=0.75, method=formula)
    oracle.index(stems, show_progress=False)
    asking = words.tokenize([query])[0]
    known = [stem for stem in asking if stem in oracle.vocab_dict]
    expected = oracle.get_scores(known) if known else np.zeros(len(written), np.float32)
    np.testing.assert_allclose(words.scores(asking), expected, rtol=1e-5, atol=1e-6)
    if formula in ("bm25l", "bm25+"):
        return
    found = np.zeros(len(written), np.float32)
    for row, score in asked(words, query).items():
        found[row] = score
    np.testing.assert_array_equal(found, words.scores(asking))


@settings(deadline=None)
@given(texts, st.lists(texts, max_size=3), queries, st.data())
def test_changes_leave_the_scores_of_the_documents_that_are_there(written, later, query, data):
    """Bit for bit those of the same documents indexed at once: before and after a fold, and when opened again."""
    words = new().index(written)
    whole = list(written)
    alive = set(range(len(whole)))
    for more in later:
        words.extend(more)
        alive |= set(range(len(whole), len(whole) + len(more)))
        whole += more
        gone = data.draw(st.sets(st.sampled_from(sorted(alive)))) if alive else set()
        words.drop(sorted(gone))
        alive -= gone
    kept = sorted(alive)
    expected = {kept[at]: score for at, score in asked(new().index([whole[row] for row in kept]), query).items()}
    assert asked(words, query) == expected
    if kept:
        folded = words.kept(np.array(kept))
        assert {kept[at]: score for at, score in asked(folded, query).items()} == expected
    with tempfile.TemporaryDirectory() as folder:
        words.save(Path(folder) / "words")
        again = new().load(Path(folder) / "words")
        again.drop(row for row in range(len(whole)) if row not in alive)
        assert asked(again, query) == expected


@settings(deadline=None, max_examples=30)
@given(texts, queries)
def test_blocks_that_are_merged_on_disk_are_the_same_table(written, query):
    expected = asked(new().index(written), query)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postings, "BLOCK", 2)
        patch.setattr(postings, "MERGED", 3)
        assert asked(new().index(iter(written)), query) == expected


def test_a_fork_leaves_the_original_alone():
    words = new().index(["otter heron", "beetle"])
    words.extend(["otter"])
    before = asked(words, "otter")
    other = words.fork()
    other.extend(["otter otter"])
    other.drop([0])
    assert asked(words, "otter") == before and set(asked(other, "otter")) == {2, 3}


def test_rows_of_one_byte_and_later_ones_of_more():
    """The rows of a small table have a byte each; hundreds of documents come later, and some of both are dropped."""
    written = [f"otter {VOCABULARY[row % 5]}" for row in range(700)]
    words = new().index(written[:5])
    words.extend(written[5:400])
    words.drop([1, 300])
    words.extend(written[400:])
    kept = [row for row in range(700) if row not in (1, 300)]
    expected = asked(new().index([written[row] for row in kept]), "otter heron")
    assert asked(words, "otter heron") == {kept[at]: score for at, score in expected.items()}


def test_counts_beyond_a_byte_are_kept(tmp_path):
    words = new().index(["otter " * 300, "otter heron"])
    words.extend(["otter " * 70_000])
    words.save(tmp_path / "words")
    assert asked(new().load(tmp_path / "words"), "otter") == asked(words, "otter")


def test_arrays_that_do_not_fit_are_refused(tmp_path):
    words = new().index(["otter heron", "beetle"])
    words.save(tmp_path / "words")
    np.save(tmp_path / "words" / "counts.npy", np.zeros(1, np.uint8))
    with pytest.raises(IndexCorrupt, match="do not fit together"):
        new().load(tmp_path / "words")
