"""An index fitted on vectors that the user brings, instead of an encoder's."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from callslip.corpus.documents import Corpus
from callslip.encoders.encoder import TextVectors
from callslip.encoders.given import GIVEN, Encode, GivenVectors, given_vectors
from callslip.errors import BadSetting, Unsupported
from callslip.index.ensemble import Ensemble
from callslip.index.retriever import Retriever

Vectors = np.ndarray | Mapping[str, Any] | str | Path | GivenVectors
"""Vectors in the order of the rows, by id, or in a .npy or .parquet file."""
ALIKE, PROBES = 0.9, 8
"""Mean cosine of the encoder's own vectors to the given ones below which a warning is due, and how many are read."""


def takers(retriever: Retriever) -> list[Any]:
    """The parts of a retriever that read vectors of texts."""
    parts = retriever.parts if isinstance(retriever, Ensemble) else [retriever]
    found = [part for part in parts if isinstance(getattr(part, "texts", None), TextVectors)]
    if not found:
        raise Unsupported(
            f"{retriever.method} uses no vectors", "Choose a method that does, such as dense or dsi-semantic."
        )
    return found


def give(retriever: Retriever, corpus: Corpus, vectors: Vectors | None, query_vectors: Vectors | Encode | None) -> None:
    """Give vectors to a retriever that is about to be fitted on the corpus."""
    parts = takers(retriever)
    documents = None if vectors is None else given_vectors(vectors, corpus.doc_ids, "documents")
    encode = query_vectors if callable(query_vectors) else None
    queries = None
    if query_vectors is not None and encode is None:
        queries = given_vectors(query_vectors, _in_order(query_vectors, corpus), "queries")
        if documents is not None and queries.dim != documents.dim:
            raise BadSetting(f"vectors of documents have {documents.dim} numbers, and of queries {queries.dim}")
    for part in parts:
        if query_vectors is not None:
            part.settings = without_encoder(part.settings, keep_texts=encode is not None)
            part.texts.adjust(part.settings)
        given = part.texts.given
        given.documents, given.queries, given.encode = documents, queries, encode
        given.by_text = {q.text: q.query_id for q in corpus.queries.values() if queries and q.query_id in queries}
        if documents is not None and query_vectors is None and part.settings.encoder != GIVEN:
            check_encoder(part.texts, corpus, documents)


def _in_order(given: Any, corpus: Corpus) -> list[str] | None:
    """The ids of rows without names: the corpus's queries, if there are as many."""
    if isinstance(given, Mapping) or (isinstance(given, (str, Path)) and Path(given).suffix != ".npy"):
        return None
    return list(corpus.queries) or None


def give_queries(retriever: Retriever, corpus: Corpus, query_vectors: Vectors) -> None:
    """Give a loaded index the vectors of a corpus's queries."""
    queries = given_vectors(query_vectors, _in_order(query_vectors, corpus), "queries")
    for part in takers(retriever):
        part.texts.given.queries = queries


def give_more(retriever: Retriever, vectors: Vectors | None, query_vectors: Vectors | Encode | None) -> None:
    """Give a loaded index the vectors of queries to come, and of documents to be added."""
    for part in takers(retriever):
        if vectors is not None:
            part.texts.given.documents = given_vectors(vectors, None, "documents")
        if callable(query_vectors):
            part.texts.given.encode = query_vectors
        elif query_vectors is not None:
            part.texts.given.queries = given_vectors(query_vectors, None, "queries")


def without_encoder(settings: Any, *, keep_texts: bool) -> Any:
    """Settings of an index without an encoder; without a callable it cannot read pseudo-queries either."""
    values: dict[str, Any] = {"encoder": GIVEN}
    if not keep_texts and hasattr(settings, "training_texts"):
        whole = tuple(kind for kind in settings.training_texts if kind == "document")
        values |= {"training_texts": whole, "doc2query": None}
    return dataclasses.replace(settings, **values)


def check_encoder(texts: TextVectors, corpus: Corpus, documents: GivenVectors) -> None:
    """The encoder of the queries must fit the given vectors; warn if it is probably not the one that made them."""
    encoder = texts.encoder
    if encoder.dim != documents.dim:
        raise BadSetting(
            f"the given vectors have {documents.dim} numbers, and those of the encoder {encoder.name!r} {encoder.dim}",
            "Name the encoder that made them (--set encoder=NAME), or give --query-vectors.",
        )
    some = [document for document in corpus if document.content][:PROBES]
    if not some:
        return
    own = encoder.encode([document.content for document in some], kind="document")
    cosine = float((own * documents.of([document.doc_id for document in some])).sum(axis=1).mean())
    if cosine < ALIKE:
        warnings.warn(
            f"the given vectors are not those of the encoder {encoder.name!r} for the same texts (mean cosine "
            f"{cosine:.2f}), which encodes the queries; if it did not make them, name the encoder that did",
            stacklevel=4,
        )
