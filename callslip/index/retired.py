"""Settings of earlier versions, which saved folders may still name."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any, TypeVar

from callslip.settings import make

S = TypeVar("S")

CONSTANTS: dict[str, Any] = {
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
    "density_weight": 1.0,
    "gamma": 0.05,
    "embeddings": "encoded",
    "train_words": False,
    "strengths": True,
    "collision": "weights",
    "distance_weight": 0.5,
}
"""Settings that are constants today. A saved model keeps the values it was trained with: they are in its model.json."""
RETIRED: dict[str, Any] = CONSTANTS | {
    # Settings of methods in which they never acted.
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
"""Names that manifests of earlier versions may hold, and their former defaults."""
OTHER_DEFAULTS: dict[str, Any] = {"sinkhorn_epsilon": 1.0}
"""Former defaults of another method."""


def _default(name: str, value: Any) -> bool:
    return value == RETIRED[name] or (name in OTHER_DEFAULTS and value == OTHER_DEFAULTS[name])


FORMER: dict[str, Any] = {"query_prompt": "", "document_prompt": ""}
"""Settings of every encoder that earlier versions did not have, as they acted then; methods have `former_defaults`."""


def with_former_defaults(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Saved settings, completed by those that are younger than the index and whose default would change its order."""
    known = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    former = FORMER | getattr(cls, "former_defaults", {})
    return {name: value for name, value in former.items() if name in known} | dict(values)


def saved_settings(cls: type[S], values: Mapping[str, Any]) -> S:
    """Settings that this or an earlier version saved, without those that the method no longer has.

    A warning names retired settings whose values had an effect.
    """
    values = with_former_defaults(cls, values)
    known = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    gone = {name: value for name, value in values.items() if name not in known and name in RETIRED}
    changed = [f"{name}={value}" for name, value in gone.items() if name in CONSTANTS and not _default(name, value)]
    if changed:
        warnings.warn(
            f"this index was fitted with {', '.join(changed)}: retired settings, which a new fit will not have",
            stacklevel=3,
        )
    return make(cls, {name: value for name, value in values.items() if name not in gone})
