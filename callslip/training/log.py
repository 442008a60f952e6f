"""What a training reports: one record per epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class TrainingLog:
    """One record per epoch: phase, epoch, mean of every term, learning rate, seconds, and the method's own metrics."""

    records: list[dict[str, Any]] = field(default_factory=list)
    skipped_steps: int = 0

    def add(self, **record: Any) -> None:
        self.records.append(record)

    def add_earlier(self, records: list[dict[str, Any]], skipped: int) -> None:
        """What a resumed phase has had before."""
        self.records += records
        self.skipped_steps += skipped
