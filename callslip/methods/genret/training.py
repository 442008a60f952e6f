"""GenRet's progressive training (Section 3.3): codes are learned level by level."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from callslip.errors import TrainingFailed
from callslip.identifiers import random_codes
from callslip.identifiers.balancing import sinkhorn
from callslip.identifiers.levels import level_figures, prefix_groups
from callslip.identifiers.quality import attainable_diversity
from callslip.index.readers import with_noise
from callslip.methods.genret.equations import (
    commitment,
    initial_codebook,
    reassigned,
    reconstruction,
    retrieval,
    straight_through,
)
from callslip.training.batches import Drawn, Inputs, Texts
from callslip.training.gradcache import in_chunks

if TYPE_CHECKING:
    from callslip.methods.genret.method import GenRet

EPSILON, ITERATIONS = 1.0, 100
"""Entropy regularisation and iterations of Sinkhorn: the paper's."""
COLLAPSED = 0.2
"""A level with less than this share of the attainable diversity has collapsed."""


class Tokenizer:
    """The document side of the model: what it writes next for a text, given the tokens so far."""

    def __init__(self, index: GenRet) -> None:
        self.index = index

    def codebook(self, level: int) -> Tensor:
        """The rows of a level's tokens, [K, D]."""
        return cast(Tensor, self.index.model.heads[level].weight)

    def logits(self, states: Tensor) -> list[Tensor]:
        """Products of states [B, T, D] with their levels' codebooks."""
        return [functional.linear(states[:, level], self.codebook(level)) for level in range(states.shape[1])]

    def states(self, inputs: Inputs, codes: np.ndarray) -> np.ndarray:
        """The model's states [N, D] of texts after their tokens so far, [N, T - 1]."""
        return np.concatenate([some.cpu().numpy() for some in self._blocks(inputs, codes)])

    def tokens(self, inputs: Inputs, codes: np.ndarray) -> np.ndarray:
        """Eq. 4: the token that each text writes next, [N]."""
        head = self.codebook(codes.shape[1])
        blocks = self._blocks(inputs, codes)
        return np.concatenate([(some @ head.t()).argmax(dim=1).cpu().numpy() for some in blocks])

    @torch.no_grad()
    def _blocks(self, inputs: Inputs, codes: np.ndarray) -> Iterator[Tensor]:
        model = self.index.model.eval()
        device = next(model.parameters()).device
        size = self.index.reader.block
        for start in range(0, len(inputs), size):
            rows = np.arange(start, min(start + size, len(inputs)))
            prefix = torch.from_numpy(codes[rows]).to(device)
            yield model.hidden(self.index.reader.batch(inputs, rows), prefix)[:, -1]

    def code(self, inputs: Inputs, length: int) -> np.ndarray:
        """Whole codes of texts, token by token, [N, length]."""
        codes = np.zeros((len(inputs), 0), np.int64)
        for _ in range(length):
            codes = np.concatenate([codes, self.tokens(inputs, codes)[:, None]], axis=1)
        return codes


class Training:
    """The level phases, for an index that is being built."""

    def __init__(self, index: GenRet, texts: Texts) -> None:
        self.index, self.settings, self.texts, self.tokenizer = index, index.settings, texts, index.tokenizer

    def learn_codes(self, length: int) -> np.ndarray:
        """A code for each document, [N, length], learned level by level."""
        s, count = self.settings, len(self.texts.of)
        if s.codes == "random":
            return random_codes(count, length, s.width, seed=s.seed)
        codes = np.zeros((count, 0), np.int64)
        for _ in range(length):
            codes = np.concatenate([codes, self.learn_level(codes)[:, None]], axis=1)
        for parameter in self.index.model.heads.parameters():
            parameter.requires_grad_(True)
        return codes

    def learn_level(self, codes: np.ndarray) -> np.ndarray:
        """The next token of every document, [N], given the earlier ones, [N, T - 1]."""
        s, level, groups = self.settings, codes.shape[1], prefix_groups(codes)
        name = f"level {level + 1}"
        earlier = level > 0 and s.commitment_weight > 0
        if s.warmup_epochs and (s.reconstruction_weight or earlier or (s.warmup_retrieval and s.retrieval_weight)):
            self.train(f"{name}: warm-up", codes, self.warmup_terms, s.warmup_epochs)
        codebook = self.tokenizer.codebook(level)
        if s.initialise == "clusters":
            with torch.no_grad():
                codebook.copy_(torch.from_numpy(self.first_codebook(name, codes)))

        def watch(epoch: int) -> dict[str, Any]:
            figures = level_figures(groups, self.tokenizer.tokens(self.texts.documents, codes), s.width)
            # A level starts with documents of one prefix near the same tokens: it has an epoch to separate them.
            last = epoch + 1 == s.level_epochs
            again = epoch > 0 and collapsed(self.index.log.records[-1], len(groups), s.width)  # type: ignore[union-attr]
            if s.stop_collapsed and (last or again) and collapsed(figures, len(groups), s.width):
                raise collapse(figures, len(groups), s.width, f"{name}, epoch {epoch + 1}")
            return figures

        self.train(name, codes, self.level_terms, s.level_epochs, watch)
        codebook.requires_grad_(False)
        return self.tokenizer.tokens(self.texts.documents, codes)

    def first_codebook(self, name: str, codes: np.ndarray) -> np.ndarray:
        """The centroids that a level starts with, [K, D]."""
        s = self.settings

        def compute() -> np.ndarray:
            states = self.tokenizer.states(self.texts.documents, codes)
            return initial_codebook(states, prefix_groups(codes), s.width, s.seed)

        return self.index.computed_once(f"{name}: codebook", compute)

    def train(
        self,
        phase: str,
        codes: np.ndarray,
        terms: Callable[..., dict[str, Tensor]],
        epochs: int,
        watch: Callable[[int], dict[str, Any]] | None = None,
    ) -> None:
        """One phase of a level. A batch holds documents that share their prefix, each with one of its queries."""
        s, texts, model, batch = self.settings, self.texts, self.index.model, self.index.reader.batch
        groups, device, written = prefix_groups(codes), next(model.parameters()).device, torch.from_numpy(codes)
        round_steps = texts.steps(s.batch_size)
        rounds = texts.rounds(-(-s.level_steps // (epochs * round_steps)))

        def objective(drawn: Drawn, progress: float) -> dict[str, Tensor]:
            rows, asked = drawn
            prefix = written[rows].to(device)
            document = in_chunks(model.hidden, (batch(texts.documents, rows), prefix), s.micro_batch)
            query = with_noise(batch(texts.queries, asked), s.noise)
            query = in_chunks(model.hidden, (query, prefix), s.micro_batch)
            group = torch.from_numpy(groups[rows]).to(device)
            return terms(document, query, prefix, group[:, None] == group)

        self.index.train(
            lambda epoch: texts.drawn(s.batch_size, s.seed, epoch, rounds, groups),
            objective,
            rounds * round_steps,
            epochs,
            phase,
            learning_rate=s.level_learning_rate,
            decay=False,
            after_epoch=watch,
        )

    def warmup_terms(self, document: Tensor, query: Tensor, prefix: Tensor, same_prefix: Tensor) -> dict[str, Tensor]:
        """The level's terms with the document's state in place of the codebook's row. States are [B, T, D]."""
        s, terms = self.settings, {}
        d, q, logits = document[:, -1], query[:, -1], self.tokenizer.logits
        if s.reconstruction_weight:
            terms["reconstruction"] = s.reconstruction_weight * reconstruction(d, d, same_prefix)
        if prefix.shape[1] and s.commitment_weight:
            terms["commitment"] = s.commitment_weight * commitment(logits(document[:, :-1]), prefix)
        if s.warmup_retrieval and s.retrieval_weight:
            terms["retrieval"] = s.retrieval_weight * retrieval(q, d, logits(query[:, :-1]), prefix)
        return terms

    def level_terms(self, document: Tensor, query: Tensor, prefix: Tensor, same_prefix: Tensor) -> dict[str, Tensor]:
        """Eq. 11: the three losses of a level, with tokens balanced over the batch."""
        s, terms = self.settings, {}
        d, q = document[:, -1], query[:, -1]
        logits = self.tokenizer.logits(document)
        with torch.no_grad():
            scores = logits[-1]
            if s.reassign:
                scores = sinkhorn(scores, EPSILON, ITERATIONS)
            token = scores.argmax(dim=1)
        if s.reassign and s.softmax == "reassigned":
            logits = [*logits[:-1], reassigned(logits[-1], scores, EPSILON)]
        code = torch.cat([prefix, token[:, None]], dim=1)
        if s.reconstruction_weight:
            z = straight_through(d, self.tokenizer.codebook(document.shape[1] - 1), token)
            terms["reconstruction"] = s.reconstruction_weight * reconstruction(z, d, same_prefix)
        if s.commitment_weight:
            terms["commitment"] = s.commitment_weight * commitment(logits, code)
        if s.retrieval_weight:
            terms["retrieval"] = s.retrieval_weight * retrieval(q, d, self.tokenizer.logits(query), code)
        return terms


def collapsed(figures: dict[str, Any], documents: int, k: int) -> bool:
    """Whether a level's tokens no longer separate documents: all of them, or those of a prefix."""
    attainable = attainable_diversity(documents, k)
    return figures["diversity"] < COLLAPSED * attainable or figures["within_prefix"] < COLLAPSED


def collapse(figures: dict[str, Any], documents: int, k: int, when: str) -> TrainingFailed:
    return TrainingFailed(
        f"{when}: the codes collapsed: {figures['unique_codes']} codes for {documents} documents, diversity "
        f"{figures['diversity']:.2f}, inside prefixes {figures['within_prefix']:.2f}",
        "Keep initialise=clusters and reassign=true; train the level longer (--set level_epochs=…) or with a lower "
        f"--set level_learning_rate=…; for few documents, use a smaller --set width=… than {k}.",
    )
