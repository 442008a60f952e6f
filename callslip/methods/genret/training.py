"""GenRet: codes that the model itself learns, as a discrete auto-encoder of documents (Sun et al., 2023).

One model reads a text and writes a code: for a document it is the tokeniser, for a query the retriever. Codes are
learned level by level. At each level the model is warmed up, a codebook is made from its states by k-means with
guaranteed sizes, and model and codebook are trained so that the chosen row of the codebook tells the document from the
others that share its prefix (reconstruction), that the document commits to its token, and that its queries write it
(retrieval); tokens are shared out evenly while training (Sinkhorn). Then the level's tokens are fixed. Last of all the
model learns to write whole codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from callslip.corpus.documents import Corpus, Document, Query
from callslip.errors import BadSetting, TrainingFailed
from callslip.identifiers import levels_for, random_codes
from callslip.identifiers.balancing import sinkhorn
from callslip.identifiers.kmeans import constrained_kmeans
from callslip.identifiers.levels import group_means, level_figures, places, prefix_groups
from callslip.identifiers.quality import attainable_diversity
from callslip.identifiers.table import Identifiers
from callslip.index.generative import GenerativeRetriever, GenerativeSettings, Inputs
from callslip.methods.genret.model import CodebookWriter
from callslip.settings import check_range
from callslip.training.loop import TrainingLog, train
from callslip.training.losses import code_cross_entropy
from callslip.training.texts import Drawn, Texts

BLOCK = 2048
"""Texts that are read at once where no gradient is wanted."""
COLLAPSED = 0.2
"""Of the diversity that could be had: less than this, and the level has collapsed."""
CLUSTERED = 20_000
"""Documents that a codebook is made from, at most: a transport problem of more takes minutes and gigabytes."""


@dataclass(frozen=True)
class GenRetSettings(GenerativeSettings):
    """GenRet's own: the codes, the phases of a level, and the parts that can be left out."""

    codes: Literal["learned", "random"] = "learned"
    """Learned codes, or random ones as a control, which have the final fit only."""
    width: int = 32
    """Tokens per level: rows of a codebook (K)."""
    length: int | None = None
    """Levels; none is as many as leave about `leaf` documents to a code."""
    leaf: int = 5
    """Documents to aim at per code when `length` is not given."""
    collisions: Literal["bucket", "level"] = "bucket"
    """Documents that share a code: ranked in their `bucket`, or told apart by one more `level`, the place in it."""
    warmup_epochs: int = 1
    """Of each level, before its codebook is made."""
    level_epochs: int = 3
    """Of each level, with its codebook."""
    level_learning_rate: float = 1e-3
    """Learning rate of these two phases, which stays; `learning_rate` is that of the final fit."""
    level_steps: int = 200
    """Steps of each of these two phases, at least: a small corpus comes round more often in an epoch."""
    warmup_retrieval: bool = True
    """Whether the warm-up draws queries to their documents, too; the paper's has no queries."""
    reconstruction_weight: float = 1.0
    """Of the reconstruction loss; 0 leaves it out."""
    commitment_weight: float = 1.0
    """Of the commitment loss; 0 leaves it out."""
    retrieval_weight: float = 1.0
    """Of the retrieval loss; 0 leaves it out."""
    initialise: Literal["clusters", "random"] = "clusters"
    """What a codebook begins with: centroids of the documents' states, or chance."""
    reassign: bool = True
    """Whether tokens are shared out evenly in each batch while a level is trained."""
    sinkhorn_epsilon: float = 1.0
    """How soft that sharing is."""
    sinkhorn_iterations: int = 100
    """Its iterations."""
    similarity_weight: float = 200.0
    """What a similarity of 1 is worth in log-probability, under `ranking=sum`."""
    stop_collapsed: bool = True
    """Whether a level that collapses ends the training; to see what comes of it, let it go on."""
    seq2seq_codes: Literal["tokens", "codebooks"] = "codebooks"
    """With `seq2seq`: GenRet has codebooks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.codes_from is not None:
            raise BadSetting(
                "setting 'codes_from': GenRet learns its codes", "Leave it out, or use it with uri or dsi-semantic."
            )
        check_range(self, width=2, leaf=1, warmup_epochs=0, level_epochs=1, level_steps=0, level_learning_rate=0)
        check_range(self, sinkhorn_iterations=1)
        check_range(self, reconstruction_weight=0, commitment_weight=0, retrieval_weight=0)
        if self.length is not None:
            check_range(self, length=1)
        if self.sinkhorn_epsilon <= 0:
            raise BadSetting(f"setting 'sinkhorn_epsilon' is {self.sinkhorn_epsilon}", "Use more than 0.")
        if self.seq2seq_codes != "codebooks":
            raise BadSetting(f"setting 'seq2seq_codes' is {self.seq2seq_codes!r}", "GenRet learns codebooks.")


# The equations. Shapes: B documents of a batch, D the model's width, K tokens of a level, T the level that is learned.


def reconstruction(z: Tensor, d: Tensor, same_prefix: Tensor) -> Tensor:
    """Eq. 6 and 8 at the level that is learned: which document of the same prefix does row z_i of the codebook mean?

    `z`, `d` [B, D]; `same_prefix` [B, B] tells which documents share the earlier tokens. Softmax over them of
    z_i · sg(d_j), target j = i; the mean over the batch.
    """
    size = len(z)
    if z.shape != d.shape or z.dim() != 2 or same_prefix.shape != (size, size):
        raise ValueError(f"{tuple(z.shape)}, {tuple(d.shape)} and {tuple(same_prefix.shape)} do not fit")
    own = torch.eye(size, dtype=torch.bool, device=z.device)
    scores = (z @ d.detach().t()).masked_fill(~(same_prefix.bool() | own), -torch.inf)
    return functional.cross_entropy(scores, torch.arange(size, device=z.device))


def straight_through(d: Tensor, codebook: Tensor, token: Tensor) -> Tensor:
    """The codebook's row of each token [B, D]; backward, its gradient goes to d and to that row alike."""
    if d.dim() != 2 or codebook.dim() != 2 or d.shape[1] != codebook.shape[1] or token.shape != d.shape[:1]:
        raise ValueError(f"{tuple(d.shape)}, {tuple(codebook.shape)} and {tuple(token.shape)} do not fit")
    return codebook[token] + d - d.detach()


def commitment(logits: Sequence[Tensor], code: Tensor) -> Tensor:
    """Eq. 9: cross-entropy of the document's own tokens, summed over the levels up to T; the mean of the batch."""
    return code_cross_entropy(logits, code)


def retrieval(h_query: Tensor, h_doc: Tensor, logits: Sequence[Tensor], code: Tensor) -> Tensor:
    """Eq. 10: each query's own document among those of the batch, by products of states of level T [B, D], and the
    cross-entropy of its document's tokens, summed over the levels up to T; means of the batch."""
    if h_query.shape != h_doc.shape or h_query.dim() != 2:
        raise ValueError(f"states of shapes {tuple(h_query.shape)} and {tuple(h_doc.shape)}")
    ranking = functional.cross_entropy(h_query @ h_doc.t(), torch.arange(len(h_query), device=h_query.device))
    return ranking + code_cross_entropy(logits, code)


# The codebooks.


def initial_codebook(states: np.ndarray, groups: np.ndarray, k: int, seed: int = 0) -> np.ndarray:
    """Section 3.3.2: k centroids [k, D] of states [N, D], each freed from the mean of its group (documents of one
    prefix) and given that of all, by k-means whose clusters are neither tiny nor huge."""
    centred = states - group_means(states, groups)[groups] + states.mean(axis=0)
    if len(centred) > CLUSTERED:
        centred = centred[np.random.default_rng(seed).choice(len(centred), CLUSTERED, replace=False)]
    n = len(centred)
    if n <= k:  # a token for each, and others that no state is near to
        rng = np.random.default_rng(seed)
        more = centred[rng.integers(0, n, k - n)] + rng.normal(0, centred.std() + 1e-3, (k - n, states.shape[1]))
        return np.concatenate([centred, more]).astype(np.float32)
    least, most = min(n // (2 * k), k // 4), max(2 * k, -(-2 * n // k))
    return constrained_kmeans(centred, k, least, most, seed)[1]


# The method.


class GenRet(GenerativeRetriever):
    """Learns the codes, then writes them."""

    Settings = GenRetSettings
    settings: GenRetSettings
    takes_histories = False
    presets = {  # noqa: RUF012  (a class constant, never changed)
        "quick": {"epochs": 4, "level_epochs": 2, "decoder_width": 128},
        "paper": {"width": 512, "leaf": 1, "warmup_retrieval": False, "beam": 100, "collisions": "level"},
        "random": {"codes": "random"},
        "no-reconstruction": {"reconstruction_weight": 0.0, "stop_collapsed": False},
        "no-sinkhorn": {"reassign": False, "stop_collapsed": False},
        "no-clusters": {"initialise": "random", "stop_collapsed": False},
    }

    def _fit(self, corpus: Corpus) -> None:
        s = self.settings
        self.check_seq2seq()
        self.vectors = self.encode([d.content for d in corpus], "encoding documents")
        length = s.length or levels_for(len(corpus), s.width, s.leaf)
        extra = [s.width] if s.collisions == "level" else []
        with torch.random.fork_rng(devices=[]):  # the caller's chance is left alone
            torch.manual_seed(s.seed)
            self.model = self.new_model([s.width] * length + extra)
            self.log = TrainingLog()
            examples, rows = self.examples(corpus)
            documents = self.inputs([Query(d.doc_id, d.content) for d in corpus], self.vectors)
            codes = self.learn_codes(Texts.of_documents(documents, examples, rows), length)
            if extra:
                codes = np.concatenate([codes, places(codes, s.width)[:, None]], axis=1)
            self.identifiers = Identifiers(corpus.doc_ids, codes)
            self.train_model(examples, codes[rows])

    def writer(self, shape: dict[str, Any]) -> CodebookWriter:
        return CodebookWriter(**shape)

    # Learning the codes.

    def learn_codes(self, texts: Texts, length: int) -> np.ndarray:
        """A code for each document, [N, length], learned level by level."""
        s, count = self.settings, len(texts.of)
        if s.codes == "random":
            return random_codes(count, length, s.width, seed=s.seed)
        codes = np.zeros((count, 0), np.int64)
        for _ in range(length):
            codes = np.concatenate([codes, self.learn_level(texts, codes)[:, None]], axis=1)
        for parameter in self.model.heads.parameters():
            parameter.requires_grad_(True)
        return codes

    def learn_level(self, texts: Texts, codes: np.ndarray) -> np.ndarray:
        """The next token of every document, [N], given the earlier ones, [N, T - 1]."""
        s, level, groups = self.settings, codes.shape[1], prefix_groups(codes)
        name = f"level {level + 1}"
        earlier = level > 0 and s.commitment_weight > 0
        if s.warmup_epochs and (s.reconstruction_weight or earlier or (s.warmup_retrieval and s.retrieval_weight)):
            self._train(f"{name}: warm-up", texts, codes, self.warmup_terms, s.warmup_epochs)
        codebook = self.codebook(level)
        if s.initialise == "clusters":
            with torch.no_grad():
                codebook.copy_(torch.from_numpy(self.first_codebook(name, texts, codes)))

        def watch(epoch: int) -> dict[str, Any]:
            found = level_figures(groups, self.tokens(texts.documents, codes), s.width)
            # A level begins with documents of one prefix near the same tokens: it has an epoch to part them.
            last = epoch + 1 == s.level_epochs
            again = epoch > 0 and collapsed(self.log.records[-1], len(groups), s.width)  # type: ignore[union-attr]
            if s.stop_collapsed and (last or again) and collapsed(found, len(groups), s.width):
                raise collapse(found, len(groups), s.width, f"{name}, epoch {epoch + 1}")
            return found

        self._train(name, texts, codes, self.level_terms, s.level_epochs, watch)
        codebook.requires_grad_(False)
        return self.tokens(texts.documents, codes)

    def first_codebook(self, name: str, texts: Texts, codes: np.ndarray) -> np.ndarray:
        """The centroids that a level begins with, [K, D]."""
        s = self.settings

        def made() -> np.ndarray:
            return initial_codebook(self.states(texts.documents, codes), prefix_groups(codes), s.width, s.seed)

        return self.made_once(f"{name}: codebook", made)

    def _train(
        self,
        phase: str,
        texts: Texts,
        codes: np.ndarray,
        terms: Callable[..., dict[str, Tensor]],
        epochs: int,
        watch: Callable[[int], dict[str, Any]] | None = None,
    ) -> None:
        """One phase of a level. A batch holds documents that share their prefix, each with one of its queries."""
        s, groups = self.settings, prefix_groups(codes)
        device, written = next(self.model.parameters()).device, torch.from_numpy(codes)
        round_steps = texts.steps(s.batch_size)
        rounds = texts.rounds(-(-s.level_steps // (epochs * round_steps)))

        def drawn(epoch: int) -> Iterator[Drawn]:
            return texts.drawn(s.batch_size, s.seed, epoch, rounds, groups)

        def objective(batch: Drawn, progress: float) -> dict[str, Tensor]:
            rows, asked = batch
            prefix = written[rows].to(device)
            document = self.model.hidden(self.batch(texts.documents, rows), prefix)
            query = self.model.hidden(self.noisy(self.batch(texts.queries, asked)), prefix)
            group = torch.from_numpy(groups[rows]).to(device)
            return terms(document, query, prefix, group[:, None] == group)

        train(
            self.model,
            drawn,
            objective,
            epochs=epochs,
            steps_per_epoch=rounds * round_steps,
            learning_rate=s.level_learning_rate,
            weight_decay=s.weight_decay,
            decay=False,
            phase=phase,
            log=self.log,
            after_epoch=watch,
            share=self.learning_share,
            checkpoints=self.checkpoints,
        )

    def warmup_terms(self, document: Tensor, query: Tensor, prefix: Tensor, same_prefix: Tensor) -> dict[str, Tensor]:
        """The level's terms with the document's state in place of the codebook's row. States are [B, T, D]."""
        s, terms = self.settings, {}
        d, q = document[:, -1], query[:, -1]
        if s.reconstruction_weight:
            terms["reconstruction"] = s.reconstruction_weight * reconstruction(d, d, same_prefix)
        if prefix.shape[1] and s.commitment_weight:
            terms["commitment"] = s.commitment_weight * commitment(self.logits(document[:, :-1]), prefix)
        if s.warmup_retrieval and s.retrieval_weight:
            terms["retrieval"] = s.retrieval_weight * retrieval(q, d, self.logits(query[:, :-1]), prefix)
        return terms

    def level_terms(self, document: Tensor, query: Tensor, prefix: Tensor, same_prefix: Tensor) -> dict[str, Tensor]:
        """Eq. 11: the three losses of a level, with tokens shared out over the batch."""
        s, terms = self.settings, {}
        d, q = document[:, -1], query[:, -1]
        logits = self.logits(document)
        with torch.no_grad():
            scores = logits[-1]
            if s.reassign:
                scores = sinkhorn(scores, s.sinkhorn_epsilon, s.sinkhorn_iterations)
            token = scores.argmax(dim=1)
        code = torch.cat([prefix, token[:, None]], dim=1)
        if s.reconstruction_weight:
            z = straight_through(d, self.codebook(document.shape[1] - 1), token)
            terms["reconstruction"] = s.reconstruction_weight * reconstruction(z, d, same_prefix)
        if s.commitment_weight:
            terms["commitment"] = s.commitment_weight * commitment(logits, code)
        if s.retrieval_weight:
            terms["retrieval"] = s.retrieval_weight * retrieval(q, d, self.logits(query), code)
        return terms

    def codebook(self, level: int) -> Tensor:
        """The rows of a level's tokens, [K, D]."""
        return cast(Tensor, self.model.heads[level].weight)

    def logits(self, states: Tensor) -> list[Tensor]:
        """Products of states [B, T, D] with their levels' codebooks."""
        return [functional.linear(states[:, level], self.codebook(level)) for level in range(states.shape[1])]

    # The tokeniser.

    def states(self, inputs: Inputs, codes: np.ndarray) -> np.ndarray:
        """The model's states [N, D] of texts after their tokens so far, [N, T - 1]."""
        return np.concatenate([s.cpu().numpy() for s in self._states(inputs, codes)])

    def tokens(self, inputs: Inputs, codes: np.ndarray) -> np.ndarray:
        """Eq. 4: the token that each text writes next, [N]."""
        head = self.codebook(codes.shape[1])
        return np.concatenate([(s @ head.t()).argmax(dim=1).cpu().numpy() for s in self._states(inputs, codes)])

    @torch.no_grad()
    def _states(self, inputs: Inputs, codes: np.ndarray) -> Iterator[Tensor]:
        self.model.eval()
        device = next(self.model.parameters()).device
        for start in range(0, len(inputs), BLOCK):
            rows = np.arange(start, min(start + BLOCK, len(inputs)))
            prefix = torch.from_numpy(codes[rows]).to(device)
            yield self.model.hidden(self.batch(inputs, rows), prefix)[:, -1]

    def assign(self, documents: list[Document], vectors: np.ndarray) -> np.ndarray:
        if self.settings.codes == "random":
            return super().assign(documents, vectors)  # it refuses
        inputs = self.inputs([Query(d.doc_id, d.content) for d in documents], vectors)
        length = self.identifiers.length - (self.settings.collisions == "level")
        codes = np.zeros((len(documents), 0), np.int64)
        for _ in range(length):
            codes = np.concatenate([codes, self.tokens(inputs, codes)[:, None]], axis=1)
        if length < self.identifiers.length:
            codes = np.concatenate([codes, places(codes, self.settings.width, self.identifiers)[:, None]], axis=1)
        return codes


def collapsed(found: dict[str, Any], documents: int, k: int) -> bool:
    """Whether a level's tokens tell documents apart no longer: all, or those of a prefix."""
    reach = attainable_diversity(documents, k)
    return found["diversity"] < COLLAPSED * reach or found["within_prefix"] < COLLAPSED


def collapse(found: dict[str, Any], documents: int, k: int, when: str) -> TrainingFailed:
    return TrainingFailed(
        f"{when}: the codes collapsed: {found['unique_codes']} codes for {documents} documents, diversity "
        f"{found['diversity']:.2f}, inside prefixes {found['within_prefix']:.2f}",
        "Keep initialise=clusters and reassign=true; train the level longer (--set level_epochs=…) or with a lower "
        f"--set level_learning_rate=…; where documents are few, use a smaller --set width=… than {k}.",
    )
