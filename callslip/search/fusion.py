"""Evidence that a document answers a query, from three sources, as features whose weighted sum ranks the candidates.

*Meaning* is the similarity of query and document, and to the nearest of the document's segments, *words* is BM25, and
*memory* counts the earlier queries near this one that a document is known to answer. Similarities and BM25 are scaled
to 1 at the first and 0 at the last of their own best documents, which makes queries comparable (convex fusion).
`callslip.training.fusion` fits the weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

KERNELS = (0.02, 0.05, 0.1)
"""Bandwidths of the votes of earlier queries, in units of cosine similarity."""
NEIGHBOURS = 64
"""Number of earlier queries that vote, the nearest ones."""
FEATURES = (
    "meaning",
    "similarity",
    "segment",
    "segment_similarity",
    "words",
    *(f"votes_{width}" for width in KERNELS),
    *(f"vote_share_{width}" for width in KERNELS),
    "nearest_query",
)
"""Names of the features. `segment` is the similarity to the nearest of a document's text and its segments, scaled as
`meaning`, and `segment_similarity` as it is; both are 0 in an index without segments. `votes` are sums over a
candidate's earlier queries of exp((similarity - 1) / width): they count in absolute terms. A `vote_share` is the
candidate's part of the votes relative to the nearest query: it counts even if no earlier query is near. `nearest_query`
is how much nearer an earlier query is than the document itself."""
MEANING, WORDS, MEMORY = slice(0, 4), 4, slice(5, None)
"""Where the features of each source are."""
SIMILARITY_SCALE = 10.0
"""Factor of the raw similarities, so that all features have a similar range."""


def weights_of(**named: float) -> np.ndarray:
    """Weights of all features; 0 for those that are not named."""
    return np.array([named.pop(name, 0.0) for name in FEATURES])


EVEN = weights_of(meaning=0.5, words=0.5)
"""Weights of the convex fusion of meaning and words in equal parts, without a memory."""
EVEN_WITH_SEGMENTS = weights_of(meaning=0.25, segment=0.25, words=0.5)
"""The same for documents with segments."""


@dataclass(frozen=True)
class Votes:
    """What earlier queries say: rows of documents that answered one of the nearest, with their votes."""

    rows: np.ndarray
    kernels: np.ndarray  # [n, len(KERNELS)]
    shares: np.ndarray  # [n, len(KERNELS)]
    nearest: np.ndarray  # [n] similarity of the nearest query that the document answered
    by: np.ndarray  # [n] index of that query

    @classmethod
    def none(cls) -> Votes:
        empty = np.zeros((0, len(KERNELS)), np.float32)
        return cls(np.zeros(0, np.int64), empty, empty, np.zeros(0, np.float32), np.zeros(0, np.int64))


def votes(similarities: np.ndarray, starts: np.ndarray, rows: np.ndarray, neighbours: int = NEIGHBOURS) -> Votes:
    """The votes of the queries with these similarities [m], of which query i was answered by the documents
    rows[starts[i]:starts[i + 1]]. Queries with a similarity of -inf do not vote."""
    near = np.flatnonzero(np.isfinite(similarities) & (starts[1:] > starts[:-1]))
    if len(near) > neighbours:
        near = np.sort(near[np.argpartition(-similarities[near], neighbours - 1)[:neighbours]])
    if not len(near):
        return Votes.none()
    values = similarities[near].astype(np.float64)
    widths = np.asarray(KERNELS)
    absolute = np.exp((values[:, None] - 1) / widths)
    relative = np.exp((values[:, None] - values.max()) / widths)
    relative /= relative.sum(axis=0)
    sizes = starts[near + 1] - starts[near]
    voter = np.repeat(np.arange(len(near)), sizes)
    answered = np.concatenate([rows[starts[one] : starts[one + 1]] for one in near])
    unique, place = np.unique(answered, return_inverse=True)
    kernels, shares = np.zeros((len(unique), len(widths))), np.zeros((len(unique), len(widths)))
    np.add.at(kernels, place, absolute[voter])
    np.add.at(shares, place, relative[voter])
    order = np.argsort(values[voter], kind="stable")  # the last to be written is the nearest
    nearest, by = np.zeros(len(unique)), np.zeros(len(unique), np.int64)
    nearest[place[order]], by[place[order]] = values[voter[order]], near[voter[order]]
    return Votes(unique, kernels, shares, nearest, by)


def scaled(values: np.ndarray, best: np.ndarray) -> np.ndarray:
    """Scores scaled to 1 at the first and 0 at the last of the best ones; never below 0. If the best ones are equal,
    or there is only one, they get 1."""
    if not len(best):
        return np.zeros_like(values)
    low, high = float(best.min()), float(best.max())
    if high - low < 1e-9:
        return (values >= low).astype(values.dtype)
    return np.maximum(values - low, 0) / (high - low)


def features(
    rows: np.ndarray, similarity: np.ndarray, words: np.ndarray, known: Votes, best_similarity: np.ndarray,
    best_words: np.ndarray, nearest: np.ndarray | None = None, best_nearest: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """The features [n, len(FEATURES)] of candidate rows, which are sorted.

    `similarity` and `words` are the candidates' scores; `best_similarity` and `best_words` are the first scores of each
    source's own list, by which they are scaled. `nearest` and `best_nearest` are those of the nearest segments, in an
    index that has any.
    """
    found = np.zeros((len(rows), len(FEATURES)), np.float32)
    found[:, 0] = scaled(similarity, best_similarity)
    found[:, 1] = SIMILARITY_SCALE * similarity
    if nearest is not None and best_nearest is not None:
        found[:, 2] = scaled(nearest, best_nearest)
        found[:, 3] = SIMILARITY_SCALE * nearest
    found[:, WORDS] = scaled(words, best_words)
    if len(known.rows):
        at = np.minimum(np.searchsorted(known.rows, rows), len(known.rows) - 1)
        here = known.rows[at] == rows
        first, n = MEMORY.start, len(KERNELS)
        found[here, first : first + n] = known.kernels[at[here]]
        found[here, first + n : first + 2 * n] = known.shares[at[here]]
        spread = max(float(np.ptp(best_similarity)) if len(best_similarity) else 0.0, 1e-9)
        found[here, -1] = np.maximum(known.nearest[at[here]] - similarity[here], 0) / spread
    return found
