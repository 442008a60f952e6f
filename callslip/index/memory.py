"""Memory: earlier queries whose answers are known, each held as a code, with the rows of the documents it led to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from callslip.identifiers.tied import token_sums
from callslip.search.fusion import Votes, votes

CODES, SCALES, STARTS, ROWS, TEXTS = "queries.npy", "scales.npy", "starts.npy", "rows.npy", "texts.json"


class Memory:
    """Queries as codes, and their answers. It holds no float vectors: a query is read from its code."""

    def __init__(self, length: int) -> None:
        self.codes = np.zeros((0, length), np.uint8)
        self.scales = np.zeros(0, np.float16)
        self.starts = np.zeros(1, np.int64)
        self.rows = np.zeros(0, np.int32)
        self.texts: list[str] = []
        self._numbers: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def add(
        self, texts: Sequence[str], codes: np.ndarray, scales: np.ndarray, answers: Sequence[Sequence[int]]
    ) -> None:
        """Remember queries by their codes [n, L] and scales [n], and the rows of the documents that answer each."""
        more = self.with_more(texts, codes, scales, answers)
        self.codes, self.scales, self.texts, self._numbers = more.codes, more.scales, more.texts, None
        self.starts, self.rows = more.starts, more.rows

    def with_more(
        self, texts: Sequence[str], codes: np.ndarray, scales: np.ndarray, answers: Sequence[Sequence[int]]
    ) -> Memory:
        """A memory that holds these queries too. A text is held once, with the answers of all its occurrences; the
        memory itself is returned if all of this is known already."""
        number = {text: at for at, text in enumerate(self.texts)}
        new: list[int] = []
        more: dict[int, list[int]] = {}
        for at, (text, rows) in enumerate(zip(texts, answers, strict=True)):
            if text not in number:
                if not len(rows):
                    continue
                number[text] = len(self) + len(new)
                new.append(at)
            query = number[text]
            held = self.answers(query) if query < len(self) else []
            known = more.setdefault(query, [])
            known += [int(row) for row in dict.fromkeys(rows) if row not in held and row not in known]
        if not any(more.values()):
            return self
        found = Memory(self.codes.shape[1])
        found.texts = [*self.texts, *(texts[at] for at in new)]
        found.codes = np.concatenate([self.codes, codes[new].astype(np.uint8)])
        found.scales = np.concatenate([self.scales, scales[new].astype(np.float16)])
        added = np.repeat(list(more), [len(rows) for rows in more.values()]).astype(np.int64)
        queries = np.concatenate([self._queries(), added])
        order = np.argsort(queries, kind="stable")
        flat = np.asarray([row for rows in more.values() for row in rows], np.int32)
        found.rows = np.concatenate([self.rows, flat])[order]
        found.starts = np.concatenate([[0], np.cumsum(np.bincount(queries, minlength=len(found)))]).astype(np.int64)
        return found

    def number_of(self, text: str) -> int | None:
        """The remembered query with this text, apart from case and spaces."""
        if self._numbers is None:
            self._numbers = {_plain(known): number for number, known in enumerate(self.texts)}
        return self._numbers.get(_plain(text))

    def answers(self, query: int) -> list[int]:
        """The rows of the documents that answered a remembered query."""
        return self.rows[self.starts[query] : self.starts[query + 1]].tolist()

    def _queries(self) -> np.ndarray:
        """The query of each answer."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def led_to(self, mask: np.ndarray) -> np.ndarray:
        """Whether each remembered query has an answer among the rows of a mask."""
        return np.bincount(self._queries()[mask[self.rows]], minlength=len(self)) > 0

    def follow(self, moved: Mapping[int, int]) -> None:
        """Let queries lead to the new rows of documents that have been updated: `moved` maps old rows to new ones."""
        if not moved or not len(self):
            return
        old, new = (np.array(rows, np.int32) for rows in zip(*sorted(moved.items()), strict=True))
        at = np.minimum(np.searchsorted(old, self.rows), len(old) - 1)
        self.rows = np.where(old[at] == self.rows, new[at], self.rows)

    def ask(
        self,
        table: np.ndarray,
        mask: np.ndarray | None = None,
        leave_out: Sequence[int] | None = None,
        text: str | None = None,
    ) -> Votes:
        """The votes for the documents of the mask, given the query's table of tokens [L, tokens]. `leave_out` are
        remembered queries that do not vote: the query itself, when weights are fitted. A remembered query with the
        same `text` has similarity 1, whatever its code has lost."""
        if not len(self):
            return Votes.none()
        similarities = token_sums(table, self.codes) * self.scales
        same = None if text is None else self.number_of(text)
        if same is not None:
            similarities[same] = 1.0
        if leave_out is not None:
            similarities[list(leave_out)] = -np.inf
        if mask is not None:  # only what may be returned is voted for, so that others take no part of the votes
            similarities[~self.led_to(mask)] = -np.inf
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
        query = self._queries()
        stays = renumbered >= 0
        sizes = np.bincount(query[stays], minlength=len(self))
        left = np.flatnonzero(sizes)
        self.rows = renumbered[stays].astype(np.int32)
        self.starts = np.concatenate([[0], np.cumsum(sizes[left])]).astype(np.int64)
        self.codes, self.scales = self.codes[left], self.scales[left]
        self.texts, self._numbers = [self.texts[at] for at in left], None

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


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
