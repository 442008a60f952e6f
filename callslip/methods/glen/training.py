"""GLEN's two phases of training (Section 3.3): keywords first, then ranking by codes that follow the model.

The ranking losses see nothing of a text but its states: `Training.terms_of_states` takes those of a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from callslip.corpus.documents import Corpus
from callslip.corpus.on_disk import TextTable, TokenTable
from callslip.identifiers.table import Identifiers
from callslip.index.readers import with_noise
from callslip.methods.glen.equations import (
    HARD,
    annealed_temperature,
    identifier_embedding,
    identifier_weights,
    keyword_loss,
    pairwise_ranking,
    pointwise_retrieval,
    relevance,
)
from callslip.search.bm25 import WordIndex
from callslip.training import batches
from callslip.training.batches import Inputs
from callslip.training.gradcache import in_chunks
from callslip.training.negatives import Answers, draw, hard_candidates, prefix_negatives

if TYPE_CHECKING:
    from callslip.methods.glen.method import GLEN

TOP = 100
"""Number of BM25's best documents that negatives are drawn from."""


@dataclass
class LabelledTexts:
    """What is trained on: example i is the text `text[i]` (a row of `inputs`) and the document `row[i]`."""

    inputs: Inputs
    text: np.ndarray
    row: np.ndarray
    answers: Answers
    candidates: np.ndarray | None = None
    """BM25's best documents of each text, [texts, top], where negatives are drawn from them."""


@dataclass
class EpochState:
    """What an epoch of the refinement goes by: the temperature, each document's likeliest words, and the negatives of
    each document or, by BM25, of each text."""

    temperature: float = HARD
    words: np.ndarray = field(default_factory=lambda: np.zeros(0))
    negatives: np.ndarray = field(default_factory=lambda: np.zeros(0))


class Training:
    """The two phases, for an index that is being built."""

    def __init__(self, index: GLEN, corpus: Corpus) -> None:
        self.index, self.settings, self.model = index, index.settings, index.model
        self.documents, self.doc_ids = index.document_inputs(list(corpus.documents)), corpus.doc_ids
        self.device = self.model.embeddings.device
        self.texts = self.labelled(corpus)

    def labelled(self, corpus: Corpus) -> LabelledTexts:
        """The training texts and, as texts of themselves, the documents."""
        pairs = self.index.training_pairs(corpus)
        texts, row = pairs.texts, pairs.rows
        if "document" in self.settings.training_texts or not pairs:
            texts = TextTable.of(itertools.chain(texts, (document.content for document in corpus)))
            row = np.concatenate([row, np.arange(len(corpus))])
        distinct, text = texts.distinct()
        inputs = self.inputs_of(distinct, text, row, len(pairs))
        answers = Answers(text, row, len(corpus))
        mined = None
        if self.settings.negatives_by == "bm25" and self.settings.negatives and self.settings.epochs:
            words = WordIndex().index([document.content for document in corpus])
            mined = hard_candidates(words.sparse_scores_of(distinct), answers, TOP)
        return LabelledTexts(inputs, text, row, answers, mined)

    def inputs_of(self, distinct: TextTable, text: np.ndarray, row: np.ndarray, pairs: int) -> Inputs:
        """The distinct texts as the model reads them. The examples after the first `pairs` are documents, which are
        read as such: an encoder may want another prompt before queries, or document vectors may be given."""
        asked = np.unique(text[:pairs])
        read = self.index.reader.text_inputs(distinct.take(asked))
        place = np.zeros(len(distinct), np.int64)
        place[text[pairs:]] = row[pairs:] + len(asked)
        place[asked] = np.arange(len(asked))
        if isinstance(read, np.ndarray):
            return np.concatenate([read, np.asarray(self.documents)])[place]
        count = len(asked)
        return TokenTable.of(read[n] if n < count else self.documents[n - count] for n in place.tolist())

    def learn_keywords(self, codes: np.ndarray) -> None:
        """Phase one: write the keywords of the document, from its text or from a query of it (Eq. 4)."""
        s, texts, keyword = self.settings, self.texts, torch.from_numpy(codes.astype(np.int64))

        def objective(chosen: np.ndarray, progress: float) -> dict[str, Tensor]:
            code = keyword[texts.row[chosen]].to(self.device)
            query, document = (
                with_noise(self.index.reader.batch(inputs, rows), s.noise)
                for inputs, rows in ((texts.inputs, texts.text[chosen]), (self.documents, texts.row[chosen]))
            )
            return {
                "query keywords": keyword_loss(self.model(query, code), code),
                "document keywords": keyword_loss(self.model(document, code, documents=True), code),
            }

        self.train(objective, s.keyword_epochs, s.keyword_learning_rate, "learning keywords", by_example=True)

    def refine(self) -> None:
        """Phase two: rank by codes that follow the model (Eq. 8). Each epoch codes the documents anew."""
        s, texts, batch, state = self.settings, self.texts, self.index.reader.batch, EpochState()

        def renew(epoch: int) -> None:
            state.temperature = annealed_temperature(epoch) if s.annealing else HARD
            state.words, state.negatives = self.words_and_negatives(epoch)

        def objective(chosen: np.ndarray, progress: float) -> dict[str, Tensor]:
            text, row = texts.text[chosen], texts.row[chosen]
            hard = state.negatives[row if texts.candidates is None else text]
            distinct, place = np.unique(np.concatenate([row, hard.ravel()]), return_inverse=True)
            positives = torch.from_numpy(texts.answers.among(text, distinct)).to(self.device)
            words = None
            if s.support is not None:
                words = torch.from_numpy(state.words[distinct].astype(np.int64)).to(self.device)
            query, docs = with_noise(batch(texts.inputs, text), s.noise), batch(self.documents, distinct)
            own = torch.from_numpy(place[: len(row)])
            return self.ranking_terms(query, docs, own, positives, words, state.temperature)

        self.train(objective, s.epochs, s.learning_rate, "refining codes", renew)

    def words_and_negatives(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The documents' likeliest words as the model has them when an epoch begins, and the negatives by the codes
        that these are; a resumed fit reads both from the checkpoints. No words, if nothing goes by them."""
        s, kept, name = self.settings, self.index.checkpoints, f"refining codes: epoch {epoch}"
        held = kept.recall(name) if kept is not None else None
        if held is None:
            words = np.zeros((len(self.doc_ids), s.length, 0), np.int32)
            if s.support is not None or (s.negatives and s.negatives_by == "prefix"):
                words = self.model.likeliest_words(self.documents, s.support or 1)[0]
            held = {"words": words, "negatives": self.negatives(words, epoch)}
            if kept is not None:
                kept.remember(name, **held)
        return held["words"], held["negatives"]

    def negatives(self, words: np.ndarray, epoch: int) -> np.ndarray:
        """Hard negatives of each document, [N, negatives]: documents that share a prefix of its code (the first of its
        likeliest `words` [N, L, S]), or random ones; by BM25, hard negatives of each text, [texts, negatives]."""
        s, count = self.settings, len(self.doc_ids)
        rng = np.random.default_rng([s.seed, 1, epoch])
        if self.texts.candidates is not None:
            return draw(self.texts.candidates, s.negatives, count, rng)
        if s.negatives_by == "random" or not s.negatives:
            return rng.integers(0, count, (count, s.negatives))
        return prefix_negatives(Identifiers(self.doc_ids, words[:, :, 0]), s.negatives, rng)

    def ranking_terms(
        self, query: Any, docs: Any, own: Tensor, positives: Tensor, words: Tensor | None, temperature: float
    ) -> dict[str, Tensor]:
        """Eq. 8 for Bq queries and Bd documents; `own` [Bq] is each query's document, `positives` [Bq, Bd] marks all
        that answer it, `words` [Bd, L, S] are the documents' likeliest."""
        size = self.settings.micro_batch
        h_query = in_chunks(self.model.states, query, size)
        if words is None:
            h_doc = in_chunks(lambda some: self.model.states(some, documents=True), docs, size)
        else:
            read = lambda some, among: self.model.states(some, documents=True, among=among)  # noqa: E731
            h_doc = in_chunks(read, (docs, words), size)
        again = (lambda code: self.model.states(query, code)) if self.settings.feedback == "token" else None
        return self.terms_of_states(h_query, h_doc, own, positives, words, temperature, again)

    def terms_of_states(
        self,
        h_query: Tensor,
        h_doc: Tensor,
        own: Tensor,
        positives: Tensor,
        words: Tensor | None,
        temperature: float,
        forced: Callable[[Tensor], Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Eq. 8, given the states of queries [Bq, L, D] and documents [Bd, L, D]. Where words are fed back, `forced`
        gives the queries' states under teacher forcing of a code."""
        s, model, terms = self.settings, self.model, {}
        embeddings = model.embeddings
        if s.pairwise_weight:
            r_doc = identifier_embedding(h_doc, embeddings, temperature, words)
            scores = relevance(h_query, r_doc) / s.ranking_temperature
            terms["pairwise"] = s.pairwise_weight * pairwise_ranking(scores, positives)
        if s.pointwise_weight:
            h_doc = h_doc[own]
            code = model.logits(h_doc.detach()).argmax(-1)
            h_query = h_query if forced is None else forced(code)
            w_query, w_doc = (identifier_weights(h, embeddings, code) for h in (h_query, h_doc))
            loss = pointwise_retrieval(model.logits(h_query), code, w_query, w_doc)
            terms["pointwise"] = s.pointwise_weight * loss
        return terms

    def train(
        self,
        objective: Callable[[np.ndarray, float], dict[str, Tensor]],
        epochs: int,
        rate: float,
        phase: str,
        renew: Callable[[int], None] | None = None,
        by_example: bool = False,
    ) -> None:
        """One phase, over `epoch_pairs` of the texts in each epoch; `renew` runs before each epoch. `by_example`: the
        objective is a mean over examples."""
        s, count = self.settings, len(self.texts.text)
        steps = batches.steps(min(count, s.epoch_pairs or count), s.batch_size)

        def epoch_batches(epoch: int) -> Iterator[np.ndarray]:
            if renew is not None:
                self.model.eval()
                renew(epoch)
                self.model.train()
            return itertools.islice(batches.shuffled(count, s.batch_size, s.seed, epoch), steps)

        self.index.train(epoch_batches, objective, steps, epochs, phase, learning_rate=rate, by_example=by_example)
