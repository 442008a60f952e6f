"""ASI and ASI++: codes that an indexer learns together with the decoder that writes them, end to end (Yang et al.,
2023; Liu et al., 2024).

An encoder gives each text a dense vector. The indexer gives the vector probabilities over the tokens of each level, and
the likeliest ones are a document's code; the decoder learns to write that code for the document's queries. All is
trained at once, and codes move while the decoder learns them; it may go on to learn when they stand still. ASI draws
the code of a query to that of its document and away from others. ASI++ adds three criteria that spread the codes: the
density of codes (Eq. 5), the use of the dense space (Eq. 6), and how much of a text its vector keeps (Eq. 9). A code
may belong to many documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from callslip.corpus.documents import Corpus, Document, Query
from callslip.decoders.tuned import TunedWriter
from callslip.identifiers import random_codes
from callslip.identifiers.levels import prefix_groups, use_of_codes
from callslip.identifiers.table import Identifiers
from callslip.index.generative import GenerativeRetriever, Inputs
from callslip.methods.asi.indexers import Indexer, make_indexer
from callslip.methods.asi.model import IndexedWriter
from callslip.methods.asi.settings import PRESETS, ASISettings
from callslip.search.beam import Beams, beam_search
from callslip.search.trees import FreeTree
from callslip.training.loop import TrainingLog, alone, train
from callslip.training.losses import code_cross_entropy
from callslip.training.texts import Drawn, Texts

BLOCK = 2048
"""Texts that are read at once where no gradient is wanted."""
LEAST_PROBABILITY = 1e-9
NEAREST = 1e-6
"""Squared distances and variances count as no less than this: two equal texts, or a dimension that says nothing, would
outweigh all others."""


# The equations. Shapes: B texts of a batch, L levels, K tokens of each, D the size of vectors.


def code_distance(p: Tensor, r: Tensor) -> Tensor:
    """Squared Euclidean distances of probabilities [B, L, K], summed over levels, [B]. At most 2 L; between codes,
    twice the number of levels where they differ."""
    _check_probabilities(p, r)
    return (p - r).square().sum(dim=(1, 2))


def discrete_contrastive(p_query: Tensor, p_doc: Tensor, margin: float = 3.0, known: Tensor | None = None) -> Tensor:
    """Eq. 1: the code of query i must be nearer to that of document i than to that of any other document of the batch,
    by a margin. The mean over all pairs i ≠ j of max(0, D(q_i, d_i) − D(q_i, d_j) + margin), but for those where
    `known` [B, B] says that document j answers query i as well."""
    _check_probabilities(p_query, p_doc)
    _check_known(known, len(p_query))
    q, d = p_query.flatten(1), p_doc.flatten(1)
    away = q.square().sum(dim=1)[:, None] + d.square().sum(dim=1) - 2 * q @ d.t()
    hinge = (away.diagonal()[:, None] - away + margin).clamp_min(0)
    return _mean_of_others(hinge, known)


def generation_loss(logits: Sequence[Tensor], code: Tensor) -> Tensor:
    """Eq. 2: cross-entropy of the document's code, summed over levels; the mean of the batch."""
    return code_cross_entropy(logits, code)


def distribution_density(p: Tensor, as_printed: bool = False) -> Tensor:
    """Eq. 5: a text must not be sure of what its neighbours, the others of the batch, are coded as.

    The reverse cross-entropy of row i against row j is, per level, the mean of −log p_i over all tokens but that of j;
    it is summed over levels and averaged over j. Row i weighs 1 minus its mean distance from the codes of the others
    (a share of the largest); `as_printed` takes the distance itself.
    """
    _check_probabilities(p, p)
    size, length, width = p.shape
    if size < 2:
        return p.sum() * 0.0
    code = p.argmax(dim=2)
    # How many of the batch have each token, and from it what is said of all pairs: no [B, B] array is made.
    counts = functional.one_hot(code, width).to(p.dtype).sum(dim=0)
    with torch.no_grad():
        same = counts.gather(1, code.t()).t() - 1  # others that share the token, [B, L]
        distance = 1 - same.sum(dim=1) / (length * (size - 1))
    logs = p.clamp_min(LEAST_PROBABILITY).log()
    own = logs.gather(2, code[:, :, None]).squeeze(2)
    neighbours = ((logs * counts).sum(dim=2) - own) / (size - 1)  # mean over j of log p_i at the token of j
    reverse = -(logs.sum(dim=2) - neighbours).sum(dim=1) / max(1, width - 1)
    return ((distance if as_printed else 1 - distance) * reverse).mean()


def bottleneck(
    e_query: Tensor, e_doc: Tensor, gamma: float = 0.05, temperature: float = 1.0, known: Tensor | None = None
) -> Tensor:
    """Eq. 6: each query's own document among those of the batch, by inner products of unit vectors [B, D], and gamma
    times the mean inverse squared distance between documents and between queries. Documents j that answer query i as
    well, `known` [B, B], are not among them."""
    if e_query.shape != e_doc.shape or e_query.dim() != 2:
        raise ValueError(f"vectors of shapes {tuple(e_query.shape)} and {tuple(e_doc.shape)}")
    _check_known(known, len(e_query))
    own = torch.arange(len(e_query), device=e_query.device)
    scores = e_query @ e_doc.t() / temperature
    if known is not None:
        scores = scores.masked_fill(known & _others(scores), -torch.inf)
    matching = functional.cross_entropy(scores, own)
    if not gamma:
        return matching
    return matching + gamma * (_crowding(e_doc) + _crowding(e_query))


def information_bottleneck(mean: Tensor, log_variance: Tensor, beta: float = 0.01) -> Tensor:
    """Eq. 9: beta times the divergence of each text's Gaussian from one that all share, whose moments are those of the
    batch's means. `mean`, `log_variance` [B, D]; summed over D, the mean of the batch."""
    if mean.shape != log_variance.shape or mean.dim() != 2:
        raise ValueError(f"moments of shapes {tuple(mean.shape)} and {tuple(log_variance.shape)}")
    with torch.no_grad():
        centre, spread = mean.mean(dim=0), mean.var(dim=0, correction=0).clamp_min(NEAREST)
    ratio = (log_variance.exp() + (mean - centre).square()) / spread
    return beta * 0.5 * (spread.log() - log_variance + ratio - 1).sum(dim=1).mean()


def criteria_weight(epochs_done: float, start: float = 0.01, end: float = 0.25) -> float:
    """λ: from `start` to `end` over the first epoch."""
    return start + (end - start) * min(1.0, epochs_done)


def _crowding(e: Tensor) -> Tensor:
    squares = e.square().sum(dim=1)
    apart = (squares[:, None] + squares - 2 * e @ e.t()).fill_diagonal_(1.0)
    return _mean_of_others(1 / apart.clamp_min(NEAREST))


def _mean_of_others(pairs: Tensor, left_out: Tensor | None = None) -> Tensor:
    """The mean of a square array without its diagonal and what is left out; 0 if there is nothing else."""
    others = _others(pairs) if left_out is None else _others(pairs) & ~left_out
    return (pairs * others).sum() / others.sum().clamp_min(1)


def _others(pairs: Tensor) -> Tensor:
    """All places of a square array but those of its diagonal."""
    return ~torch.eye(len(pairs), dtype=torch.bool, device=pairs.device)


def _check_known(known: Tensor | None, size: int) -> None:
    if known is not None and known.shape != (size, size):
        raise ValueError(f"known answers are [{size}, {size}], not {tuple(known.shape)}")


def _check_probabilities(p: Tensor, r: Tensor) -> None:
    if p.shape != r.shape or p.dim() != 3:
        raise ValueError(f"probabilities are [B, L, K], not {tuple(p.shape)} and {tuple(r.shape)}")


# The method.


class Pairs(NamedTuple):
    """Queries and their documents, vectors [B, dim] each, and which documents answer which queries, [B, B]."""

    query: Tensor
    document: Tensor
    known: Tensor | None


class Coded(NamedTuple):
    """The same, with what represents them, [B, D], and their codes as probabilities, [B, L, K]."""

    pairs: Pairs
    mean_query: Tensor
    e_doc: Tensor
    mean_doc: Tensor
    log_variance: Tensor
    p_query: Tensor
    p_doc: Tensor


class ASI(GenerativeRetriever):
    """Learns codes and how to write them at once."""

    Settings = ASISettings
    settings: ASISettings
    takes_histories = False
    presets = PRESETS

    def _fit(self, corpus: Corpus) -> None:
        s = self.settings
        self.read_corpus(corpus)
        with torch.random.fork_rng(devices=[]):  # the caller's chance is left alone
            torch.manual_seed(s.seed)
            self.model = self.new_model([s.width] * s.length)
            self.log = TrainingLog()
            documents = self.inputs([Query(d.doc_id, d.content) for d in corpus], self.vectors)
            texts = Texts.of_documents(documents, *self.examples(corpus))
            if s.codes == "random":
                codes = random_codes(len(corpus), s.length, s.width, seed=s.seed)
                self.learn_to_write(texts, codes, s.epochs + s.writing_epochs)
            else:
                self.indexer.begin(self.vectors, s.seed)
                self.learn(texts)
                codes = self.codes(documents)
                # A code is what head and indexer make of a document: new ones must get theirs as these did.
                with alone(self.model, self.indexed.writer):
                    self.learn_to_write(texts, codes, s.writing_epochs)
            self.identifiers = Identifiers(corpus.doc_ids, codes)

    def writer_shape(self) -> dict[str, Any]:
        s = self.settings
        own = {"hidden": s.indexer_hidden, "dropout": s.indexer_dropout}
        if s.indexer != "mlp":
            own = {"epsilon": s.sinkhorn_epsilon, "iterations": s.sinkhorn_iterations}
        return super().writer_shape() | {"indexer": s.indexer, "indexing": own}

    def writer(self, shape: dict[str, Any]) -> IndexedWriter:  # type: ignore[override]
        own = dict(shape)
        dim, widths = shape["input_dim"], shape["widths"]
        indexer = make_indexer(own.pop("indexer"), dim, len(widths), widths[0], **own.pop("indexing"))
        return IndexedWriter(indexer=indexer, **own)

    @property
    def indexed(self) -> IndexedWriter:
        """The model without an encoder before it."""
        model: Any = self.model
        return cast(IndexedWriter, model.writer if isinstance(model, TunedWriter) else model)

    @property
    def indexer(self) -> Indexer:
        return cast(Indexer, self.indexed.indexer)

    def read(self, batch: Any) -> Tensor:
        """A batch as the vectors that the indexed writer reads."""
        return self.model.vectors(batch) if isinstance(self.model, TunedWriter) else batch

    # The phase in which all is learned, and what follows it.

    def learn(self, texts: Texts) -> None:
        """Train encoder head, indexer and decoder at once, from documents with one of their queries each, none twice in
        a batch. Where neighbours are sought, the indexer learns from documents whose codes begin alike, as they were
        when the epoch began, and the decoder from batches drawn from all."""
        s, rounds = self.settings, texts.rounds(1)

        def drawn(epoch: int) -> Iterator[tuple[Drawn, ...]]:
            of_all = texts.drawn(s.batch_size, s.seed + 1, epoch, rounds)
            if not s.neighbours:
                return zip(of_all)
            groups = prefix_groups(self.codes_at(epoch, texts.documents))
            return zip(of_all, texts.drawn(s.batch_size, s.seed, epoch, rounds, groups), strict=True)

        def objective(batch: tuple[Drawn, ...], progress: float) -> dict[str, Tensor]:
            pairs = [self.pairs(texts, some) for some in batch]
            whole, near = pairs[0], pairs[-1]  # one and the same, unless neighbours meet in batches of their own
            coded = self.coded(near)
            terms = self.code_terms(coded)
            if s.criteria_weight and s.criteria:
                terms |= self.criteria(coded if near is whole else self.coded(whole), progress * s.epochs)
            if s.generation_weight:
                code = self.indexed.codes(whole.document)
                logits = self.indexed(self.noisy(whole.query), code)
                terms["generation"] = s.generation_weight * generation_loss(logits, code)
            return terms

        self._train(
            texts,
            drawn,
            objective,
            epochs=s.epochs,
            phase="learning codes and how to write them",
            after_epoch=lambda epoch: use_of_codes(self.codes(texts.documents)),
        )

    def learn_to_write(self, texts: Texts, codes: np.ndarray, epochs: int) -> None:
        """Teach the model codes that stand still."""
        s, rounds, known = self.settings, texts.rounds(1), torch.from_numpy(codes.astype(np.int64))

        def objective(batch: Drawn, progress: float) -> dict[str, Tensor]:
            rows, some = batch
            query = self.read(self.batch(texts.queries, some))
            code = known[rows].to(query.device)
            return {"generation": generation_loss(self.indexed(self.noisy(query), code), code)}

        def drawn(epoch: int) -> Iterator[Drawn]:
            return texts.drawn(s.batch_size, s.seed + 2, epoch, rounds)

        self._train(texts, drawn, objective, epochs=epochs, phase="learning to write the codes")

    def _train(self, texts: Texts, drawn: Any, objective: Any, **phase: Any) -> None:
        s = self.settings
        train(
            self.model,
            drawn,
            objective,
            steps_per_epoch=texts.rounds(1) * texts.steps(s.batch_size),
            learning_rate=s.learning_rate,
            weight_decay=s.weight_decay,
            log=self.log,
            share=self.learning_share,
            checkpoints=self.checkpoints,
            **phase,
        )

    def codes_at(self, epoch: int, documents: Inputs) -> np.ndarray:
        """The first tokens of all documents when an epoch begins."""
        first = self.settings.neighbours
        return self.made_once(f"codes of epoch {epoch + 1}", lambda: self.codes(documents)[:, :first])

    def pairs(self, texts: Texts, drawn: Drawn) -> Pairs:
        """A batch as it is read."""
        rows, some = drawn
        query, document = self.read(self.batch(texts.queries, some)), self.read(self.batch(texts.documents, rows))
        if not self.settings.spare_answers:
            return Pairs(query, document, None)
        return Pairs(query, document, torch.from_numpy(texts.answered(some, rows)).to(query.device))

    def coded(self, pairs: Pairs) -> Coded:
        """A batch as the indexer has it."""
        e_query, mean_query, _ = self.represented(self.noisy(pairs.query, self.settings.code_noise))
        e_doc, mean_doc, log_variance = self.represented(pairs.document)
        p_query, p_doc = self.indexer(e_query), self.indexer(e_doc)
        return Coded(pairs, mean_query, e_doc, mean_doc, log_variance, p_query, p_doc)

    def code_terms(self, near: Coded) -> dict[str, Tensor]:
        """What codes are learned by in ASI. Neighbours lie side by side in their batch, and are told apart in stretches
        of it: a large batch would compare most of them with strangers."""
        s, count = self.settings, len(near.p_doc)
        size = s.neighbourhood if s.neighbours else count
        stretches = [slice(first, min(first + size, count)) for first in range(0, count, size)]
        terms = {"contrastive": torch.stack([self._told_apart(near, some) for some in stretches]).sum()}
        error = self.indexer.quantisation(near.e_doc) if s.quantisation_weight else None
        if error is not None:
            terms["quantisation"] = s.quantisation_weight * error
        return terms

    def _told_apart(self, near: Coded, some: slice) -> Tensor:
        known = None if near.pairs.known is None else near.pairs.known[some, some]
        part = (some.stop - some.start) / len(near.p_doc)  # a short last stretch counts as much as it has
        return part * discrete_contrastive(near.p_query[some], near.p_doc[some], self.settings.margin, known)

    def criteria(self, whole: Coded, epochs_done: float) -> dict[str, Tensor]:
        """The criteria of ASI++ with their weight λ, of queries and documents drawn from all.

        Texts that are near one another share tokens because they are alike: told not to, they would have chance codes.
        """
        s, terms = self.settings, {}
        weight = criteria_weight(epochs_done, s.criteria_start, s.criteria_weight)
        if "density" in s.criteria:
            both = [distribution_density(p, s.density == "printed") for p in (whole.p_doc, whole.p_query)]
            terms["density"] = weight * s.density_weight * torch.stack(both).sum()
        if "bottleneck" in s.criteria:
            matched = bottleneck(whole.mean_query, whole.mean_doc, s.gamma, s.temperature, whole.pairs.known)
            terms["bottleneck"] = weight * matched
        if "information" in s.criteria:
            terms["information"] = weight * information_bottleneck(whole.mean_doc, whole.log_variance, s.beta)
        return terms

    def represented(self, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Dense representations of texts, with the mean and log-variance that they were drawn with; where nothing makes
        a text forget, the mean itself."""
        s = self.settings
        if s.criteria_weight and "information" in s.criteria:
            return self.indexed.sample(vectors)
        mean = self.indexed.represent(vectors)
        return mean, mean, torch.zeros_like(mean)

    def learning_share(self, parameter: str) -> float:
        s, name = self.settings, parameter.removeprefix("writer.")
        own = {"indexer": s.indexer_learning_rate, "head": s.head_learning_rate}.get(name.split(".")[0])
        return super().learning_share(parameter) if own is None else own / max(s.learning_rate, 1e-12)

    # Codes.

    @torch.no_grad()
    def codes(self, inputs: Inputs) -> np.ndarray:
        """The codes of texts, [N, L], in one pass."""
        blocks = [np.arange(n, min(n + BLOCK, len(inputs))) for n in range(0, len(inputs), BLOCK)]
        return np.concatenate([self.indexed.codes(self.read(self.batch(inputs, b))).cpu().numpy() for b in blocks])

    def assign(self, documents: list[Document], vectors: np.ndarray) -> np.ndarray:
        if self.settings.codes == "random":
            return super().assign(documents, vectors)  # it refuses
        return self.codes(self.inputs([Query(d.doc_id, d.content) for d in documents], vectors))

    # Search.

    def write(self, inputs: Inputs, beam: int, live: list[np.ndarray] | None = None) -> list[Beams]:
        """As the base class, or freely: then codes that nobody has are dropped. When too few are left for k hits, the
        search asks again with a wider beam, and is told existing codes only."""
        if self.settings.decoding != "free" or beam > self.settings.beam:
            return super().write(inputs, beam, live)
        trie, found = self.identifiers.trie(), []
        for beams in beam_search(self.model, self.batch(inputs), FreeTree(self.model.widths), beam):
            leaves = trie.leaves_of(beams.codes)
            known = leaves >= 0
            if live is not None:
                known[known] = live[-1][leaves[known]]
            found.append(Beams(leaves[known], beams.scores[known], beams.levels[known], beams.codes[known]))
        return found
