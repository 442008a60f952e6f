"""Files of codes: those that other tools write are read, and ours are written for other engines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from callslip.corpus.parquet import read_parquet
from callslip.errors import BadInput, CallslipError, MissingExtra, UnknownName
from callslip.identifiers.table import END, Identifiers
from callslip.runtime import durable

FORMATS = (".npy", ".json", ".jsonl", ".csv", ".tsv", ".parquet")
WRITTEN = (".csv", ".tsv", ".parquet", ".json", ".npy")
ITEM, LEVEL = "item_id", "sid_"
"""Header of a table of codes: item_id, sid_0, sid_1, …"""
REMEDY = (
    "Supported formats: .npy, an integer array [documents, length]; .json, {doc_id: [tokens]}, [[tokens]] or "
    '{"1,2,3": [doc_ids]}; .jsonl, {"doc_id": …, "code": [tokens]}; .csv, .tsv or .parquet, doc_id then its tokens '
    "(.csv and .tsv also as 1-2-3), with or without the header item_id, sid_0, sid_1, …"
)


def read_codes(path: str | Path) -> Identifiers:
    """Read a file of codes as a table. If the file has no doc_ids, documents are numbered."""
    return named_codes(path)[1]


def named_codes(path: str | Path) -> tuple[bool, Identifiers]:
    """Whether the file of codes has doc_ids, and the table."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(path, "no such file or folder")
    if path.suffix not in FORMATS:
        raise UnknownName("format of codes", path.suffix or path.name, FORMATS)
    try:
        if path.suffix == ".npy":
            codes = np.load(path, allow_pickle=False)
            return False, Identifiers([str(row) for row in range(len(codes))], codes)
        pairs = list(_parquet_pairs(path) if path.suffix == ".parquet" else _pairs(path))
        table = Identifiers.from_sequences([doc_id for doc_id, _ in pairs], [code for _, code in pairs])
        return path.suffix != ".json" or not path.read_text(encoding="utf-8").lstrip().startswith("["), table
    except (BadInput, MissingExtra):
        raise
    except CallslipError as error:
        raise BadInput(path, error.problem, remedy=REMEDY) from None
    except (ValueError, TypeError, RecursionError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(path, f"not a file of codes: {error}", remedy=REMEDY) from None


def _pairs(path: Path) -> Iterator[tuple[str, list[int]]]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        whole = json.loads(text)
        items: list[tuple[Any, Any]] = list(whole.items() if isinstance(whole, dict) else enumerate(whole))
        if isinstance(whole, dict) and items and all(_is_bucket(*item) for item in items):
            for code, doc_ids in items:
                for doc_id in doc_ids:
                    yield str(doc_id), _tokens(path, None, code.split(","))
            return
        for doc_id, code in items:
            yield str(doc_id), _tokens(path, None, code)
    elif path.suffix == ".jsonl":
        for line, one in enumerate(text.splitlines(), start=1):
            if one.strip():
                yield _from_json_line(path, line, one)
    else:
        delimiter = "," if path.suffix == ".csv" else "\t"
        for line, cells in enumerate(csv.reader(text.splitlines(), delimiter=delimiter), start=1):
            if cells and not (line == 1 and _is_header(cells)):
                code = cells[1].split("-") if len(cells) == 2 else cells[1:]
                while code and not code[-1].strip():  # a shorter code
                    code.pop()
                yield cells[0], _tokens(path, line, code)


def _is_bucket(code: str, doc_ids: Any) -> bool:
    """Whether an entry of a JSON object is a code with its documents, rather than a document with its code."""
    return isinstance(doc_ids, list) and any(isinstance(one, str) for one in doc_ids) and code[:1].isdecimal()


def _is_header(cells: list[str]) -> bool:
    return len(cells) > 1 and cells[1].strip().lower().startswith((LEVEL, "code"))


def _parquet_pairs(path: Path) -> Iterator[tuple[str, list[int]]]:
    table = read_parquet(path, REMEDY)
    names, *columns = (table.column(name).to_pylist() for name in table.column_names)
    for row, doc_id in enumerate(names):
        code = [column[row] for column in columns]
        if len(code) == 1 and isinstance(code[0], list):
            code = code[0]
        yield str(doc_id), _tokens(path, row + 1, [token for token in code if token is not None and token != END])


def _from_json_line(path: Path, line: int, text: str) -> tuple[str, list[int]]:
    try:
        record = json.loads(text)
        return str(record["doc_id"]), _tokens(path, line, record["code"])
    except (ValueError, KeyError, TypeError):
        raise BadInput(path, "not an object with doc_id and code", line=line, remedy=REMEDY) from None


def _tokens(path: Path, line: int | None, code: Any) -> list[int]:
    try:
        tokens = [int(token) for token in code]
    except (ValueError, TypeError):
        raise BadInput(path, f"cannot read the code {str(code)[:60]!r}", line=line, remedy=REMEDY) from None
    if not tokens:
        raise BadInput(path, "an empty code", line=line, remedy=REMEDY)
    return tokens


def check_written(path: Path) -> None:
    """Refuse a file name that does not say a format."""
    if path.suffix not in WRITTEN:
        raise UnknownName("format of codes", path.suffix or path.name, WRITTEN)


def write_codes(path: str | Path, identifiers: Identifiers) -> None:
    """Write a table for other engines, in the order of its rows; the suffix says the format."""
    path = Path(path)
    check_written(path)
    doc_ids, codes = identifiers.in_row_order()
    try:
        durable.replace(path, _content(path.suffix, doc_ids, codes))
    except OSError as error:
        raise CallslipError(f"{path} cannot be written ({error.strerror})", "Give a place you can write to.") from None


def _content(suffix: str, doc_ids: list[str], codes: np.ndarray) -> bytes:
    if suffix == ".npy":
        held = io.BytesIO()
        np.save(held, codes, allow_pickle=False)
        return held.getvalue()
    if suffix == ".parquet":
        return _parquet(doc_ids, codes)
    if suffix == ".json":
        buckets: dict[str, list[str]] = {}
        for doc_id, code in zip(doc_ids, codes.tolist(), strict=True):
            buckets.setdefault(",".join(str(token) for token in code if token != END), []).append(doc_id)
        return (json.dumps(buckets, ensure_ascii=False, indent=0) + "\n").encode("utf-8", "surrogatepass")
    text = io.StringIO()
    writer = csv.writer(text, delimiter="," if suffix == ".csv" else "\t", lineterminator="\n")
    writer.writerow([ITEM, *(f"{LEVEL}{level}" for level in range(codes.shape[1]))])
    for doc_id, code in zip(doc_ids, codes.tolist(), strict=True):
        writer.writerow([doc_id, *("" if token == END else token for token in code)])
    return text.getvalue().encode("utf-8", "surrogatepass")


def _parquet(doc_ids: list[str], codes: np.ndarray) -> bytes:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("writing Parquet files", "parquet") from None
    columns = {ITEM: pyarrow.array(doc_ids, pyarrow.string())}
    for level in range(codes.shape[1]):
        columns[f"{LEVEL}{level}"] = pyarrow.array(codes[:, level], mask=codes[:, level] == END)
    held = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), held)
    return held.getvalue()
