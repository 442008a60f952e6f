"""A trained correction of the query: its state is its vector plus a small network's output, which begins at zero.

Training is listwise over whole codes: the answers of judged train queries against the index's own first answers, those
of words and memory, and documents of the same leaves. One in five queries is held out and decides how much of the
correction is used; in case of doubt none, so that an index never ends below its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from callslip.corpus.documents import Corpus
from callslip.training.held_out import HeldOutQueries, judged_held_out, without_judged

if TYPE_CHECKING:
    from torch import Tensor

    from callslip.methods.tied_residual.method import TiedResidual

CORRECTION = "correction.safetensors"
HIDDEN = 64
"""Width of the network."""
EPOCHS, BATCH, RATE, DECAY = 10, 32, 1e-3, 0.1
"""The schedule: epochs, queries per step, peak learning rate and weight decay of AdamW."""
TEMPERATURE = 0.05
"""Temperature of the softmax over a query's candidates."""
CANDIDATES, SIBLINGS = 50, 14
"""Candidates of a query that the index itself finds, and documents of its answers' leaves."""
STRENGTHS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
"""Shares of the correction that are tried on held-out queries."""


@dataclass(frozen=True)
class Correction:
    """q + strength · tanh(q A + a) B, in NumPy, so that a search needs no torch."""

    inner: np.ndarray
    bias: np.ndarray
    outer: np.ndarray
    strength: float = 1.0

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """The states of queries with these vectors, [B, D]."""
        return vectors + self.strength * (np.tanh(vectors @ self.inner + self.bias) @ self.outer)

    def save(self, folder: Path) -> None:
        from safetensors.numpy import save_file

        arrays = {"inner": self.inner, "bias": self.bias, "outer": self.outer, "strength": np.array([self.strength])}
        save_file(arrays, folder / CORRECTION)

    @classmethod
    def load(cls, folder: Path) -> Correction | None:
        """What `save` wrote; None for an index without a correction."""
        from safetensors.numpy import load_file

        if not (folder / CORRECTION).exists():
            return None
        held = load_file(folder / CORRECTION)
        return cls(held["inner"], held["bias"], held["outer"], float(held["strength"][0]))


def listwise_loss(states: Tensor, documents: Tensor, gains: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Mean cross-entropy between gains [B, C], with a positive sum each, and the softmax of the inner products of
    states [B, D] with reconstructed documents [B, C, D], divided by the temperature. Gains below 0 mark padding."""
    if documents.shape[:2] != gains.shape or states.shape != documents[:, 0].shape:
        raise ValueError(f"{tuple(states.shape)}, {tuple(documents.shape)} and {tuple(gains.shape)} do not fit")
    padding, right = gains < 0, gains.clamp(min=0)
    scores = (documents @ states.unsqueeze(-1)).squeeze(-1) / temperature
    log_shares = scores.masked_fill(padding, -1e9).log_softmax(dim=1)
    return -(right / right.sum(dim=1, keepdim=True) * log_shares).sum(dim=1).mean()


def trained_correction(index: TiedResidual, corpus: Corpus) -> tuple[Correction | None, dict[str, Any]]:
    """The correction as far as held-out queries gain by it, None if they do not; and what to say of it."""
    from callslip.training.fusion import judged_queries

    held = judged_held_out(corpus, index.settings.seed)
    if not len(held):
        return None, {"held_out": 0, "strength": 0.0}
    queries, graded = judged_queries(without_judged(corpus, index.settings.seed), len(corpus.judgements["train"]))
    answered = [number for number, grades in enumerate(graded) if grades]
    texts = [queries[number].text for number in answered]
    whole = trained(index, texts, [graded[number] for number in answered])
    return chosen(index, whole, held)


def trained(index: TiedResidual, texts: list[str], graded: list[dict[int, int]]) -> Correction:
    """A correction trained on queries and the grades of their answers by row."""
    import torch

    from callslip.runtime.device import seeded
    from callslip.training import batches
    from callslip.training.loop import train

    vectors, s = index.texts.training(texts), index.settings
    lists = candidate_lists(index, texts, vectors, graded)
    with seeded(s.seed):
        last = torch.nn.Linear(HIDDEN, vectors.shape[1], bias=False)
        torch.nn.init.zeros_(last.weight)
        network = torch.nn.Sequential(torch.nn.Linear(vectors.shape[1], HIDDEN), torch.nn.Tanh(), last)

        def objective(numbers: np.ndarray, progress: float) -> dict[str, Tensor]:
            query = torch.from_numpy(vectors[numbers])
            rows, gains = padded([lists[number] for number in numbers.tolist()])
            codes = index.entries.codes_of(rows.reshape(-1))
            documents = torch.from_numpy(index.maker.decode(codes).reshape(*rows.shape, -1))
            return {"listwise": listwise_loss(query + network(query), documents, torch.from_numpy(gains))}

        train(
            network,
            lambda epoch: batches.shuffled(len(texts), BATCH, s.seed, epoch),
            objective,
            epochs=EPOCHS,
            steps_per_epoch=batches.steps(len(texts), BATCH),
            learning_rate=RATE,
            weight_decay=DECAY,
            phase="training the correction",
            checkpoints=index.checkpoints,
        )
    inner, bias, outer = (part.detach().numpy() for part in network.parameters())
    return Correction(inner.T.copy(), bias.copy(), outer.T.copy())


def candidate_lists(
    index: TiedResidual, texts: list[str], vectors: np.ndarray, graded: list[dict[int, int]]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each query, the rows of its answers and of hard negatives, and their grades."""
    rng, found = np.random.default_rng(index.settings.seed), []
    leaves = index.codes_by_row()
    _, leaf = np.unique(leaves, axis=0, return_inverse=True)
    leaf = leaf.reshape(-1)
    members = np.split(np.argsort(leaf, kind="stable"), np.cumsum(np.bincount(leaf))[:-1])
    for evidence, grades in zip(evidences(index, texts, vectors, CANDIDATES), graded, strict=True):
        scores = evidence.features @ index.weights.values
        first = evidence.rows[np.argsort(-scores, kind="stable")[:CANDIDATES]]
        near = np.concatenate([members[leaf[row]] for row in grades])
        siblings = rng.permutation(near)[:SIBLINGS]
        rows = np.unique(np.concatenate([first, siblings, np.fromiter(grades, np.int64)]))
        found.append((rows, np.array([grades.get(int(row), 0) for row in rows], np.float32)))
    return found


def padded(lists: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Rows and gains of several lists as arrays [B, C]; gains of padding are -1."""
    longest = max(len(rows) for rows, _ in lists)
    rows, gains = np.zeros((len(lists), longest), np.int64), np.full((len(lists), longest), -1, np.float32)
    for number, (some, theirs) in enumerate(lists):
        rows[number, : len(some)], gains[number, : len(some)] = some, theirs
    return rows, gains


def evidences(
    index: TiedResidual, texts: list[str], vectors: np.ndarray, k: int, states: np.ndarray | None = None
) -> Any:
    """The evidence for train queries, each without its own memory; with `states`, codes are read by these."""
    remembered: dict[str, list[int]] = {}
    for number, text in enumerate(index.memory.texts):
        remembered.setdefault(text, []).append(number)
    stems = index.words.tokenize(texts) if index.settings.words else [[]] * len(texts)
    for number, (text, words) in enumerate(zip(texts, stems, strict=True)):
        table = index.tables(vectors[number : number + 1])[0]
        read = table if states is None else index.tables(states[number : number + 1])[0]
        yield index.evidence(read, words, k, leave_out=remembered.get(text), asked=table)


def chosen(index: TiedResidual, whole: Correction, held: HeldOutQueries) -> tuple[Correction | None, dict[str, Any]]:
    """The strength that is best on held-out queries, by more than the standard error of its gain."""
    from callslip.training.held_out import DEPTH

    texts = [query.text for query in held.queries]
    vectors = index.texts.training(texts)
    figures = {}
    for strength in STRENGTHS:
        states = replace(whole, strength=strength)(vectors)
        ranked = [
            one.rows[np.lexsort((one.rows, -one.similarity, -(one.features @ index.weights.values)))[:DEPTH]]
            for one in evidences(index, texts, vectors, DEPTH, states)
        ]
        figures[strength] = held.gains(ranked)
    best = max(figures, key=lambda strength: (figures[strength].mean(), -strength))
    gain = figures[best] - figures[0.0]
    if gain.mean() <= gain.std(ddof=1) / np.sqrt(len(gain)):
        best = 0.0
    record = {f"nDCG@{DEPTH}, strength {strength:g}": round(float(one.mean()), 4) for strength, one in figures.items()}
    return (replace(whole, strength=best) if best else None), {"held_out": len(held), "strength": best} | record
