"""Learning from use: queries and the documents that answered them enter the memory, without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from callslip.encoders.given import GIVEN
from callslip.errors import Unsupported
from callslip.index.memory import Memory
from callslip.index.retriever import Learned
from callslip.methods.tied_residual.weights import Weights, weights_after_learning
from callslip.storage.rows import missing

if TYPE_CHECKING:
    from callslip.methods.tied_residual.method import TiedResidual


def learned(index: TiedResidual, answers: Mapping[str, Sequence[str]]) -> Learned:
    """Remember the doc_ids that answered each query: durable, and found from the next search on."""
    if not index.settings.memory:
        raise Unsupported(
            "this index was fitted with memory=false, so it cannot learn",
            f"Fit again: callslip fit CORPUS --method {index.method} --set memory=true --out DIR.",
        )
    texts = list(answers)
    if not texts:
        return Learned(0, 0, len(index.memory))
    if index.settings.encoder == GIVEN and index.texts.given.encode is None:
        raise Unsupported(
            "the index has given vectors, and no encoder for the queries that it should learn",
            "Learn in Python, with a callable that encodes them: "
            "callslip.learn(callslip.load(DIR, query_vectors=CALLABLE), LOG).",
        )
    codes = index.maker.assign(index.texts.training(texts))
    scales = index.maker.scales(codes)
    new = (0, 0)

    def plan() -> tuple[Memory, Weights] | None:
        nonlocal new
        known = index.row_of()
        rows = [[_row(doc_id, known) for doc_id in answers[text]] for text in texts]
        memory = index.memory.with_more(texts, codes, scales, rows)
        if memory is index.memory:
            new = (0, 0)
            return None
        new = (len(memory) - len(index.memory), len(memory.rows) - len(index.memory.rows))
        return memory, weights_after_learning(index, memory)

    def swap(part: tuple[Memory, Weights]) -> tuple[Memory, Weights]:
        held = (index.memory, index.weights)
        index.memory, index.weights = part
        return held

    index.living.revise(plan, swap)
    return Learned(*new, len(index.memory))


def _row(doc_id: str, known: Mapping[str, int]) -> int:
    if doc_id not in known:
        raise missing(doc_id, known)
    return known[doc_id]
