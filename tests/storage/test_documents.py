"""Documents in memory and in SQLite answer alike, whatever strings they hold."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.corpus.documents import Document
from callslip.errors import IndexCorrupt
from callslip.storage.documents import FILE, MemoryDocuments, SqliteDocuments, write_documents

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
values = st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), texts, st.lists(texts, max_size=2))
documents = st.lists(
    st.builds(Document, texts, texts, texts, st.dictionaries(texts, values, max_size=3)),
    max_size=6,
    unique_by=lambda document: document.doc_id,
)


@settings(max_examples=40, deadline=None)
@given(documents, st.data())
def test_both_answer_alike(made, data):
    with tempfile.TemporaryDirectory() as folder:
        write_documents(Path(folder), made)
        held, stored = MemoryDocuments(made), SqliteDocuments(Path(folder))
        assert len(held) == len(stored) == len(made)
        assert list(held) == list(stored) == made
        assert list(held.doc_ids()) == list(stored.doc_ids()) == [d.doc_id for d in made]
        assert list(held.metadata()) == list(stored.metadata()) == [d.metadata for d in made]
        if made:
            rows = data.draw(st.lists(st.integers(0, len(made) - 1), max_size=5))
            assert held.rows(rows) == stored.rows(rows) == [made[row] for row in rows]
        stored.close()


def test_a_folder_with_odd_characters_in_its_name(tmp_path):
    folder = tmp_path / "what? 100% #1 & more"
    folder.mkdir()
    write_documents(folder, [Document("a", "b")])
    assert list(SqliteDocuments(folder)) == [Document("a", "b")]


def test_a_file_that_is_no_database(tmp_path):
    (tmp_path / FILE).write_text("hello")
    with pytest.raises(IndexCorrupt, match=FILE):
        SqliteDocuments(tmp_path)
