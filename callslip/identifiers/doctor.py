"""The index doctor: diagnoses a table of codes from its quality metrics, with a remedy for each problem."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from callslip.identifiers.audit import Churn, HeadAndTail, Neighbours
from callslip.identifiers.quality import LevelQuality, Quality, Severity, Verdict, gini

UNIQUENESS = 0.9
"""Uniqueness below which the order inside buckets starts to dominate the results."""
COLLAPSED = 0.2
"""Diversity below which a level no longer separates documents (GenRet's codes collapse this way)."""
UNEVEN = 0.8
"""Gini coefficient above which a few tokens hold most of a level's documents."""
DEAD = 0.1
"""Share of dead tokens: unused, although random tokens for as many documents would have used them."""
UNRELATED = 2.0
"""Times as often as by chance that neighbours must share the first token, in codes that follow the encoder."""
UNFAIR = 0.2
"""Difference of the collision rates of popular and other documents that is reported."""
LITTLE_TO_DO = 0.2
"""Levels that have to separate at most this share of the documents may be used unevenly."""


@dataclass(frozen=True)
class Finding:
    """A problem, its severity, and the remedy."""

    severity: Severity
    problem: str
    remedy: str


def diagnose(quality: Quality, *, words: bool = False, levels: int | None = None) -> list[Finding]:
    """The problems of a table of codes, worst first.

    `words`: the tokens are words of the texts, whose frequencies are naturally uneven; unused and unevenly used
    tokens are then not reported. `levels`: only so many levels are a tree that search walks; the others rank inside, so
    how evenly they are used does not matter.
    """
    findings = [*_uniqueness(quality), *_giant_bucket(quality)]
    for level in quality.levels[:levels]:
        findings += _level(level, unique=quality.uniqueness >= UNIQUENESS, words=words)
    return sorted(findings, key=lambda finding: ("ill", "warning", "note").index(finding.severity))


def audit(
    neighbours: Neighbours | None = None, head_and_tail: HeadAndTail | None = None, churn: Churn | None = None
) -> list[Finding]:
    """The problems that need more than the table itself: see `audit`."""
    findings = []
    if neighbours is not None and neighbours.by_chance[0] < 0.5:
        found, chance = neighbours.shared[0], neighbours.by_chance[0]
        if found < UNRELATED * chance or found == 0:
            problem = f"{found:.1%} of nearest neighbours share the first token, {chance:.1%} of any two documents do"
            remedy = "The codes do not follow the encoder: use semantic codes, unless this is a control."
            findings.append(Finding("warning", problem, remedy))
    if head_and_tail is not None:
        head, tail = head_and_tail.head.collision_rate, head_and_tail.tail.collision_rate
        if abs(head - tail) > UNFAIR:
            who = "popular" if head > tail else "rare"
            problem = (
                f"{who} documents collide more: {head:.0%} of the most popular fifth share a code, {tail:.0%} of others"
            )
            findings.append(Finding("warning", problem, "Add a level, or `disambiguate` the codes."))
    if churn is not None and churn.changed[-1] > 0:
        problem = f"{churn.changed[-1]:.0%} of {churn.common} documents have another code than in the other table"
        findings.append(Finding("note", problem, "A model trained on the other table must be trained again."))
    return findings


def verdict(findings: list[Finding]) -> Verdict:
    """ "ill" if any finding is "ill", "usable" if there are warnings, else "healthy"."""
    severities = {finding.severity for finding in findings}
    return "ill" if "ill" in severities else "usable" if "warning" in severities else "healthy"


def _uniqueness(quality: Quality) -> list[Finding]:
    if quality.uniqueness >= UNIQUENESS:
        return []
    problem = (
        f"{quality.unique} different codes for {quality.documents} documents "
        f"(uniqueness {quality.uniqueness:.2f}); {quality.collision_rate:.0%} of documents share a code"
    )
    # A small code space is a choice (URI's buckets); using only a little of the available space is a fault.
    if quality.unique < 0.5 * min(quality.documents, quality.capacity):
        return [Finding("ill", problem, "Fit the codes again: balanced assignment, another seed, or longer codes.")]
    if quality.capacity < quality.documents:
        remedy = f"Only {quality.capacity} codes are possible: widen or lengthen them, or rank inside buckets."
    else:
        remedy = "Add a level, widen the levels, `disambiguate` the codes, or rank inside buckets."
    return [Finding("warning", problem, remedy)]


def _giant_bucket(quality: Quality) -> list[Finding]:
    size, share = quality.bucket_max, quality.bucket_max / quality.documents
    expected = quality.documents / min(quality.documents, quality.capacity)
    most = share > 0.5  # useless codes, even if a small code space was intended
    if size < 10 or (size <= 4 * expected and not most):
        return []
    problem = f"one code holds {size} documents ({share:.1%} of all; the mean is {quality.bucket_mean:.1f})"
    remedy = "Use balanced clusters (constrained k-means, Sinkhorn), and look for duplicate or empty texts."
    if share > 0.1:
        return [Finding("ill", problem, remedy)]
    if share > 0.01 or size > 10 * max(quality.bucket_mean, expected):
        return [Finding("warning", problem, remedy)]
    return []


def _level(level: LevelQuality, unique: bool, words: bool) -> list[Finding]:
    """The problems of one level.

    If the level has few documents left to separate, uneven use is at most a note; if the codes are unique anyway (a
    rank as last token is always skewed), a collapsed level wastes tokens but makes no two documents collide.
    """
    name = f"level {level.level + 1}"
    if not level.documents:
        return []
    if level.width == 1:
        wasted = f"{name} has only one token"
        return [Finding("note", wasted, "The level separates no documents: shorten the codes by a level.")]
    idle = level.undecided <= LITTLE_TO_DO
    findings = []
    if level.diversity / level.attainable < COLLAPSED:
        findings.append(
            Finding(
                "note" if idle else "warning" if unique else "ill",
                f"{name} has collapsed: diversity {level.diversity:.2f} of {level.attainable:.2f} "
                f"attainable, perplexity {level.perplexity:.1f} of {level.width} tokens",
                "The levels before it already separate the documents: the codes may be a level too long."
                if idle
                else "Balance the level (Sinkhorn, balance loss, constrained k-means), restart dead tokens, "
                "or give it fewer tokens.",
            )
        )
    elif (inequality := _gini_of_needed(level)) > UNEVEN and not idle and not words:
        findings.append(
            Finding(
                "warning",
                f"{name} is used very unevenly: Gini {inequality:.2f}, perplexity {level.perplexity:.1f} "
                f"of {level.width} tokens",
                "Balance the level, or give it fewer tokens.",
            )
        )
    by_chance = level.width * (1 - 1 / level.width) ** level.documents
    if level.dead - by_chance > DEAD * level.width and not words:
        findings.append(
            Finding(
                "note" if idle else "warning",
                f"{name}: {level.dead} of {level.width} tokens are dead",
                "Restart dead tokens while training the codes, or give the level fewer tokens.",
            )
        )
    return findings


def _gini_of_needed(level: LevelQuality) -> float:
    """Gini coefficient over as many tokens as the documents can use: with fewer documents than tokens, some tokens
    must stay unused."""
    most = np.sort(level.usage)[-min(level.width, level.documents) :]
    return gini(most)
