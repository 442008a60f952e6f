"""Deep Retrieval: paths and model are learned alternately, as in EM (Gao et al., 2020).

Items start on random paths. In the E-step the model is trained to write the path of each example's item; in the M-step
every item moves to the path with the highest probability for its examples, less a penalty for crowded paths. Finally
the model is trained on the last paths. The items on the beam's paths are ranked by inner product.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from callslip.corpus.documents import Corpus
from callslip.identifiers import levels_for, random_codes
from callslip.identifiers.table import Identifiers
from callslip.index.generative import GenerativeRetriever
from callslip.index.settings import GenerativeSettings, HistoryQuerySettings, Ranking, SavedCodesSettings, T5Settings
from callslip.runtime.device import seeded
from callslip.settings import check_range
from callslip.training.batches import Examples, Inputs

BLOCK = 2048
"""Batch size of inference without gradients."""


@dataclass(frozen=True)
class DeepRetrievalSettings(GenerativeSettings, T5Settings, HistoryQuerySettings, SavedCodesSettings):
    """Settings of Deep Retrieval: the paths, and their reassignment."""

    width: int = 32
    """Tokens per level."""
    length: int | None = None
    """Number of levels; none chooses it so that about `leaf` documents share a path."""
    leaf: int = 5
    """Target number of documents per path when `length` is none."""
    rounds: int = 3
    """Number of times that all items are reassigned to paths; 0 keeps their random paths."""
    round_epochs: int = 3
    """Training epochs before each reassignment; `epochs` follow the last one."""
    per_item: int = 8
    """Maximum number of random examples per item that its reassignment is based on."""
    penalty: float | None = None
    """Penalty of a path (or prefix) that already has n items: this times n cubed (the paper's alpha). None sets the
    penalty of a path with its even share of items to 1."""
    ranking: Ranking = "union"
    """Order of hits: `union` ranks all items on the beam's paths by inner product, as in the paper; `bucket` keeps the
    model's order of paths; `sum` adds both."""
    seq2seq_codes: Literal["tokens", "codebooks"] = "tokens"
    """With `seq2seq`: code tokens as new tokens of T5's vocabulary, or codebooks per level."""

    def check(self) -> None:
        check_range(self, width=1, length=1, leaf=1, rounds=0, round_epochs=0, per_item=1, penalty=0)


# The M-step.


def even_penalty(items: int, paths: int) -> float:
    """The penalty factor for which a path with its even share of items, at least one, costs 1."""
    return max(1.0, items / paths) ** -3


def chosen_paths(weights: np.ndarray, paths: np.ndarray, order: np.ndarray, penalty: float) -> np.ndarray:
    """The penalised M-step: items are assigned one by one to the path of the largest gain (Section 3.3), [N, L].

    `weights` [N, C] are sums over an item's examples of the probability of its candidate paths [N, C, L]. The gain is
    the log of the weight, normalised over the item's candidates, less penalty * n^3 for the n items already on the
    path: the derivative of n^4 / 4.
    """
    if weights.shape != paths.shape[:2]:
        raise ValueError(f"weights {weights.shape} for paths {paths.shape}")
    taken: dict[bytes, int] = {}
    found = np.empty((len(paths), paths.shape[2]), np.int32)
    share = np.log(np.maximum(weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-30), 1e-9))
    for item in order:
        keys = [path.tobytes() for path in paths[item]]
        gains = share[item] - penalty * np.array([taken.get(key, 0) ** 3 for key in keys], np.float64)
        best = int(np.argmax(gains))
        found[item] = paths[item, best]
        taken[keys[best]] = taken.get(keys[best], 0) + 1
    return found


# The method.


class DeepRetrieval(GenerativeRetriever):
    """Paths and the model that writes them, learned alternately."""

    Settings = DeepRetrievalSettings
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"epochs": 6, "rounds": 2, "round_epochs": 2, "decoder_width": 128},
    }

    def build(self, corpus: Corpus) -> None:
        self.log = None
        self.read_corpus(corpus)
        s, given = self.settings, self.saved_codes(corpus)
        length = s.length or levels_for(len(corpus), s.width, s.leaf)
        codes = random_codes(len(corpus), length, s.width, seed=s.seed) if given is None else given
        widths = [s.width] * length if given is None else [int(top) + 1 for top in given.max(axis=0)]
        with seeded(s.seed):
            self.new_model(widths, with_end=bool((codes < 0).any()))
            examples = self.examples(corpus)
            for number in range(s.rounds if given is None else 0):  # the paths of `codes_from` are fixed
                self.train_model(examples, codes, phase=f"round {number + 1}", epochs=s.round_epochs)
                choose = partial(self._choose, examples, codes, number)
                codes = self.computed_once(f"paths {number + 1}", choose)
            self.train_model(examples, codes)
        self.identifiers = Identifiers(corpus.doc_ids, codes)
        self.begin(corpus)

    @torch.no_grad()
    def _choose(self, examples: Examples, codes: np.ndarray, number: int) -> np.ndarray:
        """Choose every item's path level by level: the token of highest probability over its examples, given the
        prefix, less the penalty. All tokens are candidates; a few would be the same for every item."""
        s, rng, rows = self.settings, np.random.default_rng([self.settings.seed, number]), examples.rows
        asked = some_of_each(rows, s.per_item, rng)
        count, length = codes.shape
        chosen = np.zeros((count, 0), np.int32)
        reach = np.ones(len(asked))  # probability of the chosen prefix of the example's item, given the example
        self.model.eval()
        for level in range(length):
            joint = reach[:, None] * self._next(examples.inputs, asked, chosen[rows[asked]])  # [examples, K]
            weights = np.zeros((count, s.width))
            np.add.at(weights, rows[asked], joint)
            tokens = np.broadcast_to(np.arange(s.width, dtype=np.int32)[None, :, None], (count, s.width, 1))
            paths = np.concatenate([np.repeat(chosen[:, None], s.width, axis=1), tokens], axis=2)
            penalty = even_penalty(count, s.width ** (level + 1)) if s.penalty is None else s.penalty
            chosen = chosen_paths(weights, paths, rng.permutation(count), penalty)
            reach = joint[np.arange(len(asked)), chosen[rows[asked], level]]
        without = np.bincount(rows[asked], minlength=count) == 0
        chosen[without] = codes[without]  # items without examples keep their paths
        return chosen

    def _next(self, inputs: Inputs, asked: np.ndarray, prefixes: np.ndarray) -> np.ndarray:
        """Probabilities of the next token after the prefix [n, l] of each example: [n, K]."""
        parts = []
        for start in range(0, len(asked), BLOCK):
            some = slice(start, start + BLOCK)
            query = self.reader.batch(inputs, asked[some])
            codes = torch.from_numpy(prefixes[some].astype(np.int64)).to(next(self.model.parameters()).device)
            level = prefixes.shape[1]
            hidden = self.model.hidden(query, codes)[:, level]
            parts.append(self.model.heads[level](hidden).softmax(-1).cpu().numpy())
        return np.concatenate(parts).astype(np.float64)


def some_of_each(rows: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Indices of at most `count` random examples of each item, in order."""
    order = rng.permutation(len(rows))
    order = order[np.argsort(rows[order], kind="stable")]
    first = np.searchsorted(rows[order], rows[order])
    return np.sort(order[np.arange(len(order)) - first < count])
