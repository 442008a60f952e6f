"""ASI's training (Section 3): one joint phase for indexer and decoder, then the decoder alone on frozen codes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from callslip.identifiers.levels import prefix_groups, texts_per_code, use_of_codes
from callslip.index.readers import with_noise
from callslip.methods.asi.equations import (
    bottleneck,
    criteria_weight,
    discrete_contrastive,
    distribution_density,
    generation_loss,
    information_bottleneck,
)
from callslip.methods.asi.settings import AS_PRINTED
from callslip.training.batches import Drawn, Texts
from callslip.training.gradcache import in_chunks

if TYPE_CHECKING:
    from callslip.decoders.histories import Read
    from callslip.methods.asi.method import ASI

CODE_NOISE = 0.5
"""Noise of the queries that the indexer reads, relative to `noise`. More makes codes coarser."""
CRITERIA_START = 0.01
"""Weight λ of the criteria when training starts."""
GAMMA = 0.05
"""Weight of the uniformity part of the bottleneck criterion: the paper's."""
NEIGHBOURHOOD = 256
"""Size of the stretches of a batch inside which neighbours are contrasted: in one of 1,024, most documents are
strangers."""


class Pairs(NamedTuple):
    """Queries and their documents, vectors [B, dim] each or vectors with states, and which documents answer which
    queries, [B, B]."""

    query: Tensor | Read
    document: Tensor | Read
    known: Tensor | None


class Coded(NamedTuple):
    """The same, with their dense representations, [B, D], and their codes as probabilities, [B, L, K]."""

    pairs: Pairs
    mean_query: Tensor
    e_doc: Tensor
    mean_doc: Tensor
    log_variance: Tensor
    p_query: Tensor
    p_doc: Tensor


class Training:
    """The phases, for an index that is being built."""

    def __init__(self, index: ASI, texts: Texts) -> None:
        self.index, self.settings, self.texts = index, index.settings, texts
        self.device = next(index.model.parameters()).device
        self.rounds = texts.rounds(1)

    def learn_codes(self) -> None:
        """The joint phase: train encoder head, indexer and decoder at once, on documents with one of their queries
        each, none twice in a batch. With `neighbours`, the indexer learns from batches of documents whose codes
        shared a prefix when the epoch began, and the decoder from random batches."""
        s, texts = self.settings, self.texts

        def batches(epoch: int) -> Iterator[tuple[Drawn, ...]]:
            random = texts.drawn(s.batch_size, s.seed + 1, epoch, self.rounds)
            if not s.neighbours:
                return zip(random)
            groups = prefix_groups(self.prefixes(epoch))
            return zip(random, texts.drawn(s.batch_size, s.seed, epoch, self.rounds, groups), strict=True)

        def objective(batch: tuple[Drawn, ...], progress: float) -> dict[str, Tensor]:
            pairs = [self.pairs(some) for some in batch]
            random, near = pairs[0], pairs[-1]  # one and the same without `neighbours`
            coded = self.coded(near)
            terms = self.code_terms(coded)
            if s.criteria_weight and s.criteria:
                terms |= self.criteria(coded if near is random else self.coded(random), progress * s.epochs)
            code = self.index.indexed.codes(random.document)
            return terms | self.generation(random.query, code)

        self.train(
            batches,
            objective,
            s.epochs,
            "learning codes and how to write them",
            after_epoch=lambda epoch: self.watched(),
        )

    def watched(self) -> dict[str, Any]:
        """How evenly codes are used, and how many documents and training texts a code has."""
        codes = self.index.codes(self.texts.documents)
        return use_of_codes(codes) | texts_per_code(codes, np.array([len(some) for some in self.texts.of]))

    def learn_to_write(self, codes: np.ndarray, epochs: int) -> None:
        """Train the decoder on frozen codes, [N, L]."""
        s, y = self.settings, torch.from_numpy(codes.astype(np.int64))

        def objective(batch: Drawn, progress: float) -> dict[str, Tensor]:
            rows, asked = batch
            query = self.index.read(self.index.reader.batch(self.texts.queries, asked))
            return self.generation(query, y[rows].to(self.device))

        def batches(epoch: int) -> Iterator[Drawn]:
            return self.texts.drawn(s.batch_size, s.seed + 2, epoch, self.rounds)

        more = {"micro_batch": self.index.micro_batch, "by_example": True}
        self.train(batches, objective, epochs, "learning to write the codes", **more)

    def train(self, batches: Any, objective: Any, epochs: int, phase: str, **more: Any) -> None:
        steps = self.rounds * self.texts.steps(self.settings.batch_size)
        self.index.train(batches, objective, steps, epochs, phase, **more)

    def prefixes(self, epoch: int) -> np.ndarray:
        """The first tokens of all documents when an epoch begins."""
        first = self.settings.neighbours
        name = f"codes of epoch {epoch + 1}"
        return self.index.computed_once(name, lambda: self.index.codes(self.texts.documents)[:, :first])

    def pairs(self, drawn: Drawn) -> Pairs:
        """A batch as the model reads it."""
        (rows, asked), batch, size = drawn, self.index.reader.batch, self.index.micro_batch
        query = in_chunks(self.index.read, batch(self.texts.queries, asked), size)
        document = in_chunks(self.index.read, batch(self.texts.documents, rows), size)
        if not self.settings.spare_answers:
            return Pairs(query, document, None)
        return Pairs(query, document, torch.from_numpy(self.texts.answered(asked, rows)).to(self.device))

    def coded(self, pairs: Pairs) -> Coded:
        """A batch with its codes."""
        e_query, mean_query, _ = self.represented(with_noise(pairs.query, CODE_NOISE * self.settings.noise))
        e_doc, mean_doc, log_variance = self.represented(pairs.document)
        p_query, p_doc = self.index.indexer(e_query), self.index.indexer(e_doc)
        return Coded(pairs, mean_query, e_doc, mean_doc, log_variance, p_query, p_doc)

    def represented(self, vectors: Tensor | Read) -> tuple[Tensor, Tensor, Tensor]:
        """Dense representations of texts, and the mean and log-variance that they were sampled with; without the
        information criterion, the mean itself."""
        s = self.settings
        if s.criteria_weight and "information" in s.criteria:
            return self.index.indexed.sample(vectors)
        mean = self.index.indexed.represent(vectors)
        return mean, mean, torch.zeros_like(mean)

    def code_terms(self, near: Coded) -> dict[str, Tensor]:
        """The terms that learn codes in ASI. Neighbours are adjacent in their batch, and are contrasted in
        stretches."""
        count = len(near.p_doc)
        size = NEIGHBOURHOOD if self.settings.neighbours else count
        stretches = [slice(first, min(first + size, count)) for first in range(0, count, size)]
        terms = {"contrastive": torch.stack([self.contrastive(near, some) for some in stretches]).sum()}
        error = self.index.indexer.quantisation(near.e_doc)
        return terms if error is None else terms | {"quantisation": error}

    def contrastive(self, near: Coded, some: slice) -> Tensor:
        """Eq. 1 of a stretch of the batch."""
        known = None if near.pairs.known is None else near.pairs.known[some, some]
        part = (some.stop - some.start) / len(near.p_doc)  # a short last stretch counts for its size
        return part * discrete_contrastive(near.p_query[some], near.p_doc[some], self.settings.margin, known)

    def criteria(self, random: Coded, epochs_done: float) -> dict[str, Tensor]:
        """The criteria of ASI++ with their weight λ, on a random batch.

        Near neighbours share tokens because they are alike: on a batch of those, the criteria would randomise codes.
        """
        s, terms = self.settings, {}
        weight = criteria_weight(epochs_done, CRITERIA_START, s.criteria_weight)
        as_printed = AS_PRINTED in s.criteria
        if as_printed or "density" in s.criteria:
            both = [distribution_density(p, as_printed) for p in (random.p_doc, random.p_query)]
            terms["density"] = weight * torch.stack(both).sum()
        if "bottleneck" in s.criteria:
            matched = bottleneck(random.mean_query, random.mean_doc, GAMMA, s.temperature, random.pairs.known)
            terms["bottleneck"] = weight * matched
        if "information" in s.criteria:
            terms["information"] = weight * information_bottleneck(random.mean_doc, random.log_variance, s.beta)
        return terms

    def generation(self, query: Tensor | Read, code: Tensor) -> dict[str, Tensor]:
        """Eq. 2: the decoder's loss for queries and the codes of their documents."""
        logits = self.index.indexed(with_noise(query, self.settings.noise), code)
        return {"generation": generation_loss(logits, code)}
