"""GLEN's two phases of training (Section 3.3): keywords first, then ranking by codes that follow the model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from callslip.corpus.documents import Corpus
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
from callslip.training import batches
from callslip.training.negatives import Answers, number_texts, prefix_negatives

if TYPE_CHECKING:
    from callslip.methods.glen.method import GLEN


@dataclass
class LabelledTexts:
    """What is trained on: example i is the text `text[i]` (a row of `vectors`) and the document `row[i]`."""

    vectors: np.ndarray
    text: np.ndarray
    row: np.ndarray
    answers: Answers


@dataclass
class EpochState:
    """What an epoch of the refinement goes by: the temperature, each document's likeliest words and its negatives."""

    temperature: float = HARD
    words: np.ndarray = field(default_factory=lambda: np.zeros(0))
    negatives: np.ndarray = field(default_factory=lambda: np.zeros(0))


class Training:
    """The two phases, for an index that is being built."""

    def __init__(self, index: GLEN, corpus: Corpus) -> None:
        self.index, self.settings, self.model = index, index.settings, index.model
        self.documents, self.doc_ids = index.vectors, corpus.doc_ids
        self.device = self.model.embeddings.device
        self.texts = self.labelled(corpus)

    def labelled(self, corpus: Corpus) -> LabelledTexts:
        """The training texts and, as texts of themselves, the documents."""
        row_of, pairs = corpus.rows(), self.index.training_pairs(corpus)
        texts = [pair.query for pair in pairs]
        rows = [row_of[pair.doc_id] for pair in pairs]
        if self.settings.train_on_documents or not texts:
            texts += [document.content for document in corpus]
            rows += range(len(corpus))
        distinct, text = number_texts(texts)
        row = np.array(rows, dtype=np.int64)
        # Documents keep the vectors of documents; an encoder may want another prompt before queries.
        vectors, asked = np.empty((len(distinct), self.documents.shape[1]), np.float32), np.unique(text[: len(pairs)])
        vectors[text[len(pairs) :]] = self.documents[row[len(pairs) :]]
        vectors[asked] = self.index.texts.training([distinct[number] for number in asked])
        return LabelledTexts(vectors, text, row, Answers(text, row, len(corpus)))

    def learn_keywords(self, codes: np.ndarray) -> None:
        """Phase one: write the keywords of the document, from its text or from a query of it (Eq. 4)."""
        s, texts, keyword = self.settings, self.texts, torch.from_numpy(codes.astype(np.int64))

        def objective(chosen: np.ndarray, progress: float) -> dict[str, Tensor]:
            code = keyword[texts.row[chosen]].to(self.device)
            query, document = (
                with_noise(self.index.reader.batch(vectors), s.noise)
                for vectors in (texts.vectors[texts.text[chosen]], self.documents[texts.row[chosen]])
            )
            return {
                "query keywords": keyword_loss(self.model(query, code), code),
                "document keywords": keyword_loss(self.model(document, code, documents=True), code),
            }

        self.train(objective, s.keyword_epochs, s.keyword_learning_rate, "learning keywords")

    def refine(self) -> None:
        """Phase two: rank by codes that follow the model (Eq. 8). Each epoch codes the documents anew."""
        s, texts, batch, state = self.settings, self.texts, self.index.reader.batch, EpochState()

        def renew(epoch: int) -> None:
            state.temperature = annealed_temperature(epoch) if s.annealing else HARD
            state.words, state.negatives = self.words_and_negatives(epoch)

        def objective(chosen: np.ndarray, progress: float) -> dict[str, Tensor]:
            text, row = texts.text[chosen], texts.row[chosen]
            distinct, place = np.unique(np.concatenate([row, state.negatives[row].ravel()]), return_inverse=True)
            positives = torch.from_numpy(texts.answers.among(text, distinct)).to(self.device)
            query, docs = with_noise(batch(texts.vectors[text]), s.noise), batch(self.documents[distinct])
            words = None if s.support is None else batch(state.words[distinct].astype(np.int64))
            own = torch.from_numpy(place[: len(row)])
            return self.ranking_terms(query, docs, own, positives, words, state.temperature)

        self.train(objective, s.epochs, s.learning_rate, "refining codes", renew)

    def words_and_negatives(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The documents' likeliest words as the model has them when an epoch begins, and their negatives by the codes
        that these are; a resumed fit reads both from the checkpoints."""
        kept, name = self.index.checkpoints, f"refining codes: epoch {epoch}"
        held = kept.recall(name) if kept is not None else None
        if held is None:
            words = self.model.likeliest_words(self.documents, self.settings.support or 1)[0]
            held = {"words": words, "negatives": self.negatives(words[:, :, 0], epoch)}
            if kept is not None:
                kept.remember(name, **held)
        return held["words"], held["negatives"]

    def negatives(self, codes: np.ndarray, epoch: int) -> np.ndarray:
        """Hard negatives of each document, [N, negatives]: documents that share a prefix of its code, or random
        ones."""
        s, count = self.settings, len(self.doc_ids)
        rng = np.random.default_rng([s.seed, 1, epoch])
        if s.negatives_by == "random":
            return rng.integers(0, count, (count, s.negatives))
        return prefix_negatives(Identifiers(self.doc_ids, codes), s.negatives, rng)

    def ranking_terms(
        self, query: Tensor, docs: Tensor, own: Tensor, positives: Tensor, words: Tensor | None, temperature: float
    ) -> dict[str, Tensor]:
        """Eq. 8 for queries [Bq, dim] and documents [Bd, dim]; `own` [Bq] is each query's document, `positives`
        [Bq, Bd] marks all that answer it, `words` [Bd, L, S] are the documents' likeliest."""
        s, model, terms = self.settings, self.model, {}
        h_query, h_doc = model.states(query), model.states(docs, documents=True, among=words)
        if s.pairwise_weight:
            r_doc = identifier_embedding(h_doc, model.embeddings, temperature, words)
            scores = relevance(h_query, r_doc) / s.ranking_temperature
            terms["pairwise"] = s.pairwise_weight * pairwise_ranking(scores, positives)
        if s.pointwise_weight:
            h_doc = h_doc[own]
            code = model.logits(h_doc.detach()).argmax(-1)
            if s.feedback == "token":
                h_query = model.states(query, code)  # teacher forcing
            w_query, w_doc = (identifier_weights(h, model.embeddings, code) for h in (h_query, h_doc))
            loss = pointwise_retrieval(model.logits(h_query), code, w_query, w_doc, s.distance_weight)
            terms["pointwise"] = s.pointwise_weight * loss
        return terms

    def train(
        self,
        objective: Callable[[np.ndarray, float], dict[str, Tensor]],
        epochs: int,
        rate: float,
        phase: str,
        renew: Callable[[int], None] | None = None,
    ) -> None:
        """One phase, over `epoch_pairs` of the texts in each epoch; `renew` runs before each epoch."""
        s, count = self.settings, len(self.texts.text)
        steps = batches.steps(min(count, s.epoch_pairs or count), s.batch_size)

        def epoch_batches(epoch: int) -> Iterator[np.ndarray]:
            if renew is not None:
                self.model.eval()
                renew(epoch)
                self.model.train()
            return itertools.islice(batches.shuffled(count, s.batch_size, s.seed, epoch), steps)

        self.index.train(epoch_batches, objective, steps, epochs, phase, learning_rate=rate, share=None)
