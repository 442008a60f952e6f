"""URI: one decoder that is the indexer of items and the retriever of queries (ICLR 2025).

The decoder gives a distribution over a level's tokens, for a query and for an item alike. Level by level it is trained
so that the two agree (what the paper calls E-step and M-step, both at once), items commit themselves to a token, and
tokens are used evenly; then every item is given a token of the level, none more items than its share. So the index is
built by what will be searched with, out of the queries that items have in common, and not by clusters of vectors. Last
of all the decoder learns to write whole codes, and a ranker learns to order what lies in the buckets.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from callslip.corpus.documents import Corpus, Document, Query
from callslip.decoders.histories import HistoryWriter
from callslip.decoders.tuned import TunedWriter
from callslip.decoders.writer import CodeWriter
from callslip.identifiers import levels_for, random_codes
from callslip.identifiers.balancing import balanced_assignment
from callslip.identifiers.levels import level_figures, prefix_groups, renamed
from callslip.identifiers.partitions import even_clusters, parting_scores
from callslip.identifiers.table import Identifiers
from callslip.index.generative import Inputs
from callslip.methods.uri.model import UnifiedWriter
from callslip.methods.uri.ranker import Pairs, RankedRetriever
from callslip.methods.uri.settings import URISettings
from callslip.training import batches
from callslip.training.loop import TrainingLog, train
from callslip.training.losses import code_cross_entropy

BLOCK = 2048
"""Items that are read at once where no gradient is wanted."""
PIECE = 4
"""Random items of one prefix in a batch, for each token of a level."""
SMALLEST = 1e-9
"""Probabilities are no less than this where their logarithm is taken."""


# The equations. Shapes: B items or queries of a batch, K tokens of the level.


def e_step(p_item: Tensor, p_query: Tensor) -> Tensor:
    """Eq. 8: H(sg(P_item), P_query). The query learns where its item is; [B, K] both, the mean of the batch."""
    return _cross_entropy(p_item.detach(), p_query)


def m_step(p_query: Tensor, p_item: Tensor) -> Tensor:
    """Eq. 9, first part: H(sg(P_query), P_item). The item goes where its queries look for it."""
    return _cross_entropy(p_query.detach(), p_item)


def commitment(p_item: Tensor) -> Tensor:
    """Eq. 6: the entropy of each item's distribution [B, K], which draws it to one token; the mean of the batch."""
    return _cross_entropy(p_item, p_item)


def balance(p_item: Tensor, adaptive: bool = True) -> Tensor:
    """Eq. 10: the cross-entropy of even use and the mean m of the items' distributions, −Σ_j sg(w_j)/K · log m_j.

    w_j = |log(1/K) − log m_j| + 1 is 1 for a token that is used as it should be; without `adaptive` (Eq. 7) for all.
    """
    _check(p_item)
    k = p_item.shape[1]
    log_use = p_item.mean(dim=0).clamp_min(SMALLEST).log()
    weight = (-torch.log(torch.tensor(float(k))) - log_use).abs() + 1 if adaptive else torch.ones_like(log_use)
    return -(weight.detach() * log_use).sum() / k


def memory(logits: Sequence[Tensor], code: Tensor) -> Tensor:
    """Eq. 11: cross-entropy of the tokens that are already given, summed over levels; the mean of the batch.

    `logits`: one [B, K] a level, of a query or of its item; `code` [B, levels]. Without levels it is 0.
    """
    return code_cross_entropy(logits, code)


def _cross_entropy(target: Tensor, p: Tensor) -> Tensor:
    _check(p)
    if target.shape != p.shape:
        raise ValueError(f"distributions of shapes {tuple(target.shape)} and {tuple(p.shape)}")
    return -(target * p.clamp_min(SMALLEST).log()).sum(dim=1).mean()


def _check(p: Tensor) -> None:
    if p.dim() != 2 or 0 in p.shape:
        raise ValueError(f"distributions must be [items, tokens], not {tuple(p.shape)}")


# The method.


class URI(RankedRetriever):
    """Builds the index with the decoder that searches it."""

    Settings = URISettings
    settings: URISettings
    presets = {  # noqa: RUF012  (a class constant, never changed)
        "quick": {"epochs": 4, "level_epochs": 1, "ranker_epochs": 2},
        "paper": {"evenness": "level", "begin": "chance", "warmup_epochs": 0, "head_start": 0.0, "balance_weight": 1.0},
        "random": {"codes": "random"},
        "no-adaptive": {"adaptive": False},
        "no-hard-negatives": {"hard_negatives": 0, "random_negatives": 10},
    }

    def _fit(self, corpus: Corpus) -> None:
        s, self.ranker = self.settings, None
        self.check_seq2seq()
        self.read_corpus(corpus)
        given = self.given_codes(corpus)
        length = s.length or levels_for(len(corpus), s.width, s.leaf)
        widths = [s.width] * length if given is None else [int(top) + 1 for top in given.max(axis=0)]
        with torch.random.fork_rng(devices=[]):  # the caller's chance is left alone
            torch.manual_seed(s.seed)
            self.model = self.new_model(widths, with_end=given is not None and bool((given < 0).any()))
            self.log = TrainingLog()
            pairs = self.pairs(corpus)
            codes = self.learn_codes(pairs, length) if given is None else given
            if s.renaming != "none":
                codes = renamed(codes, s.renaming, widths[-1], s.seed)
            self.note_codes(pairs, codes, widths)
            self.identifiers = Identifiers(corpus.doc_ids, codes)
            self.final_fit(pairs, codes)
            if self.history is None:
                self.train_ranker(self.ranker_pairs(corpus, pairs))

    def _reading(self, writer: CodeWriter) -> CodeWriter | TunedWriter | HistoryWriter:
        if self.history is None:
            return super()._reading(writer)
        return UnifiedWriter(self.history.encoder(self.vectors), writer)

    # Learning the codes.

    def learn_codes(self, pairs: Pairs, length: int) -> np.ndarray:
        """A code for each item, [N, length], learned level by level."""
        s = self.settings
        if s.codes == "random":
            return random_codes(len(pairs.items), length, s.width, seed=s.seed)
        if self.history is not None:
            self.warm_up(pairs, s.warmup_epochs)
        codes = np.zeros((len(pairs.items), 0), np.int64)
        while codes.shape[1] < length:
            codes = np.column_stack([codes, self.learn_level(pairs, codes)])
        return codes

    def note_codes(self, pairs: Pairs, codes: np.ndarray, widths: Sequence[int]) -> None:
        """A record of the codes in the log: how many there are, and their entropy beside that of random codes."""
        chance = pairs.entropy(random_codes(len(codes), len(widths), widths, seed=self.settings.seed))
        figures = {f"{name}_random": value for name, value in chance.items()} | pairs.entropy(codes)
        count = len(np.unique(codes, axis=0))
        cast(TrainingLog, self.log).add(phase="codes", epoch=0, seconds=0.0, unique_codes=count, **figures)

    def learn_level(self, pairs: Pairs, codes: np.ndarray) -> np.ndarray:
        """The next token of every item, [N], given the earlier ones, [N, l - 1]."""
        s, name = self.settings, f"level {codes.shape[1] + 1}"
        groups = prefix_groups(codes)
        even = groups if s.evenness == "prefix" else np.zeros_like(groups)

        def watch(epoch: int) -> dict[str, Any]:
            tokens = self.distributions(pairs.items, codes).argmax(axis=1)
            return level_figures(groups, tokens, s.width) | pairs.entropy(np.column_stack([codes, tokens]))

        clusters = None
        if self.beginning == "parted":
            self.part(pairs.items, codes)
        elif self.beginning == "clusters":
            clusters = self.clusters(name, groups)
        self._train_level(name, pairs, codes, even, clusters, watch)

        def assigned() -> np.ndarray:
            p, tokens = self.distributions(pairs.items, codes), np.zeros(len(codes), np.int64)
            for group in range(int(even.max()) + 1):
                own = np.flatnonzero(even == group)
                tokens[own] = balanced_assignment(p[own], math.ceil(s.slack * -(-len(own) // s.width)))
            return tokens

        return self.made_once(f"{name}: tokens", assigned)

    @property
    def beginning(self) -> str:
        """`begin`, with `auto` decided."""
        begin = self.settings.begin
        return begin if begin != "auto" else "parted" if self.history is None else "clusters"

    def clusters(self, level: str, groups: np.ndarray) -> np.ndarray:
        """The even cluster of each item inside its prefix, [N], by its vector as it is when the level begins."""

        def made() -> np.ndarray:
            self._item_vectors = None
            vectors = self.vectors if self.history is None else self.item_vectors()
            return even_clusters(vectors, groups, self.settings.width, self.settings.seed)

        return self.made_once(f"{level}: clusters", made)

    def _train_level(
        self, phase: str, pairs: Pairs, codes: np.ndarray, even: np.ndarray, clusters: np.ndarray | None, watch: Any
    ) -> None:
        """A batch holds pairs and as many random items; those of few prefixes only, so that of each there are enough to
        tell how evenly its tokens are used."""
        s, written, members = self.settings, torch.from_numpy(codes), batches.Members(even)
        device = next(self.model.parameters()).device
        rounds = max(1, -(-s.level_steps // (s.level_epochs * len(pairs))))

        def drawn(epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
            rng = np.random.default_rng([s.seed, epoch, 1])
            for turn in range(epoch * rounds, (epoch + 1) * rounds):
                for numbers in pairs.order(turn):
                    yield numbers, members.draw(len(pairs.rows_of(numbers)), PIECE * s.width, rng)

        def objective(batch: tuple[np.ndarray, np.ndarray], progress: float) -> dict[str, Tensor]:
            numbers, strangers = batch
            rows = pairs.rows_of(numbers)
            prefix = written[rows].to(device)
            item = self.logits(self.item_batch(pairs.items, rows), prefix)
            read = self.read(pairs, numbers)
            terms = self.level_terms(self.logits(read, prefix), item, prefix)
            if progress < s.head_start:
                del terms["m_step"]
            if self.history is not None and s.ranker_weight:
                terms["ranking"] = s.ranker_weight * self.shared_ranking(read, rows)
            p, groups, some = item[-1].softmax(dim=1), even[rows], even[rows]
            own = rows
            if s.random_items:
                other = self.logits(self.item_batch(pairs.items, strangers), written[strangers].to(device))[-1]
                some = even[strangers]
                p, groups = torch.cat([p, other.softmax(dim=1)]), np.concatenate([groups, some])
                own = np.concatenate([rows, strangers])
            if clusters is not None and progress < s.head_start:
                target = functional.one_hot(torch.from_numpy(clusters[own]), s.width).to(p)
                return terms | {"clusters": _cross_entropy(target, p)}
            return terms | self.index_terms(p, groups, np.unique(some))

        train(
            self.model,
            drawn,
            objective,
            epochs=s.level_epochs,
            steps_per_epoch=rounds * len(pairs),
            learning_rate=s.level_learning_rate,
            weight_decay=self.decay,
            phase=phase,
            log=self.log,
            after_epoch=watch,
            share=self.learning_share,
            checkpoints=self.checkpoints,
        )

    def level_terms(self, query: list[Tensor], item: list[Tensor], prefix: Tensor) -> dict[str, Tensor]:
        """Eq. 8, 9 and 11 of pairs: logits of the levels so far, [B, K] each, of queries and of their items."""
        p_query, p_item = query[-1].softmax(dim=1), item[-1].softmax(dim=1)
        terms = {"e_step": e_step(p_item, p_query), "m_step": m_step(p_query, p_item)}
        weight = self.settings.memory_weight
        if prefix.shape[1] and weight:
            terms["memory"] = weight * (memory(query[:-1], prefix) + memory(item[:-1], prefix))
        return terms

    def index_terms(self, p: Tensor, groups: np.ndarray, balanced: np.ndarray) -> dict[str, Tensor]:
        """Commitment of items' distributions [n, K], and balance inside each of the groups that are `balanced`."""
        s, terms = self.settings, {}
        if s.commitment_weight:
            terms["commitment"] = s.commitment_weight * commitment(p)
        if s.balance_weight:
            parts = [np.flatnonzero(groups == group) for group in balanced]
            share = 1 / sum(map(len, parts))
            each = torch.stack([len(part) * share * balance(p[part], s.adaptive) for part in parts])
            terms["balance"] = s.balance_weight * each.sum()
        return terms

    def logits(self, inputs: Any, prefix: Tensor) -> list[Tensor]:
        """Logits of the levels so far and of the next, given the tokens before."""
        states = self.model.hidden(inputs, prefix)
        return [self.model.heads[level](states[:, level]) for level in range(states.shape[1])]

    def item_batch(self, items: Inputs, rows: np.ndarray) -> Any:
        """Some of the items as the decoder reads them: texts as a query's; of a log, by rows or by vectors."""
        some = self.batch(items, rows)
        if self.history is None:
            return some
        model = cast(UnifiedWriter, self.model)
        return model.read_items(some if some.is_floating_point() else model.items(some + 1))

    @torch.no_grad()
    def part(self, items: Inputs, codes: np.ndarray) -> None:
        """Let the head of the next level begin with scores that part the items of each prefix."""
        head = cast(nn.Linear, self.model.heads[codes.shape[1]])
        states = np.concatenate([some.cpu().numpy() for some in self._states(items, codes)])
        weights, offsets = parting_scores(states, prefix_groups(codes), self.settings.width, self.settings.seed)
        head.weight.copy_(torch.from_numpy(weights))
        if head.bias is not None:  # T5's heads have none
            head.bias.copy_(torch.from_numpy(offsets))

    def distributions(self, items: Inputs, codes: np.ndarray) -> np.ndarray:
        """P_item of the next level, [N, K], after items' tokens so far, [N, l - 1]."""
        head = self.model.heads[codes.shape[1]]
        with torch.no_grad():
            return np.concatenate([head(s).softmax(dim=1).cpu().numpy() for s in self._states(items, codes)])

    @torch.no_grad()
    def _states(self, items: Inputs, codes: np.ndarray) -> Iterator[Tensor]:
        self.model.eval()
        device = next(self.model.parameters()).device
        for start in range(0, len(items), BLOCK):
            rows = np.arange(start, min(start + BLOCK, len(items)))
            prefix = torch.from_numpy(codes[rows]).to(device)
            yield self.model.hidden(self.item_batch(items, rows), prefix)[:, -1]

    def assign(self, documents: list[Document], vectors: np.ndarray) -> np.ndarray:
        """The tokens that the decoder finds most probable, also where a leaf is full."""
        if self.settings.codes == "random":
            return super().assign(documents, vectors)  # it refuses
        if self.history is None:
            items = self.inputs([Query(d.doc_id, d.content) for d in documents], vectors)
        else:
            table = copy.deepcopy(self.histories.items)
            table.extend(torch.from_numpy(vectors))
            items = table.all()[-len(documents) :].detach().cpu().numpy()
        codes = np.zeros((len(documents), 0), np.int64)
        while codes.shape[1] < self.identifiers.length:
            codes = np.column_stack([codes, self.distributions(items, codes).argmax(axis=1)])
        return codes

    # The final fit.

    def final_fit(self, pairs: Pairs, codes: np.ndarray) -> None:
        """Memory of whole codes, of queries and of items (texts are among the queries already); of histories, the
        ranker, too, which shares their encoder."""
        if self.history is None:
            return self.train_model(pairs.queries, codes[pairs.rows])
        s, y, device = self.settings, torch.from_numpy(codes.astype(np.int64)), next(self.model.parameters()).device

        def objective(batch: tuple[np.ndarray, np.ndarray], progress: float) -> dict[str, Tensor]:
            rows = pairs.rows_of(batch[0])
            code, read = y[rows].to(device), self.read(pairs, batch[0])
            terms = self.terms(read, code)
            if s.memory_weight:
                terms["items"] = s.memory_weight * memory(self.model(self.item_batch(pairs.items, rows), code), code)
            if s.ranker_weight:
                terms["ranking"] = s.ranker_weight * self.history_ranking(read, rows, batch[1])
            return terms

        self.log = train(
            self.model,
            lambda epoch: self.with_negatives(pairs, epoch),
            objective,
            epochs=s.epochs,
            steps_per_epoch=len(pairs),
            learning_rate=s.learning_rate,
            weight_decay=self.decay,
            phase="training the decoder",
            log=self.log,
            share=self.learning_share,
            checkpoints=self.checkpoints,
        )
        self._item_vectors = None
