"""Clusters as codes: hierarchical k-means (DSI's semantic identifiers), and k-means with size constraints."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np

from callslip.errors import BadSetting, MissingExtra
from callslip.identifiers.levels import next_rank
from callslip.identifiers.table import Identifiers
from callslip.runtime.progress import track

MANY = 100_000
"""Number of vectors above which k-means uses mini-batches instead of full passes."""


LARGE = 65_536
"""Number of vectors above which k-means is faiss's, if it is installed (extra `dense`)."""
SAMPLE, FIRST, ROUNDS = 256, 16, 10
"""faiss: vectors per cluster in the sample, and in that of the first centroids; passes over the sample."""


def check_vectors(vectors: np.ndarray, dim: int | None = None) -> np.ndarray:
    """Vectors as contiguous float32 [N, D], or an error."""
    array = np.ascontiguousarray(vectors, dtype=np.float32)
    if array.ndim != 2 or array.shape[1] < 1 or (dim is not None and array.shape[1] != dim):
        raise BadSetting(f"vectors must be [documents, {dim or 'dimensions'}], not of shape {array.shape}")
    if not np.isfinite(array).all():
        raise BadSetting("vectors contain NaN or infinity", "Check the encoder: such a vector cannot be clustered.")
    return array


def nearest(vectors: np.ndarray, centroids: np.ndarray, chunk: int = 16_384) -> np.ndarray:
    """Index of the centroid nearest to each vector (squared Euclidean distance; ties go to the first)."""
    norms = (centroids.astype(np.float64) ** 2).sum(axis=1)
    labels = np.empty(len(vectors), np.int64)
    for start in range(0, len(vectors), chunk):
        some = vectors[start : start + chunk]
        labels[start : start + chunk] = (norms - 2.0 * (some @ centroids.T)).argmin(axis=1)
    return labels


def cluster_centres(vectors: np.ndarray, k: int, seed: int = 0, iterations: int = 100) -> np.ndarray:
    """At most k centroids, float32 [<= k, D]: fewer only if there are fewer distinct vectors."""
    if len(vectors) > max(LARGE, k) and importlib.util.find_spec("faiss") is not None:
        return _centres_by_faiss(vectors, k, seed)
    distinct = np.unique(vectors, axis=0) if len(vectors) <= MANY else vectors
    if len(distinct) <= k:
        return distinct
    from sklearn.cluster import KMeans, MiniBatchKMeans

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # empty clusters are handled below
        if len(vectors) > MANY:
            # several vectors per cluster in a batch, or most clusters would get none in a step
            batch = max(4096, 4 * k)
            model = MiniBatchKMeans(k, n_init=1, random_state=seed, batch_size=batch, max_iter=iterations)
        else:
            model = KMeans(k, n_init=1, random_state=seed, max_iter=iterations)
        centres = model.fit(vectors).cluster_centers_.astype(np.float32)
    return centres[np.unique(nearest(vectors, centres))]


def _centres_by_faiss(vectors: np.ndarray, k: int, seed: int) -> np.ndarray:
    """k-means on a sample, by faiss: a fraction of the CPU time, for a few percent more inertia."""
    import faiss
    from sklearn.cluster import kmeans_plusplus

    # faiss begins at random vectors, which leaves clusters that are far apart in one.
    some = np.random.default_rng(seed).choice(len(vectors), min(len(vectors), FIRST * k), replace=False)
    first = kmeans_plusplus(vectors[np.sort(some)], k, random_state=seed)[0]
    sample = {"max_points_per_centroid": SAMPLE, "min_points_per_centroid": 1}
    model = faiss.Kmeans(vectors.shape[1], k, niter=ROUNDS, seed=seed + 1, **sample)  # type: ignore[attr-defined]
    model.train(np.ascontiguousarray(vectors, np.float32), init_centroids=np.ascontiguousarray(first, np.float32))
    centres = np.asarray(model.centroids, np.float32)
    return centres[np.unique(nearest(vectors, centres))]


class HierarchicalKMeans:
    """Codes by hierarchical k-means: the first token is a document's cluster, the second its cluster within the
    first, and so on.

    In a group of at most `width` distinct vectors, each gets its own token. With `leaf="bucket"` the last token is
    a cluster like the others, and documents may share a code; with `leaf="rank"` it numbers the documents of each
    group by distance from the centre, as in DSI, so codes are unique and the last level is as wide as the largest
    group. `balanced` makes the clusters of a group equal in size up to one document (extra `balanced`).
    """

    def __init__(
        self,
        width: int = 32,
        length: int = 3,
        *,
        leaf: Literal["bucket", "rank"] = "bucket",
        balanced: bool = False,
        seed: int = 0,
    ) -> None:
        if width < 2 or length < 1 or leaf not in ("bucket", "rank"):
            raise BadSetting(f"invalid k-means codes: width {width}, length {length}, leaf {leaf!r}")
        self.width, self.length, self.leaf, self.balanced, self.seed = width, length, leaf, balanced, seed
        self.dim = 0
        # Per clustered level: the number of children of each node, and the centroids of nodes with two or more.
        self.counts: list[np.ndarray] = []
        self.centroids: list[np.ndarray] = []
        self.ranks = np.zeros(0, np.int64)  # documents in each leaf at fit, for leaf="rank"

    @property
    def _clustered(self) -> int:
        return self.length - (self.leaf == "rank")

    def fit(self, vectors: np.ndarray) -> np.ndarray:
        """Cluster the vectors and return their codes, int32 [N, length]."""
        vectors = check_vectors(vectors)
        if not len(vectors):
            raise BadSetting("no vectors to cluster")
        self.dim, self.counts, self.centroids = vectors.shape[1], [], []
        codes = np.zeros((len(vectors), self.length), np.int32)
        nodes = np.zeros(len(vectors), np.int64)
        for level in range(self._clustered):
            counts, centroids = [], [np.zeros((0, self.dim), np.float32)]
            groups = list(_groups(nodes))
            for group in track(groups, f"k-means, level {level + 1} of {self._clustered}"):
                codes[group, level], centres = self._split(vectors[group])
                counts.append(len(centres))
                if len(centres) > 1:
                    centroids.append(centres)
            self.counts.append(np.asarray(counts, np.int64))
            self.centroids.append(np.concatenate(centroids))
            nodes = self._descend(level, nodes, codes[:, level])
        if self.leaf == "rank":
            self.ranks = np.bincount(nodes)
            for group in _groups(nodes):
                off_centre = ((vectors[group] - vectors[group].mean(axis=0)) ** 2).sum(axis=1)
                codes[group[np.argsort(off_centre, kind="stable")], -1] = np.arange(len(group))
        return codes

    def _split(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Labels and centroids of one group, without empty clusters."""
        k = min(self.width, len(vectors))
        if self.balanced and k > 1:
            least = len(vectors) // k
            return constrained_kmeans(vectors, k, least, least + (len(vectors) % k > 0), self.seed)
        centres = cluster_centres(vectors, k, self.seed)
        return nearest(vectors, centres), centres

    def _descend(self, level: int, nodes: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """The node of the next level that a token leads to."""
        first = np.cumsum(self.counts[level]) - self.counts[level]
        return first[nodes] + tokens

    def assign(self, vectors: np.ndarray, taken: Identifiers | np.ndarray | None = None) -> np.ndarray:
        """Codes of new vectors by the nearest centroids, int32 [N, length].

        With `leaf="rank"`, numbering continues after the documents of `taken` (the table that the vectors will be
        added to), or after those of the fit.
        """
        if not self.counts:
            raise BadSetting("k-means has not been fitted", "Call fit first.")
        vectors = check_vectors(vectors, self.dim)
        codes = np.zeros((len(vectors), self.length), np.int32)
        nodes = np.zeros(len(vectors), np.int64)
        for level in range(self._clustered):
            counts = self.counts[level]
            stored = np.where(counts > 1, counts, 0)
            first = np.cumsum(stored) - stored
            for group in _groups(nodes):
                node = nodes[group[0]]
                if counts[node] > 1:
                    centres = self.centroids[level][first[node] : first[node] + counts[node]]
                    codes[group, level] = nearest(vectors[group], centres)
            nodes = self._descend(level, nodes, codes[:, level])
        if self.leaf == "rank":
            for group in _groups(nodes):
                start = self.ranks[nodes[group[0]]] if taken is None else next_rank(taken, codes[group[0], :-1])
                codes[group, -1] = start + np.arange(len(group))
        return codes

    def state(self) -> dict[str, np.ndarray]:
        """Everything needed to assign codes to new vectors, as arrays."""
        settings = [self.width, self.length, self.leaf == "rank", self.balanced, self.seed, self.dim]
        state = {"settings": np.asarray(settings, np.int64), "ranks": self.ranks}
        for level, (counts, centroids) in enumerate(zip(self.counts, self.centroids)):
            state[f"counts.{level}"], state[f"centroids.{level}"] = counts, centroids
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> HierarchicalKMeans:
        width, length, rank, balanced, seed, dim = (int(value) for value in state["settings"])
        maker = cls(width, length, leaf="rank" if rank else "bucket", balanced=bool(balanced), seed=seed)
        maker.dim, maker.ranks = dim, state["ranks"]
        for level in range(maker._clustered if dim else 0):
            maker.counts.append(state[f"counts.{level}"])
            maker.centroids.append(state[f"centroids.{level}"])
        return maker


def _groups(nodes: np.ndarray) -> Iterator[np.ndarray]:
    """The rows of each node, in order of node and then row."""
    if not len(nodes):
        return
    order = np.argsort(nodes, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(nodes[order])) + 1)


def constrained_kmeans(
    x: np.ndarray, k: int, size_min: int, size_max: int, seed: int = 0, iterations: int = 20
) -> tuple[np.ndarray, np.ndarray]:
    """k-means whose clusters all have between `size_min` and `size_max` members: labels [N], centroids [k,
    D].

    Lloyd's algorithm with each assignment solved exactly as a transport problem; the labels are optimal for the
    centroids before their last update. Memory is about 32 N k bytes.
    """
    from scipy.sparse import csr_array
    from sklearn.cluster import kmeans_plusplus

    x = check_vectors(x)
    n = len(x)
    if k < 1 or size_min < 0 or not k * size_min <= n <= k * size_max:
        raise BadSetting(
            f"{k} clusters of {size_min} to {size_max} members cannot hold {n} vectors",
            f"Use size_min <= {n // max(k, 1)} and size_max >= {-(-n // max(k, 1))}.",
        )
    centroids = kmeans_plusplus(x.astype(np.float64), k, random_state=seed)[0]
    labels = np.full(n, -1)
    for _ in range(max(1, iterations)):
        new = assign_within_sizes(_squared_distances(x, centroids), size_min, size_max)
        if (new == labels).all():
            break
        labels = new
        sizes = np.bincount(labels, minlength=k)
        sums = csr_array((np.ones(n), (labels, np.arange(n))), shape=(k, n)) @ x  # np.add.at is ten times slower
        centroids = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], centroids)
    return labels, centroids.astype(np.float32)


def assign_within_sizes(cost: np.ndarray, size_min: int, size_max: int) -> np.ndarray:
    """The minimum-cost assignment of rows to columns that gives every column `size_min` to `size_max` rows; [N].

    Each column is split into a required sink and an optional one. A dummy source fills the capacity that the rows
    leave in the optional sinks; a prohibitive cost keeps it out of the required ones, so rows fill those. Masses are
    integers, and so is every vertex of the transport polytope that the network simplex returns.
    """
    try:
        import ot
    except ImportError:
        raise MissingExtra("k-means with guaranteed sizes", "balanced") from None
    n, k = cost.shape
    kinds = [size for size in (size_min, size_max - size_min) if size]
    dummy = k * size_max - n
    full = np.tile(np.asarray(cost, np.float64), (1, len(kinds)))
    if dummy:
        # Slightly more than the costliest detour of a row keeps the dummy out; a larger cost would lose precision.
        forbidden = 2.0 * float(cost.max() - min(cost.min(), 0.0)) + 1.0
        row = np.zeros(full.shape[1])
        if size_min:
            row[:k] = forbidden
        full = np.vstack([full, row])
    sources = np.append(np.ones(n), dummy) if dummy else np.ones(n)
    sinks = np.repeat(np.asarray(kinds, np.float64), k)
    plan, log = ot.emd(sources, sinks, full, numItermax=100_000_000, log=True)
    labels = plan[:n].reshape(n, len(kinds), k).sum(axis=1).argmax(axis=1)
    sizes = np.bincount(labels, minlength=k)
    if log["warning"] or sizes.min() < size_min or sizes.max() > size_max:
        raise RuntimeError(f"the transport solver failed: {log['warning']}")
    return labels


def _squared_distances(x: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    squared = (wide**2).sum(axis=1)[:, None] + (centroids**2).sum(axis=1) - 2 * wide @ centroids.T
    return np.maximum(squared, 0.0)
