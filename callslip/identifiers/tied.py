"""Tied codes: levels of codebooks in the encoder's own space, so that a code is a reconstruction of its vector.

The first `tree` levels are residual k-means: they say where a vector lies, and are what a beam walks. The other levels
are a product quantiser of what the tree leaves: the residual is rotated onto its principal axes, the axes are dealt out
so that every level carries about as much variance (Ge et al., 2013), and each level codes its own axes. The inner
product of a query with a reconstruction is then a sum over levels of one number a token, so a query needs one table.
Reconstructions have unit length, like the vectors they stand for: `scales` has the factor of each code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np

from callslip.errors import BadSetting
from callslip.identifiers.kmeans import check_vectors, cluster_centres
from callslip.runtime.progress import track

SAMPLE = 64
"""Vectors per token that codebooks are learned from; more change little."""
ITERATIONS = 15
"""Passes of k-means per level."""
FEW = 1000
"""Number of vectors below which codebooks are also learned from random neighbours of theirs: a few documents do not
span the space, and the codes of queries and of later documents would be far from their vectors."""
WIDTH = 256
"""Tokens per level: a token is a byte."""
TYPICAL = 0.6
"""Length of a difference where there are no segments to learn from: that of NFCorpus's."""


class TiedQuantizer:
    """Codes of `length` tokens, of which the first `tree` are residual levels and the others product levels."""

    def __init__(self, length: int = 64, tree: int = 1, width: int = WIDTH, seed: int = 0) -> None:
        if not 0 <= tree <= length or length < 1 or not 1 <= width <= WIDTH:
            raise BadSetting(
                f"invalid tied codes: length {length}, tree {tree}, width {width}",
                f"Use 0 <= tree <= length and a width of 1 to {WIDTH}.",
            )
        self.length, self.tree, self.width, self.seed = length, tree, width, seed
        self.codebooks: list[np.ndarray] = []
        """Tree levels [tokens, D]; product levels [tokens, axes of the level]."""
        self.rotation = np.zeros((0, 0), np.float32)
        self.axes: list[np.ndarray] = []
        """Axes of the rotated residual that each product level codes."""
        self._stack: tuple[np.ndarray, np.ndarray, list[np.ndarray]] | None = None

    @property
    def dim(self) -> int:
        if self.axes:
            return len(self.rotation)
        return self.codebooks[0].shape[1] if self.codebooks else 0

    @property
    def widths(self) -> list[int]:
        """Tokens per level."""
        return [len(book) for book in self.codebooks]

    def fit(self, vectors: np.ndarray) -> np.ndarray:
        """Learn the codebooks and return the codes of the vectors, int32 [N, length]."""
        vectors = check_vectors(vectors)
        if not len(vectors):
            raise BadSetting("no vectors to quantise")
        if self.length - self.tree > vectors.shape[1]:
            raise BadSetting(
                f"codes of {self.length} tokens for vectors of {vectors.shape[1]} numbers",
                f"Use at most {vectors.shape[1] + self.tree} tokens.",
            )
        return self.learn(vectors[self.sample(len(vectors))], len(vectors)).assign(vectors)

    def sample(self, count: int) -> np.ndarray:
        """The rows, ascending, of those of `count` vectors that codebooks are learned from."""
        rows = self._draw(count)[1]
        return np.arange(count) if rows is None else rows

    def learn(self, sample: np.ndarray, count: int) -> Self:
        """Learn the codebooks from the `sample` of `count` vectors, which need not be in memory."""
        rng, residual = self._draw(count)[0], check_vectors(sample)
        if count < FEW:
            residual = _with_neighbours(residual, rng)
        self.codebooks, self.axes = [], []
        for level in range(self.tree):
            book = _half(cluster_centres(residual, self.width, self.seed + level, ITERATIONS))
            self.codebooks.append(book)
            residual = residual - book[_nearest(residual, book)]
        self._learn_product(residual, rng)
        return self

    def _learn_product(self, residual: np.ndarray, rng: np.random.Generator) -> None:
        """Learn the codebooks of the product levels from what the tree leaves."""
        if self.length > self.tree:
            variances, rotation = _principal_axes(residual)
            self.rotation = _half(rotation)
            self.axes = balanced_axes(variances, self.length - self.tree)
            rotated = residual @ self.rotation
            for axes in track(self.axes, "learning codebooks"):
                part = np.ascontiguousarray(rotated[:, axes])
                self.codebooks.append(_half(_centroids(part, self.width, rng)))

    def fit_beyond(self, vectors: np.ndarray, tokens: np.ndarray, widths: Sequence[int]) -> np.ndarray:
        """Learn codebooks for tree tokens that are given, [N, tree], and return the whole codes, int32 [N, length].

        A token of the tree stands for the mean of what the levels before it leave of its vectors; one that no vector
        has, of the `widths` of the levels, for nothing. The product levels are learned as in `fit`.
        """
        residual, rng = check_vectors(vectors), np.random.default_rng(self.seed)
        self.codebooks, self.axes = [], []
        for level, width in enumerate(widths):
            sums = np.zeros((width, residual.shape[1]), np.float32)
            np.add.at(sums, tokens[:, level], residual)
            counts = np.bincount(tokens[:, level], minlength=width)
            book = _half(sums / np.maximum(counts, 1)[:, None])
            self.codebooks.append(book)
            residual = residual - book[tokens[:, level]]
        sample = residual[self.sample(len(residual))]
        self._learn_product(_with_neighbours(sample, rng) if len(vectors) < FEW else sample, rng)
        return self.assign_beyond(vectors, tokens)

    def assign_beyond(self, vectors: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Codes of vectors whose tree tokens are given, int32 [N, length]."""
        residual = check_vectors(vectors, self.dim)
        for level in range(self.tree):
            residual = residual - self.codebooks[level][tokens[:, level]]
        return np.concatenate([tokens.astype(np.int32), self._assign_product(residual)], axis=1)

    def _draw(self, count: int) -> tuple[np.random.Generator, np.ndarray | None]:
        """A new generator, and the rows that it has drawn first if there are more vectors than are needed."""
        rng, most = np.random.default_rng(self.seed), SAMPLE * self.width
        return rng, np.sort(rng.choice(count, most, replace=False)) if count > most else None

    def assign(self, vectors: np.ndarray) -> np.ndarray:
        """Codes of vectors, int32 [N, length]."""
        if not self.codebooks:
            raise BadSetting("the quantiser has not been fitted", "Call fit first.")
        residual = check_vectors(vectors, self.dim)
        codes = np.empty((len(residual), self.length), np.int32)
        for level in range(self.tree):
            codes[:, level] = _nearest(residual, self.codebooks[level])
            residual = residual - self.codebooks[level][codes[:, level]]
        codes[:, self.tree :] = self._assign_product(residual)
        return codes

    def _assign_product(self, residual: np.ndarray) -> np.ndarray:
        """Tokens of the product levels for what the tree leaves, [N, length - tree]."""
        codes = np.empty((len(residual), len(self.axes)), np.int32)
        rotated = residual @ self.rotation if self.axes else residual
        for level, axes in enumerate(self.axes):
            books = self.codebooks[self.tree + level]
            codes[:, level] = _nearest(np.ascontiguousarray(rotated[:, axes]), books)
        return codes

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Reconstructed vectors of the codes, unit length, [N, D]."""
        vectors = self.sums(codes)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)

    def scales(self, codes: np.ndarray) -> np.ndarray:
        """The factor that makes each code's reconstruction a unit vector, float16 [N]."""
        norms = np.empty(len(codes), np.float32)
        for start in range(0, len(codes), 8192):
            norms[start : start + 8192] = np.linalg.norm(self.sums(codes[start : start + 8192]), axis=1)
        return (1.0 / np.maximum(norms, 1e-3)).astype(np.float16)

    def sums(self, codes: np.ndarray) -> np.ndarray:
        """The sums of what the tokens of codes stand for, before they are scaled to unit length, [N, D]."""
        vectors = np.zeros((len(codes), self.dim), np.float32)
        for level in range(self.tree):
            vectors += self.codebooks[level][codes[:, level]]
        if self.axes:
            rotated = np.zeros_like(vectors)
            for level, axes in enumerate(self.axes, start=self.tree):
                rotated[:, axes] = self.codebooks[level][codes[:, level]]
            vectors += rotated @ self.rotation.T
        return vectors

    def tables(self, queries: np.ndarray) -> np.ndarray:
        """Inner products of queries [B, D] with every token of every level, [B, length, WIDTH]; unused tokens are 0."""
        tables = np.zeros((len(queries), self.length, WIDTH), np.float32)
        for level in range(self.tree):
            tables[:, level, : len(self.codebooks[level])] = queries @ self.codebooks[level].T
        if self.axes:
            axes, books = self._stacked()
            parts = (queries @ self.rotation)[:, axes].transpose(1, 0, 2)
            tables[:, self.tree :] = np.matmul(parts, books).transpose(1, 0, 2)
        return tables

    def _stacked(self) -> tuple[np.ndarray, np.ndarray]:
        """Axes [levels, most] and codebooks [levels, most, WIDTH] of the product levels, padded with zeros: one product
        for all levels, of which there are dozens, takes a tenth of the time of one for each."""
        if self._stack is None or self._stack[2] is not self.axes:
            most = max(map(len, self.axes))
            axes = np.zeros((len(self.axes), most), np.intp)
            books = np.zeros((len(self.axes), most, WIDTH), np.float32)
            for level, own in enumerate(self.axes):
                book = self.codebooks[self.tree + level]
                axes[level, : len(own)], books[level, : len(own), : len(book)] = own, book.T
            self._stack = (axes, books, self.axes)
        return self._stack[:2]

    def state(self) -> dict[str, np.ndarray]:
        """Everything needed to assign and to read codes, as arrays; numbers have 16 bits."""
        state = {f"codebook.{level}": book.astype(np.float16) for level, book in enumerate(self.codebooks)}
        if self.axes:
            state["rotation"] = self.rotation.astype(np.float16)
            state["axes"] = np.concatenate(self.axes).astype(np.int32)
            state["axes_per_level"] = np.asarray([len(axes) for axes in self.axes], np.int32)
        shape = np.asarray([self.length, self.tree, self.width, self.seed], np.int64)
        return {"settings": shape, **state}

    @classmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> TiedQuantizer:
        maker = cls(*(int(value) for value in state["settings"]))
        maker.codebooks = [state[f"codebook.{level}"].astype(np.float32) for level in range(maker.length)]
        if "rotation" in state:
            maker.rotation = state["rotation"].astype(np.float32)
            maker.axes = np.split(state["axes"], np.cumsum(state["axes_per_level"])[:-1])
        return maker


class SegmentQuantizer:
    """Short codes of segments: `length` tokens for what the code of their document does not say about them.

    A segment is near its document, so a few bytes are enough for the difference between its vector and the document's
    reconstruction. They are product levels without a tree: segments are read with their documents, not searched by
    themselves. The inner product of a query with a segment is that with the document's reconstruction plus a number a
    level.
    """

    def __init__(self, length: int, seed: int = 0) -> None:
        self.levels = TiedQuantizer(length, tree=0, seed=seed)

    @property
    def length(self) -> int:
        return self.levels.length

    def learn(self, vectors: np.ndarray, bases: np.ndarray) -> Self:
        """Learn the codebooks from unit vectors of segments [S, D], and the reconstructions of their documents. With
        few of them, random differences stand for those of later documents."""
        differences = check_vectors(vectors) - bases
        rng, most = np.random.default_rng(self.levels.seed), SAMPLE * WIDTH
        if len(differences) > most:
            differences = differences[np.sort(rng.choice(len(differences), most, replace=False))]
        if len(differences) < FEW:
            dim = differences.shape[1]
            length = float(np.sqrt((differences**2).sum(axis=1).mean())) if len(differences) else TYPICAL
            others = rng.normal(size=(4 * FEW, dim)).astype(np.float32) * np.float32(length / np.sqrt(dim))
            differences = np.concatenate([differences, others])
        self.levels.learn(differences, len(differences))
        return self

    def assign(self, vectors: np.ndarray, bases: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Codes uint8 [S, length], and the factors that make the reconstructions unit vectors, float16 [S]."""
        codes, scales = np.empty((len(vectors), self.length), np.uint8), np.empty(len(vectors), np.float16)
        for start in range(0, len(vectors), 8192):
            some = slice(start, start + 8192)
            codes[some] = self.levels.assign(vectors[some] - bases[some])
            whole = np.linalg.norm(bases[some] + self.levels.sums(codes[some]), axis=1)
            scales[some] = 1.0 / np.maximum(whole, 1e-3)
        return codes, scales

    def tables(self, queries: np.ndarray) -> np.ndarray:
        """Inner products of queries [B, D] with every token of every level, [B, length, WIDTH]."""
        return self.levels.tables(queries)

    def state(self) -> dict[str, np.ndarray]:
        return self.levels.state()

    @classmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> SegmentQuantizer:
        levels = TiedQuantizer.from_state(state)
        made = cls(levels.length, levels.seed)
        made.levels = levels
        return made


def token_sums(table: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """The sum over levels of the table's entries for the tokens of each code: table [L, WIDTH], codes [n, L] -> [n]."""
    if codes.shape[1] != len(table):
        raise BadSetting(f"codes of {codes.shape[1]} tokens for a table of {len(table)} levels")
    total = np.zeros(len(codes), np.float32)
    for level, row in enumerate(table):
        total += row.take(codes[:, level])
    return total


def balanced_axes(variances: Sequence[float] | np.ndarray, groups: int) -> list[np.ndarray]:
    """Deal axes out to groups of equal size, up to one, so that the products of the groups' variances are about equal.

    Axes come in order of falling variance; each goes to the group with the smallest product so far that has room.
    """
    values = np.asarray(variances, np.float64)
    room = np.full(groups, len(values) // groups)
    room[: len(values) % groups] += 1
    logs = np.log(np.maximum(values, 1e-12) / max(values.min(initial=1.0), 1e-12))
    totals, members = np.zeros(groups), [[] for _ in range(groups)]  # type: ignore[var-annotated]
    for axis in np.argsort(-values, kind="stable"):
        open_groups = np.flatnonzero(room)
        group = open_groups[totals[open_groups].argmin()]
        members[group].append(int(axis))
        totals[group] += logs[axis]
        room[group] -= 1
    return [np.asarray(sorted(axes), np.int32) for axes in members]


def _principal_axes(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Variances along the principal axes of vectors that are centred already, and the axes as columns."""
    moments = vectors.astype(np.float64).T @ vectors / max(1, len(vectors))
    variances, axes = np.linalg.eigh(moments)
    return np.maximum(variances, 0), axes.astype(np.float32)


def _with_neighbours(vectors: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The vectors, and about `4 * FEW` unit vectors around them, at right angles on average."""
    near = np.repeat(vectors, -(-4 * FEW // len(vectors)), axis=0)
    near = near + rng.normal(size=near.shape).astype(np.float32) / np.sqrt(near.shape[1], dtype=np.float32)
    near /= np.maximum(np.linalg.norm(near, axis=1, keepdims=True), 1e-12)
    return np.concatenate([vectors, near])


def _centroids(points: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """At most k centroids of points of few dimensions by Lloyd's algorithm, started at random points.

    There are dozens of levels of a few axes each: a careful start would cost more than it gains in so few dimensions.
    """
    distinct = np.unique(points, axis=0)
    if len(distinct) <= k:
        return distinct
    centres = distinct[rng.choice(len(distinct), k, replace=False)]
    for _ in range(ITERATIONS):
        labels = _nearest(points, centres)
        counts = np.bincount(labels, minlength=k)
        sums = np.stack([np.bincount(labels, points[:, axis], minlength=k) for axis in range(points.shape[1])], axis=1)
        empty = counts == 0
        centres = (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)
        centres[empty] = points[rng.integers(len(points), size=int(empty.sum()))]
    return centres


def _nearest(points: np.ndarray, centres: np.ndarray, chunk: int = 16_384) -> np.ndarray:
    """Index of the nearest centre, in 32 bits: there are dozens of levels, and ties in the last bit do not matter."""
    half_norms = 0.5 * (centres**2).sum(axis=1)
    labels = np.empty(len(points), np.int64)
    for start in range(0, len(points), chunk):
        labels[start : start + chunk] = (points[start : start + chunk] @ centres.T - half_norms).argmax(axis=1)
    return labels


def _half(array: np.ndarray) -> np.ndarray:
    """Rounded to 16 bits, so that a saved codebook is the one that codes were made with."""
    return array.astype(np.float16).astype(np.float32)
