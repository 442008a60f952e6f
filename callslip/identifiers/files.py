"""Reads files of codes that other tools write, for `callslip inspect`."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from callslip.errors import BadInput, CallslipError, UnknownName
from callslip.identifiers.table import Identifiers

FORMATS = (".npy", ".json", ".jsonl", ".csv", ".tsv")
REMEDY = (
    "Supported formats: .npy, an integer array [documents, length]; .json, {doc_id: [tokens]} or [[tokens]]; "
    '.jsonl, {"doc_id": …, "code": [tokens]}; .csv or .tsv, doc_id then its tokens (or 1-2-3), no header.'
)


def read_codes(path: str | Path) -> Identifiers:
    """Read a file of codes as a table. If the file has no doc_ids, documents are numbered."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(path, "no such file or folder")
    if path.suffix not in FORMATS:
        raise UnknownName("format of codes", path.suffix or path.name, FORMATS)
    try:
        if path.suffix == ".npy":
            codes = np.load(path, allow_pickle=False)
            return Identifiers([str(row) for row in range(len(codes))], codes)
        pairs = list(_pairs(path))
        return Identifiers.from_sequences([doc_id for doc_id, _ in pairs], [code for _, code in pairs])
    except BadInput:
        raise
    except CallslipError as error:
        raise BadInput(path, error.problem, remedy=REMEDY) from None
    except (ValueError, TypeError, RecursionError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(path, f"not a file of codes: {error}", remedy=REMEDY) from None


def _pairs(path: Path) -> Iterator[tuple[str, list[int]]]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        whole = json.loads(text)
        items = whole.items() if isinstance(whole, dict) else enumerate(whole)
        for doc_id, code in items:
            yield str(doc_id), _tokens(path, None, code)
    elif path.suffix == ".jsonl":
        for line, one in enumerate(text.splitlines(), start=1):
            if one.strip():
                yield _from_json_line(path, line, one)
    else:
        delimiter = "," if path.suffix == ".csv" else "\t"
        for line, cells in enumerate(csv.reader(text.splitlines(), delimiter=delimiter), start=1):
            if cells:
                code = cells[1].split("-") if len(cells) == 2 else cells[1:]
                yield cells[0], _tokens(path, line, code)


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
