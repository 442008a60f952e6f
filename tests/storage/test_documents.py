"""Documents in memory and in SQLite answer alike, whatever strings they hold."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.corpus.documents import Document
from callslip.errors import IndexCorrupt
from callslip.storage.rows import MemoryDocuments, NewRow, Numbers, StoredDocuments
from callslip.storage.sqlite_store import SqliteStore, create

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
values = st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), texts, st.lists(texts, max_size=2))
documents = st.lists(
    st.builds(Document, texts.filter(bool), texts, texts, st.dictionaries(texts, values, max_size=3)),
    max_size=6,
    unique_by=lambda document: document.doc_id,
)


def stored(path: Path, made: list[Document]) -> StoredDocuments:
    create(path, "index", ((NewRow(document), True) for document in made))
    return StoredDocuments(SqliteStore(path), Numbers.of(range(1, len(made) + 1)))


@settings(max_examples=40, deadline=None)
@given(documents, st.data())
def test_both_answer_alike(made, data):
    with tempfile.TemporaryDirectory() as folder:
        held, kept = MemoryDocuments(made), stored(Path(folder) / "s.sqlite", made)
        assert len(held) == len(kept) == len(made)
        assert list(held) == list(kept) == made
        assert list(held.doc_ids()) == list(kept.doc_ids()) == [d.doc_id for d in made]
        assert list(held.metadata()) == list(kept.metadata()) == [d.metadata for d in made]
        if made:
            rows = data.draw(st.lists(st.integers(0, len(made) - 1), max_size=5))
            assert held.rows(rows) == kept.rows(rows) == [made[row] for row in rows]
        kept.store.close()


def test_rows_that_the_store_has_dropped_leave_a_gap(tmp_path):
    made = [Document(f"d{n}", f"text {n}", metadata={"n": n}) for n in range(5)]
    kept = stored(tmp_path / "s.sqlite", made)
    kept.store.commit([], ["d1", "d4"])
    kept.store.purge(2, [])
    assert list(kept.doc_ids()) == ["d0", "", "d2", "d3", ""]
    assert [d.text for d in kept] == ["text 0", "", "text 2", "text 3", ""]
    assert [dict(m) for m in kept.metadata()] == [{"n": 0}, {}, {"n": 2}, {"n": 3}, {}]


def test_a_folder_with_odd_characters_in_its_name(tmp_path):
    folder = tmp_path / "what? 100% #1 & more"
    folder.mkdir()
    assert list(stored(folder / "s.sqlite", [Document("a", "b")])) == [Document("a", "b")]


def test_a_file_that_is_no_database(tmp_path):
    (tmp_path / "s.sqlite").write_text("hello")
    with pytest.raises(IndexCorrupt, match=r"s\.sqlite"):
        SqliteStore(tmp_path / "s.sqlite")


def test_metadata_that_is_not_a_number_survives(tmp_path):
    """A corpus may hold it, and a fit must not be lost because of it when the index is saved."""
    import json
    import math
    import sqlite3

    from callslip.corpus.documents import Document
    from callslip.storage.rows import NewRow
    from callslip.storage.sqlite_store import create

    row = NewRow(Document("a", "text", "", {"price": math.nan, "far": math.inf}))
    assert create(tmp_path / "store.sqlite", "i", [(row, True)]) == 1
    (kept,) = sqlite3.connect(tmp_path / "store.sqlite").execute("SELECT metadata FROM documents").fetchone()
    found = json.loads(kept)
    assert math.isnan(found["price"]) and found["far"] == math.inf
