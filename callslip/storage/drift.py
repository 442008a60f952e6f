"""Drift: how far an index has moved from its model's training data, and whether to fit again.

A document counts as new if it was added after the fit, regardless of snapshots since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from callslip.identifiers.vector_table import BY_CODE, VECTORS, VectorTable
from callslip.storage.home import Home

SAMPLE = 1000
"""Sample size for nearest neighbours: enough to estimate a share within a few hundredths."""
UNLIKE = 5.0
"""Percentage of trained documents that count as unlike the others: those with the farthest nearest neighbours."""

# Thresholds above which to fit again. They are rules of thumb: evaluate with your own queries.
NEW_SHARE, UNLIKE_SHARE, OUTSIDE_SHARE, BUCKET_GROWTH = 0.3, 0.2, 0.1, 3.0


@dataclass(frozen=True)
class Drift:
    """Statistics of the documents added after training; None if the method has no codes or no vectors."""

    documents: int
    new: int
    """Documents added after the fit and not deleted."""
    unlike: float | None
    """Share of new documents farther from their nearest trained document than 95 % of the trained are from theirs."""
    outside: float | None
    """Share of new documents whose code no trained document has: the model never learned to write it."""
    bucket_trained: float | None
    """Mean bucket size over documents, at training."""
    bucket_now: float | None
    """Mean bucket size over documents, now."""

    @property
    def new_share(self) -> float:
        return self.new / self.documents if self.documents else 0.0

    @property
    def reasons(self) -> list[str]:
        """Reasons to fit again; empty if there are none."""
        found = []
        if self.new_share > NEW_SHARE:
            found.append(f"{self.new_share:.0%} of the documents came after training")
        if self.unlike is not None and self.new_share > 0.02 and self.unlike > UNLIKE_SHARE:
            found.append(f"{self.unlike:.0%} of the new documents are unlike those trained on")
        if self.outside is not None and self.outside * self.new_share > OUTSIDE_SHARE:
            found.append(f"{self.outside:.0%} of the new documents have codes that the model never learned to write")
        if self.bucket_trained and self.bucket_now and self.bucket_now > BUCKET_GROWTH * self.bucket_trained:
            found.append(f"buckets have grown from {self.bucket_trained:.1f} to {self.bucket_now:.1f} documents")
        return found

    def lines(self) -> list[str]:
        """The statistics and the verdict, as lines of text."""
        said = [f"{self.new:,} of {self.documents:,} documents came after training ({self.new_share:.1%})"]
        if self.new and self.unlike is not None:
            said.append(f"{self.unlike:.1%} of the new ones are unlike any trained on (5 % would be no drift)")
        if self.new and self.outside is not None:
            said.append(f"{self.outside:.1%} of the new ones have a code that no trained document has")
        if self.bucket_trained is not None:
            said.append(
                f"a document's bucket holds {self.bucket_trained:.2f} on average as trained, {self.bucket_now:.2f} now"
            )
        return [*said, self.advice]

    @property
    def advice(self) -> str:
        """Whether to fit again. Few documents that the model does not know are no reason to, but are not nothing."""
        if self.reasons:
            return "fit again: " + "; ".join(self.reasons)
        strange = (self.unlike or 0.0) > UNLIKE_SHARE or (self.outside or 0.0) > UNLIKE_SHARE
        if self.new and strange:
            return "the model does not know documents like the new ones; fit again when there are more of them"
        return "no need to fit again"


def novelty(rows: Iterable[tuple[str, tuple[int, ...] | None, bool, bool]]) -> dict[str, str]:
    """doc_id -> `existing`, `new content` or `new semantic`, for rows (doc_id, code, trained on, alive)."""
    all_rows = [row for row in rows if row[1] is not None]
    learned = {code for _, code, trained, _ in all_rows if trained}
    return {
        doc_id: "existing" if trained else "new content" if code in learned else "new semantic"
        for doc_id, code, trained, alive in all_rows
        if alive
    }


def measure(home: Home) -> Drift:
    """Measure drift from the store and the snapshot's vectors, without loading the model."""
    trained: dict[int, tuple[int, ...] | None] = {}
    new: dict[int, tuple[int, ...] | None] = {}
    fresh: dict[int, np.ndarray] = {}
    was_trained: Counter[tuple[int, ...]] = Counter()
    for row in home.store.rows():
        if row.added == 1 and row.code is not None:
            was_trained[row.code] += 1
        if row.deleted is not None:
            continue
        (trained if row.added == 1 else new)[row.seq] = row.code
        for name, value in row.parts.items():
            if name.rpartition(".")[2] == "vectors":
                fresh.setdefault(row.seq, value)
    now = Counter(code for code in (*trained.values(), *new.values()) if code is not None)
    outside = [code not in was_trained for code in new.values() if code is not None]
    # Where no model writes the codes, a new code is found like any other, and buckets are branches of a tree.
    if not home.manifest.get("writes_codes", True):
        return Drift(len(trained) + len(new), len(new), None, None, None, None)
    return Drift(
        documents=len(trained) + len(new),
        new=len(new),
        unlike=_unlike(home, list(trained), list(new), fresh),
        outside=float(np.mean(outside)) if outside else (0.0 if now else None),
        bucket_trained=_mean_bucket(was_trained),
        bucket_now=_mean_bucket(now),
    )


def _mean_bucket(buckets: Counter[tuple[int, ...]]) -> float | None:
    total = sum(buckets.values())
    return sum(count * count for count in buckets.values()) / total if total else None


def _unlike(home: Home, trained: list[int], new: list[int], fresh: Mapping[int, np.ndarray]) -> float | None:
    places = sorted(path.parent for name in (BY_CODE, VECTORS) for path in home.snapshot.rglob(name))
    if not places:
        return None
    if not new or len(trained) < 2:
        return 0.0
    vectors = VectorTable.load(places[0])
    row_of = {seq: row for row, seq in enumerate(home.sequence)}
    known = np.array([row_of[seq] for seq in trained if seq in row_of])
    rng = np.random.default_rng(0)
    base = vectors[np.sort(rng.permutation(known)[: 50 * SAMPLE])]
    some = rng.permutation(len(base))[:SAMPLE]
    among = base[some] @ base.T
    among[np.arange(len(some)), some] = -np.inf
    limit = np.percentile(among.max(axis=1), UNLIKE)
    chosen = rng.permutation(new)[:SAMPLE].tolist()
    looked = np.stack([fresh[seq] if seq in fresh else vectors[row_of[seq]] for seq in chosen])
    return float(np.mean((looked.astype(np.float32) @ base.T).max(axis=1) < limit))
