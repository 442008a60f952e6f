"""Response models of the API, for its OpenAPI schema. The tests validate responses against them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Problem(Answer):
    code: str
    message: str
    remedy: str | None = None
    where: list[dict[str, Any]] | None = None


class ErrorAnswer(Answer):
    error: Problem


class HitAnswer(Answer):
    rank: int
    doc_id: str
    score: float
    title: str
    text: str
    truncated: bool
    code: list[int] | None
    code_text: str
    why: dict[str, Any] | None = None


class HitList(Answer):
    hits: list[HitAnswer]
    unsure: bool
    """Whether probably nothing in the index answers the query."""
    confidence: float | None
    """Share of held-out queries with an answer for which the evidence was weaker; null without a calibration."""


class SearchAnswer(Answer):
    index: str
    results: list[HitList]
    seconds: float


class Level(Answer):
    level: int
    token: int
    name: str
    probability: float | None
    log_probability: float | None
    prefix_score: float | None
    kept: bool | None
    place: int | None
    beams: int | None
    lowest_kept: float | None
    words: list[str]


class ExplainAnswer(Answer):
    index: str
    doc_id: str
    title: str
    method: str
    k: int
    found: bool
    rank: int | None
    score: float | None = None
    last_score: float | None = None
    fell_at: int | None
    code: list[int] | None
    code_text: str
    why: dict[str, Any] | None = None
    levels: list[Level]
    verdict: str


class DocumentAnswer(Answer):
    index: str
    doc_id: str
    title: str
    text: str
    metadata: dict[str, Any]
    code: list[int] | None
    code_text: str


class Neighbour(Answer):
    doc_id: str
    title: str
    text: str
    code_text: str
    shared: int
    """Number of tokens that its code shares with the document's, from the beginning."""


class NeighboursAnswer(Answer):
    index: str
    doc_id: str
    length: int
    neighbours: list[Neighbour]


class NamedDocument(Answer):
    doc_id: str
    title: str


class ListAnswer(Answer):
    index: str
    total: int
    complete: bool
    documents: list[NamedDocument]


class FacetValue(Answer):
    value: str | bool | int | float
    documents: int


class Facet(Answer):
    field: str
    documents: int
    values: list[FacetValue]


class FacetsAnswer(Answer):
    index: str
    documents: int
    facets: list[Facet]


class ExamplesAnswer(Answer):
    index: str
    queries: list[str]
    histories: list[list[NamedDocument]]


class ChangeAnswer(Answer):
    index: str
    changed: int
    created: int
    version: int


class LearnAnswer(Answer):
    index: str
    queries: int
    answers: int
    remembered: int
    version: int


class ShortNode(Answer):
    token: int
    name: str
    documents: int


class LeftOut(Answer):
    nodes: int
    documents: int


class Node(Answer):
    token: int
    name: str
    documents: int
    end: bool
    words: list[str]
    children: list[ShortNode] | None = None
    left_out: LeftOut | None = None


class TreeAnswer(Answer):
    prefix: list[int]
    text: str
    level: int
    length: int
    documents: int
    words: list[str]
    children: list[Node]
    left_out: LeftOut


class BucketDocument(Answer):
    doc_id: str
    title: str
    text: str
    code: list[int]
    code_text: str


class BucketAnswer(Answer):
    prefix: list[int]
    text: str
    total: int
    documents: list[BucketDocument]


class Facts(Answer):
    name: str
    method: str
    documents: int
    corpus: str
    trained_on: int
    fit_seconds: float
    settings: dict[str, Any]
    generation: int
    version: int
    has_codes: bool
    words: bool
    length: int | None
    tree: int | None
    beam: int | None
    reads_histories: bool


class IndexesAnswer(Answer):
    indexes: list[Facts]
    writable: bool


class Plot(Answer):
    name: str
    title: str
    svg: str


class HealthAnswer(Answer):
    facts: Facts
    verdict: str | None
    findings: list[dict[str, Any]]
    figures: dict[str, Any] | None
    plots: list[Plot]
    epochs: int


class TrainingAnswer(Answer):
    records: list[dict[str, Any]]


class Ready(Answer):
    status: str
    version: str
