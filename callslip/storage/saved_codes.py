"""The codes of a saved index, to fit another index with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from callslip.errors import BadSetting
from callslip.identifiers.table import Identifiers
from callslip.storage.folder import generation_name, read_manifest


def saved_codes(path: str | Path, doc_ids: Sequence[str]) -> np.ndarray:
    """The codes of these documents in a saved index, [N, L], in the given order. In an ensemble, the first part that
    has codes is used."""
    manifest = read_manifest(path)
    places = sorted(p.parent for p in (Path(path) / generation_name(manifest["generation"])).rglob("codes.npy"))
    if not places:
        raise BadSetting(f"setting 'codes_from': {path} is an index of {manifest['method']}, which gives no codes")
    held = Identifiers.load(places[0])
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
