"""The codes of a saved index or of a file, to fit another index with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from callslip.errors import BadInput, BadSetting
from callslip.identifiers.files import named_codes
from callslip.identifiers.table import Identifiers
from callslip.storage.folder import generation_name, read_manifest


def place_of_codes(path: str | Path) -> Path | None:
    """The folder of an index's codes, of the first part that has any; None if it has none."""
    current = Path(path) / generation_name(read_manifest(path)["generation"])
    return next(iter(sorted(found.parent for found in current.rglob("codes.npy"))), None)


def saved_codes(path: str | Path, doc_ids: Sequence[str]) -> np.ndarray:
    """The codes of these documents in a saved index or a file of codes, [N, L], in the given order.
    In an ensemble, the first part that has codes is used."""
    if Path(path).is_file():
        return _from_file(Path(path), doc_ids)
    place = place_of_codes(path)
    if place is None:
        method = read_manifest(path)["method"]
        raise BadSetting(f"setting 'codes_from': {path} is an index of {method}, which gives no codes")
    held = Identifiers.load(place)
    known, codes = held.in_row_order()
    row_of = {doc_id: row for row, doc_id in enumerate(known)}
    missing = [doc_id for doc_id in doc_ids if doc_id not in row_of]
    if missing:
        raise BadSetting(
            f"setting 'codes_from': {path} has no code for {len(missing)} of {len(doc_ids)} documents, "
            f"such as {missing[0]!r}",
            "Give an index of the same documents; those that were added later count after callslip compact.",
        )
    return codes[[row_of[doc_id] for doc_id in doc_ids]]


def _from_file(path: Path, doc_ids: Sequence[str]) -> np.ndarray:
    named, held = named_codes(path)
    known, codes = held.in_row_order()
    if not named:
        if len(codes) != len(doc_ids):
            raise BadInput(path, f"has {len(codes):,} codes for {len(doc_ids):,} documents", remedy="Give one a row.")
        return codes
    row_of = {doc_id: row for row, doc_id in enumerate(known)}
    missing = [doc_id for doc_id in doc_ids if doc_id not in row_of]
    if missing:
        raise BadInput(
            path,
            f"has no code for {len(missing):,} of {len(doc_ids):,} documents, such as {missing[0]!r}",
            remedy="Give a code for each document of the corpus.",
        )
    return codes[[row_of[doc_id] for doc_id in doc_ids]]
