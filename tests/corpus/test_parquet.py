"""Parquet files as corpora: the documents of the same rows as JSONL, read a batch at a time."""

from __future__ import annotations

import datetime
import json

import pytest

from callslip.corpus import parquet
from callslip.corpus.load import load_corpus
from callslip.corpus.stream import CorpusStream
from callslip.errors import BadInput

ROWS = [{"_id": f"d{n}", "title": f"t{n}", "text": f"the text {n}", "year": 2000 + n} for n in range(7)]


@pytest.fixture
def file(tmp_path, monkeypatch):
    table, written = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(parquet, "BATCH", 2)
    written.write_table(table.Table.from_pylist(ROWS), tmp_path / "c.parquet", row_group_size=3)
    return tmp_path / "c.parquet"


def test_rows_are_those_of_a_jsonl_file(file, tmp_path):
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    expected = list(load_corpus(tmp_path / "c.jsonl"))
    assert list(load_corpus(file)) == expected
    placed = list(CorpusStream(file).documents())
    assert [one.document for one in placed] == expected and [one.line for one in placed] == list(range(1, 8))


def test_no_more_than_a_batch_is_read_at_once(file, monkeypatch):
    from pyarrow import parquet as library

    sizes = []
    read = library.ParquetFile.iter_batches

    def watched(self, **options):
        for batch in read(self, **options):
            sizes.append(len(batch))
            yield batch

    monkeypatch.setattr(library.ParquetFile, "iter_batches", watched)
    rows = parquet.parquet_rows(file, "")
    assert next(rows)["_id"] == "d0" and sizes == [2]
    assert len(list(rows)) == 6 and max(sizes) <= 2


def test_values_that_json_does_not_have(file, tmp_path):
    import pyarrow
    from pyarrow import parquet as library

    rows = [{"_id": "a", "text": "x", "day": datetime.date(2024, 5, 1), "note": None}]
    library.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "d.parquet")
    assert dict(load_corpus(tmp_path / "d.parquet").documents[0].metadata) == {"day": "2024-05-01"}


def test_what_is_wrong_is_named(file, tmp_path):
    import pyarrow
    from pyarrow import parquet as library

    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(BadInput, match=r"broken\.parquet: is not a Parquet file"):
        load_corpus(tmp_path / "broken.parquet")
    library.write_table(pyarrow.Table.from_pylist([{"name": "x"}]), tmp_path / "c.parquet")
    with pytest.raises(BadInput, match="field '_id': missing"):
        load_corpus(tmp_path / "c.parquet")
    library.write_table(pyarrow.Table.from_pylist([ROWS[0], ROWS[0]]), tmp_path / "c.parquet")
    with pytest.raises(BadInput, match=r"c\.parquet:2.*duplicate id"):
        load_corpus(tmp_path / "c.parquet")
