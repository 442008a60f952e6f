"""Vectors that somebody else has made: of images, by a language model, by any encoder.

They come as a NumPy array or file in the order of the rows, as a Parquet file with ids, or as a mapping. Like those of
our encoders they are normalised, so that only their directions count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from callslip.corpus.parquet import read_parquet
from callslip.errors import BadInput, BadSetting

GIVEN = "given"
"""The encoder of an index whose queries come with vectors, too."""
Encode = Callable[[list[str]], Any]
"""Texts to vectors [n, dim], by a callable of the user's."""
IDS = ("item_id", "doc_id", "query_id", "_id", "id", "qid")
"""Names of a Parquet file's column of ids."""
VECTORS = ("vector", "embedding", "vectors", "embeddings")
REMEDY = "Give a .npy array [rows, dim], or a .parquet file with a column of ids and one of vectors."


class GivenVectors:
    """Unit vectors by id."""

    def __init__(self, ids: Sequence[str], vectors: Any, source: str = "the given vectors") -> None:
        array = np.asarray(vectors)
        if array.ndim != 2 or array.dtype.kind not in "fiu" or not array.shape[1]:
            raise BadInput(
                source, f"is not an array [rows, dim] of numbers, but {array.dtype} {array.shape}", remedy=REMEDY
            )
        if len(array) != len(ids):
            raise BadInput(source, f"has {len(array):,} vectors for {len(ids):,} ids", remedy=REMEDY)
        array = array.astype(np.float32)
        wrong = ~np.isfinite(array).all(axis=1)
        if wrong.any():
            raise BadInput(source, f"the vector of {ids[int(wrong.argmax())]!r} is not finite")
        norms = np.maximum(np.linalg.norm(array, axis=1, keepdims=True), 1e-12)
        self.vectors = array / np.where(np.abs(norms - 1) < 1e-5, 1, norms)  # unit vectors stay as they are, to the bit
        self.row_of = {id: row for row, id in enumerate(ids)}
        if len(self.row_of) != len(ids):
            raise BadInput(source, "has an id more than once")

    @property
    def dim(self) -> int:
        return self.vectors.shape[1]

    def __contains__(self, id: object) -> bool:
        return id in self.row_of

    def of(self, ids: Sequence[str]) -> np.ndarray:
        """The vectors of these ids, [n, dim]."""
        return self.vectors[[self.row_of[id] for id in ids]]


def given_vectors(given: Any, ids: Sequence[str] | None, what: str) -> GivenVectors:
    """Vectors from an array in the order of `ids`, a mapping, or a .npy or .parquet file; of `what`, for messages.

    Without `ids`, rows without names are numbered from 0.
    """
    if isinstance(given, GivenVectors):
        return given
    if isinstance(given, (str, Path)):
        named, vectors = _read(Path(given))
        source = str(given)
    elif isinstance(given, Mapping):
        named, vectors, source = [str(id) for id in given], np.array(list(given.values())), f"the vectors of {what}"
    else:
        named, vectors, source = None, given, f"the vectors of {what}"
    if named is None:
        count = len(vectors) if hasattr(vectors, "__len__") else 0
        named = [str(row) for row in range(count)] if ids is None else list(ids)
        if len(named) != count:
            raise BadInput(
                source, f"has {count:,} vectors for {len(named):,} {what}", remedy="Give one a row, in order."
            )
    found = GivenVectors(named, vectors, source)
    missing = [id for id in ids or () if id not in found]
    if missing:
        raise BadInput(
            source,
            f"has no vector for {len(missing):,} of {len(ids or ()):,} {what}, such as {missing[0]!r}",
            remedy="Give a vector for each.",
        )
    return found


def _read(path: Path) -> tuple[list[str] | None, np.ndarray]:
    if not path.is_file():
        raise BadInput(path, "no such file", remedy=REMEDY)
    if path.suffix == ".parquet":
        return _read_parquet(path)
    if path.suffix != ".npy":
        raise BadInput(path, "the file name shows neither .npy nor .parquet", remedy=REMEDY)
    try:
        return None, np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise BadInput(path, f"cannot be read ({error})", remedy=REMEDY) from None


def _read_parquet(path: Path) -> tuple[list[str] | None, np.ndarray]:
    table = read_parquet(path, REMEDY)
    name = next((name for name in VECTORS if name in table.column_names), None)
    if name is None:
        raise BadInput(path, f"has no column of vectors: {', '.join(table.column_names)}", remedy=REMEDY)
    rows = table.column(name).to_pylist()
    if len({len(row) if row is not None else -1 for row in rows}) > 1:
        raise BadInput(path, "has vectors of different lengths", field=name)
    of = next((name for name in IDS if name in table.column_names), None)
    ids = None if of is None else [str(id) for id in table.column(of).to_pylist()]
    return ids, np.array(rows, np.float32)


@dataclass
class Given:
    """What an index was given: vectors of documents, vectors of queries, and a callable for other texts."""

    documents: GivenVectors | None = None
    queries: GivenVectors | None = None
    encode: Encode | None = None
    by_text: dict[str, str] = field(default_factory=dict)
    """Query texts to the id of a query that has a vector, for training."""

    def encoded(self, texts: list[str], dim: int | None = None) -> np.ndarray:
        """The user's callable on texts, as unit vectors."""
        assert self.encode is not None
        name = getattr(self.encode, "__name__", type(self.encode).__name__)
        found = GivenVectors([str(n) for n in range(len(texts))], self.encode(texts), f"the callable {name}")
        if dim is not None and found.dim != dim:
            raise BadSetting(f"the callable {name} gives {found.dim} numbers a text, and the documents have {dim}")
        return found.vectors
