"""URI's training (Section 4): the index is built level by level by the decoder that will search it, then the decoder
learns to write whole codes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from callslip.identifiers import random_codes
from callslip.identifiers.balancing import balanced_assignment
from callslip.identifiers.levels import level_figures, prefix_groups
from callslip.identifiers.makers import code_maker
from callslip.identifiers.partition_em import recovered, recovery_queries, relations_of
from callslip.identifiers.partitions import even_clusters, parting_scores
from callslip.identifiers.quality import average_partition_entropy
from callslip.methods.uri.equations import balance, commitment, cross_entropy, e_step, m_step, memory
from callslip.methods.uri.items import Items, items_of
from callslip.methods.uri.ranker import HistoryRanker, with_negatives
from callslip.training import batches
from callslip.training.gradcache import in_chunks

if TYPE_CHECKING:
    from callslip.corpus.documents import Corpus, Query
    from callslip.methods.uri.method import URI

PIECE = 4
"""Random items of one prefix in a batch, for each token of a level."""


class Indexer:
    """The decoder as the indexer of items: its distribution over the next token."""

    def __init__(self, index: URI, items: Items) -> None:
        self.index, self.items = index, items

    def states(self, codes: np.ndarray) -> Iterator[Tensor]:
        """The decoder's states of items after their tokens so far, [N, l - 1], in blocks."""
        model = self.index.model.eval()
        device, size = next(model.parameters()).device, self.index.reader.block
        for start in range(0, len(self.items), size):
            rows = np.arange(start, min(start + size, len(self.items)))
            prefix = torch.from_numpy(codes[rows]).to(device)
            with torch.no_grad():
                yield model.hidden(self.items.batch(rows), prefix)[:, -1]

    @torch.no_grad()
    def distributions(self, codes: np.ndarray) -> np.ndarray:
        """P_item of the next level, [N, K], after items' tokens so far, [N, l - 1]."""
        head = self.index.model.heads[codes.shape[1]]
        return np.concatenate([head(some).softmax(dim=1).cpu().numpy() for some in self.states(codes)])

    def code(self, length: int) -> np.ndarray:
        """The likeliest tokens, one after the other, [N, length]; a leaf may become fuller than its share."""
        codes = np.zeros((len(self.items), 0), np.int64)
        while codes.shape[1] < length:
            codes = np.column_stack([codes, self.distributions(codes).argmax(axis=1)])
        return codes


class Probe:
    """A query and its items, whose distributions over the first level's tokens are recorded while it is trained (the
    paper's Figure 5)."""

    MOST = 5
    """Number of items that are shown."""

    def __init__(self, index: URI, items: Items, query: Query, rows: dict[str, int]) -> None:
        self.index, self.items, self.query, self.rows = index, items, query, rows

    @classmethod
    def of(cls, index: URI, items: Items, corpus: Corpus) -> Probe | None:
        """The first train query with five items, or whose number of items is nearest to that; None if all have one."""
        row_of, (queries, judged) = corpus.rows(), corpus.split("train")
        found: tuple[int, Query, list[str]] | None = None
        for query_id, query in queries.items():
            own = [*query.history, *(doc_id for doc_id, grade in judged[query_id].items() if grade > 0)]
            own = [doc_id for doc_id in dict.fromkeys(own) if doc_id in row_of]
            if len(own) > 1 and (found is None or abs(len(own) - cls.MOST) < found[0]):
                found = (abs(len(own) - cls.MOST), query, own[-cls.MOST :])
        return None if found is None else cls(index, items, found[1], {name: row_of[name] for name in found[2]})

    @torch.no_grad()
    def distributions(self) -> dict[str, dict[str, list[float]]]:
        """Probabilities of the first level's tokens: of the query, and of each of its items."""
        index, model, rows = self.index, self.index.model.eval(), np.array(list(self.rows.values()))
        asked = index.reader.inputs([self.query], index.query_vectors([self.query]))
        read = {"query": index.reader.batch(asked), "items": self.items.batch(rows)}
        found = {}
        for name, batch in read.items():
            count = len(rows) if name == "items" else 1
            prefix = torch.zeros((count, 0), dtype=torch.long, device=next(model.parameters()).device)
            p = model.heads[0](model.hidden(batch, prefix)[:, -1]).softmax(dim=1).cpu().numpy()
            found[name] = [[round(float(value), 4) for value in one] for one in p]
        items = dict(zip(self.rows, found["items"], strict=True))
        return {"query": {self.query.query_id: found["query"][0]}, "items": items}


class Training:
    """The phases, for an index that is being built."""

    def __init__(self, index: URI, corpus: Corpus) -> None:
        self.index, self.settings = index, index.settings
        self.examples = index.examples(corpus)
        self.items = items_of(index, list(corpus))
        self.indexer = Indexer(index, self.items)
        self.probe = Probe.of(index, self.items, corpus)
        self.positives = positives_of(index.training_corpus(corpus), index.reader.histories)
        shared = index.reader.histories and self.settings.ranker_encoder == "shared"
        self.ranker = HistoryRanker(index) if shared else None

    # Learning the codes.

    def learn_codes(self, length: int) -> np.ndarray:
        """A code for each item, [N, length], learned level by level."""
        s, count = self.settings, len(self.items)
        if s.codes == "random":
            return random_codes(count, length, s.width, seed=s.seed)
        if s.codes == "em":
            maker = code_maker("partition-em", length=length, width=s.width, seed=s.seed)
            relations = relations_of(self.positives, count)
            return self.index.computed_once("codes by EM", lambda: maker.fit(relations)).astype(np.int64)
        if self.ranker is not None:
            self.ranker.warm_up(self.examples)
        codes = np.zeros((count, 0), np.int64)
        while codes.shape[1] < length:
            codes = np.column_stack([codes, self.learn_level(codes)])
        return codes

    def learn_level(self, codes: np.ndarray) -> np.ndarray:
        """The next token of every item, [N], given the earlier ones, [N, l - 1]."""
        s, name = self.settings, f"level {codes.shape[1] + 1}"
        groups = prefix_groups(codes)
        even = groups if s.evenness == "prefix" else np.zeros_like(groups)

        def watch(epoch: int) -> dict[str, Any]:
            tokens = self.indexer.distributions(codes).argmax(axis=1)
            figures = level_figures(groups, tokens, s.width) | self.entropy(np.column_stack([codes, tokens]))
            shown = self.probe is not None and not codes.shape[1]
            return figures | ({"probe": self.probe.distributions()} if shown and self.probe is not None else {})

        clusters = None
        if self.beginning == "parted":
            self.separate(codes)
        elif self.beginning == "clusters":
            clusters = self.clusters(name, groups)
        self.train_level(name, codes, even, clusters, watch)
        return self.index.computed_once(f"{name}: tokens", lambda: self.assigned(codes, even))

    def assigned(self, codes: np.ndarray, even: np.ndarray) -> np.ndarray:
        """The token of each item by its distribution, none with more items than its share times `slack`."""
        s, p, tokens = self.settings, self.indexer.distributions(codes), np.zeros(len(codes), np.int64)
        for group in range(int(even.max()) + 1):
            own = np.flatnonzero(even == group)
            tokens[own] = balanced_assignment(p[own], math.ceil(s.slack * -(-len(own) // s.width)))
        return tokens

    @property
    def beginning(self) -> str:
        """`begin`, with `auto` resolved."""
        return self.items.beginning if self.settings.begin == "auto" else self.settings.begin

    def clusters(self, level: str, groups: np.ndarray) -> np.ndarray:
        """The even cluster of each item inside its prefix, [N], by its vector when the level begins."""
        s = self.settings
        return self.index.computed_once(
            f"{level}: clusters", lambda: even_clusters(self.items.vectors(), groups, s.width, s.seed)
        )

    @torch.no_grad()
    def separate(self, codes: np.ndarray) -> None:
        """Initialise the head of the next level with scores that separate the items of each prefix."""
        head = self.index.model.heads[codes.shape[1]]
        states = np.concatenate([some.cpu().numpy() for some in self.indexer.states(codes)])
        weights, offsets = parting_scores(states, prefix_groups(codes), self.settings.width, self.settings.seed)
        head.weight.copy_(torch.from_numpy(weights))
        if head.bias is not None:  # T5's heads have none
            head.bias.copy_(torch.from_numpy(offsets))

    def train_level(
        self,
        phase: str,
        codes: np.ndarray,
        even: np.ndarray,
        clusters: np.ndarray | None,
        watch: Callable[[int], dict[str, Any]],
    ) -> None:
        """A batch holds pairs and as many random items; those of few prefixes only, so that there are enough of each to
        measure the balance of its tokens."""
        s, examples, members = self.settings, self.examples, batches.Members(even)
        rounds = max(1, -(-s.level_steps // (s.level_epochs * len(examples))))

        def drawn(epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
            rng = np.random.default_rng([s.seed, epoch, 1])
            for turn in range(epoch * rounds, (epoch + 1) * rounds):
                for numbers in examples.order(s.seed, turn):
                    yield numbers, members.draw(len(examples.rows_of(numbers)), PIECE * s.width, rng)

        def objective(batch: tuple[np.ndarray, np.ndarray], progress: float) -> dict[str, Tensor]:
            return self.level_objective(*batch, codes, even, clusters, progress < s.head_start)

        self.index.train(
            drawn,
            objective,
            rounds * len(examples),
            s.level_epochs,
            phase,
            learning_rate=s.level_learning_rate,
            after_epoch=watch,
        )

    def level_objective(
        self,
        numbers: np.ndarray,
        strangers: np.ndarray,
        codes: np.ndarray,
        even: np.ndarray,
        clusters: np.ndarray | None,
        head_start: bool,
    ) -> dict[str, Tensor]:
        """The terms of a batch of pairs and of random items; in the head start, items do not follow their queries."""
        s, rows, written = self.settings, self.examples.rows_of(numbers), torch.from_numpy(codes)
        device = next(self.index.model.parameters()).device
        prefix = written[rows].to(device)
        item = self.logits(self.items.batch(rows), prefix)
        read = self.index.reader.read(self.examples, numbers)
        terms = self.level_terms(self.logits(read, prefix), item, prefix)
        if head_start:
            del terms["m_step"]
        if self.ranker is not None and s.ranker_weight:
            terms["ranking"] = s.ranker_weight * self.ranker.shared_negatives(read, rows)
        p, own, balanced = item[-1].softmax(dim=1), rows, even[rows]
        if s.random_items:
            other = self.logits(self.items.batch(strangers), written[strangers].to(device))[-1]
            p, own, balanced = torch.cat([p, other.softmax(dim=1)]), np.concatenate([rows, strangers]), even[strangers]
        if clusters is not None and head_start:
            target = functional.one_hot(torch.from_numpy(clusters[own]), s.width).to(p)
            return terms | {"clusters": cross_entropy(target, p)}
        return terms | self.index_terms(p, even[own], np.unique(balanced))

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
        model = self.index.model
        states = in_chunks(model.hidden, (inputs, prefix), self.index.micro_batch)
        return [model.heads[level](states[:, level]) for level in range(states.shape[1])]

    # The final phase.

    def learn_to_write(self, codes: np.ndarray) -> None:
        """Memory of whole codes, of queries and of items (texts are among the queries already); with histories, the
        ranker, too, which shares their encoder."""
        if not self.index.reader.histories:
            return self.index.train_model(self.examples, codes)
        s, index, ranker, examples = self.settings, self.index, self.ranker, self.examples
        y, device = torch.from_numpy(codes.astype(np.int64)), next(index.model.parameters()).device

        def objective(batch: tuple[np.ndarray, np.ndarray], progress: float) -> dict[str, Tensor]:
            rows = examples.rows_of(batch[0])
            code, read = y[rows].to(device), index.reader.read(examples, batch[0])
            terms = index.terms(read, code)
            if s.memory_weight:
                terms["items"] = s.memory_weight * memory(index.model(self.items.batch(rows), code), code)
            if ranker is not None and s.ranker_weight:
                terms["ranking"] = s.ranker_weight * ranker.own_negatives(read, rows, batch[1])
            return terms

        def drawn(epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
            if ranker is not None:
                return with_negatives(index, examples, epoch)
            return ((numbers, np.zeros((0, 0), np.int64)) for numbers in examples.order(s.seed, epoch))

        index.train(drawn, objective, len(examples), s.epochs, "training the decoder")
        index.reader.forget_vectors()

    # The average partition entropy.

    def entropy(self, codes: np.ndarray) -> dict[str, float]:
        """The average partition entropy of codes; nothing where no query has two items: it would be 0 by definition."""
        if not any(len(some) > 1 for some in self.positives):
            return {}
        return {"ape": round(average_partition_entropy(codes, self.positives), 4)}

    def log_codes(self, codes: np.ndarray, widths: list[int]) -> None:
        """Record the codes in the log: how many there are, and their entropy beside that of random codes."""
        assert self.index.log is not None
        chance = self.entropy(random_codes(len(codes), len(widths), widths, seed=self.settings.seed))
        figures = {f"{name}_random": value for name, value in chance.items()} | self.entropy(codes)
        count = len(np.unique(codes, axis=0))
        figures |= self.recovery(codes[:, 0], widths[0])
        self.index.log.add(phase="codes", epoch=0, seconds=0.0, unique_codes=count, **figures)

    def recovery(self, tokens: np.ndarray, k: int) -> dict[str, float]:
        """Theorem 1 on the first level: the numbers of the theorem, the queries it asks for, and the share of items
        whose token the greedy algorithm finds again."""
        relations = relations_of([some for some in self.positives if len(some)], len(tokens))
        queries, density = relations.shape[1], relations.nnz / max(1, np.prod(relations.shape))
        if not queries or not 0 < density < 1:
            return {}
        return {
            "queries": queries, "items": len(tokens), "tokens": k, "density": round(float(density), 8),
            "queries_needed": round(recovery_queries(len(tokens), k, float(density)), 1),
            "recovered": round(recovered(relations, tokens, k), 4),
        }  # fmt: skip


def positives_of(corpus: Corpus, histories: bool) -> list[np.ndarray]:
    """The rows of the items that belong to one query: a user's, or those judged for a train query."""
    if histories:
        return corpus.sequences().each()
    row_of, (_, judged) = corpus.rows(), corpus.split("train")
    return [np.array([row_of[d] for d, grade in of.items() if grade > 0], np.int64) for of in judged.values()]
