"""What counting knows of a log: sequential rules, their factors, and the items' texts, as one score of every item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from callslip.corpus.sequences import Sequences
from callslip.index import neighbours
from callslip.settings import check_all, check_range

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

WINDOW = 50
"""Largest distance of a pair that is counted, in interactions."""
RULES, FOLLOWING, ITEMS = "rules.safetensors", "following.safetensors", "counts.safetensors"
FLOOR, SHARPNESS = 0.1, 4.0
"""Probabilities are proportional to (FLOOR + score)^SHARPNESS: scores have heavy tails, which a softmax of scores fits
worse (on Amazon Beauty by about 0.4 nats an item)."""
REPEATED_FLOOR = 1e-3
"""Least factor on the probability of items of the history, in logs where nobody has an item twice."""


@dataclass(frozen=True)
class CountSettings:
    """Rules, their factors, and the weights of the sources."""

    heading: ClassVar[str] = "Counts"

    def __post_init__(self) -> None:
        check_all(self)

    factors: int = 256
    """Dimensions of the factorised rules."""
    gap: float = 0.9
    """Factor for each interaction that lies between the items of a pair."""
    back: float = 0.3
    """Weight of a pair against the order of time."""
    user_power: float = 0.5
    """Exponent a of the user weight n^-a, for a user with n interactions."""
    popularity_power: float = 0.2
    """Exponent of the normalisation by the number of interactions, for both items of a pair."""
    decay: float = 0.65
    """Weight of each item of the history relative to the next one, so that recent items count more."""
    factor_weight: float = 1.0
    """Weight of the factors in the score."""
    text_weight: float = 0.3
    """Weight of the texts in the score."""
    memory_weight: float = 0.5
    """Weight of the rules themselves, which are stored sparsely; 0 ranks by factors and texts alone."""

    def check(self) -> None:
        check_range(self, factors=1, back=0, user_power=0, popularity_power=0)
        check_range(self, factor_weight=0, text_weight=0, memory_weight=0)
        neighbours.check_decay("gap", self.gap)
        neighbours.check_decay("decay", self.decay)

    def unordered(self) -> Self:
        """The same for histories that are sets: neither order nor distance counts."""
        return replace(self, gap=1.0, back=1.0, decay=1.0)


def factorised(rules: csr_matrix, dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Factors U and V, [N, dim] each, whose product U V^T is the best approximation of the rules of that rank."""
    from scipy.sparse.linalg import svds

    dim = min(dim, rules.shape[0] - 1)
    if dim < 1 or not rules.nnz:
        return np.zeros((rules.shape[0], 1), np.float32), np.zeros((rules.shape[0], 1), np.float32)
    left, values, right = svds(rules, k=dim, v0=np.random.default_rng(seed).normal(size=rules.shape[0]))
    root = np.sqrt(np.maximum(values, 0))
    return (left * root).astype(np.float32), (right.T * root).astype(np.float32)


def counted_following(sequences: Sequences, count: int, s: CountSettings) -> csr_matrix:
    """How often an item comes right after another one, a user with many interactions counting less: [count, count]."""
    return neighbours.decayed_pairs(sequences, count, gap=1.0, back=0.0, user_power=s.user_power, window=1)


def counted_rules(sequences: Sequences, count: int, s: CountSettings) -> tuple[csr_matrix, np.ndarray]:
    """The rules of a log of so many items, [count, count], and the number of interactions of each item, [count]."""
    longest = int(np.diff(sequences.bounds).max(initial=1))
    pairs = neighbours.decayed_pairs(
        sequences, count, gap=s.gap, back=s.back, user_power=s.user_power, window=min(longest, WINDOW)
    )
    users, power = sequences.counts(count), s.popularity_power
    return neighbours.normalised(pairs, users, power, power), users


def centred(vectors: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Unit vectors of texts without what all items have in common."""
    away = vectors - centre
    return (away / np.maximum(np.linalg.norm(away, axis=1, keepdims=True), 1e-6)).astype(np.float32)


def repeated(sequences: Sequences) -> float:
    """The share of interactions, a user's first excepted, with an item that the user has had before."""
    again = sum(len(items) - len(np.unique(items)) for items in sequences.each())
    return again / max(1, len(sequences.items) - len(sequences))


@dataclass
class Counts:
    """Rules between items and, for every item, what it adds to the state of a history and what a state is compared
    with; N items."""

    settings: CountSettings
    rules: csr_matrix
    following: csr_matrix
    """How often an item comes right after another one, [N, N]."""
    inputs: np.ndarray
    """What each item adds to the state of a history, float16 [N, factors + text]."""
    outputs: np.ndarray
    """What the state is compared with, float16 [N, factors + text]."""
    centre: np.ndarray
    """The mean of the items' text vectors, [text], which says nothing about an item; empty without texts."""
    words: np.ndarray
    """Hashes of the words of the items' texts, uint32 [N, words]; [N, 0] without texts."""
    users: np.ndarray
    """Number of interactions of each item, [N]."""
    repeats: float
    """The share of interactions with an item that the user has had before."""

    @classmethod
    def of(
        cls,
        sequences: Sequences,
        count: int,
        texts: np.ndarray | None,
        s: CountSettings,
        seed: int = 0,
        words: np.ndarray | None = None,
    ) -> Counts:
        """Count a log of so many items with text vectors [count, text] and hashes of words [count, words], if they have
        texts."""
        rules, users = counted_rules(sequences, count, s)
        left, right = factorised(rules, s.factors, seed)
        # Factors and texts of about the same length, so that codes of the outputs spend their tokens on both.
        size = max(float(np.sqrt((right**2).sum(axis=1).mean())), 1e-6)
        centre = np.zeros(0, np.float32) if texts is None else texts.mean(axis=0)
        text = np.zeros((count, 0), np.float32) if texts is None else centred(texts, centre)
        inputs = np.concatenate([left * size, text], axis=1).astype(np.float16)
        outputs = np.concatenate([right / size, text], axis=1).astype(np.float16)
        following = counted_following(sequences, count, s)
        words = np.zeros((count, 0), np.uint32) if words is None else words
        return cls(s, rules, following, inputs, outputs, centre, words, users, repeated(sequences))

    def recounted(self, sequences: Sequences) -> Counts:
        """With the rules of another log of the same items; factors stay as they are."""
        rules, users = counted_rules(sequences, len(self), self.settings)
        following = counted_following(sequences, len(self), self.settings)
        return replace(self, rules=rules, following=following, users=users, repeats=repeated(sequences))

    def __len__(self) -> int:
        return len(self.inputs)

    def states(self, histories: Sequence[np.ndarray]) -> np.ndarray:
        """The state of each history, [B, factors + text]: the decayed sum of its items' inputs, weighted by source."""
        s, texts = self.settings, len(self.centre)
        weights = np.repeat([s.factor_weight, s.text_weight], [self.inputs.shape[1] - texts, texts])
        asked = neighbours.history_matrix(histories, len(self), s.decay)
        used = np.unique(asked.indices)
        return ((asked[:, used] @ self.inputs[used].astype(np.float32)) * weights).astype(np.float32)

    def remembered(self, histories: Sequence[np.ndarray], rows: np.ndarray | None = None) -> np.ndarray:
        """What the rules say of every item, or of some rows: [B, N] or [B, rows]."""
        asked = neighbours.history_matrix(histories, len(self), self.settings.decay) @ self.rules
        return self.settings.memory_weight * (asked if rows is None else asked[:, rows]).toarray()

    def scores(self, histories: Sequence[np.ndarray], rows: np.ndarray | None = None) -> np.ndarray:
        """The score of every item, or of some rows, for each history, given as rows in order of time: [B, N] or
        [B, rows]."""
        outputs = self.outputs if rows is None else self.outputs[rows]
        return self.remembered(histories, rows) + self.states(histories) @ outputs.astype(np.float32).T

    @property
    def repeat_factor(self) -> float:
        """The factor on the probability of an item that the history has: the share of repeats in the log."""
        return max(self.repeats, REPEATED_FLOOR)

    def demoted(self, scores: np.ndarray) -> np.ndarray:
        """Scores of items that the history has, lowered as `repeat_factor` lowers their probabilities."""
        factor = self.repeat_factor ** (1 / SHARPNESS)
        return np.minimum(scores, factor * scores - (1 - factor) * FLOOR)

    def because(self, history: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """What the rules from each item of a history contribute to the scores of some rows, [history, rows]."""
        weights = self.settings.memory_weight * neighbours.age_weights(len(history), self.settings.decay)
        return self.rules[history][:, rows].toarray() * weights[:, None]

    # New items, which have a text at most; and items that are dropped.

    def placed(self, texts: np.ndarray | None, count: int) -> np.ndarray:
        """Inputs and outputs, the same for both, of items that no user has had, [count, factors + text]."""
        vectors = np.zeros((count, self.inputs.shape[1]), np.float32)
        if len(self.centre) and texts is not None:
            vectors[:, -len(self.centre) :] = centred(texts, self.centre)
        return vectors

    def extended(self, vectors: np.ndarray, words: np.ndarray) -> Counts:
        """With further items, given as `placed`, and hashes of their words."""
        count, rules, following = len(self) + len(vectors), self.rules.copy(), self.following.copy()
        rules.resize(count, count)
        following.resize(count, count)
        more = vectors.astype(np.float16)
        return replace(
            self,
            rules=rules,
            following=following,
            inputs=np.concatenate([self.inputs, more]),
            outputs=np.concatenate([self.outputs, more[:, : self.outputs.shape[1]]]),
            words=np.concatenate([self.words, words[:, : self.words.shape[1]]]),
            users=np.concatenate([self.users, np.zeros(len(vectors), self.users.dtype)]),
        )

    def kept(self, rows: np.ndarray) -> Counts:
        """With some items only."""
        return replace(
            self,
            rules=self.rules[rows][:, rows].tocsr(),
            following=self.following[rows][:, rows].tocsr(),
            inputs=self.inputs[rows],
            outputs=self.outputs[rows],
            words=self.words[rows],
            users=self.users[rows],
        )

    # The saved folder.

    def save(self, folder: Path) -> None:
        from safetensors.numpy import save_file

        neighbours.save_matrix(self.rules, folder / RULES)
        neighbours.save_matrix(self.following, folder / FOLLOWING)
        parts = {"inputs": self.inputs, "outputs": self.outputs, "centre": self.centre, "users": self.users}
        parts |= {"words": self.words, "repeats": np.array([self.repeats])}
        save_file({name: np.ascontiguousarray(part) for name, part in parts.items()}, folder / ITEMS)

    @classmethod
    def load(cls, folder: Path, s: CountSettings) -> Counts:
        from safetensors.numpy import load_file

        parts, rules = load_file(folder / ITEMS), neighbours.load_matrix(folder / RULES)
        inputs, outputs, centre = (parts[name] for name in ("inputs", "outputs", "centre"))
        if (folder / FOLLOWING).exists():
            following, words = neighbours.load_matrix(folder / FOLLOWING), parts["words"]
        else:  # an index of an earlier version, which has no reranker
            following, words = rules[:0].copy(), np.zeros((len(inputs), 0), np.uint32)
            following.resize(rules.shape)
        return cls(s, rules, following, inputs, outputs, centre, words, parts["users"], float(parts["repeats"][0]))
