"""Which texts to train on: made from documents, written by a model, asked by people."""

from __future__ import annotations

from collections.abc import Sequence

from callslip.corpus.documents import Corpus, Pair
from callslip.corpus.pseudo_queries import pseudo_queries


def training_pairs(
    corpus: Corpus,
    *,
    kinds: Sequence[str] = ("title", "sentences"),
    doc2query: str | None = None,
    doc2query_per_document: int = 5,
    judged: bool = True,
    repeat: int | None = 1,
    seed: int = 0,
    device: str | None = None,
) -> list[Pair]:
    """Texts, each with its document: pseudo-queries, then `repeat` times the judged queries of the train split.

    Without `repeat`, as many times as makes them about a third as many as the others, and once at least.
    """
    pairs = pseudo_queries(corpus, kinds=kinds, seed=seed) if kinds else []
    if doc2query is not None:
        from callslip.corpus.doc2query import doc2query as written

        pairs += written(corpus, doc2query, doc2query_per_document, device=device, seed=seed)
    asked = corpus.pairs("train") if judged else []
    if repeat is None:
        repeat = max(1, round(len(pairs) / 3 / max(1, len(asked))))
    return pairs + asked * repeat
