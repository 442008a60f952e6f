"""BM25 over postings, computed when a query asks: an added document costs its own words, not those of the corpus.

The index holds how often each stem occurs in each document, and how long documents are. What a score needs besides,
the number of documents with a stem and the mean length, is counted over the documents that are there at the moment of
the query. So scores depend on these documents alone: not on the order in which they came, on deleted ones, or on
whether the index was compacted or opened again. Words that were indexed together are one table, mapped from a file;
later documents are held beside it in memory.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Self

import numpy as np

from callslip.errors import IndexCorrupt
from callslip.runtime.columns import Column
from callslip.search.bm25 import stem_numbers, stems_of

TERMS, TERM_ENDS, BOUNDS = "terms.npy", "term_ends.npy", "bounds.npy"
ROWS, COUNTS, LENGTHS = "rows.npy", "counts.npy", "lengths.npy"
BLOCK = 20_000
"""Texts that are split into stems at once."""
DELTA = 0.5
"""What bm25l and bm25+ add for every stem of the query."""
MERGED = 2_000_000
"""Postings that a merge sorts at once: about 100 MB."""


@dataclass(frozen=True)
class PostingTable:
    """Postings of sorted stems: stem i occurs in the documents rows[bounds[i]:bounds[i + 1]], in ascending order.

    All arrays have as few bytes a number as their largest one needs.
    """

    terms: np.ndarray
    """The stems in UTF-8, one after the other, uint8."""
    ends: np.ndarray
    """Where each stem begins, and the last one ends, [V + 1]."""
    bounds: np.ndarray
    """Where the postings of each stem begin, and the last ones end, [V + 1]."""
    rows: np.ndarray
    counts: np.ndarray
    """How often the stem occurs there."""
    lengths: np.ndarray
    """Number of stems of each document."""

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.lengths)

    def number_of(self, stem: str) -> int | None:
        """The number of a stem, by bisection."""
        wanted, low, high = stem.encode("utf-8", "surrogatepass"), 0, len(self.ends) - 1
        while low < high:
            middle = (low + high) // 2
            if self._term(middle) < wanted:
                low = middle + 1
            else:
                high = middle
        return low if low < len(self.ends) - 1 and self._term(low) == wanted else None

    def _term(self, number: int) -> bytes:
        return self.terms[self.ends[number] : self.ends[number + 1]].tobytes()

    def stems(self) -> list[bytes]:
        whole, ends = self.terms.tobytes(), self.ends.tolist()
        return [whole[start:end] for start, end in pairwise(ends)]

    def postings(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        here = slice(int(self.bounds[number]), int(self.bounds[number + 1]))
        return self.rows[here], self.counts[here]

    def save(self, folder: Path) -> None:
        folder.mkdir()
        for name, values in zip(_FILES, self._arrays(), strict=True):
            np.save(folder / name, values, allow_pickle=False)

    def _arrays(self) -> tuple[np.ndarray, ...]:
        return self.terms, self.ends, self.bounds, self.rows, self.counts, self.lengths

    @classmethod
    def load(cls, folder: Path) -> PostingTable:
        found = cls(*(np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in _FILES))
        whole = all(values.ndim == 1 and values.dtype.kind in "iu" for values in found._arrays())
        if not whole or len(found.ends) != len(found.bounds) or len(found.rows) != len(found.counts):
            raise IndexCorrupt(folder, "is not an index of words: its arrays do not fit together")
        return found


_FILES = (TERMS, TERM_ENDS, BOUNDS, ROWS, COUNTS, LENGTHS)


@dataclass(frozen=True)
class Matches:
    """Documents that share a stem with a query, in ascending order, and their scores."""

    rows: np.ndarray
    scores: np.ndarray

    @classmethod
    def none(cls) -> Matches:
        return cls(np.zeros(0, np.int64), np.zeros(0, np.float32))

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The scores of these rows; 0 where no stem is shared."""
        if not len(self.rows):
            return np.zeros(len(rows), np.float32)
        at = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
        return np.where(self.rows[at] == rows, self.scores[at], np.float32(0))

    def among(self, mask: np.ndarray | None) -> Matches:
        """Those whose rows a mask allows."""
        if mask is None:
            return self
        allowed = mask[self.rows]
        return Matches(self.rows[allowed], self.scores[allowed])


class Postings:
    """BM25 scores of documents for a query. Documents can be added and dropped."""

    def __init__(
        self, *, k1: float, b: float, language: str = "english", stopwords: str = "en", formula: str = "lucene"
    ) -> None:
        """`formula` is a variant of BM25, as bm25s names them: lucene, robertson, atire, bm25l or bm25+."""
        self.k1, self.b, self.language, self.stopwords, self.formula = k1, b, language, stopwords, formula
        self._take(None)

    def _like(self) -> Postings:
        """Postings with the same settings, and without documents."""
        return Postings(k1=self.k1, b=self.b, language=self.language, stopwords=self.stopwords, formula=self.formula)

    def _take(self, table: PostingTable | None) -> None:
        self._table = table
        self._recent: dict[str, tuple[array[int], array[int]]] = {}
        self._recent_lengths = array("q")
        self._dropped = np.zeros(0, bool)
        self._live = 0 if table is None else len(table)
        self._total = 0 if table is None else int(table.lengths.sum(dtype=np.int64))

    @property
    def indexed(self) -> bool:
        """Whether there are texts to score."""
        return self._table is not None

    def __len__(self) -> int:
        """Number of documents, dropped ones included."""
        return (0 if self._table is None else len(self._table)) + len(self._recent_lengths)

    def tokenize(self, texts: Sequence[str]) -> list[list[str]]:
        """The stems of each text, without stop words."""
        return stems_of(texts, self.language, self.stopwords)

    # Changes.

    def index(self, texts: Iterable[str]) -> Self:
        """Index the texts to be scored; they are read once, a block at a time."""
        blocks, waiting = [], iter(texts)
        while some := list(islice(waiting, BLOCK)):
            blocks.append(_on_disk(self._block(some)) if len(some) == BLOCK else self._block(some))
        blocks = blocks or [table_of([], {})]
        ends = np.cumsum([len(block) for block in blocks])
        places = np.split(np.arange(ends[-1], dtype=np.int32), ends[:-1])
        self._take(blocks[0] if len(blocks) == 1 else merged(blocks, places))
        return self

    def _block(self, texts: list[str]) -> PostingTable:
        ids, vocabulary = stem_numbers(texts, self.language, self.stopwords)
        return table_of(ids, vocabulary)

    def extend(self, texts: Sequence[str]) -> None:
        """Add documents after the present ones."""
        assert self._table is not None
        for row, stems in enumerate(self.tokenize(texts) if texts else [], start=len(self)):
            counts: dict[str, int] = {}
            for stem in stems:
                counts[stem] = counts.get(stem, 0) + 1
            for stem, count in counts.items():
                rows, times = self._recent.setdefault(stem, (array("i"), array("i")))
                rows.append(row)
                times.append(count)
            self._recent_lengths.append(len(stems))
            self._live, self._total = self._live + 1, self._total + len(stems)

    def drop(self, rows: Iterable[int]) -> None:
        """Leave documents out, also of the statistics. Each may be dropped once."""
        rows = [int(row) for row in rows]
        if not rows or self._table is None:
            return
        if len(self._dropped) < len(self):
            longer = np.zeros(len(self) + (len(self) >> 3), bool)  # room for later rows
            longer[: len(self._dropped)] = self._dropped
            self._dropped = longer
        self._dropped[rows] = True
        count = len(self._table)
        self._live -= len(rows)
        self._total -= sum(
            int(self._table.lengths[row]) if row < count else self._recent_lengths[row - count] for row in rows
        )

    def fork(self) -> Postings:
        """A copy that can be changed on its own. It shares the mapped table."""
        other = self._like()
        other._table, other._live, other._total = self._table, self._live, self._total
        other._recent = {stem: (rows[:], times[:]) for stem, (rows, times) in self._recent.items()}
        other._recent_lengths, other._dropped = self._recent_lengths[:], self._dropped.copy()
        return other

    def kept(self, rows: np.ndarray) -> Postings:
        """The postings of these rows only, in one table, numbered anew from 0."""
        assert self._table is not None
        number = np.full(len(self), -1, np.int32)
        number[rows] = np.arange(len(rows), dtype=np.int32)
        tables, first = [self._table], len(self._table)
        if len(self._recent_lengths):
            tables.append(self._recent_table())
        other = self._like()
        other._take(merged(tables, [number[:first], number[first:]][: len(tables)]))
        return other

    def _recent_table(self) -> PostingTable:
        """The later documents as a table whose rows begin at 0."""
        first = len(self) - len(self._recent_lengths)
        stems = sorted((stem.encode("utf-8", "surrogatepass"), stem) for stem in self._recent)
        held = [self._recent[stem] for _, stem in stems]
        rows = np.concatenate([np.asarray(rows, np.int64) - first for rows, _ in held] or [np.zeros(0, np.int64)])
        counts = np.concatenate([np.asarray(counts, np.int64) for _, counts in held] or [np.zeros(0, np.int64)])
        bounds = _narrow(np.cumsum([0, *(len(rows) for rows, _ in held)], dtype=np.int64))
        lengths = np.asarray(self._recent_lengths, np.int64)
        packed = _packed([stem for stem, _ in stems])
        return PostingTable(*packed, bounds, _narrow(rows), _narrow(counts), _narrow(lengths))

    # Search.

    def matches(self, stems: Sequence[str]) -> Matches:
        """The documents that share a stem with the query, and their scores."""
        scores, _ = self._scores(stems)
        rows = np.flatnonzero(scores)
        return Matches(rows, scores[rows])

    def scores(self, stems: Sequence[str]) -> np.ndarray:
        """The score of every document for a query, dropped documents included: whoever asks leaves them out. bm25l and
        bm25+ also score documents without a stem of the query."""
        scores, without = self._scores(stems)
        return scores + without if without else scores

    def _scores(self, stems: Sequence[str]) -> tuple[np.ndarray, np.float32]:
        """What the stems in a document add to its score, and the score of a document without any of them."""
        scores, without = np.zeros(len(self), np.float32), np.float32(0)
        if self._table is None:
            return scores, without
        mean = np.float32(max(self._total, 1) / max(self._live, 1))
        for stem in stems:
            found = self._live_postings(stem)
            frequency = sum(len(rows) for rows, _, _ in found)
            if not frequency:
                continue
            weight = np.float32(self._rarity(frequency))
            without += weight * np.float32(self._absent())
            for rows, counts, lengths in found:
                scores[rows] += weight * self._saturated(counts.astype(np.float32), lengths.astype(np.float32), mean)
        return scores, without

    def _saturated(self, times: np.ndarray, lengths: np.ndarray, mean: np.float32) -> np.ndarray:
        """What the occurrences of a stem count in documents of these lengths, beyond `_absent`."""
        k1 = np.float32(self.k1)
        if self.formula == "bm25l":
            relative = times / (np.float32(1 - self.b) + np.float32(self.b) / mean * lengths) + np.float32(DELTA)
            return (k1 + 1) * relative / (k1 + relative) - np.float32(self._absent())
        least, slope = np.float32(self.k1 * (1 - self.b)), np.float32(self.k1 * self.b) / mean
        share = times / (least + slope * lengths + times)
        return share if self.formula in ("lucene", "robertson") else (k1 + 1) * share

    def _absent(self) -> float:
        """What a stem counts in a document that does not have it."""
        if self.formula == "bm25l":
            return (self.k1 + 1) * DELTA / (self.k1 + DELTA)
        return DELTA if self.formula == "bm25+" else 0.0

    def rarity(self, stems: Sequence[str]) -> float:
        """The sum of the stems' inverse document frequencies; stems that no document has count as the rarest. No
        document scores as much."""
        return sum(self._rarity(sum(len(rows) for rows, _, _ in self._live_postings(stem))) for stem in stems)

    def _rarity(self, frequency: int) -> float:
        """The inverse document frequency of a stem that so many documents have."""
        odds = (self._live - frequency + 0.5) / (frequency + 0.5)
        if self.formula == "lucene":
            return math.log(1 + odds)
        if self.formula == "robertson":
            return math.log(max(odds, 1))
        if self.formula == "bm25l":
            return math.log((self._live + 1) / (frequency + 0.5))
        return math.log((self._live + (self.formula == "bm25+")) / frequency)

    def _live_postings(self, stem: str) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Rows, counts and lengths of the documents with a stem that were not dropped."""
        assert self._table is not None
        found, number = [], self._table.number_of(stem)
        if number is not None:
            rows, counts = self._table.postings(number)
            found.append((rows, counts, self._table.lengths[rows]))
        if stem in self._recent:
            rows, counts = (np.array(values, np.int32) for values in self._recent[stem])
            found.append((rows, counts, np.frombuffer(self._recent_lengths, np.int64)[rows - len(self._table)]))
        if not len(self._dropped):
            return found
        live = []
        for rows, counts, lengths in found:
            # Rows that were added after the last drop may lie beyond the array.
            beyond = rows >= len(self._dropped)
            here = beyond | ~self._dropped[np.where(beyond, 0, rows)]
            live.append((rows[here], counts[here], lengths[here]))
        return live

    # Files.

    def save(self, folder: Path) -> None:
        """Write one table. Documents that were dropped stay in it: whoever loads it drops them again."""
        assert self._table is not None
        table = self._table
        if len(self._recent_lengths):
            places = np.split(np.arange(len(self), dtype=np.int32), [len(table)])
            table = merged([table, self._recent_table()], places)
        table.save(folder)

    def load(self, folder: Path) -> Self:
        self._take(PostingTable.load(folder))
        return self


def table_of(texts: Sequence[Sequence[int]], vocabulary: dict[str, int]) -> PostingTable:
    """The postings of texts whose stems are numbered."""
    stems = sorted((stem.encode("utf-8", "surrogatepass"), number) for stem, number in vocabulary.items())
    place = np.zeros(max(vocabulary.values(), default=-1) + 1, np.int64)
    place[[number for _, number in stems]] = np.arange(len(stems))
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    flat = np.fromiter((number for text in texts for number in text), np.int64, int(lengths.sum()))
    keys = place[flat] * max(len(texts), 1) + np.repeat(np.arange(len(texts)), lengths)
    keys, counts = np.unique(keys, return_counts=True)
    term, rows = np.divmod(keys, max(len(texts), 1))
    bounds = _narrow(np.concatenate([[0], np.cumsum(np.bincount(term, minlength=len(stems)))]))
    packed = _packed([stem for stem, _ in stems])
    return PostingTable(*packed, bounds, _narrow(rows), _narrow(counts), _narrow(lengths))


def merged(tables: Sequence[PostingTable], places: Sequence[np.ndarray]) -> PostingTable:
    """Several tables as one. `places` has the new row of each document of each table, ascending, or -1 to drop it.

    Sorted a range of stems at a time; what is large is written to files without names, and mapped.
    """
    stems = sorted(set().union(*(table.stems() for table in tables)))
    number = {stem: at for at, stem in enumerate(stems)}
    ids = [np.fromiter((number[stem] for stem in table.stems()), np.int64) for table in tables]
    sizes = np.zeros(len(stems), np.int64)
    for mine, table in zip(ids, tables, strict=True):
        sizes[mine] += np.diff(table.bounds)
    count = max((int(place.max(initial=-1)) + 1 for place in places), default=0)
    lengths = np.zeros(count, np.result_type(np.uint8, *(table.lengths.dtype for table in tables)))
    for place, table in zip(places, tables, strict=True):
        lengths[place[place >= 0]] = table.lengths[place >= 0]
    large = int(sizes.sum()) > MERGED
    all_rows = Column(_narrowest(count), large)
    all_counts = Column(np.result_type(np.uint8, *(table.counts.dtype for table in tables)), large)
    frequencies = np.zeros(len(stems), np.int64)
    for first, last in _ranges(sizes, MERGED):
        terms, rows, counts = (np.concatenate(part) for part in zip(*_pieces(tables, places, ids, first, last)))
        order = np.argsort(terms, kind="stable")  # rows ascend from table to table
        all_rows.append(rows[order])
        all_counts.append(counts[order])
        frequencies[first:last] = np.bincount(terms, minlength=last - first)
    used = np.flatnonzero(frequencies)
    bounds = _narrow(np.concatenate([[0], np.cumsum(frequencies[used])]))
    return PostingTable(*_packed([stems[at] for at in used]), bounds, all_rows.whole(), all_counts.whole(), lengths)


def _pieces(
    tables: Sequence[PostingTable], places: Sequence[np.ndarray], ids: Sequence[np.ndarray], first: int, last: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Of each table, the postings of the stems from `first` to `last`: numbers of stems, new rows, counts."""
    for table, place, mine in zip(tables, places, ids, strict=True):
        low, high = np.searchsorted(mine, [first, last])
        bounds = table.bounds[low : high + 1]
        rows = place[table.rows[bounds[0] : bounds[-1]]]
        terms = np.repeat((mine[low:high] - first).astype(np.int32), np.diff(bounds))
        stays = rows >= 0
        yield terms[stays], rows[stays].astype(np.int32), table.counts[bounds[0] : bounds[-1]][stays]


def _ranges(sizes: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Ranges whose sizes add up to at most `most`, or that hold one."""
    ends, first = np.cumsum(sizes), 0
    while first < len(sizes):
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield first, last
        first = last


def _on_disk(table: PostingTable) -> PostingTable:
    """The same table with its postings in files without names."""
    rows, counts = Column(table.rows.dtype, large=True), Column(table.counts.dtype, large=True)
    rows.append(table.rows)
    counts.append(table.counts)
    return replace(table, rows=rows.whole(), counts=counts.whole())


def _packed(stems: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Stems one after the other, and where each begins."""
    ends = np.concatenate([[0], np.cumsum(np.fromiter(map(len, stems), np.int64, len(stems)))])
    return np.frombuffer(b"".join(stems), np.uint8), _narrow(ends)


def _narrow(values: np.ndarray) -> np.ndarray:
    """Values that are not negative, in as few bytes each as the largest needs."""
    return values.astype(_narrowest(int(values.max(initial=0))))


def _narrowest(largest: int) -> np.dtype:
    """The smallest type for numbers from 0 to `largest`. Beyond 32 bits it has a sign, as NumPy wants of indices."""
    return np.min_scalar_type(largest) if largest < 1 << 32 else np.dtype(np.int64)
