"""The parts of a corpus: documents, queries, judgements and training pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from callslip.errors import BadSetting

if TYPE_CHECKING:
    from callslip.corpus.folder import FileTally
    from callslip.corpus.sequences import Sequences

NO_METADATA: Mapping[str, Any] = MappingProxyType({})  # shared by all documents without metadata, to save memory

ID_CHARACTERS = 512
"""The longest doc_id. It is part of addresses of the HTTP API."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document, or one item of an interaction log. `doc_id` is the corpus's own id for it."""

    doc_id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=lambda: NO_METADATA)

    @property
    def content(self) -> str:
        """Title and text as one string, as encoders and BM25 read them."""
        return f"{self.title} {self.text}".strip() if self.title else self.text


@dataclass(frozen=True, slots=True)
class Query:
    """One query: a text, a history of item ids, or both."""

    query_id: str
    text: str
    history: tuple[str, ...] = ()


Judgements = dict[str, dict[str, int]]
"""query_id -> doc_id -> grade. A grade above zero is relevant."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A query text and the document that answers it: one training example."""

    query: str
    doc_id: str


@dataclass
class SkippedLines:
    """The lines that `skip_bad` dropped: their number, and the first few reasons with file and line."""

    count: int = 0
    examples: list[str] = field(default_factory=list)
    keep: int = 10

    def add(self, reason: str) -> None:
        self.count += 1
        if len(self.examples) < self.keep:
            self.examples.append(reason)


@dataclass
class Corpus:
    """Documents, with the queries and judgements that belong to them.

    `judgements` maps a split ("train", "dev", "test") to its judgements; `queries` holds the queries of all
    splits. Queries and judgements may be empty.
    """

    documents: Sequence[Document]
    """A list, or a sequence that reads them from a file."""
    queries: dict[str, Query] = field(default_factory=dict)
    judgements: dict[str, Judgements] = field(default_factory=dict)
    name: str = "corpus"
    skipped: SkippedLines = field(default_factory=SkippedLines)
    files: FileTally | None = None
    """Of a folder of files: how many were read and skipped, and why."""

    def __post_init__(self) -> None:
        for document in self.documents:  # hours before the index is saved
            if len(document.doc_id) > ID_CHARACTERS:
                raise BadSetting(
                    f"the doc_id {document.doc_id[:40]!r}… has {len(document.doc_id):,} characters",
                    f"Use at most {ID_CHARACTERS}.",
                )

    def __len__(self) -> int:
        return len(self.documents)

    def __iter__(self) -> Iterator[Document]:
        return iter(self.documents)

    @property
    def doc_ids(self) -> list[str]:
        return [document.doc_id for document in self.documents]

    def rows(self) -> dict[str, int]:
        """doc_id -> row number in `documents`."""
        return {document.doc_id: row for row, document in enumerate(self.documents)}

    def rows_of(self, doc_ids: Collection[str]) -> dict[str, int]:
        """doc_id -> row number in `documents`, of these documents alone."""
        return {d.doc_id: row for row, d in enumerate(self.documents) if d.doc_id in doc_ids} if doc_ids else {}

    def split(self, name: str) -> tuple[dict[str, Query], Judgements]:
        """The judged queries of a split and their judgements; both empty if the split does not exist."""
        judgements = self.judgements.get(name, {})
        return {qid: self.queries[qid] for qid in judgements}, judgements

    def pairs(self, split: str = "train") -> list[Pair]:
        """(query, relevant document) pairs of a split, in a fixed order. Queries without text (histories) give none."""
        queries, judgements = self.split(split)
        return [
            Pair(queries[qid].text, doc_id)
            for qid, grades in judgements.items()
            if queries[qid].text
            for doc_id, grade in grades.items()
            if grade > 0
        ]

    def sequences(self, split: str = "train") -> Sequences:
        """The users' interactions in order of time that may be trained on: the split's histories and their targets."""
        from callslip.corpus.sequences import sequences

        return sequences(self, split)

    def fingerprint(self) -> dict[str, Any]:
        """Counts and a hash of everything an evaluation depends on, to check that two reports are comparable."""
        digest = hashlib.sha256()
        for part in self._canonical():
            digest.update(part.encode("utf-8", "surrogatepass"))
            digest.update(b"\x00")
        return {
            "name": self.name,
            "documents": len(self.documents),
            "queries": len(self.queries),
            "judgements": {split: sum(map(len, judged.values())) for split, judged in sorted(self.judgements.items())},
            "sha256": digest.hexdigest(),
        }

    def _canonical(self) -> Iterable[str]:
        for document in self.documents:
            yield from ("d", document.doc_id, document.title, document.text)
        for qid in sorted(self.queries):
            yield from ("q", qid, self.queries[qid].text, *self.queries[qid].history)
        for split in sorted(self.judgements):
            for qid in sorted(self.judgements[split]):
                for doc_id, grade in sorted(self.judgements[split][qid].items()):
                    yield from ("j", split, qid, doc_id, str(grade))


def has_histories(corpus: Corpus) -> bool:
    """Whether the train queries (all queries, if there is no train split) are histories of items."""
    queries = corpus.split("train")[0] or corpus.queries
    return bool(queries) and all(query.history and not query.text for query in queries.values())
