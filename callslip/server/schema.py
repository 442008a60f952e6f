"""Request models of the API (pydantic): every string, list and number is bounded, and unknown fields are rejected."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from callslip.corpus.documents import Document, Query
from callslip.errors import CallslipError
from callslip.filters.filter import Filter
from callslip.filters.globs import Glob
from callslip.filters.ranges import Range
from callslip.server import limits


class Strict(BaseModel):
    """Strict models: no unknown fields, no type coercion."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _plain(value: Any, depth: int = limits.DEPTH) -> Any:
    """Reject non-finite numbers, invalid Unicode, and nesting beyond the limit."""
    if depth < 0:
        raise ValueError("nested too deeply")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("not a finite number")
    if isinstance(value, int) and abs(value) > 2**63:
        raise ValueError("the number exceeds 64 bits")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("not valid Unicode") from None
    for key, inner in value.items() if isinstance(value, dict) else ():
        _plain(key)
        _plain(inner, depth - 1)
    for inner in value if isinstance(value, list) else ():
        _plain(inner, depth - 1)
    return value


def _stripped(text: str) -> str:
    if not text.strip():
        raise ValueError("empty")
    return text


def _name(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains a NUL character")
    return _stripped(text)


DocumentName = Annotated[str, Field(min_length=1, max_length=limits.ID_CHARACTERS), AfterValidator(_name)]
Text = Annotated[str, Field(max_length=limits.QUERY_CHARACTERS)]
History = Annotated[list[DocumentName], Field(max_length=limits.HISTORY_ITEMS)]
IndexName = Annotated[
    str | None, Field(default=None, max_length=256, description="Name of the index; by default the first.")
]
Scalar = Annotated[str, Field(max_length=1024)] | int | Annotated[float, Field(allow_inf_nan=False)] | bool


class Span(Strict):
    """Numbers or ISO dates from `low` to `high`, both inclusive; one end may be left open."""

    low: Scalar | None = None
    high: Scalar | None = None


class Pattern(Strict):
    """Texts that match a glob, in which `*` stands for any characters."""

    glob: Annotated[str, Field(max_length=1024)]


Condition = Scalar | Span | Pattern | Annotated[list[Scalar | Span | Pattern], Field(max_length=limits.FILTER_VALUES)]
Conditions = Annotated[dict[Annotated[str, Field(max_length=256)], Condition], Field(max_length=limits.FILTER_FIELDS)]
Ids = Annotated[list[DocumentName], Field(max_length=limits.FILTER_IDS)]


class FilterModel(Strict):
    """Documents must satisfy every given condition."""

    where: Conditions = {}
    where_not: Conditions = {}
    allow: Ids | None = None
    deny: Ids = []

    def made(self) -> Filter:
        return Filter(
            {name: _condition(value) for name, value in self.where.items()},
            {name: _condition(value) for name, value in self.where_not.items()},
            None if self.allow is None else frozenset(self.allow),
            frozenset(self.deny),
        )


def _condition(value: Any) -> Any:
    if isinstance(value, list):
        return [_condition(one) for one in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**63:
        raise CallslipError("a number in the filter exceeds 64 bits")
    if isinstance(value, Pattern):
        return Glob(value.glob)
    return Range(_end(value.low), _end(value.high)) if isinstance(value, Span) else value


def _end(value: Any) -> Any:
    """Convert text that parses as a number, as on the command line."""
    if isinstance(value, str):
        read = Range.parse(f"{value}..")
        return value if read is None else read.low
    return value


# The constraints of the validators below, for the OpenAPI schema.
_SAID: dict[str, Any] = {"type": "string", "pattern": r"\S"}
_SEEN: dict[str, Any] = {"type": "array", "minItems": 1}


def _either(**ways: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [{"required": [name], "properties": {name: shape}} for name, shape in ways.items()]}


class OneQuery(Strict):
    """A text, a history of items (oldest first), or both."""

    model_config = ConfigDict(json_schema_extra=_either(text=_SAID, history=_SEEN))

    text: Text = ""
    history: History = []

    @model_validator(mode="after")
    def _something(self) -> OneQuery:
        if not self.text.strip() and not self.history:
            raise ValueError("neither text nor history")
        return self

    def made(self, number: int) -> Query:
        return Query(str(number), self.text, tuple(self.history))


class SearchRequest(Strict):
    """One query (`query`, `history` or both) or a batch (`queries`)."""

    model_config = ConfigDict(json_schema_extra=_either(query=_SAID, history=_SEEN, queries=_SEEN))

    query: Text | None = Field(default=None, description="Text of the query.", examples=["split text into words"])
    history: History | None = Field(default=None, description="Items of the user's history, oldest first.")
    queries: Annotated[list[OneQuery], Field(min_length=1, max_length=limits.BATCH)] | None = None
    index: IndexName = None
    k: int = Field(default=10, ge=1, le=limits.K, description="Number of hits per query.")
    beam: int | None = Field(default=None, ge=1, le=limits.BEAM, description="Beam size; by default that of the index.")
    filter: FilterModel | None = None
    explain: bool = Field(default=False, description="Explain why each hit was found.")
    keep_history: bool = Field(
        default=False, description="Also return items of the history, which recommendations leave out by default."
    )
    characters: int = Field(
        default=1000, ge=0, le=20_000, description="Maximum number of characters of each hit's text."
    )

    @model_validator(mode="after")
    def _one_way(self) -> SearchRequest:
        single = bool((self.query or "").strip()) or bool(self.history)
        if single == (self.queries is not None):
            raise ValueError("give query or history, or a list of queries")
        return self

    def made(self) -> list[Query]:
        if self.queries is not None:
            return [one.made(number) for number, one in enumerate(self.queries)]
        return [Query("0", self.query or "", tuple(self.history or ()))]


class ExplainRequest(Strict):
    """Request to explain the rank of a document, or why it is not found."""

    model_config = ConfigDict(json_schema_extra=_either(query=_SAID, history=_SEEN))

    doc_id: DocumentName
    query: Text = ""
    history: History = []
    index: IndexName = None
    k: int = Field(default=10, ge=1, le=limits.K)
    beam: int | None = Field(default=None, ge=1, le=limits.BEAM)
    filter: FilterModel | None = None
    keep_history: bool = Field(default=False, description="As in the search that is explained.")

    @model_validator(mode="after")
    def _something(self) -> ExplainRequest:
        if not self.query.strip() and not self.history:
            raise ValueError("neither query nor history")
        return self


DocumentText = Annotated[str, Field(max_length=limits.TEXT_CHARACTERS)]
Title = Annotated[str, Field(max_length=limits.TITLE_CHARACTERS)]
Metadata = Annotated[dict[str, Any], Field(max_length=limits.METADATA_FIELDS), AfterValidator(_plain)]


class NewText(Strict):
    """A document without its doc_id, which is in the URL."""

    text: DocumentText
    title: Title = ""
    metadata: Metadata = {}

    def made(self, doc_id: str) -> Document:
        return Document(doc_id, self.text, self.title, self.metadata)


class NewDocument(Strict):
    """A document to add."""

    doc_id: DocumentName
    text: DocumentText
    title: Title = ""
    metadata: Metadata = {}

    def made(self) -> Document:
        return Document(self.doc_id, self.text, self.title, self.metadata)


class AddRequest(Strict):
    """Documents to add: all or none."""

    documents: Annotated[list[NewDocument], Field(min_length=1, max_length=limits.DOCUMENTS)]
    index: IndexName = None
    on_conflict: Literal["refuse", "replace"] = Field(
        default="refuse", description="If a doc_id already exists: refuse the whole request, or replace the document."
    )


def _said(value: str) -> str:
    if not value.strip():
        raise ValueError("the query is empty")
    return value


class AnsweredQuery(Strict):
    """A query, and the documents that answered it; for an index of a log, a user and the items that this user had."""

    query: Annotated[Text, AfterValidator(_said), Field(json_schema_extra={"pattern": r"\S"})]
    doc_ids: Annotated[list[DocumentName], Field(min_length=1, max_length=limits.BATCH)]


class LearnRequest(Strict):
    """Answered queries to remember, or interactions of users to count: all or none."""

    queries: Annotated[list[AnsweredQuery], Field(min_length=1, max_length=limits.DOCUMENTS)]
    index: IndexName = None

    def made(self) -> dict[str, list[str]]:
        """The doc_ids of each query; equal queries are merged."""
        answers: dict[str, list[str]] = {}
        for one in self.queries:
            held = answers.setdefault(one.query.strip(), [])
            held += [doc_id for doc_id in dict.fromkeys(one.doc_ids) if doc_id not in held]
        return answers


class CompactRequest(Strict):
    """The index to compact."""

    index: IndexName = None


class DeleteRequest(Strict):
    """Documents to delete: all or none."""

    doc_ids: Annotated[list[DocumentName], Field(min_length=1, max_length=limits.DOCUMENTS)]
    index: IndexName = None
