"""Training of Tied-Atomic: contrastive with BM25 and in-batch negatives, and MarginMSE with a teacher.

The losses see nothing of a text but its state: `Training.terms` takes the states of a batch's queries and documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from callslip.corpus.documents import Corpus
from callslip.corpus.on_disk import PairTable, TextTable
from callslip.index.readers import with_noise
from callslip.methods.tied_atomic.equations import contrastive, margin_mse
from callslip.training import batches
from callslip.training.batches import Inputs
from callslip.training.gradcache import in_chunks
from callslip.training.loop import train
from callslip.training.margins import products, scores_at
from callslip.training.negatives import Answers, draw, hard_candidates

if TYPE_CHECKING:
    from callslip.methods.tied_atomic.method import TiedAtomic
    from callslip.search.bm25 import WordIndex
    from callslip.training.teachers import CrossEncoder


@dataclass
class ScoredTexts:
    """What is trained on: example i is the text `text[i]` (a row of `inputs`) and the document `row[i]`."""

    inputs: Inputs
    text: np.ndarray
    row: np.ndarray
    answers: Answers
    candidates: np.ndarray
    """Hard negatives of each text, [texts, negatives_from]."""
    judged: np.ndarray | None = None
    """Hard negatives of each example that the teacher scored, [examples, teacher_negatives]."""
    margins: np.ndarray | None = None
    """The teacher's margin between the example's document and each of them."""


class Training:
    """One training, for an index that is being built. `documents` are those of the corpus, as the model reads them."""

    def __init__(self, index: TiedAtomic, documents: Inputs, teacher: CrossEncoder | None) -> None:
        self.index, self.settings, self.documents, self.teacher = index, index.settings, documents, teacher

    # Examples.

    def examples(self, corpus: Corpus, pairs: PairTable) -> ScoredTexts:
        """The pairs as the model reads them, BM25's hard negatives, and the teacher's margins of some of them."""
        from callslip.search.bm25 import WordIndex

        s, (texts, text), row = self.settings, pairs.texts.distinct(), pairs.rows
        inputs = self.index.reader.text_inputs(texts)
        words = WordIndex().index([document.content for document in corpus])
        answers = Answers(text, row, len(corpus))
        candidates = hard_candidates(words.sparse_scores_of(texts), answers, s.negatives_from)
        examples = ScoredTexts(inputs, text, row, answers, candidates)
        if s.teacher is not None:
            rng = np.random.default_rng([s.seed, 1])
            judged = draw(candidates[text], s.teacher_negatives, len(corpus), rng)
            rows = np.concatenate([row[:, None], judged], axis=1)
            scores = self.teacher_scores(corpus, words, texts, examples, rows)
            examples.judged, examples.margins = judged, scores[:, :1] - scores[:, 1:]
            examples.margins *= self.margin_scale(examples)
        return examples

    def teacher_scores(
        self, corpus: Corpus, words: WordIndex, texts: TextTable, examples: ScoredTexts, rows: np.ndarray
    ) -> np.ndarray:
        """The teacher's scores of the documents `rows` [examples, c] for each example's text."""
        if self.teacher is not None:
            contents = [document.content for document in corpus]
            asked = texts.take(np.repeat(examples.text, rows.shape[1]))
            return self.teacher.scores(asked, [contents[n] for n in rows.flat]).reshape(rows.shape)
        if self.settings.teacher == "dense":
            documents = self.index.texts.documents(corpus, "encoding documents")
            return products(self.index.texts.training(texts)[examples.text], documents, rows)
        return scores_at(words.sparse_scores_of(texts), examples.text, rows)

    def margin_scale(self, examples: ScoredTexts) -> float:
        """The factor that brings a teacher's margins to the scale of the model's: dot products over the temperature."""
        s = self.settings
        if s.teacher_scale is not None:
            return s.teacher_scale
        assert examples.judged is not None and examples.margins is not None
        rows = np.concatenate([examples.row[:, None], examples.judged], axis=1)
        texts, documents = self.index.project(examples.inputs), self.index.project(self.documents)
        scores = products(texts[examples.text], documents, rows)
        untrained = float(np.std(scores[:, :1] - scores[:, 1:])) / s.temperature
        return untrained / max(float(np.std(examples.margins)), 1e-9)

    # The loop.

    def run(self, examples: ScoredTexts) -> None:
        """Draw queries to their documents and away from the others, or to the teacher's margins."""
        s, index = self.settings, self.index
        rng = np.random.default_rng([s.seed, 2])
        index.log = train(
            index.model,
            lambda epoch: batches.shuffled(len(examples.text), s.batch_size, s.seed, epoch),
            lambda chosen, progress: self.objective(examples, chosen, rng),
            epochs=s.epochs,
            steps_per_epoch=batches.steps(len(examples.text), s.batch_size),
            learning_rate=s.learning_rate,
            schedule=s.schedule,
            warmup=s.warmup,
            weight_decay=s.weight_decay,
            share=lambda parameter: index.reader.learning_share(parameter, s.learning_rate),
            autocast="autocast" in s.save_memory,
            phase="training the decoder",
            checkpoints=index.checkpoints,
            generators=[rng],
        )

    def objective(self, examples: ScoredTexts, chosen: np.ndarray, rng: np.random.Generator) -> dict[str, Tensor]:
        """The terms of a batch of examples."""
        s, device = self.settings, next(self.index.model.parameters()).device
        text, row = examples.text[chosen], examples.row[chosen]
        hard = draw(examples.candidates[text], s.negatives, len(self.documents), rng)
        margins, taught = None, np.zeros(0, dtype=np.int64)
        if examples.judged is not None and examples.margins is not None:
            pick = np.arange(len(chosen)), rng.integers(0, s.teacher_negatives, len(chosen))
            taught = examples.judged[chosen][pick]
            margins = torch.from_numpy(examples.margins[chosen][pick]).to(device)
        rows = np.concatenate([row, hard.ravel(), taught])
        distinct, place = np.unique(rows, return_inverse=True)  # a document is read once per step
        query = self.states(examples.inputs, text)
        read = self.states(self.documents, distinct)[torch.from_numpy(place)]
        known = torch.from_numpy(examples.answers.among(text, rows[: len(row) + hard.size])).to(device)
        return self.terms(query, read, known, margins)

    def terms(
        self, query: Tensor, documents: Tensor, known: Tensor, margins: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The losses, given the states of B queries [B, D], and of the documents of the step, [n, D]: the B positives,
        B · `negatives` hard negatives and, with the teacher's `margins` [B], one more negative of each query. `known`
        marks the positives and hard negatives that answer each query."""
        s, count = self.settings, len(query)
        positive, rest, negative = documents.split([count, count * s.negatives, count if margins is not None else 0])
        terms = {}
        if s.contrastive_weight:
            rest = rest.reshape(count, s.negatives, documents.shape[1])
            terms["contrastive"] = s.contrastive_weight * contrastive(query, positive, rest, s.temperature, known)
        if margins is not None:
            terms["margin"] = s.teacher_weight * margin_mse(query / s.temperature, positive, negative, margins)
        return terms

    def states(self, inputs: Inputs, rows: np.ndarray) -> Tensor:
        """The model's states of some texts in training, [n, D]."""
        batch = with_noise(self.index.reader.batch(inputs, rows), self.settings.noise)
        return in_chunks(self.index.states, batch, self.settings.micro_batch)
