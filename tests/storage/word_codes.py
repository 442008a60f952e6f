"""A method without torch that has codes and vectors: storage is tested with it, whole and in moments."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from callslip import api
from callslip.corpus.documents import Corpus, Document
from callslip.identifiers.table import Identifiers
from callslip.index.retriever import Found, Retriever
from callslip.methods import METHODS, Method

WIDTH = 5


@dataclass(frozen=True)
class WordCodesSettings:
    """There is nothing to set."""

    length: int = 3
    """Levels of a code."""


def code_of(text: str, length: int = 3) -> list[int]:
    return [byte % WIDTH for byte in hashlib.sha256(text.encode()).digest()[:length]]


class WordCodes(Retriever):
    """The code of a document is the hash of its text. A search writes the code of the query's text: forced decoding."""

    Settings = WordCodesSettings

    def _vectors_of(self, documents):
        return np.array([[len(d.text), *code_of(d.text)] for d in documents], np.float32).reshape(-1, 4)

    def build(self, corpus):
        self.identifiers = Identifiers(corpus.doc_ids, [code_of(d.text) for d in corpus])
        self.vectors = self._vectors_of(corpus)

    def prepare(self, documents):
        return {
            "codes": np.array([code_of(d.text) for d in documents], np.int32),
            "vectors": self._vectors_of(documents),
        }

    def extend(self, documents, parts):
        held = self.identifiers
        again = [d.doc_id for d in documents if d.doc_id in held]
        held = held.renamed({name: f"deleted {name} {held.rows[held.position_of(name)]}" for name in again})
        self.identifiers = held.with_added([d.doc_id for d in documents], parts["codes"])
        self.vectors = np.concatenate([self.vectors, parts["vectors"]])

    def keep(self, rows):
        names, codes = self.identifiers.in_row_order()
        self.identifiers = Identifiers([names[row] for row in rows], codes[rows])
        self.vectors = self.vectors[rows]

    def codes_by_row(self):
        return self.identifiers.in_row_order()[1]

    def find(self, queries, k, mask, explain):
        found = []
        for query in queries:
            rows = self.identifiers.rows[self.identifiers.bucket(code_of(query.text))]
            rows = [int(row) for row in rows if mask is None or mask[row]]
            same = [row for row in rows if self.vectors[row][0] == len(query.text)]
            found.append(Found(same, [1.0] * len(same)))
        return found

    def save_files(self, folder: Path):
        self.identifiers.save(folder)
        np.save(folder / "vectors.npy", self.vectors, allow_pickle=False)

    def load_files(self, folder: Path):
        self.identifiers = Identifiers.load(folder, mmap=True, check=False)
        self.vectors = np.load(folder / "vectors.npy", mmap_mode="r", allow_pickle=False)


class _Here(Method):
    def load(self):
        return WordCodes


def register() -> None:
    """For programs of their own; tests use `monkeypatch`, or the contract suite would look for a page on it."""
    METHODS["word-codes"] = METHOD


METHOD = _Here("", "for tests")


def make_index(path: Path, texts: dict[str, str]) -> None:
    index = WordCodes(method="word-codes").fit(Corpus([Document(doc_id, text) for doc_id, text in texts.items()]))
    index.save(path)
    index.close()


def contents(path: Path) -> dict[str, str]:
    """doc_id -> text of everything that can be found; what is stored but not found, or found but not stored, raises."""
    index = api.load(path)
    try:
        return state_of(index)
    finally:
        index.close()


def state_of(index: Retriever) -> dict[str, str]:
    rows = index.refresh().row_of()
    listed = {d.doc_id: d.text for d in index.documents.rows(list(rows.values()))}
    for doc_id, text in listed.items():
        found = {hit.doc_id: hit.text for hit in index.search(text, k=1000)}
        assert found.get(doc_id) == text, f"{doc_id} is not reachable by its code"
        assert set(found) <= set(listed), "a dead document was returned"
    assert len(index) == len(listed)
    return listed
