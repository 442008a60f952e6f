"""Indexers: small modules that map a vector to token probabilities for each level, trained with the rest of a method.
Three kinds with one interface: a network per level, product and residual quantisation.

Codes of the two quantisers are those of `ProductQuantizer` and `ResidualQuantizer` with the learned codebooks; this
module has the trainable part.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from callslip.errors import BadSetting
from callslip.identifiers.balancing import column_potentials
from callslip.identifiers.kmeans import cluster_centres
from callslip.identifiers.product import ProductQuantizer
from callslip.identifiers.residual import ResidualQuantizer

IndexerName = Literal["mlp", "pq", "rq"]

CLUSTERED = 50_000
"""Maximum number of vectors used to initialise a network."""
CERTAIN = 2.0
"""Initial sharpness of a network's softmax: the logit difference for the mean distance to a centre."""


class Indexer(nn.Module):
    """From unit vectors e [B, D] to probabilities [B, L, K] over each level's tokens."""

    def forward(self, e: Tensor) -> Tensor:
        raise NotImplementedError

    def codes(self, e: Tensor) -> Tensor:
        """The most likely code of each vector, [B, L]."""
        raise NotImplementedError

    def quantisation(self, e: Tensor) -> Tensor | None:
        """Mean squared reconstruction error over the batch; None if the indexer does not reconstruct vectors."""
        return None

    def begin(self, vectors: np.ndarray, seed: int = 0) -> None:
        """Initialise from the vectors that will be coded."""


class NetworkIndexer(Indexer):
    """A network with softmax for each level, all in parallel: they read only e, so a code takes one pass.

    Each level is initialised on its own subvector, with tokens at the clusters of that subvector. Networks with the
    same initial view learn the same few clusters, and four levels then separate no more than one.
    """

    def __init__(self, dim: int, length: int, width: int, hidden: int = 256, dropout: float = 0.2) -> None:
        super().__init__()
        self.length, self.width, self.scale = length, width, dim**0.5
        self.inside = nn.Linear(dim, length * hidden)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Parameter(torch.randn(length, hidden, width) * (2 / hidden) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(length, width))
        own = torch.zeros(length, 1, dim)
        for level, stretch in enumerate(np.array_split(np.arange(dim), length)):
            own[level, :, stretch] = length**0.5
        with torch.no_grad():
            self.inside.weight.mul_(own.expand(-1, hidden, -1).flatten(0, 1))

    def hidden(self, e: Tensor) -> Tensor:
        """Hidden layer of each level's network, [B, L, hidden]."""
        # The entries of a unit vector are small; scaled to about 1, networks separate texts from the start.
        return functional.gelu(self.inside(e * self.scale)).unflatten(-1, (self.length, -1))

    def logits(self, e: Tensor) -> Tensor:
        return torch.einsum("blh,lhk->blk", self.dropout(self.hidden(e)), self.out) + self.bias

    def forward(self, e: Tensor) -> Tensor:
        return self.logits(e).softmax(dim=-1)

    def codes(self, e: Tensor) -> Tensor:
        return self.logits(e).argmax(dim=-1)

    @torch.no_grad()
    def begin(self, vectors: np.ndarray, seed: int = 0) -> None:
        inside = self.hidden(torch.from_numpy(np.ascontiguousarray(vectors[:CLUSTERED])).to(self.out.device))
        for level in range(self.length):
            points = _plain(inside[:, level])
            centres = torch.from_numpy(_filled(cluster_centres(points, self.width, seed + level), self.width))
            near = squared_distances(torch.from_numpy(points), centres).amin(dim=1).mean().clamp_min(1e-6)
            # The token of the nearest centre is the most likely, increasingly so with proximity.
            self.out[level] = (2 * CERTAIN / near * centres).t()
            self.bias[level] = -CERTAIN / near * centres.square().sum(dim=1)


class CodebookIndexer(Indexer):
    """Common part of both quantisers: codebooks, and probabilities balanced over the batch by Sinkhorn iterations, so
    that every token gets its share of the batch. Without a batch, codes are the nearest rows."""

    def __init__(self, rows: int, width: int, epsilon: float = 0.003, iterations: int = 100) -> None:
        super().__init__()
        if epsilon <= 0 or iterations < 0:
            raise BadSetting(f"Sinkhorn needs epsilon > 0 and iterations >= 0, not {epsilon} and {iterations}")
        self.epsilon, self.iterations = epsilon, iterations
        self.codebooks = nn.Parameter(torch.randn(rows, width) / width**0.5)

    def probabilities(self, distances: Tensor) -> Tensor:
        """Probabilities from squared distances [B, K] of one level. Gradients flow through the distances, but not
        through the balancing."""
        scores = -distances / self.epsilon
        if self.training and self.iterations and len(scores) > 1:
            with torch.no_grad():
                shares = column_potentials(scores, self.iterations)
            scores = scores + shares.to(scores.dtype)
        return scores.softmax(dim=-1)


class ProductIndexer(CodebookIndexer):
    """Level l codes the l-th subvector."""

    def __init__(self, dim: int, length: int, width: int, epsilon: float = 0.003, iterations: int = 100) -> None:
        super().__init__(width, dim, epsilon, iterations)
        self.stretches = [len(part) for part in np.array_split(np.arange(dim), length)]

    def forward(self, e: Tensor) -> Tensor:
        parts = zip(e.split(self.stretches, dim=1), self.codebooks.split(self.stretches, dim=1), strict=True)
        return torch.stack([self.probabilities(squared_distances(x, book)) for x, book in parts], dim=1)

    def codes(self, e: Tensor) -> Tensor:
        return _coded(self.quantizer(), e)

    def quantisation(self, e: Tensor) -> Tensor:
        codes, books = self.codes(e), self.codebooks.split(self.stretches, dim=1)
        near = torch.cat([book[codes[:, level]] for level, book in enumerate(books)], dim=1)
        return (e - near).square().sum(dim=1).mean()

    def begin(self, vectors: np.ndarray, seed: int = 0) -> None:
        made = ProductQuantizer(len(self.stretches), len(self.codebooks), seed)
        made.fit(vectors)
        _take(self.codebooks, np.concatenate([_filled(book, len(self.codebooks)) for book in made.codebooks], axis=1))

    def quantizer(self) -> ProductQuantizer:
        """The same codebooks, without gradients."""
        made = ProductQuantizer(len(self.stretches), len(self.codebooks))
        made.codebooks = [_plain(book) for book in self.codebooks.split(self.stretches, dim=1)]
        return made


class ResidualIndexer(CodebookIndexer):
    """Each level codes the residual of the levels before it."""

    def __init__(self, dim: int, length: int, width: int, epsilon: float = 0.003, iterations: int = 100) -> None:
        super().__init__(length * width, dim, epsilon, iterations)
        self.length, self.width = length, width

    @property
    def books(self) -> tuple[Tensor, ...]:
        return self.codebooks.split(self.width)

    def forward(self, e: Tensor) -> Tensor:
        rest, found = e, []
        for book in self.books:
            distances = squared_distances(rest, book)
            found.append(self.probabilities(distances))
            rest = rest - book[distances.argmin(dim=1)]
        return torch.stack(found, dim=1)

    def codes(self, e: Tensor) -> Tensor:
        return _coded(self.quantizer(), e)

    def quantisation(self, e: Tensor) -> Tensor:
        codes = self.codes(e)
        near = torch.stack([book[codes[:, level]] for level, book in enumerate(self.books)]).sum(dim=0)
        return (e - near).square().sum(dim=1).mean()

    def begin(self, vectors: np.ndarray, seed: int = 0) -> None:
        made = ResidualQuantizer(self.length, self.width, seed)
        made.fit(vectors)
        _take(self.codebooks, np.concatenate([_filled(book, self.width) for book in made.codebooks]))

    def quantizer(self) -> ResidualQuantizer:
        """The same codebooks, without gradients."""
        made = ResidualQuantizer(self.length, self.width)
        made.codebooks = [_plain(book) for book in self.books]
        return made


def make_indexer(
    name: IndexerName,
    dim: int,
    length: int,
    width: int,
    *,
    hidden: int = 256,
    dropout: float = 0.2,
    epsilon: float = 0.003,
    iterations: int = 100,
) -> Indexer:
    """The indexer of the given name, with its own settings."""
    if name == "mlp":
        return NetworkIndexer(dim, length, width, hidden, dropout)
    kind = {"pq": ProductIndexer, "rq": ResidualIndexer}[name]
    return kind(dim, length, width, epsilon, iterations)


def squared_distances(x: Tensor, book: Tensor) -> Tensor:
    """[B, K] squared Euclidean distances of vectors [B, D] to rows [K, D]."""
    return x.square().sum(dim=1, keepdim=True) + book.square().sum(dim=1) - 2 * x @ book.t()


def _coded(quantizer: ProductQuantizer | ResidualQuantizer, e: Tensor) -> Tensor:
    return torch.from_numpy(quantizer.assign(e.detach().cpu().numpy()).astype(np.int64)).to(e.device)


def _plain(book: Tensor) -> np.ndarray:
    return np.ascontiguousarray(book.detach().cpu().numpy())


def _take(parameter: nn.Parameter, values: np.ndarray) -> None:
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(values))


def _filled(book: np.ndarray, width: int) -> np.ndarray:
    """A codebook padded to full size: k-means of few vectors gives fewer rows, and the others are far from all."""
    more = width - len(book)
    far = np.random.default_rng(0).normal(size=(more, book.shape[1])) * 3 / book.shape[1] ** 0.5
    return np.concatenate([book, far]).astype(np.float32) if more else book
