"""BM25 over a list of texts, with the bm25s library: for the baseline and for hard negatives."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from callslip.errors import BadSetting, IndexCorrupt, UnknownName, Unsupported

if TYPE_CHECKING:
    from scipy.sparse import csr_array

POSTINGS = 4_000_000
"""Occurrences of stems that a block of queries is scored by: some 50 MB."""
TOKENIZED = 4096
"""Queries that are split into stems at once."""


class WordIndex:
    """BM25 scores of texts for a query."""

    def __init__(
        self,
        *,
        k1: float = 0.9,
        b: float = 0.4,
        formula: str = "lucene",
        language: str = "english",
        stopwords: str = "en",
    ) -> None:
        self.k1, self.b, self.formula, self.language, self.stopwords = k1, b, formula, language, stopwords
        self._bm25: Any = None

    @property
    def indexed(self) -> bool:
        """Whether there are texts to score."""
        return self._bm25 is not None

    def index(self, texts: list[str]) -> WordIndex:
        """Index the texts to be scored."""
        import bm25s

        self._bm25 = bm25s.BM25(k1=self.k1, b=self.b, method=self.formula)
        tokens = self.tokenize(texts)
        # bm25s cannot index a corpus without any words; use a placeholder that no query can contain.
        if not any(tokens):
            tokens = [["\x00"], *tokens[1:]]
        self._bm25.index(tokens, show_progress=False)
        return self

    def tokenize(self, texts: Sequence[str]) -> list[list[str]]:
        """The stems of each text, without stop words."""
        return stems_of(texts, self.language, self.stopwords)

    def known(self, tokens: Sequence[str]) -> list[str]:
        """The stems that occur in the index."""
        return [token for token in tokens if token in self._bm25.vocab_dict]

    def scores(self, tokens: list[str]) -> np.ndarray:
        """The score of every text for these known stems."""
        if not tokens:
            return np.zeros(self._bm25.scores["num_docs"], np.float32)
        return self._bm25.get_scores(tokens)

    def scores_of(self, queries: Sequence[str]) -> Iterator[np.ndarray]:
        """The scores of all texts, one array per query."""
        for tokens in self.tokenize(queries):
            yield self.scores(self.known(tokens))

    def sparse_scores_of(self, queries: Sequence[str], postings: int = POSTINGS) -> Iterator[csr_array]:
        """The scores of all texts for blocks of queries, in order: sparse, [queries of the block, texts].

        Equal to `scores_of`, bit for bit, without the texts that share no stem with a query. A block holds as many
        queries as have `postings` occurrences of their stems together, and at least one.
        """
        import scipy.sparse

        held = self._bm25.scores
        if self._bm25.nonoccurrence_array is not None:
            raise Unsupported(f"{self.formula} scores texts without a stem of the query", "Use scores_of.")
        vocabulary, texts = len(held["indptr"]) - 1, int(held["num_docs"])
        table = scipy.sparse.csr_array((held["data"], held["indices"], held["indptr"]), shape=(vocabulary, texts))
        for start in range(0, len(queries), TOKENIZED):
            words = [self.known(tokens) for tokens in self.tokenize(queries[start : start + TOKENIZED])]
            ids = [np.array([self._bm25.vocab_dict[word] for word in some], np.int64) for some in words]
            sizes = [int((held["indptr"][some + 1] - held["indptr"][some]).sum()) for some in ids]
            for block in _blocks(sizes, postings):
                some = ids[block]
                # In the query's order, repeated stems included, so that sums are rounded as in `scores_of`.
                columns, bounds = np.concatenate(some), np.cumsum([0, *map(len, some)])
                ones = np.ones(len(columns), table.dtype)
                yield scipy.sparse.csr_array((ones, columns, bounds), shape=(len(some), vocabulary)) @ table

    def save(self, folder: Path) -> None:
        self._bm25.save(str(folder), show_progress=False)

    def load(self, folder: Path) -> WordIndex:
        import bm25s

        self._bm25 = bm25s.BM25.load(str(folder), mmap=True, show_progress=False)
        if not isinstance(self._bm25.scores.get("num_docs"), int) or not isinstance(self._bm25.vocab_dict, dict):
            raise IndexCorrupt(folder, "is not an index of words: it has neither documents nor a vocabulary")
        return self


def stems_of(texts: Sequence[str], language: str = "english", stopwords: str = "en") -> list[list[str]]:
    """The stems of each text, without stop words."""
    return _tokenized(texts, language, stopwords, return_ids=False)


def stem_numbers(
    texts: Sequence[str], language: str = "english", stopwords: str = "en"
) -> tuple[list[list[int]], dict[str, int]]:
    """The stems of each text as numbers, and the number of each stem: less memory for many texts."""
    found = _tokenized(texts, language, stopwords, return_ids=True)
    return found.ids, found.vocab


def _tokenized(texts: Sequence[str], language: str, stopwords: str, *, return_ids: bool) -> Any:
    import bm25s
    import Stemmer

    logging.getLogger("bm25s").setLevel(logging.WARNING)
    if language != "none" and language not in Stemmer.algorithms():
        raise UnknownName("stemmer language", language, ["none", *Stemmer.algorithms()])
    try:
        return bm25s.tokenize(
            list(texts),
            stopwords=None if stopwords == "none" else stopwords,
            stemmer=None if language == "none" else Stemmer.Stemmer(language),
            return_ids=return_ids,
            show_progress=False,
        )
    except ValueError as error:
        raise BadSetting(f"setting 'stopwords': {error}", "Use a language of bm25s, e.g. en, or none.") from None


def _blocks(sizes: Sequence[int], most: int) -> Iterator[slice]:
    """Consecutive slices whose sizes add up to at most `most`, or that hold one."""
    start, total = 0, 0
    for at, size in enumerate(sizes):
        if at > start and total + size > most:
            yield slice(start, at)
            start, total = at, 0
        total += size
    if start < len(sizes):
        yield slice(start, len(sizes))
