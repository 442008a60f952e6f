"""Explains why a document has its rank, or why it is not found, by repeating the search and observing each level.

The beam keeps a number of prefixes at each level. A document is lost at the level where its prefix is not among them;
forced decoding then gives the model's scores for the rest of its code.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from callslip.corpus.documents import Query
from callslip.errors import CallslipError, Unsupported
from callslip.filters.filter import Filter
from callslip.identifiers.table import END, code_to_text
from callslip.index.retriever import Found, Retriever
from callslip.search.observer import OBSERVER, watched
from callslip.server.errors import ApiError
from callslip.server.explorer import coded, tree_levels, tree_of, vocabulary_of
from callslip.server.inference import with_beam


class Trace:
    """The prefixes kept at each level of a search. A search that finds too little is repeated with a wider beam; the
    last run counts."""

    def __init__(self) -> None:
        self.levels: list[tuple[np.ndarray, np.ndarray]] = []
        self._outer = OBSERVER.get()

    def __call__(self, level: int, nodes: Any, totals: Any) -> None:
        if self._outer is not None:
            self._outer(level, nodes, totals)  # such as a deadline
        if level == 0:
            self.levels = []
        self.levels.append((nodes[0].cpu().numpy(), totals[0].cpu().numpy()))


def explain(
    retriever: Retriever,
    query: Query,
    doc_id: str,
    k: int,
    beam: int | None,
    filter: Filter | None,
    keep_history: bool = False,
) -> dict[str, Any]:
    """The rank of a document for a query, and the reasons. Runs in the inference thread."""
    if query.history and not query.text and not retriever.reads_histories:
        raise Unsupported(f"{retriever.method} searches by text", "Give the query a text.")
    retriever.refresh(now=True)
    with retriever.living.gate.searching(), with_beam(retriever, beam):
        row = retriever.row_of().get(doc_id)
        if row is None:
            raise ApiError(404, "unknown document", "It may have been deleted; check the doc_id.")
        report: dict[str, Any] = {"doc_id": doc_id, "method": retriever.method, "k": k, "rank": None, "fell_at": None}
        report |= _code_of(retriever, row)
        report["title"] = retriever.documents.rows([row])[0].title
        mask = retriever.rows.mask(filter)
        if mask is not None and not mask[row]:
            return report | {"found": False, "verdict": "The filter excludes it.", "levels": []}
        had = set() if keep_history else retriever.rows_had(query)
        if row in had:
            said = "It is in the history, which recommendations leave out unless it is kept."
            return report | {"found": False, "verdict": said, "levels": []}
        possible = len(retriever.rows.alive) if mask is None else int(np.count_nonzero(mask))
        trace = Trace()
        with watched(trace):
            # As in a search, where the items of the history take no places.
            found = retriever.find([query], min(k + len(had), possible), mask, True)[0].without(had)
        place = np.flatnonzero(np.asarray(found.rows) == row)
        if len(place):
            report |= _standing(found, int(place[0]), k)
        report["found"] = report["rank"] is not None and report["rank"] <= k
        report["last_score"] = float(found.scores[min(k, len(found.rows)) - 1]) if len(found.rows) else None
        report["levels"] = _levels(retriever, query, report, trace, mask)
    lost = [level["level"] for level in report["levels"] if level["kept"] is False]
    report["fell_at"] = lost[0] if lost and report["rank"] is None else None
    return report | {"verdict": _verdict(report)}


def _code_of(retriever: Retriever, row: int) -> dict[str, Any]:
    part = coded(retriever)
    if part is None:
        return {"code": None, "code_text": ""}
    identifiers = part.identifiers  # type: ignore[attr-defined]
    code = identifiers.code_at(int(np.flatnonzero(identifiers.rows == row)[0]))
    text = code_to_text(code, vocabulary_of(retriever), tree_levels(retriever))
    return {"code": list(code), "code_text": text}


def _standing(found: Found, place: int, k: int) -> dict[str, Any]:
    """Rank of a document among the candidates, with reasons."""
    return {
        "rank": place + 1,
        "score": float(found.scores[place]),
        "why": found.why[place] if found.why is not None else {},
    }


def _levels(
    retriever: Retriever, query: Query, report: dict[str, Any], trace: Trace, mask: np.ndarray | None
) -> list[dict[str, Any]]:
    """For each token of the document's code: the model's score, and whether the prefix stayed in the beam."""
    if report["code"] is None or not hasattr(retriever, "identifiers"):
        return []
    trie = tree_of(retriever).trie()
    whole = [*report["code"][: trie.length], *[END] * (trie.length - len(report["code"]))]
    gains = report.get("why", {}).get("level_scores") or _forced(retriever, query, whole, mask)
    vocabulary, levels, total = vocabulary_of(retriever), [], 0.0
    for level, token in enumerate(whole):
        gain = None if gains is None else float(gains[level])
        total += gain or 0.0
        kept, place, bar, beams = None, None, None, None
        if level < len(trace.levels):
            nodes, totals = trace.levels[level]
            known = nodes >= 0
            at = np.flatnonzero(nodes == trie.node_of(whole[: level + 1]))
            kept, place = bool(len(at)), int(at[0]) + 1 if len(at) else None
            beams, bar = int(known.sum()), float(totals[known].min()) if known.any() else None
        levels.append(
            {
                "level": level + 1,
                "token": token,
                "name": "end" if token == END else code_to_text([token], vocabulary),
                "probability": None if gain is None else math.exp(min(gain, 0.0)),
                "log_probability": gain,
                "prefix_score": None if gain is None else total,
                "kept": kept,
                "place": place,
                "beams": beams,
                "lowest_kept": bar,
            }
        )
        if token == END:
            break
    return levels


def _forced(retriever: Any, query: Query, code: list[int], mask: np.ndarray | None) -> np.ndarray | None:
    """The model's scores for the tokens of a code that it did not write; None if the method cannot compute them."""
    from callslip.search.forced import forced_scores

    try:
        reader = retriever.reader
        inputs = reader.inputs([query], reader.query_vectors([query]))
        live = None if mask is None else retriever.live_nodes(mask)
        return forced_scores(retriever.searched, reader.batch(inputs), retriever.identifiers.trie(), code, live)
    except (AttributeError, CallslipError):
        return None


def _verdict(report: dict[str, Any]) -> str:
    """The explanation in one sentence."""
    if report["found"]:
        if "fresh" in report.get("why", {}):
            return f"Found at rank {report['rank']}: it was added since the fit, and is found by its own words."
        earlier = report.get("why", {}).get("earlier_query")
        return f"Found at rank {report['rank']}" + (f", by this earlier question: {earlier}" if earlier else ".")
    if report["rank"] is not None:
        if report.get("why", {}).keys() & {"memory", "fresh"}:  # other things than its code have found it
            return f"Its rank is {report['rank']}, beyond the {report['k']} requested hits."
        return f"The model wrote its code, but its rank is {report['rank']}, beyond the {report['k']} requested hits."
    if report["fell_at"] is not None:
        level = report["levels"][report["fell_at"] - 1]
        own = level["prefix_score"]
        scores = "" if own is None else f": its prefix scores {own:.2f}, the last one kept {level['lowest_kept']:.2f}"
        return f"It fell out of the beam at level {level['level']}, where {level['beams']} prefixes were kept{scores}."
    return "It is not among the candidates of this search: other documents score higher."
