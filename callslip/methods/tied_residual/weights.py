"""Weights of the sources, fitted on queries that are held out: judged ones, or sentences taken out of documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from callslip.corpus.documents import Corpus
from callslip.corpus.sentences import count_words, split_sentences
from callslip.runtime.progress import track
from callslip.search import fusion
from callslip.training.fusion import fit_weights

if TYPE_CHECKING:
    from callslip.methods.tied_residual.method import TiedResidual

ENOUGH = 30
"""Judged queries from which the weights are fitted; with fewer, sentences decide."""
SENTENCES = 200
"""Maximum number of sentences that stand for queries where there are no judged ones."""
SENTENCE_WORDS = 6
"""Shortest sentence that can stand for a query, in words."""


@dataclass(frozen=True)
class Weights:
    """The weight of each feature of `callslip.search.fusion`, and what they were fitted on."""

    values: np.ndarray
    fitted_on: str
    """`judged queries`, `sentences`, or `nothing`."""
    queries: int = 0

    def to_dict(self) -> dict[str, Any]:
        named = dict(zip(fusion.FEATURES, (float(value) for value in self.values), strict=True))
        return {"weights": named, "fitted_on": self.fitted_on, "queries": self.queries}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Weights:
        values = np.asarray([data["weights"].get(name, 0.0) for name in fusion.FEATURES])
        return cls(values, data["fitted_on"], data["queries"])

    def shares(self) -> dict[str, float]:
        """How the ranking is divided between meaning, words and memory, for people: parts of 1."""
        parts = {"meaning": self.values[:2].sum(), "words": self.values[2], "memory": self.values[3:].sum()}
        total = max(sum(parts.values()), 1e-12)
        return {name: float(part / total) for name, part in parts.items()}


def fitted_weights(index: TiedResidual, corpus: Corpus) -> Weights:
    """Weights for this index: of judged queries if there are enough, otherwise of sentences."""
    s = index.settings
    usable = np.ones(len(fusion.FEATURES), bool)
    usable[2] = s.words
    usable[3:] = s.memory and len(index.memory) > 0
    prior = np.where(usable, fusion.EVEN, 0.0)
    if not s.words:
        prior[0] = 1.0
    asked = corpus.split("train")[0] if s.held_out else {}
    if len(asked) >= ENOUGH:
        tables, gains = judged_queries(index, corpus)
        return Weights(fit_weights(tables, gains, prior, usable), "judged queries", len(tables))
    if not s.words or not s.held_out:
        return Weights(prior, "nothing")
    usable[3:] = False  # a sentence is not like the queries that are remembered
    tables, gains = taken_sentences(index, corpus)
    return Weights(fit_weights(tables, gains, prior, usable), "sentences", len(tables))


def judged_queries(index: TiedResidual, corpus: Corpus) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Features and gains of the candidates of judged train queries, each without its own memory."""
    s, row_of = index.settings, corpus.rows()
    queries, judgements = corpus.split("train")
    asked = [qid for qid, query in queries.items() if query.text and any(g > 0 for g in judgements[qid].values())]
    if len(asked) > s.held_out:
        picked = np.random.default_rng(s.seed).choice(len(asked), s.held_out, replace=False)
        asked = [asked[number] for number in np.sort(picked)]
    remembered: dict[str, list[int]] = {}
    for number, text in enumerate(index.memory.texts):
        remembered.setdefault(text, []).append(number)
    texts = [queries[qid].text for qid in asked]
    vectors = index.texts.cached(texts, "encoding queries")
    stems = index.words.tokenize(texts) if s.words else [[]] * len(texts)
    tables, gains = [], []
    for qid, vector, words in track(list(zip(asked, vectors, stems, strict=True)), "fitting weights"):
        table = index.maker.tables(vector[None])[0]
        own = remembered.get(queries[qid].text)
        evidence = index.evidence(table, words, s.depth, leave_out=own)
        graded = {row_of[d]: grade for d, grade in judgements[qid].items() if grade > 0 and d in row_of}
        tables.append(evidence.features)
        gains.append(np.asarray([graded.get(int(row), 0) for row in evidence.rows], np.float64))
    return tables, gains


def taken_sentences(index: TiedResidual, corpus: Corpus) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Features and gains for sentences that were taken out of their documents, as if these had never had them: the
    inverse cloze task, which asks for a document by something that it does not say in these words."""
    from callslip.index.entries import Entries

    s, rng = index.settings, np.random.default_rng(index.settings.seed)
    chosen: list[int] = []
    queries: list[str] = []
    rest: list[str] = []
    for row in rng.permutation(len(corpus)).tolist():
        document = corpus.documents[row]
        sentences = split_sentences(document.text)
        long = [at for at, sentence in enumerate(sentences) if count_words(sentence) >= SENTENCE_WORDS]
        if len(sentences) < 3 or not long:
            continue
        at = int(rng.choice(long))
        chosen.append(row)
        queries.append(sentences[at])
        rest.append(" ".join([document.title, *sentences[:at], *sentences[at + 1 :]]).strip())
        if len(chosen) == min(SENTENCES, max(1, len(corpus) // 10)):
            break
    if not chosen:
        return [], []
    vectors = index.texts.cached([*queries, *rest], "encoding sentences")
    codes = index.maker.assign(vectors[len(queries) :])
    own = index.entries.codes_of_rows(len(corpus)).copy()
    own[chosen] = codes
    entries = Entries(own, index.maker.scales(own), np.arange(len(corpus)), index.maker.tree)
    texts = [document.content for document in corpus]
    for row, text in zip(chosen, rest, strict=True):
        texts[row] = text
    words = index.new_words().index(texts)
    tables, gains = [], []
    stems = words.tokenize(queries)
    for row, vector, known in zip(chosen, vectors[: len(queries)], stems, strict=True):
        evidence = index.evidence(index.maker.tables(vector[None])[0], known, s.depth, entries=entries, words=words)
        tables.append(evidence.features)
        gains.append((evidence.rows == row).astype(np.float64))
    return tables, gains
