"""Weights of the sources, fitted on queries that are held out: judged ones, or sentences taken out of documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from callslip.corpus.documents import Corpus
from callslip.corpus.sentences import count_words, split_sentences
from callslip.encoders.given import GIVEN
from callslip.runtime.progress import track
from callslip.search import fusion
from callslip.search.confidence import Calibration, calibrated
from callslip.training.fusion import ENOUGH, fit_weights, judged_queries

if TYPE_CHECKING:
    from callslip.index.memory import Memory
    from callslip.methods.tied_residual.method import Evidence, TiedResidual

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
    calibration: Calibration | None = None
    """When the index is unsure; None if there was too little to find out, or in folders saved before there was one."""

    def to_dict(self) -> dict[str, Any]:
        named = dict(zip(fusion.FEATURES, (float(value) for value in self.values), strict=True))
        held = None if self.calibration is None else self.calibration.to_dict()
        return {"weights": named, "fitted_on": self.fitted_on, "queries": self.queries, "calibration": held}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Weights:
        values = np.asarray([data["weights"].get(name, 0.0) for name in fusion.FEATURES])
        held = data.get("calibration")
        known = None if held is None else Calibration.from_dict(held)
        return cls(values, data["fitted_on"], data["queries"], known)

    def shares(self) -> dict[str, float]:
        """How the ranking is divided between meaning, words and memory, for people: parts of 1."""
        values = self.values
        sums = values[fusion.MEANING].sum(), values[fusion.WORDS], values[fusion.MEMORY].sum()
        parts = dict(zip(("meaning", "words", "memory"), sums, strict=True))
        total = max(sum(parts.values()), 1e-12)
        return {name: float(part / total) for name, part in parts.items()}


@dataclass
class HeldOut:
    """The evidence for held-out queries: features and gains of their candidates, and the signals of the confidence with
    and without their answers."""

    tables: list[np.ndarray] = field(default_factory=list)
    gains: list[np.ndarray] = field(default_factory=list)
    answered: list[np.ndarray] = field(default_factory=list)
    unanswered: list[np.ndarray] = field(default_factory=list)

    def add(self, evidence: Evidence, grades: Mapping[int, int]) -> None:
        """Append a query whose answers have these grades by row."""
        self.tables.append(evidence.features)
        self.gains.append(np.asarray([grades.get(int(row), 0) for row in evidence.rows], np.float64))
        signals, without = evidence.signals(), evidence.signals(grades)
        if signals is not None:
            self.answered.append(signals)
        if without is not None:
            self.unanswered.append(without)

    def weights(self, prior: np.ndarray, usable: np.ndarray) -> np.ndarray:
        return fit_weights(self.tables, self.gains, prior, usable)

    def calibration(self) -> Calibration | None:
        if not self.answered or not self.unanswered:
            return None
        return calibrated(np.stack(self.answered), np.stack(self.unanswered))

    def __len__(self) -> int:
        return len(self.tables)


def fitted_weights(index: TiedResidual, corpus: Corpus) -> Weights:
    """Weights for this index: of judged queries if there are enough, otherwise of sentences."""
    s = index.settings
    prior, usable = beginning(index, index.memory)
    asked = corpus.split("train")[0] if s.held_out else {}
    if len(asked) >= ENOUGH:
        queries, graded = judged_queries(corpus, s.held_out, s.seed)
        held = left_out(index, [query.text for query in queries], graded, index.memory)
        return Weights(held.weights(prior, usable), "judged queries", len(held), held.calibration())
    if not s.words or not s.held_out or s.encoder == GIVEN:  # given vectors: sentences have none
        return Weights(prior, "nothing")
    usable[fusion.MEMORY] = False  # a sentence is not like the queries that are remembered
    held = taken_sentences(index, corpus)
    # A sentence shares its author's vocabulary, so it overstates what words are worth to people who ask: where it says
    # that words are worth more than meaning, it is not believed. On FiQA's dev questions that would cost 0.013. A few
    # sentences may also say that nothing is worth anything.
    both = held.weights(prior, usable & (prior > 0))
    believed = 0 < both[fusion.MEANING].sum() >= both[fusion.WORDS]
    values = held.weights(prior, usable) if believed else prior
    return Weights(values, "sentences", len(held), held.calibration())


def beginning(index: TiedResidual, memory: Memory) -> tuple[np.ndarray, np.ndarray]:
    """The weights that a fit begins at, and which features may have one."""
    usable, even = np.ones(len(fusion.FEATURES), bool), fusion.EVEN
    usable[fusion.WORDS] = index.settings.words
    usable[fusion.MEMORY] = index.settings.memory and len(memory) > 0
    if index.segments is None:
        usable[[fusion.FEATURES.index("segment"), fusion.FEATURES.index("segment_similarity")]] = False
    else:
        even = fusion.EVEN_WITH_SEGMENTS
    prior = np.where(usable, even, 0.0)
    return prior / prior.sum(), usable


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
        asked = left_out(index, [memory.texts[one] for one in led], graded, memory)
        values = asked.weights(*beginning(index, memory))
        return with_memory(Weights(values, "remembered queries", len(asked), asked.calibration()), REPEATED)
    return with_memory(held, REPEATED if fitted else CAUTIOUS)


def with_memory(weights: Weights, feature: str) -> Weights:
    """The same weights with at least so much for a feature of the memory that an earlier query that is the same adds as
    much as meaning and words together can. Votes count in absolute terms: a query that is like no earlier one is
    answered as before."""
    values, at = weights.values.copy(), fusion.FEATURES.index(feature)
    meaning = values[[0, 2]].sum() + fusion.SIMILARITY_SCALE * values[[1, 3]].sum()
    values[at] = max(values[at], meaning + values[fusion.WORDS])
    return weights if np.array_equal(values, weights.values) else replace(weights, values=values)


def left_out(index: TiedResidual, texts: Sequence[str], graded: Sequence[Mapping[int, int]], memory: Memory) -> HeldOut:
    """The evidence for queries, each without its own memory; `graded` are the grades of rows."""
    s = index.settings
    remembered: dict[str, list[int]] = {}
    for number, text in enumerate(memory.texts):
        remembered.setdefault(text, []).append(number)
    vectors = index.texts.training(list(texts))
    stems = index.words.tokenize(list(texts)) if s.words else [[]] * len(texts)
    held = HeldOut()
    asked = list(zip(texts, vectors, stems, graded, strict=True))
    for text, vector, words, grades in track(asked, "fitting weights"):
        evidence = index.evidence(
            index.tables(vector[None])[0], words, s.depth, leave_out=remembered.get(text), memory=memory
        )
        held.add(evidence, grades)
    return held


def taken_sentences(index: TiedResidual, corpus: Corpus) -> HeldOut:
    """The evidence for sentences that were taken out of their documents, as if these had never had them: the
    inverse cloze task, which asks for a document by something that it does not say in these words."""
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
        return HeldOut()
    vectors = index.texts.cached(queries, "encoding sentences", "query")
    coded = index.code(*index.text_vectors(rest, "encoding sentences"))
    # The documents are searched as if they had been updated: the new texts have further rows, the old ones are masked.
    first, new = len(corpus), len(corpus) + np.arange(len(chosen))
    entries = index.entries.with_more(coded.codes, index.maker.scales(coded.codes), new)
    segments = index.segments and index.segments.with_more(coded.segments, coded.segment_scales, coded.counts)
    words = index.words.fork()
    words.extend(rest)
    words.drop(chosen)
    mask = np.ones(first + len(chosen), bool)
    mask[chosen] = False
    held = HeldOut()
    stems = words.tokenize(queries)
    for row, vector, known in zip(new, vectors, stems, strict=True):
        table = index.tables(vector[None])[0]
        evidence = index.evidence(table, known, s.depth, mask, entries=entries, segments=segments, words=words)
        held.add(evidence, {int(row): 1})
    return held
