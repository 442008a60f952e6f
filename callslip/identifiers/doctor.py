"""The index doctor: reads the figures of a table of codes, and says what is wrong and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from callslip.identifiers.quality import LevelQuality, Quality, Severity, Verdict, gini

UNIQUENESS = 0.9
"""Below this share of different codes, the order inside buckets begins to decide the result."""
COLLAPSED = 0.2
"""A level whose diversity is below this has stopped telling documents apart (GenRet's codes fail this
way)."""
UNEVEN = 0.8
"""Gini above this: a few tokens do the level's work."""
DEAD = 0.1
"""Share of tokens that are not in use though random tokens for as many documents would have used them."""
LITTLE_TO_DO = 0.2
"""A level that has to separate no more than this share of documents is not judged by how evenly it is
used."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, how bad it is, and the remedy."""

    severity: Severity
    problem: str
    remedy: str


def diagnose(quality: Quality, *, words: bool = False) -> list[Finding]:
    """What is wrong with a table of codes, the worst first.

    `words`: the tokens are words of a text, which nobody can use evenly; unused and unevenly used ones are not
    reported then.
    """
    findings = [*_uniqueness(quality), *_giant_bucket(quality)]
    for level in quality.levels:
        findings += _level(level, unique=quality.uniqueness >= UNIQUENESS, words=words)
    return sorted(findings, key=lambda finding: ("ill", "warning", "note").index(finding.severity))


def verdict(findings: list[Finding]) -> Verdict:
    """ "ill" if any finding is, "usable" if there are warnings, else "healthy"."""
    severities = {finding.severity for finding in findings}
    return "ill" if "ill" in severities else "usable" if "warning" in severities else "healthy"


def _uniqueness(quality: Quality) -> list[Finding]:
    if quality.uniqueness >= UNIQUENESS:
        return []
    problem = (
        f"{quality.unique} different codes for {quality.documents} documents "
        f"(uniqueness {quality.uniqueness:.2f}); {quality.collision_rate:.0%} of documents share theirs"
    )
    # A small code space is a choice (URI's buckets); using little of the space there is, is an illness.
    if quality.unique < 0.5 * min(quality.documents, quality.capacity):
        return [Finding("ill", problem, "Make the codes anew: balanced assignment, another seed, or a longer code.")]
    if quality.capacity < quality.documents:
        remedy = f"Only {quality.capacity} codes are possible: widen or lengthen them, or rank inside buckets."
    else:
        remedy = "Add a level, widen the levels, or `disambiguate` the codes; else rank inside buckets."
    return [Finding("warning", problem, remedy)]


def _giant_bucket(quality: Quality) -> list[Finding]:
    size, share = quality.bucket_max, quality.bucket_max / quality.documents
    expected = quality.documents / min(quality.documents, quality.capacity)
    most = share > 0.5  # then codes tell nothing, however few were meant to be
    if size < 10 or (size <= 4 * expected and not most):
        return []
    problem = f"one code holds {size} documents ({share:.1%} of all; {quality.bucket_mean:.1f} is the mean)"
    remedy = "Use balanced clusters (constrained k-means, Sinkhorn), and look for duplicate or empty texts in it."
    if share > 0.1:
        return [Finding("ill", problem, remedy)]
    if share > 0.01 or size > 10 * max(quality.bucket_mean, expected):
        return [Finding("warning", problem, remedy)]
    return []


def _level(level: LevelQuality, unique: bool, words: bool) -> list[Finding]:
    """What is wrong with one level.

    Where little is left to separate, uneven use is worth a note at most; where the codes come out unique all
    the same (a rank as last token is always lopsided), a collapsed level wastes tokens but loses no document.
    """
    name = f"level {level.level + 1}"
    if not level.documents:
        return []
    if level.width == 1:
        wasted = f"{name} has one token only"
        return [Finding("note", wasted, "It tells nothing apart: shorten the codes by a level.")]
    idle = level.undecided <= LITTLE_TO_DO
    findings = []
    if level.diversity / level.attainable < COLLAPSED:
        findings.append(
            Finding(
                "note" if idle else "warning" if unique else "ill",
                f"{name} has collapsed: diversity {level.diversity:.2f} of {level.attainable:.2f} "
                f"attainable, perplexity {level.perplexity:.1f} of {level.width} tokens",
                "Codes are settled before it: they may be a level too long."
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
    """Gini over the tokens that so many documents can use: with fewer documents than tokens, some must be
    idle."""
    most = np.sort(level.usage)[-min(level.width, level.documents) :]
    return gini(most)
