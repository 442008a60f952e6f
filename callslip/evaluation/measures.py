"""Measures by their ir_measures names, and their values per query.

All measures are computed by ir_measures (with trec_eval). This module makes sure that rankings are evaluated in the
given order, and rejects names that would crash or mislead.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from callslip.corpus.documents import Corpus, Judgements
from callslip.errors import BadSetting, UnknownName

Ranking = Sequence[tuple[str, float]]
"""(doc_id, score), best first."""

Run = Mapping[str, Ranking]
"""query_id -> ranking."""

PerQuery = dict[str, dict[str, float]]
"""measure -> query_id -> value."""

DEFAULT_MEASURES = ("nDCG@10", "R@10", "R@100", "RR@10", "Success@1")

LOG_MEASURES = ("R@5", "R@10", "nDCG@5", "nDCG@10")
"""Usual measures in recommendation: with one held-out item per user, recall is the hit rate."""

KNOWN_MEASURES = (
    "AP", "Bpref", "IPrec", "Judged", "P", "R", "RR", "Rprec",
    "SetAP", "SetF", "SetP", "SetR", "Success", "infAP", "nDCG",
)  # fmt: skip
"""Measures that the installed providers compute, as a value per query whose mean is reported. ir_measures knows more
names, but they need other programs (ERR calls Perl), or are counts (NumRet)."""


def default_measures(corpus: Corpus, split: str = "test") -> tuple[str, ...]:
    """The default measures for a corpus."""
    queries, _ = corpus.split(split)
    return LOG_MEASURES if any(query.history and not query.text for query in queries.values()) else DEFAULT_MEASURES


def parse_measures(names: str | Iterable[Any]) -> list[Any]:
    """ir_measures objects for names such as `nDCG@10` or `P(rel=2)@5`, without duplicates.

    Takes a list, or one comma-separated string. Names are case-insensitive, and common aliases are accepted
    (`ndcg@10`, `MRR@10`, `Recall@100`); the object prints the standard name.
    """
    if isinstance(names, str):
        names = _split(names)
    measures = list(dict.fromkeys(_parse(name) for name in names))
    if not measures:
        raise BadSetting("no measures given", f"Give one or more, for example {', '.join(DEFAULT_MEASURES)}.")
    return measures


def per_query(run: Run, judgements: Judgements, measures: str | Iterable[Any]) -> PerQuery:
    """The value of every measure for every judged query. Queries missing from the run count 0.

    Rankings are evaluated in the given order: scores are replaced by descending integers, because trec_eval breaks ties
    by doc_id and would evaluate a different ranking. Negative grades count as zero.
    """
    parsed = parse_measures(measures)
    grades = {
        qid: {doc_id: max(int(grade), 0) for doc_id, grade in judged.items()} for qid, judged in judgements.items()
    }
    scored = {qid: by_rank(qid, ranking) for qid, ranking in run.items() if qid in grades and len(ranking) > 0}
    values: PerQuery = {str(measure): dict.fromkeys(grades, 0.0) for measure in parsed}
    if scored:
        for metric in _pipeline().iter_calc(parsed, grades, scored):
            values[str(metric.measure)][metric.query_id] = float(metric.value)
    return values


def by_rank(query_id: str, ranking: Ranking) -> dict[str, float]:
    """doc_id -> a score that encodes only the rank; duplicate documents are rejected."""
    count = len(ranking)
    scores = {doc_id: float(count - position) for position, (doc_id, _) in enumerate(ranking)}
    if len(scores) < count:
        counted: set[str] = set()
        twice = next(doc_id for doc_id, _ in ranking if doc_id in counted or counted.add(doc_id))  # type: ignore[func-returns-value]
        raise BadSetting(
            f"query {query_id!r}: document {twice!r} is ranked twice",
            "List each document once, at its best rank.",
        )
    return scores


def cutoff_of(measure: Any) -> int | None:
    """The cutoff of a measure, or None if it evaluates the whole ranking."""
    return measure.params.get("cutoff")


def _pipeline() -> Any:
    """The providers: trec_eval for nearly all measures, and MS MARCO's script for RR@k, which trec_eval lacks."""
    import ir_measures
    from ir_measures.providers import FallbackProvider

    return FallbackProvider([ir_measures.pytrec_eval, ir_measures.msmarco, ir_measures.judged])


def _split(text: str) -> list[str]:
    """Split at commas and spaces outside parentheses: `P(rel=2, judged_only=True)@5` is one name."""
    names, depth = [""], 0
    for character in text:
        depth += (character in "({") - (character in ")}")
        if depth == 0 and (character == "," or character.isspace()):
            names.append("")
        else:
            names[-1] += character
    return [name for name in names if name]


def _parse(name: Any) -> Any:
    import ir_measures

    measure = name if isinstance(name, ir_measures.Measure) else _build(str(name))
    return _checked(measure)


def _build(text: str) -> Any:
    """A measure from `Name`, `Name@cutoff` or `Name(setting=value)@cutoff`.

    ir_measures.parse_measure is not used: it needs `ast.Num`, which Python 3.14 no longer has.
    """
    from ir_measures.measures import registry

    problem = BadSetting(f"cannot parse the measure {text!r}", "Write it as nDCG@10, AP or P(rel=2)@5.")
    try:
        node: ast.expr = ast.parse(text.strip(), mode="eval").body
        at = None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            at, node = ast.literal_eval(node.right), node.left
        settings: dict[str, Any] = {}
        if isinstance(node, ast.Call):
            if node.args or any(keyword.arg is None for keyword in node.keywords):
                raise problem
            settings = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
            node = node.func
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        raise problem from None
    if not isinstance(node, ast.Name):
        raise problem
    known = {alias.lower(): prototype for alias, prototype in registry.items() if prototype.NAME in KNOWN_MEASURES}
    if node.id.lower() not in known:
        raise UnknownName("measure", node.id, KNOWN_MEASURES)
    prototype = known[node.id.lower()]
    if at is not None:
        settings[prototype.AT_PARAM] = at
    return prototype(**settings)


def _checked(measure: Any) -> Any:
    """Reject what ir_measures would reject late, or crash on: a cutoff of 0 makes trec_eval abort the process."""
    name = measure.NAME
    if name not in KNOWN_MEASURES:
        raise UnknownName("measure", str(name), KNOWN_MEASURES)
    cutoff = measure.params.get("cutoff")
    wanted = measure.SUPPORTED_PARAMS.get("cutoff")
    if cutoff is None and wanted is not None and wanted.required:
        raise BadSetting(f"measure {name} needs a cutoff", f"Write {name}@10, for example.")
    if cutoff is not None and (isinstance(cutoff, bool) or not isinstance(cutoff, int) or not 1 <= cutoff <= 10**9):
        raise BadSetting(f"measure {name} has the cutoff {cutoff!r}", f"Use a whole number from 1: {name}@10.")
    grade = measure.params.get("rel", 1)
    if isinstance(grade, int) and grade < 1:
        raise BadSetting(f"measure {name} has rel={grade}", "A relevant document has a grade of 1 or more.")
    try:
        supported = any(provider.supports(measure) for provider in _pipeline().providers)
    except AssertionError as error:
        raise BadSetting(f"measure {name}: {error}", f"Its settings: {', '.join(measure.SUPPORTED_PARAMS)}.") from None
    if not supported:
        raise BadSetting(f"measure {measure} cannot be computed here", "Leave out the settings in parentheses.")
    return measure
