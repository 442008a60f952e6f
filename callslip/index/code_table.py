"""The codes that a method would give the documents of a corpus, and the doctor's verdict, without training a model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from callslip.corpus.documents import Corpus
from callslip.encoders.given import given_vectors
from callslip.errors import Unsupported
from callslip.identifiers import audit, doctor, quality
from callslip.identifiers.table import Identifiers
from callslip.index.generative import GenerativeRetriever
from callslip.index.given import Vectors
from callslip.index.retriever import Retriever
from callslip.runtime.device import seeded
from callslip.storage.rows import MemoryDocuments


@dataclass
class CodeTable:
    """Codes, with what they are judged by."""

    identifiers: Identifiers
    vectors: np.ndarray | None = None
    """The documents' vectors, by row."""
    popularity: dict[str, int] | None = None
    """How often each document is asked for in training."""

    def report(self, other: Identifiers | None = None, levels: int | None = None) -> dict[str, Any]:
        """Verdict, findings and figures; the churn from another table, if one is given. `levels` is the depth of the
        tree, if codes are longer than that."""
        figures = quality.measure(self.identifiers)
        _, codes = self.identifiers.in_row_order()
        near = tail = changed = None
        if self.vectors is not None and len(codes) > 1:
            near = audit.neighbours(codes, self.vectors)
        if self.popularity:
            tail = audit.head_and_tail(self.identifiers, self.popularity)
        if other is not None:
            changed = audit.churn(other, self.identifiers)
        order = ("ill", "warning", "note")
        findings = doctor.diagnose(figures, levels=levels) + doctor.audit(near, tail, changed)
        findings.sort(key=lambda finding: order.index(finding.severity))
        parts = {"neighbours": near, "head_and_tail": tail, "churn": changed}
        return {
            "verdict": doctor.verdict(findings),
            "findings": [vars(finding) for finding in findings],
            "figures": figures.to_dict(),
        } | {name: part.to_dict() for name, part in parts.items() if part is not None}


def code_table(retriever: Retriever, corpus: Corpus, vectors: Vectors | None = None) -> CodeTable:
    """Make the codes of a corpus as a fit would, and stop there."""
    if not isinstance(retriever, GenerativeRetriever) or type(retriever).build is not GenerativeRetriever.build:
        raise Unsupported(
            f"{retriever.method} has no codes, or learns them while it trains",
            "Fit it and use callslip inspect, or choose dsi-semantic, ultron-pq, nci or tiger.",
        )
    if vectors is not None:
        retriever.texts.given.documents = given_vectors(vectors, corpus.doc_ids, "documents")
    retriever.rows.replace(MemoryDocuments(corpus.documents))
    retriever.read_corpus(corpus)
    with seeded(retriever.settings.seed):
        given = retriever.saved_codes(corpus)
        made = retriever.make_codes(corpus) if given is None else given
    judged = retriever.vectors if retriever.vectors.shape[1] else retriever.reader.encode_corpus(corpus)
    return CodeTable(Identifiers(corpus.doc_ids, made), judged, popularity(corpus))


def popularity(corpus: Corpus) -> dict[str, int]:
    """How often each document is relevant to a train query, or is an item of a history."""
    counts: Counter[str] = Counter()
    for query_id, grades in corpus.judgements.get("train", {}).items():
        counts.update(doc_id for doc_id, grade in grades.items() if grade > 0)
        counts.update(corpus.queries[query_id].history)
    return dict(counts)
