"""Queries that a model is not trained on, by which it is decided how far it is trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from callslip.corpus.documents import Corpus, Query
from callslip.corpus.on_disk import PairTable
from callslip.training.batches import TextChoice, training_pairs
from callslip.training.fusion import judged_queries

HELD_OUT, SHARE = 500, 5
"""At most so many judged train queries, and one in so many, are held out."""
LEAST = 20
"""Fewer judged queries than this say too little: pseudo-queries are held out instead."""
PSEUDO = 200
"""Maximum number of pseudo-queries that are held out, one of each of as many documents."""
DEPTH = 10
"""Number of hits by which rankings are compared."""


@dataclass(frozen=True)
class HeldOutQueries:
    """Queries, and the grades of their answers by row."""

    queries: list[Query] = field(default_factory=list)
    grades: list[dict[int, int]] = field(default_factory=list)
    judged: bool = False
    """Whether these are judged queries rather than pseudo-queries."""

    def __len__(self) -> int:
        return len(self.queries)

    def gains(self, ranked: Sequence[np.ndarray]) -> np.ndarray:
        """nDCG@10 of rankings of rows, one for each query."""
        discount = 1 / np.log2(np.arange(2, DEPTH + 2))
        found = np.zeros(len(self))
        for number, (rows, grades) in enumerate(zip(ranked, self.grades, strict=True)):
            gains = [grades.get(int(row), 0) for row in rows[:DEPTH]]
            ideal = sorted(grades.values(), reverse=True)[:DEPTH]
            found[number] = (gains @ discount[: len(gains)]) / (ideal @ discount[: len(ideal)])
        return found


def held_out(corpus: Corpus, s: TextChoice) -> HeldOutQueries:
    """The queries that are held out of a corpus: judged ones where there are enough, or else pseudo-queries."""
    held = judged_held_out(corpus, s.seed)
    if held.judged:
        return held
    pairs = training_pairs(corpus, s, whole_documents=False)
    numbers = _pseudo(corpus, pairs, s.seed)
    queries = [Query(f"held out {n}", pairs.texts[number]) for n, number in enumerate(numbers)]
    return HeldOutQueries(queries, [{int(pairs.rows[number]): 1} for number in numbers])


def without_judged(corpus: Corpus, seed: int) -> Corpus:
    """The corpus without the judged queries that are held out."""
    gone = {query.query_id for query in judged_held_out(corpus, seed).queries}
    if not gone:
        return corpus
    train = {qid: grades for qid, grades in corpus.judgements["train"].items() if qid not in gone}
    return replace(corpus, judgements=corpus.judgements | {"train": train})


def pairs_without(corpus: Corpus, s: TextChoice) -> PairTable:
    """The pairs to train on, without what is held out."""
    rest = without_judged(corpus, s.seed)
    pairs = training_pairs(rest, s, whole_documents=False)
    if rest is not corpus:
        return pairs
    # The same text of the same document may be there twice, such as a title that is also its first sentence.
    gone = {(int(pairs.rows[number]), pairs.texts[number]) for number in _pseudo(corpus, pairs, s.seed)}
    rows = {row for row, _ in gone}
    stays = [
        number
        for number, row in enumerate(pairs.rows.tolist())
        if row not in rows or (row, pairs.texts[number]) not in gone
    ]
    return pairs.some(np.asarray(stays, np.int64))


def judged_held_out(corpus: Corpus, seed: int) -> HeldOutQueries:
    queries, grades = judged_queries(corpus, len(corpus.judgements.get("train", {})), seed)
    answered = [number for number, one in enumerate(grades) if one]
    count = min(HELD_OUT, len(answered) // SHARE)
    if count < LEAST:
        return HeldOutQueries()
    some = np.sort(np.random.default_rng(seed).permutation(answered)[:count])
    return HeldOutQueries([queries[n] for n in some], [grades[n] for n in some], judged=True)


def _pseudo(corpus: Corpus, pairs: PairTable, seed: int) -> list[int]:
    """Numbers of pairs, one of each of some documents that have others left."""
    asked = {(pair.query, pair.doc_id) for pair in corpus.pairs("train")}
    if not len(pairs):
        return []
    rng = np.random.default_rng(seed)
    order = np.argsort(pairs.rows, kind="stable")
    rows, first = np.unique(pairs.rows[order], return_index=True)
    groups = dict(zip(rows.tolist(), np.split(order, first[1:]), strict=True))
    found: list[int] = []
    for row in rng.permutation(rows).tolist():
        if len(found) == PSEUDO:
            break
        made = [int(n) for n in groups[row] if (pairs[int(n)].query, pairs[int(n)].doc_id) not in asked]
        texts = {pairs.texts[number] for number in made}
        if len(texts) > 1:
            found.append(made[int(rng.integers(len(made)))])
    return found
