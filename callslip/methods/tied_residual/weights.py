"""Weights of the sources, fitted on queries that are held out: judged ones, or sentences taken out of documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from callslip.corpus.documents import Corpus
from callslip.corpus.sentences import count_words, split_sentences
from callslip.encoders.given import GIVEN
from callslip.runtime.progress import track
from callslip.search import fusion
from callslip.training.fusion import fit_weights

if TYPE_CHECKING:
    from callslip.index.memory import Memory
    from callslip.methods.tied_residual.method import TiedResidual

ENOUGH = 30
"""Judged queries from which the weights are fitted; with fewer, sentences decide."""
SENTENCES = 200
"""Maximum number of sentences that stand for queries where there are no judged ones."""
SENTENCE_WORDS = 6
"""Shortest sentence that can stand for a query, in words."""
CAUTIOUS, REPEATED = "votes_0.05", "votes_0.02"
"""Features of the memory that have a weight without a fit: near queries count (at a cosine similarity of 0.9 an eighth
of the same query, at 0.8 a fiftieth), or hardly any but the same query (at 0.95 a twelfth)."""


@dataclass(frozen=True)
class Weights:
    """The weight of each feature of `callslip.search.fusion`, and what they were fitted on."""

    values: np.ndarray
    fitted_on: str
    """`judged queries`, `remembered queries`, `sentences`, or `nothing`."""
    queries: int = 0
    """Number of queries or sentences that they were fitted on."""

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
    prior, usable = beginning(index, index.memory)
    asked = corpus.split("train")[0] if s.held_out else {}
    if len(asked) >= ENOUGH:
        tables, gains = judged_queries(index, corpus)
        return Weights(fit_weights(tables, gains, prior, usable), "judged queries", len(tables))
    if not s.words or not s.held_out or s.encoder == GIVEN:  # without an encoder, no sentence has a vector
        return Weights(prior, "nothing")
    usable[3:] = False  # a sentence is not like the queries that are remembered
    tables, gains = taken_sentences(index, corpus)
    # A sentence shares its author's vocabulary, so it overstates what words are worth to people who ask: where it says
    # that words are worth more than meaning, it is not believed. On FiQA's dev questions that would cost 0.013.
    both = fit_weights(tables, gains, prior, usable & (fusion.EVEN > 0))
    if both[2] > both[0]:
        return Weights(prior, "sentences", len(tables))
    return Weights(fit_weights(tables, gains, prior, usable), "sentences", len(tables))


def beginning(index: TiedResidual, memory: Memory) -> tuple[np.ndarray, np.ndarray]:
    """The weights that a fit begins at, and which features may have one."""
    usable = np.ones(len(fusion.FEATURES), bool)
    usable[2] = index.settings.words
    usable[3:] = index.settings.memory and len(memory) > 0
    prior = np.where(usable, fusion.EVEN, 0.0)
    if not index.settings.words:
        prior[0] = 1.0
    return prior, usable


def weights_after_learning(index: TiedResidual, memory: Memory) -> Weights:
    """Weights for a memory that has learned since the fit.

    Weights of judged queries stay: they say how far this corpus can trust a memory. Otherwise the fit knew nothing
    about queries. Then the remembered queries themselves decide as soon as there are `ENOUGH`, each without its own
    memory, and again whenever their number has doubled, up to `held_out`; with fewer, near queries count `CAUTIOUS`.
    No fit ever sees a query that is asked again, so this counts in any case (`REPEATED`).
    """
    held, s = index.weights, index.settings
    if held.fitted_on == "judged queries":
        return with_memory(held, REPEATED)
    alive = index.rows.alive
    led = np.flatnonzero(memory.led_to(alive))
    fitted = held.fitted_on == "remembered queries"
    due = len(led) >= 2 * held.queries and held.queries < s.held_out if fitted else len(led) >= ENOUGH
    if due and s.held_out:
        if len(led) > s.held_out:
            led = np.sort(np.random.default_rng(s.seed).choice(led, s.held_out, replace=False))
        graded = [{row: 1 for row in memory.answers(one) if alive[row]} for one in led.tolist()]
        tables, gains = left_out(index, [memory.texts[one] for one in led], graded, memory)
        values = fit_weights(tables, gains, *beginning(index, memory))
        return with_memory(Weights(values, "remembered queries", len(tables)), REPEATED)
    return with_memory(held, REPEATED if fitted else CAUTIOUS)


def with_memory(weights: Weights, feature: str) -> Weights:
    """The same weights with at least so much for a feature of the memory that an earlier query that is the same adds as
    much as meaning and words together can. Votes count in absolute terms: a query that is like no earlier one is
    answered as before."""
    values, at = weights.values.copy(), fusion.FEATURES.index(feature)
    values[at] = max(values[at], values[0] + values[2] + fusion.SIMILARITY_SCALE * values[1])
    return weights if np.array_equal(values, weights.values) else replace(weights, values=values)


def judged_queries(index: TiedResidual, corpus: Corpus) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Features and gains of the candidates of judged train queries, each without its own memory."""
    s, row_of = index.settings, corpus.rows()
    queries, judgements = corpus.split("train")
    asked = [qid for qid, query in queries.items() if query.text and any(g > 0 for g in judgements[qid].values())]
    if len(asked) > s.held_out:
        picked = np.random.default_rng(s.seed).choice(len(asked), s.held_out, replace=False)
        asked = [asked[number] for number in np.sort(picked)]
    graded = [{row_of[d]: grade for d, grade in judgements[qid].items() if grade > 0 and d in row_of} for qid in asked]
    return left_out(index, [queries[qid].text for qid in asked], graded, index.memory)


def left_out(
    index: TiedResidual, texts: Sequence[str], graded: Sequence[Mapping[int, int]], memory: Memory
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Features and gains of the candidates of queries, each without its own memory; `graded` are the grades of rows."""
    s = index.settings
    remembered: dict[str, list[int]] = {}
    for number, text in enumerate(memory.texts):
        remembered.setdefault(text, []).append(number)
    vectors = index.texts.training(list(texts))
    stems = index.words.tokenize(list(texts)) if s.words else [[]] * len(texts)
    tables, gains = [], []
    asked = list(zip(texts, vectors, stems, graded, strict=True))
    for text, vector, words, grades in track(asked, "fitting weights"):
        table = index.maker.tables(vector[None])[0]
        evidence = index.evidence(table, words, s.depth, leave_out=remembered.get(text), memory=memory)
        tables.append(evidence.features)
        gains.append(np.asarray([grades.get(int(row), 0) for row in evidence.rows], np.float64))
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
    vectors = index.texts.training(queries)
    codes = index.maker.assign(index.texts.cached(rest, "encoding sentences", "document"))
    own = index.entries.codes_of_rows(len(corpus)).copy()
    own[chosen] = codes
    entries = Entries(own, index.maker.scales(own), np.arange(len(corpus)), index.maker.tree)
    texts = [document.content for document in corpus]
    for row, text in zip(chosen, rest, strict=True):
        texts[row] = text
    words = index.new_words().index(texts)
    tables, gains = [], []
    stems = words.tokenize(queries)
    for row, vector, known in zip(chosen, vectors, stems, strict=True):
        evidence = index.evidence(index.maker.tables(vector[None])[0], known, s.depth, entries=entries, words=words)
        tables.append(evidence.features)
        gains.append((evidence.rows == row).astype(np.float64))
    return tables, gains
