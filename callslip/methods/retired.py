"""Settings of earlier versions, which saved folders may still name."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from callslip.methods import find
from callslip.settings import describe

RETIRED: dict[str, Any] = {
    # Now constants. A saved model keeps the values that it was trained with: they are in its model.json.
    "memory_slots": 2,
    "indexer_hidden": 256,
    "indexer_dropout": 0.2,
    "sinkhorn_epsilon": 0.003,
    "sinkhorn_iterations": 100,
    "criteria_start": 0.01,
    "generation_weight": 1.0,
    "quantisation_weight": 1.0,
    "code_noise": 0.1,
    "neighbourhood": 256,
    # Of methods in which they never acted.
    "queries": "auto",
    "items": "both",
    "history_length": 20,
    "history_width": 96,
    "history_layers": 2,
    "history_heads": 2,
    "history_dropout": 0.3,
    "history_memory": "vector",
    "history_weight": 1.0,
    "ranker_negatives": 1024,
    "ranker_weight": 1.0,
    "item_decay": 0.01,
    "codes_from": None,
    "train_encoder": "none",
    "encoder_learning_rate": 2e-5,
    "seq2seq": None,
    "seq2seq_codes": "tokens",
    "seq2seq_length": 64,
}
"""Retired names, and the values that had no effect or are constants today."""


def without_retired(method: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest's settings without those that the method no longer has. A warning names values that had an effect."""
    known = {field.name for field in describe(find(method).load().Settings)}
    gone = {name: value for name, value in values.items() if name not in known and name in RETIRED}
    changed = [f"{name}={value}" for name, value in gone.items() if value != RETIRED[name] and name != "seq2seq_codes"]
    if changed:
        warnings.warn(
            f"this index was fitted with {', '.join(changed)}: retired settings, which a new fit will not have",
            stacklevel=3,
        )
    return {name: value for name, value in values.items() if name not in gone}
