"""Memory: earlier queries whose answers are known, each held as a code, with the rows of the documents it led to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from callslip.identifiers.tied import token_sums
from callslip.search.fusion import Votes, votes

CODES, SCALES, STARTS, ROWS, TEXTS = "codes.npy", "scales.npy", "starts.npy", "rows.npy", "texts.json"


class Memory:
    """Queries as codes, and their answers. It holds no float vectors: a query is read from its code."""

    def __init__(self, length: int) -> None:
        self.codes = np.zeros((0, length), np.uint8)
        self.scales = np.zeros(0, np.float16)
        self.starts = np.zeros(1, np.int64)
        self.rows = np.zeros(0, np.int32)
        self.texts: list[str] = []

    def __len__(self) -> int:
        return len(self.texts)

    def add(
        self, texts: Sequence[str], codes: np.ndarray, scales: np.ndarray, answers: Sequence[Sequence[int]]
    ) -> None:
        """Remember queries by their codes [n, L] and scales [n], and the rows of the documents that answer each."""
        self.texts += texts
        self.codes = np.concatenate([self.codes, codes.astype(np.uint8)])
        self.scales = np.concatenate([self.scales, scales.astype(np.float16)])
        sizes = np.cumsum([len(rows) for rows in answers], dtype=np.int64)
        self.starts = np.concatenate([self.starts, self.starts[-1] + sizes])
        flat = [row for rows in answers for row in rows]
        self.rows = np.concatenate([self.rows, np.asarray(flat, np.int32)])

    def ask(self, table: np.ndarray, mask: np.ndarray | None = None, leave_out: Sequence[int] | None = None) -> Votes:
        """The votes for the documents of the mask, given the query's table of tokens [L, tokens]. `leave_out` are
        remembered queries that do not vote: the query itself, when weights are fitted."""
        if not len(self):
            return Votes.none()
        similarities = token_sums(table, self.codes) * self.scales
        if leave_out is not None:
            similarities[list(leave_out)] = -np.inf
        found = votes(similarities, self.starts, self.rows)
        if mask is None or not len(found.rows):
            return found
        kept = mask[found.rows]
        return Votes(found.rows[kept], found.kernels[kept], found.shares[kept], found.nearest[kept], found.by[kept])

    def keep(self, rows: np.ndarray) -> None:
        """Keep these documents only, numbered anew from 0. Queries without any answer left are forgotten."""
        number = np.full(max(int(self.rows.max(initial=-1)) + 1, int(rows.max(initial=-1)) + 1), -1, np.int64)
        number[rows] = np.arange(len(rows))
        renumbered = number[self.rows] if len(self.rows) else self.rows.astype(np.int64)
        query = np.repeat(np.arange(len(self)), np.diff(self.starts))
        stays = renumbered >= 0
        sizes = np.bincount(query[stays], minlength=len(self))
        left = np.flatnonzero(sizes)
        self.rows = renumbered[stays].astype(np.int32)
        self.starts = np.concatenate([[0], np.cumsum(sizes[left])]).astype(np.int64)
        self.codes, self.scales = self.codes[left], self.scales[left]
        self.texts = [self.texts[at] for at in left]

    def save(self, folder: Path) -> None:
        folder.mkdir()
        for name, array in ((CODES, self.codes), (SCALES, self.scales), (STARTS, self.starts), (ROWS, self.rows)):
            np.save(folder / name, array, allow_pickle=False)
        (folder / TEXTS).write_text(json.dumps(self.texts, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Memory:
        arrays = [np.load(folder / name, allow_pickle=False) for name in (CODES, SCALES, STARTS, ROWS)]
        memory = cls(arrays[0].shape[1])
        memory.codes, memory.scales, memory.starts, memory.rows = arrays
        memory.texts = json.loads((folder / TEXTS).read_text(encoding="utf-8"))
        return memory
