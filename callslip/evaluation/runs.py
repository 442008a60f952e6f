"""TREC run files: `query_id Q0 doc_id rank score tag`, one hit per line.

Two rules preserve the ranking in the file.

*Scores are strictly descending in single precision.* trec_eval sorts by score alone, parses it as a 32-bit float, and
breaks ties by doc_id. Each score is therefore rounded to single precision, and if it is not below the previous one
(documents that share a code, a re-ranked list), it becomes the largest single-precision number below the previous one.

*Fields contain no white space.* White space and control characters in ids and tags are percent-encoded as UTF-8
(`a b` is written `a%20b`), as is a `%` followed by two hexadecimal digits; all are decoded when the file is read. Files
of other tools whose ids are themselves percent-encoded need `decode=False`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

import numpy as np

from callslip.errors import BadInput, BadSetting
from callslip.evaluation.measures import Ranking, Run, by_rank

NEEDS_CODE = re.compile(r"[\s\x00-\x1f\x7f-\x9f]|%(?=[0-9A-Fa-f]{2})")
LOWEST = float(np.finfo(np.float32).min)


def falling_scores(scores: list[float]) -> list[np.float32]:
    """The scores in single precision, strictly descending, by the rule above."""
    falling: list[np.float32] = []
    for score in scores:
        if not math.isfinite(score):
            raise BadSetting(f"the run has the score {score}", "Scores must be finite numbers.")
        value = np.float32(min(max(score, LOWEST), -LOWEST))
        if falling and not value < falling[-1]:
            if falling[-1] == LOWEST:
                raise BadSetting("the run's scores underflow single precision", "Rescale the scores.")
            value = np.nextafter(falling[-1], np.float32(-np.inf))
        falling.append(value)
    return falling


def run_lines(run: Run, tag: str = "callslip") -> Iterator[str]:
    """The lines of a run file, without line breaks."""
    written_tag = _encoded(tag, "tag")
    for query_id, ranking in run.items():
        by_rank(query_id, ranking)  # rejects duplicate documents
        written_query = _encoded(query_id, "query_id")
        scores = falling_scores([float(score) for _, score in ranking])
        for rank, ((doc_id, _), score) in enumerate(zip(ranking, scores), start=1):
            yield f"{written_query} Q0 {_encoded(doc_id, 'doc_id')} {rank} {score!s} {written_tag}"


def write_run(run: Run, path: str | Path, tag: str = "callslip") -> None:
    """Write a run in six columns. A query without hits has no lines."""
    with Path(path).open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in run_lines(run, tag))


def read_run(path: str | Path, *, decode: bool = True) -> tuple[dict[str, list[tuple[str, float]]], str]:
    """A run and its tag, each ranking best first.

    Rankings are sorted by score, and ties keep the order of the lines; like trec_eval, this ignores the rank column.
    An invalid line is an error with file and line number.
    """
    run: dict[str, dict[str, float]] = {}
    tag = ""
    try:
        with Path(path).open(encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                query_id, doc_id, score, tag = _parsed(path, number, line, decode)
                ranking = run.setdefault(query_id, {})
                if doc_id in ranking:
                    raise BadInput(path, f"query {query_id!r} has document {doc_id!r} twice", line=number)
                ranking[doc_id] = score
    except OSError as error:
        raise BadInput(path, error.strerror or "cannot be read", remedy="Give a TREC run file.") from None
    except UnicodeDecodeError:
        raise BadInput(path, "is not UTF-8 text", remedy="Convert the file to UTF-8.") from None
    return {query_id: _best_first(list(ranking.items())) for query_id, ranking in run.items()}, tag


def _best_first(ranking: Ranking) -> list[tuple[str, float]]:
    return sorted(ranking, key=lambda hit: -hit[1])  # sorted() is stable


def _parsed(path: str | Path, number: int, line: str, decode: bool) -> tuple[str, str, float, str]:
    fields = line.split()
    if len(fields) != 6:
        raise BadInput(
            path,
            f"expected 6 columns, found {len(fields)}",
            line=number,
            remedy="Write lines of: query_id Q0 doc_id rank score tag.",
        )
    query_id, _, doc_id, _, text, tag = fields
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise BadInput(path, f"{text!r} is not a finite number", line=number, field="score")
    if decode:
        query_id, doc_id, tag = unquote(query_id), unquote(doc_id), unquote(tag)
    return query_id, doc_id, score, tag


def _encoded(text: str, kind: str) -> str:
    """Percent-encode characters that would break a column, and text that looks percent-encoded."""
    if not text:
        raise BadSetting(f"the run has an empty {kind}", "A run file cannot represent it; give it a name.")
    return NEEDS_CODE.sub(lambda match: quote(match[0], safe=""), text)
