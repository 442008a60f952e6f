"""Pseudo-queries generated from the document alone, to train on where there are no real queries.

All generators are pure. Their RNG is seeded with the doc_id, so a document gets the same queries whatever the
rest of the corpus; only keyword bags also depend on the corpus, through its document frequencies.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest

from callslip.corpus.documents import Corpus, Document, Pair
from callslip.corpus.sentences import count_words, first_words, split_sentences, word_spans
from callslip.errors import BadSetting, UnknownName

LEAD_WORDS = 32
LONGEST_SENTENCE = 64
"""Maximum number of words kept of a sentence, for text without full stops."""
SPAN_WORDS = (6, 24)
BAG_WORDS = (3, 6)
BAG_POOL = 12
RANDOM_PER_DOCUMENT = 3
"""Default number of spans and of keyword bags per document, which unlike sentences have no natural number."""

_TERM = re.compile(r"[^\W_]{2,}")


@dataclass(frozen=True)
class DocumentFrequencies:
    """Document frequency of each word of the corpus."""

    documents: int
    counts: Mapping[str, int]

    def idf(self, word: str) -> float:
        """Inverse document frequency as in BM25: close to zero for a word of every document, and never negative."""
        count = self.counts.get(word, 0)
        return math.log(1 + max(0.0, self.documents - count + 0.5) / (count + 0.5))


def terms(text: str) -> list[str]:
    """The words of a text that keyword bags draw from: lower case, two or more letters, not a number."""
    return [word for word in _TERM.findall(text.lower()) if not word.isdecimal()]


def document_frequencies(documents: Iterable[Document]) -> DocumentFrequencies:
    counts: Counter[str] = Counter()
    total = 0
    for document in documents:
        counts.update(set(terms(document.content)))
        total += 1
    return DocumentFrequencies(total, counts)


def title(document: Document) -> list[str]:
    return [document.title]


def lead(document: Document, words: int = LEAD_WORDS) -> list[str]:
    """The first words of the text."""
    return [first_words(document.text, words)]


def sentences(document: Document, min_words: int = 3) -> list[str]:
    """Every sentence of the text; very short ones only if there are no others."""
    all_sentences = [first_words(sentence, LONGEST_SENTENCE) for sentence in split_sentences(document.text)]
    long = [sentence for sentence in all_sentences if count_words(sentence) >= min_words]
    return long or all_sentences


def spans(document: Document, rng: random.Random, count: int = RANDOM_PER_DOCUMENT) -> list[str]:
    """Runs of words from anywhere in the text, of random length."""
    words = word_spans(document.text)
    found = []
    for _ in range(count if words else 0):
        length = min(rng.randint(*SPAN_WORDS), len(words))
        start = rng.randint(0, len(words) - length)
        found.append(document.text[words[start][0] : words[start + length - 1][1]])
    return found


def keywords(
    document: Document, frequencies: DocumentFrequencies, rng: random.Random, count: int = RANDOM_PER_DOCUMENT
) -> list[str]:
    """Random subsets of the document's best words by TF-IDF, like keyword queries."""
    occurrences = Counter(terms(document.content))
    weights = {word: (1 + math.log(n)) * frequencies.idf(word) for word, n in occurrences.items()}
    best = sorted(weights, key=lambda word: (-weights[word], word))[:BAG_POOL]
    bags = (rng.sample(best, min(rng.randint(*BAG_WORDS), len(best))) for _ in range(count if best else 0))
    return [" ".join(bag) for bag in bags]


Maker = Callable[[Document, random.Random, int | None, DocumentFrequencies], list[str]]

KINDS: dict[str, Maker] = {
    "document": lambda document, rng, count, frequencies: [document.content],
    "title": lambda document, rng, count, frequencies: title(document),
    "lead": lambda document, rng, count, frequencies: lead(document),
    "sentences": lambda document, rng, count, frequencies: _some(sentences(document), count, rng),
    "spans": lambda document, rng, count, frequencies: spans(document, rng, count or RANDOM_PER_DOCUMENT),
    "keywords": lambda document, rng, count, frequencies: keywords(
        document, frequencies, rng, count or RANDOM_PER_DOCUMENT
    ),
}
"""The kinds of pseudo-query, by name."""


def pseudo_queries(
    corpus: Corpus | Sequence[Document],
    kinds: Sequence[str] = ("title", "sentences"),
    per_document: int | None = None,
    seed: int = 0,
    frequencies: DocumentFrequencies | None = None,
) -> list[Pair]:
    """(pseudo-query, document) pairs for every document, in order, as a list; see `iterate_pseudo_queries`."""
    return list(iterate_pseudo_queries(corpus, kinds, per_document, seed, frequencies))


def iterate_pseudo_queries(
    corpus: Corpus | Sequence[Document],
    kinds: Sequence[str] = ("title", "sentences"),
    per_document: int | None = None,
    seed: int = 0,
    frequencies: DocumentFrequencies | None = None,
) -> Iterator[Pair]:
    """(pseudo-query, document) pairs for every document, in order.

    `per_document` is the maximum number per document, taken from the kinds in turn; by default every sentence is
    used. `frequencies` gives part of a corpus the keyword bags it would have in the whole corpus.
    """
    if isinstance(kinds, str):
        kinds = (kinds,)
    for kind in kinds:
        if kind not in KINDS:
            raise UnknownName("kind of pseudo-query", kind, KINDS)
    if per_document is not None and per_document < 1:
        raise BadSetting(f"per_document must be at least 1, not {per_document}", "Leave it out to take all.")
    if frequencies is None:
        frequencies = document_frequencies(corpus) if "keywords" in kinds else DocumentFrequencies(0, {})
    for document in corpus:
        for query in _of_document(document, kinds, per_document, seed, frequencies):
            yield Pair(query, document.doc_id)


def _of_document(
    document: Document, kinds: Sequence[str], count: int | None, seed: int, frequencies: DocumentFrequencies
) -> Iterator[str]:
    made = [KINDS[kind](document, _rng(seed, kind, document.doc_id), count, frequencies) for kind in kinds]
    if count is None:
        candidates: Iterable[str] = (query for queries in made for query in queries)
    else:
        candidates = (query for turn in zip_longest(*made, fillvalue="") for query in turn)
    return islice(_distinct(candidates), count)


def _distinct(queries: Iterable[str]) -> Iterator[str]:
    """Queries without line breaks, empty queries or duplicates, ignoring case."""
    seen = set()
    for query in queries:
        query = " ".join(query.split())
        key = query.casefold()
        if key and key not in seen:
            seen.add(key)
            yield query


def _some(queries: list[str], count: int | None, rng: random.Random) -> list[str]:
    """All queries in order, or shuffled if there is a `count`, so that the first `count` are a random sample."""
    return queries if count is None else rng.sample(queries, len(queries))


def _rng(seed: int, kind: str, doc_id: str) -> random.Random:
    key = f"{seed}\x00{kind}\x00{doc_id}".encode("utf-8", "surrogatepass")
    return random.Random(hashlib.sha256(key).digest())
