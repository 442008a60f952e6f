"""Why a hit was found, in words, and a legend of the terms that were used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

LEGEND = {
    "similarity": "inner product of the vectors of query and document; 1 is the most",
    "nearest segment": "the same for the part of the document that is nearest to the query",
    "log-probability": "of the code, given the query; 0 is certain, and each level adds its own part",
    "beam": "the best codes that the model wrote for the query, in order",
    "bucket": "the documents that share a code",
    "meaning": "the part of the score that comes from the similarity of codes",
    "words": "the part of the score that comes from BM25",
    "memory": "the part of the score that comes from earlier questions and their answers",
    "BM25": "a sum over the words that query and document share; rare words count more",
    "item score": "log-probability of the item by counts, up to a constant, and what the model adds to it",
    "rules": "counts of what came soon after the items of the history",
    "because of": "items of the history, with what the counts of each add to the score",
}
"""Terms that the sentences use; the legend explains those that occur."""


def sentences(why: Mapping[str, Any]) -> list[str]:
    """The reasons for a hit, a sentence per source. What no sentence is known for is listed by its name."""
    left, lines = dict(why), []
    for keys, write in SENTENCES:
        if all(key in left for key in keys) and (said := write(left)):
            lines.append(said)
            for key in (*keys, *OPTIONAL.get(keys, ())):
                left.pop(key, None)
    for key, value in left.items():
        lines += _listed(key.replace("_", " "), value)
    return lines


def legend(lines: list[str]) -> list[str]:
    """Explanations of the terms that occur in these lines."""
    said = "\n".join(lines)
    return [f"{term}: {meaning}" for term, meaning in LEGEND.items() if term in said]


def _listed(name: str, value: Any) -> list[str]:
    """A value under its name; what is nested becomes lines of its own."""
    if isinstance(value, Mapping):
        return [f"{name}: {line}" for line in sentences(value)]
    if isinstance(value, list | tuple):
        return [f"{name}: {', '.join(_short(one) for one in value)}"]
    return [f"{name} {_short(value)}"]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _earlier(why: Mapping[str, Any]) -> str:
    return f"found by this earlier question: {why['earlier_query']}  (similarity {why['earlier_similarity']:.3f})"


def _sources(why: Mapping[str, Any]) -> str:
    parts = ", ".join(f"{name} {why[name]:.3f}" for name in ("meaning", "words", "memory"))
    segment = f", nearest segment {why['segment_similarity']:.3f}" if "segment_similarity" in why else ""
    return f"{parts}  (similarity {why['similarity']:.3f}{segment}, BM25 {why['bm25']:.2f})"


def _code(why: Mapping[str, Any]) -> str:
    levels = ", ".join(f"{value:.2f}" for value in why["level_scores"])
    size = why["bucket_size"]
    bucket = "alone in its bucket" if size == 1 else f"one of {size:,} documents in its bucket"
    near = f", similarity {why['similarity']:.3f}" if "similarity" in why else ""
    line = f"code number {why['beam_rank']:,} of the beam, log-probability {why['code_score']:.2f}"
    return f"{line} (by level {levels}); {bucket}{near}"


def _bm25_words(why: Mapping[str, Any]) -> str:
    if not isinstance(why["words"], Mapping):
        return ""
    parts = ", ".join(f"{word} {part:.2f}" for word, part in sorted(why["words"].items(), key=lambda one: -one[1]))
    return f"words in common, with their BM25: {parts}"


def _code_words(why: Mapping[str, Any]) -> str:
    if not isinstance(why["words"], list):
        return ""
    parts = (f"{one['word']} (query {one['query']:.2f}, document {one['document']:.2f})" for one in why["words"])
    return f"words of the code: {', '.join(parts)}"


def _because(why: Mapping[str, Any]) -> str:
    parts = sorted(why["because"].items(), key=lambda one: -one[1])
    return "because of " + ", ".join(f"{item} ({part:.3g})" for item, part in parts) if parts else ""


def _counted(why: Mapping[str, Any]) -> str:
    again = f", less {-why['repeat']:.3f} because the user has had it" if "repeat" in why else ""
    more = f"; the reranker {why['reranker']:+.3f}" if "reranker" in why else ""
    return f"factors and texts, by the code, {why['codes']:.3f}; rules {why['memory']:.3f}{more}{again}"


def _popularity(why: Mapping[str, Any]) -> str:
    return f"no history: {why['popularity']:.0%} as popular as the most popular item"


def _count(why: Mapping[str, Any]) -> str:
    return f"occurs {why['count']:,} times in the log"


def _dot_product(why: Mapping[str, Any]) -> str:
    return f"inner product of the states of query and document {why['dot_product']:.3f}"


def _parts(why: Mapping[str, Any]) -> str:
    adds = why["shares"]
    return "; ".join(f"{part}: rank {rank:,}, adds {adds[part]:.4f}" for part, rank in why["ranks"].items())


def _fresh(why: Mapping[str, Any]) -> str:
    near = f", similarity {why['similarity']:.3f}" if "similarity" in why else ""
    return f"{why['fresh']}  (BM25 {why['bm25']:.2f}{near})"


OPTIONAL = {
    ("fresh", "bm25"): ("similarity",),
    ("code_score", "level_scores", "beam_rank", "bucket_size"): ("similarity",),
    ("dot_product",): ("token",),
    ("codes", "memory"): ("reranker", "repeat"),
    ("meaning", "words", "memory", "similarity", "bm25"): ("segment_similarity",),
}
"""Further keys that a sentence covers if they are there."""

SENTENCES: list[tuple[tuple[str, ...], Callable[[Mapping[str, Any]], str]]] = [
    (("earlier_query", "earlier_similarity"), _earlier),
    (("fresh", "bm25"), _fresh),
    (("meaning", "words", "memory", "similarity", "bm25"), _sources),
    (("code_score", "level_scores", "beam_rank", "bucket_size"), _code),
    (("words",), _bm25_words),
    (("words",), _code_words),
    (("because",), _because),
    (("codes", "memory"), _counted),
    (("popularity",), _popularity),
    (("count",), _count),
    (("dot_product",), _dot_product),
    (("ranks", "shares"), _parts),
]
"""The keys of a source, and the sentence that tells of it."""
