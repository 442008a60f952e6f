"""Tied codes for logs: codes that begin at what counting knows.

Sequential rules (decayed pairs of a log) are factorised by a truncated SVD. An item's vector is its factor, beside the
vector of its text; its code is a reconstruction of that vector, token by token (`callslip.identifiers.tied`). A
history's state is the decayed sum of its items' inputs, and the score of a token is its inner product with the state:
the score of a whole code is the inner product of state and reconstructed item, without any training. The rules
themselves are the memory: what they say exactly is added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from callslip.corpus.documents import Corpus, Document
from callslip.corpus.logs import has_texts
from callslip.corpus.sequences import Sequences
from callslip.encoders.encoder import TextVectors
from callslip.identifiers.table import Identifiers
from callslip.identifiers.tied import TiedQuantizer, token_sums
from callslip.index import model_files, neighbours
from callslip.index.counts import FLOOR, SHARPNESS, Counts, CountSettings
from callslip.index.item_words import word_hashes, words_of
from callslip.index.recommender import Recommender
from callslip.index.reranker import Evidence, Reranker
from callslip.index.settings import RERANKED, EncoderSettings
from callslip.index.start import joined, log_weights_of
from callslip.search.diversity import Diversity
from callslip.settings import check_range, check_share
from callslip.storage.rows import Parts
from callslip.training.log import TrainingLog

CODEBOOKS, CODES = "codebooks.safetensors", "codes.safetensors"
BLOCK = 64
"""Histories whose tables of tokens, about 130 kB each, are held at once."""


@dataclass(frozen=True)
class TiedLogSettings(EncoderSettings, CountSettings):
    """What is counted, and the codes of it."""

    heading: ClassVar[str] = "Codes and ranking"

    queries: Literal["sequence", "set"] = "sequence"
    """Histories as a `sequence` (next-item recommendation) or as a `set` (general recommendation), in which `gap`,
    `back` and `decay` are 1: neither order nor distance counts."""
    length: int = 128
    """Tokens of a code, a byte each."""
    item_texts: bool = True
    """Whether items are represented by their texts, beside the factors."""
    rerank: int = RERANKED
    """Number of items, the first ones by codes and rules, that a small network reorders. It is trained on the last
    training items of the users, and left out unless it finds more of held-out ones; 0 leaves it out, also in a
    search."""
    diversity: float = 0.0
    """Diversity of a list of hits, from 0 (the order of the scores) to below 1: weight of the dissimilarity of codes to
    the hits before against that of the score (maximal marginal relevance)."""
    seed: int = 0
    """Random seed of factors and codebooks."""

    def check(self) -> None:
        check_range(self, length=1, seed=0, rerank=0)
        check_share(self, "diversity", below=True)


class TiedLog(Recommender):
    """Ranks items by their codes, and by the rules that led from the history to them."""

    Settings = TiedLogSettings
    search_settings = frozenset(
        {"decay", "factor_weight", "text_weight", "memory_weight", "rerank", "diversity", "backend", "device"}
    )
    settings: TiedLogSettings
    maker: TiedQuantizer
    evidence = "counts"
    counts: Counts
    """Rules and inputs of the items; its outputs have no dimensions, because the codes stand for them."""
    codes: np.ndarray
    """uint8 [N, length]."""

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        super().__init__(settings, method=method)
        self.texts = TextVectors(self.settings)
        self.log: TrainingLog | None = None
        self.reranker: Reranker | None = None
        self._identifiers: tuple[np.ndarray, Identifiers] | None = None
        self._evidence: Evidence | None = None

    @property
    def code_settings(self) -> Mapping[str, Any]:
        return {"memory_weight": 0.0, "rerank": 0}

    @property
    def counting(self) -> TiedLogSettings:
        """The settings by which pairs and histories are weighted."""
        return self.settings if self.settings.queries == "sequence" else self.settings.unordered()

    # Fit.

    def learn(self, corpus: Corpus, sequences: Sequences) -> None:
        s, texts = self.settings, None
        if s.item_texts and has_texts(corpus):
            texts = self.texts.documents(corpus, "encoding items")
        words = word_hashes(document.content for document in corpus)

        def count(some: Sequences) -> Counts:
            return Counts.of(some, len(corpus), texts, self.counting, s.seed, None if texts is None else words)

        self.log = TrainingLog()
        start = joined(count, sequences, s.rerank, s.seed, self.log)
        counts, self.reranker = start.counts, start.reranker
        self.maker = TiedQuantizer(min(s.length, counts.outputs.shape[1] + 1), 1, seed=s.seed)
        self.codes = self.maker.fit(counts.outputs.astype(np.float32)).astype(np.uint8)
        self.counts = replace(counts, outputs=counts.outputs[:, :0])

    def count(self, sequences: Sequences, items: int) -> Counts:
        """Rules and numbers of users; what items add to a state, and their codes, stay until the next fit."""
        return self.counts.recounted(sequences)

    # Search.

    def scores(self, histories: Sequence[np.ndarray]) -> np.ndarray:
        scores = self.counted_scores(histories)
        self.rerank(scores, histories)
        for row, history in zip(scores, histories, strict=True):
            had = np.unique(history)
            row[had] = self.counts.demoted(row[had])
            if not len(had):
                row[:] = self.popularity
        return scores

    def counted_scores(self, histories: Sequence[np.ndarray]) -> np.ndarray:
        """Scores by codes and rules, [B, N]."""
        scores = np.empty((len(histories), len(self.codes)))
        for start in range(0, len(histories), BLOCK):
            some = histories[start : start + BLOCK]
            for at, table in enumerate(self.maker.tables(self.counts.states(some)), start):
                scores[at] = token_sums(table, self.codes)
        if self.settings.memory_weight:
            scores += self.counts.remembered(histories)
        return scores

    def rerank(self, scores: np.ndarray, histories: Sequence[np.ndarray]) -> None:
        """Change the scores of the first items of each history so that their probabilities are the reranker's."""
        if self.reranker is None or not self.settings.rerank or not len(self.codes):
            return
        weights = log_weights_of(self.counts, scores, histories)
        rows, added = self.reranker.added(self.evidence_of_items(), histories, weights)
        held = np.maximum(np.take_along_axis(scores, rows, axis=1), 0)
        changed = (FLOOR + held) * np.exp(added / SHARPNESS) - FLOOR
        np.put_along_axis(scores, rows, changed, axis=1)

    def evidence_of_items(self) -> Evidence:
        """What the reranker reads, with factors as the codes have them."""
        if self._evidence is None or self._evidence.counts is not self.counts:
            self._evidence = Evidence(self.counts, self.products)
        return self._evidence

    def products(self, states: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Inner products of states [B, D] with the reconstructions of their rows [B, K]."""
        tables = self.maker.tables(states)
        return np.stack([token_sums(table, self.codes[some]) for table, some in zip(tables, rows, strict=True)])

    @property
    def popularity(self) -> np.ndarray:
        """The users of each item relative to the most popular one, [N]: scores for a new user."""
        return self.counts.users / max(1, self.counts.users.max(initial=1))

    def diversity(self) -> Diversity | None:
        amount = self.settings.diversity
        return Diversity(amount, lambda rows: self.maker.decode(self.codes[rows].astype(np.int32))) if amount else None

    def reasons(self, history: np.ndarray, rows: np.ndarray) -> list[dict[str, object]]:
        """What codes and rules contribute, what the reranker adds, how far an item of the history is demoted, and where
        the rules lead from."""
        if not len(history):
            return [{"popularity": float(score)} for score in self.popularity[rows]]
        names = [document.doc_id for document in self.documents.rows(history.tolist())]
        parts = self.counts.because(history, rows)
        by_codes = token_sums(self.maker.tables(self.counts.states([history]))[0], self.codes[rows])
        memory = parts.sum(axis=0)
        scores = self.counted_scores([history])
        before = scores[0, rows]
        self.rerank(scores, [history])
        whole = scores[0, rows]
        repeat = np.where(np.isin(rows, history), self.counts.demoted(whole) - whole, 0.0)
        found = zip(by_codes, memory, whole - before, repeat, neighbours.because(parts, names), strict=True)
        return [
            {"codes": float(code), "memory": float(rules)}
            | ({"reranker": float(more)} if more else {})
            | ({"repeat": float(less)} if less else {})
            | why
            for code, rules, more, less, why in found
        ]

    def adjusted(self, names: frozenset[str]) -> None:
        self.counts = replace(self.counts, settings=self.counting)
        if names & {"device", "backend"}:
            self.texts.adjust(self.settings)

    # Changes.

    def prepare(self, documents: list[Document]) -> Parts:
        """New items have no user: their texts alone place them."""
        texts = self.texts.documents(documents, "encoding items") if len(self.counts.centre) else None
        vectors = self.counts.placed(texts, len(documents))
        codes, words = self.maker.assign(vectors), word_hashes(document.content for document in documents)
        return {
            "codes": codes[:, :1],
            "entries": codes.astype(np.uint8),
            "inputs": vectors.astype(np.float16),
            "words": words,
        }

    def extend(self, documents: list[Document], parts: Parts) -> None:
        self.codes = np.concatenate([self.codes, parts["entries"]])
        self.counts = self.counts.extended(parts["inputs"], words_of(parts))

    def keep(self, rows: np.ndarray) -> None:
        self.codes, self.counts = self.codes[rows], self.counts.kept(rows)

    def codes_by_row(self) -> np.ndarray:
        """The first token of every row."""
        return self.codes[:, :1].astype(np.int32)

    @property
    def tree_levels(self) -> int:
        """Number of tokens of a code that form a tree; the others rank inside."""
        return self.maker.tree

    @property
    def identifiers(self) -> Identifiers:
        """The whole codes as a table, for reports."""
        if self._identifiers is None or self._identifiers[0] is not self.codes:
            known = self.rows.doc_ids()
            names = [known[row] if alive else f"deleted {row}" for row, alive in enumerate(self.rows.alive)]
            self._identifiers = (self.codes, Identifiers(names, self.codes.astype(np.int32)))
        return self._identifiers[1]

    @property
    def tree_identifiers(self) -> Identifiers:
        """The tree tokens of the codes as a table, for the tree on the page."""
        doc_ids, codes = self.identifiers.in_row_order()
        return Identifiers(doc_ids, codes[:, : self.maker.tree])

    # The saved folder.

    def save_files(self, folder: Path) -> None:
        from safetensors.numpy import save_file

        save_file(self.maker.state(), folder / CODEBOOKS)
        save_file({"codes": np.ascontiguousarray(self.codes)}, folder / CODES)
        self.counts.save(folder)
        if self.reranker is not None:
            self.reranker.save(folder)
        model_files.save_log(folder, self.log)

    def load_files(self, folder: Path) -> None:
        from safetensors.numpy import load_file

        self.maker = TiedQuantizer.from_state(load_file(folder / CODEBOOKS))
        self.codes = load_file(folder / CODES)["codes"]
        self.counts = Counts.load(folder, self.counting)
        self.reranker = Reranker.load(folder)
        self.log = model_files.load_log(folder)
