"""Texts to train on: whose they are, and which documents answer those that read alike."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.training.batches import Texts


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), min_size=1, max_size=20), st.data())
def test_a_document_answers_every_text_that_reads_as_one_of_its_own(count, pairs, data):
    """Against a plain search of the pairs, for texts as vectors and as token ids."""
    pairs = [(text, row % count) for text, row in pairs]
    rows = np.array([row for _, row in pairs])
    asked = np.array(data.draw(st.lists(st.integers(0, len(pairs) - 1), max_size=6)), np.int64)
    held = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=6)), np.int64)
    expected = [[(pairs[one][0], row) in pairs for row in held.tolist()] for one in asked.tolist()]
    vectors = np.eye(5, dtype=np.float32)[[text for text, _ in pairs]]
    ids = [[7] * (text + 1) for text, _ in pairs]
    for queries in (vectors, ids):
        texts = Texts.of_documents(np.zeros((count, 5), np.float32), queries, rows)
        found = texts.answered(asked, held)
        assert found.shape == (len(asked), len(held)) and found.tolist() == expected
        assert [sorted(some.tolist()) for some in texts.of] == [
            np.flatnonzero(rows == n).tolist() for n in range(count)
        ]
