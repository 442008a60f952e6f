"""Parquet files, by pyarrow (extra `parquet`)."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from callslip.corpus.lines import is_url, open_url, printable
from callslip.errors import BadInput, CallslipError, MissingExtra

BATCH = 1000
"""Rows that are read at once."""


def read_parquet(path: str | Path, remedy: str) -> Any:
    """The table of a Parquet file, as pyarrow has it; `remedy` says what the file should be."""
    parquet = _pyarrow_parquet()
    try:
        return parquet.read_table(_source(path))
    except CallslipError:
        raise
    except Exception as error:  # pyarrow's own errors
        raise _refused(path, error, remedy) from None


def parquet_columns(path: str | Path, remedy: str) -> list[str]:
    """The names of the columns of a Parquet file."""
    parquet = _pyarrow_parquet()
    try:
        return list(parquet.read_schema(_source(path)).names)
    except CallslipError:
        raise
    except Exception as error:
        raise _refused(path, error, remedy) from None


def parquet_rows(path: str | Path, remedy: str) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file, a batch in memory at a time; fields without a value are left out."""
    parquet = _pyarrow_parquet()
    try:
        batches = parquet.ParquetFile(_source(path)).iter_batches(batch_size=BATCH)
        while (batch := next(batches, None)) is not None:
            for row in batch.to_pylist():
                yield {name: _as_json(value) for name, value in row.items() if value is not None}
    except (OSError, ValueError) as error:  # those of a damaged file; pyarrow's own are among them
        raise _refused(path, error, remedy) from None


def _as_json(value: Any) -> Any:
    """Dates and times as texts, which filters read as dates."""
    return value.isoformat() if isinstance(value, (datetime.date, datetime.time)) else value


def _pyarrow_parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("reading Parquet files", "parquet") from None
    return parquet


def _source(path: str | Path) -> Any:
    return open_url(str(path)) if is_url(path) else path


def _refused(path: str | Path, error: Exception, remedy: str) -> BadInput:
    said = (str(error).splitlines() or [type(error).__name__])[0]
    return BadInput(printable(path), f"is not a Parquet file ({said})", remedy=remedy)
