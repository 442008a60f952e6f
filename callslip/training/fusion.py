"""Fit the weights of a fusion on queries whose answers are known: a listwise loss over each query's candidates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from callslip.corpus.documents import Corpus, Query

ENOUGH = 30
"""Judged queries from which weights are fitted; fewer say too little."""
TEMPERATURE = 8.0
"""Factor between weights of a convex fusion, which add up to about 1, and log-probabilities."""
CONFIDENCE = 1.0
"""Weight of the prior, in queries: the weights leave it as evidence comes in."""


def judged_queries(corpus: Corpus, most: int, seed: int = 0) -> tuple[list[Query], list[dict[int, int]]]:
    """The train queries with a text and an answer, a random sample of at most `most`, and the grades of their answers
    by row."""
    queries, judgements = corpus.split("train")
    asked = [qid for qid, query in queries.items() if query.text and any(g > 0 for g in judgements[qid].values())]
    if len(asked) > most:
        picked = np.random.default_rng(seed).choice(len(asked), most, replace=False)
        asked = [asked[number] for number in np.sort(picked)]
    row_of = corpus.rows_of({doc_id for qid in asked for doc_id in judgements[qid]})
    graded = [{row_of[d]: grade for d, grade in judgements[qid].items() if grade > 0 and d in row_of} for qid in asked]
    return [queries[qid] for qid in asked], graded


def listwise_loss(
    weights: np.ndarray, features: Sequence[np.ndarray], gains: Sequence[np.ndarray]
) -> tuple[float, np.ndarray]:
    """Mean cross-entropy between the gains of each query's candidates and the softmax of their scores, with gradient.

    `features[i]` is [candidates, F] and `gains[i]` is [candidates], with a positive sum.
    """
    loss, gradient = 0.0, np.zeros_like(weights)
    for table, gain in zip(features, gains, strict=True):
        scores = table @ weights
        scores -= scores.max()
        log_sum = np.log(np.exp(scores).sum())
        target = gain / gain.sum()
        loss += log_sum - target @ scores
        gradient += (np.exp(scores - log_sum) - target) @ table
    return loss / len(features), gradient / len(features)


def fit_weights(
    features: Sequence[np.ndarray], gains: Sequence[np.ndarray], prior: np.ndarray, usable: np.ndarray | None = None
) -> np.ndarray:
    """Non-negative weights of the features, fitted to queries of which at least one candidate is an answer.

    The loss is penalised by the squared distance from the `prior`, which counts as `CONFIDENCE` queries: without
    queries, the prior is the result. Features that are not `usable` keep weight 0. Negative weights are excluded: more
    similar documents or more votes never count against a document.
    """
    from scipy.optimize import minimize

    prior = np.asarray(prior, np.float64)
    usable = np.ones(len(prior), bool) if usable is None else usable
    answered = [number for number, gain in enumerate(gains) if gain.sum() > 0]
    if not answered:
        return np.where(usable, prior, 0.0)
    tables = [features[number].astype(np.float64)[:, usable] for number in answered]
    wanted = [gains[number].astype(np.float64) for number in answered]
    start = prior[usable]

    def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = listwise_loss(TEMPERATURE * values, tables, wanted)
        away = values - start
        strength = CONFIDENCE / len(tables)
        return loss + strength * float(away @ away), TEMPERATURE * gradient + 2 * strength * away

    bounds = [(0.0, None)] * len(start)
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 200})
    weights = np.zeros(len(prior))
    weights[usable] = found.x
    return weights
