"""Where a trained code writer may begin: at the similarity of the query and the document as its code reconstructs it.

The score of a document is log p0(document | query) + trust · log-probability of its code. p0 is proportional to
exp(sharpness · q·d̂), where d̂ comes from codes alone: the method's own tokens, each of which stands for the mean of its
documents' vectors, and product levels that code what these leave and rank inside a bucket. Sharpness and trust are
chosen on queries that the model was not trained on, so that on those an index is never below its beginning: with trust
0 it ranks by q·d̂.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from callslip.errors import IndexCorrupt
from callslip.identifiers.tied import WIDTH, TiedQuantizer, token_sums
from callslip.training.held_out import DEPTH, HeldOutQueries

CODES, STATE = "tied.npy", "tied.safetensors"
LEVELS = 64
"""Product levels beside a method's own tokens, a byte each, or as many as vectors have numbers."""
SHARPNESS = 20.0
"""Sharpness of p0 where there is no query to choose it by."""
SHARPNESSES = (5.0, 7.0, 10.0, 14.0, 20.0, 28.0, 40.0, 56.0, 80.0)
"""Values that are tried; the likelihood of held-out answers is concave in the sharpness."""
TRUSTS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
"""Values of the trust that are tried."""
BLOCK = 64
"""Queries whose scores of all documents are held at once."""


@dataclass
class OwnLevels:
    """The levels of a method's codes that are read as levels of the reconstruction, and the tokens of each.

    A level of more tokens than a byte has, such as that of atomic codes, would hold the documents' vectors themselves,
    so it is left out. Where codes may end early, END is token 0 and the others follow.
    """

    numbers: np.ndarray
    widths: np.ndarray
    shifts: np.ndarray

    @classmethod
    def of(cls, codes: np.ndarray, widths: Sequence[int]) -> OwnLevels:
        shifts: np.ndarray = np.asarray((codes < 0).any(axis=0), np.int64)
        whole: np.ndarray = np.asarray(widths, np.int64) + shifts
        numbers = np.flatnonzero(whole <= WIDTH)
        return cls(numbers, whole[numbers], shifts[numbers])

    def tokens(self, codes: np.ndarray) -> np.ndarray:
        """The tokens of codes [n, L] as the reconstruction reads them, [n, levels]; one token for all if there are no
        levels."""
        if not len(self.numbers):
            return np.zeros((len(codes), 1), np.int64)
        return np.clip(codes[:, self.numbers] + self.shifts, 0, self.widths - 1)

    @property
    def tree(self) -> list[int]:
        """Tokens of each level of the reconstruction's tree."""
        return self.widths.tolist() or [1]


@dataclass
class TiedStart:
    """Codes that reconstruct the documents' vectors, by row, and how far a model is trusted beyond them."""

    maker: TiedQuantizer
    own: OwnLevels
    codes: np.ndarray
    """Tokens of the method's levels, then of the product levels: uint8 [N, levels]."""
    scales: np.ndarray
    """The factor that makes each reconstruction a unit vector, float16 [N]."""
    sharpness: float = SHARPNESS
    trust: float = 0.0

    @classmethod
    def of(cls, vectors: np.ndarray, codes: np.ndarray, widths: Sequence[int], seed: int = 0) -> TiedStart:
        """Learn reconstructions of the documents' vectors [N, dim] from their codes [N, L]; `widths` are the tokens
        that a level may have."""
        own = OwnLevels.of(codes, widths)
        tree = own.tree
        maker = TiedQuantizer(len(tree) + min(LEVELS, vectors.shape[1]), len(tree), seed=seed)
        whole = maker.fit_beyond(vectors, own.tokens(codes), tree).astype(np.uint8)
        return cls(maker, own, np.asfortranarray(whole), maker.scales(whole))

    # Scores.

    def similarity(self, queries: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """q·d̂ of query vectors [B, dim] with every document, or with some rows: [B, N] or [B, rows]."""
        codes, scales = (self.codes, self.scales) if rows is None else (self.codes[rows], self.scales[rows])
        found, factors = np.empty((len(queries), len(codes)), np.float32), scales.astype(np.float32)
        for number, query in enumerate(queries):
            found[number] = token_sums(self.maker.tables(query[None])[0], codes) * factors
        return found

    def log_weights(self, queries: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """log p0 of every document, or of some rows, up to a constant of each query: [B, N] or [B, rows]."""
        return self.sharpness * self.similarity(queries, rows).astype(np.float64)

    # Changes.

    def code(self, codes: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """What `extend` needs of documents with these codes of the method [n, L] and vectors, uint8 [n, levels]."""
        return self.maker.assign_beyond(vectors, self.own.tokens(codes)).astype(np.uint8)

    def extend(self, codes: np.ndarray) -> None:
        """Append documents, given what `code` returned."""
        self.codes = np.asfortranarray(np.concatenate([self.codes, codes]))
        self.scales = np.concatenate([self.scales, self.maker.scales(codes)])

    def keep(self, rows: np.ndarray) -> None:
        """Keep some documents only."""
        self.codes, self.scales = np.asfortranarray(self.codes[rows]), self.scales[rows]

    # Files.

    @property
    def size(self) -> int:
        """Bytes of codes, scales and codebooks."""
        return self.codes.nbytes + self.scales.nbytes + sum(array.nbytes for array in self.maker.state().values())

    def save(self, folder: Path) -> None:
        from safetensors.numpy import save_file

        np.save(folder / CODES, np.ascontiguousarray(self.codes), allow_pickle=False)
        own = {name: getattr(self.own, name) for name in ("numbers", "widths", "shifts")}
        chosen = {"scales": self.scales, "chosen": np.array([self.sharpness, self.trust])}
        books = {f"maker.{name}": array for name, array in self.maker.state().items()}
        save_file(own | chosen | books, folder / STATE)

    @classmethod
    def load(cls, folder: Path, count: int) -> TiedStart | None:
        """What `save` wrote for `count` documents; None for an index that does not begin at its codes."""
        from safetensors.numpy import load_file

        if not (folder / STATE).exists():
            return None
        held, codes = load_file(folder / STATE), np.load(folder / CODES, allow_pickle=False)
        books = {name.removeprefix("maker."): array for name, array in held.items() if name.startswith("maker.")}
        maker = TiedQuantizer.from_state(books)
        if codes.dtype != np.uint8 or codes.shape != (count, maker.length) or len(held["scales"]) != count:
            raise IndexCorrupt(folder / CODES, f"codes of shape {codes.shape} for {count} documents")
        if (codes.max(axis=0, initial=0) >= maker.widths).any():
            raise IndexCorrupt(folder / CODES, "a code has a token that its codebook does not have")
        own = OwnLevels(held["numbers"], held["widths"], held["shifts"])
        sharpness, trust = held["chosen"].tolist()
        return cls(maker, own, np.asfortranarray(codes), held["scales"], sharpness, trust)


def chosen(
    start: TiedStart, held: HeldOutQueries, vectors: np.ndarray, ranked: Callable[[TiedStart], list[np.ndarray]] | None
) -> tuple[TiedStart, dict[str, Any]]:
    """The start with the sharpness and the trust that held-out queries decide, and what to log of it.

    `vectors` are those of the held-out queries, [n, dim]; `ranked` gives their rankings with a start, and is None if
    the model was not trained. Trust beyond 0 has to gain more than its own standard error.
    """
    start = replace(start, sharpness=best_sharpness(start, held, vectors), trust=0.0)
    record: dict[str, Any] = {"sharpness": start.sharpness, "trust": 0.0, "held_out": len(held)}
    record |= {"judged": held.judged, "bytes_per_document": round(start.size / max(1, len(start.codes)), 1)}
    if ranked is None or not len(held):
        return start, record
    figures = {trust: held.gains(ranked(replace(start, trust=trust))) for trust in TRUSTS}
    best = max(figures, key=lambda trust: (figures[trust].mean(), -trust))
    gain = figures[best] - figures[0.0]
    if gain.mean() <= gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else True:
        best = 0.0
    record |= {"trust": best}
    record |= {f"nDCG@{DEPTH}, trust {trust:g}": round(float(one.mean()), 4) for trust, one in figures.items()}
    return replace(start, trust=best), record


def best_sharpness(start: TiedStart, held: HeldOutQueries, vectors: np.ndarray) -> float:
    """The sharpness under which the answers of held-out queries are most likely."""
    if not len(held):
        return SHARPNESS
    total = np.zeros(len(SHARPNESSES))
    for first in range(0, len(held), BLOCK):
        similarity = start.similarity(vectors[first : first + BLOCK]).astype(np.float64)
        for near, grades in zip(similarity, held.grades[first : first + BLOCK], strict=True):
            right, top = near[list(grades)], near.max()
            for number, sharpness in enumerate(SHARPNESSES):
                whole = np.log(np.exp(sharpness * (near - top)).sum()) + sharpness * top
                total[number] += sharpness * right.mean() - whole
    return SHARPNESSES[int(total.argmax())]
