"""Settings of earlier versions, which saved folders and recipes may still name."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any, TypeVar

from callslip.errors import BadSetting, CallslipError, UnknownName
from callslip.settings import joined_spec, make

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


SPELLINGS: dict[str, tuple[str, str]] = {
    "max_length": ("encoder", "encoder=NAME:max_length=128"),
    "vector_size": ("encoder", "encoder=NAME:dim=256"),
    "query_prompt": ("encoder", "encoder=NAME:query_prompt=TEXT"),
    "document_prompt": ("encoder", "encoder=NAME:document_prompt=TEXT"),
    "pseudo_queries": ("training_texts", "training_texts=document,title,sentences"),
    "train_on_documents": ("training_texts", "training_texts, with or without `document`"),
    "train_on_queries": ("query_repeat", "query_repeat=0 to train on no judged queries"),
    "doc2query_per_document": ("doc2query", "doc2query=CHECKPOINT:count=10"),
    "doc2query_sampling": ("doc2query", "doc2query=CHECKPOINT:sampling=nucleus"),
    "micro_batch": ("save_memory", "save_memory=micro_batch=32"),
    "density": ("criteria", "criteria=density-as-printed,bottleneck,information"),
}
"""Settings that have become part of another one: that one, and how they are written today."""
PROMPTLESS = ("minilm", "scratch", "given")
"""Encoders without prompts of their own."""


def spelling_error(cls: type, error: UnknownName) -> CallslipError:
    """The error of an unknown setting; if an earlier version had it, one that says how it is written today."""
    setting, spelling = SPELLINGS.get(error.name, ("", ""))
    if setting not in _defaults(cls):
        return error
    return BadSetting(f"the setting {error.name!r} is now part of {setting!r}", f"Write {spelling}.")


def _defaults(cls: type) -> dict[str, Any]:
    return {one.name: one.default for one in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}


def translated(
    cls: type, values: Mapping[str, Any], base: Mapping[str, Any] | None = None, *, saved: bool = False
) -> dict[str, Any]:
    """Settings of any version under the names of this one.

    `base` are the values that these change: the method's own, and a preset's. A manifest (`saved`) names all settings
    of its version, so that one without prompts is of a version that had none.
    """
    defaults = _defaults(cls)
    mine = {name for name, (setting, _) in SPELLINGS.items() if setting in defaults and name not in defaults}
    old = {name: value for name, value in values.items() if name in mine}
    new = {name: value for name, value in values.items() if name not in mine}
    start = defaults | dict(base or {}) | new
    if saved and "max_length" in old:
        old = {"query_prompt": "", "document_prompt": ""} | old
    if old.keys() & {"max_length", "vector_size", "query_prompt", "document_prompt"}:
        new["encoder"] = _encoder(start["encoder"], old)
    if old.keys() & {"pseudo_queries", "train_on_documents"}:
        new["training_texts"] = _training_texts(start["training_texts"], old)
    if _false(old.get("train_on_queries")):
        new["query_repeat"] = 0
    if start.get("doc2query") is not None and old.keys() & {"doc2query_per_document", "doc2query_sampling"}:
        options = {"count": old.get("doc2query_per_document"), "sampling": old.get("doc2query_sampling")}
        usual = {"count": 5, "sampling": "top-k"}
        changed = {key: value for key, value in options.items() if value != usual[key]}
        new["doc2query"] = joined_spec(start["doc2query"], changed)
    if old.get("micro_batch") is not None:
        new["save_memory"] = (*_listed(start["save_memory"]), f"micro_batch={old['micro_batch']}")
    if old.get("density") == "printed":
        used = _listed(start["criteria"])
        new["criteria"] = tuple("density-as-printed" if one == "density" else one for one in used)
    return new


def _encoder(spec: str, old: Mapping[str, Any]) -> str:
    base = spec.partition(":")[0]
    if base == "given":
        return spec
    prompts = {name: old.get(name) for name in ("query_prompt", "document_prompt")}
    if base in PROMPTLESS:
        prompts = {name: text or None for name, text in prompts.items()}
    dim = None if base == "scratch" else old.get("vector_size")  # of scratch, vectors never had another size
    return joined_spec(spec, {"max_length": old.get("max_length"), "dim": dim} | prompts)


def _training_texts(usual: Any, old: Mapping[str, Any]) -> tuple[str, ...]:
    usual = _listed(usual)
    parts = _listed(old.get("pseudo_queries", [kind for kind in usual if kind != "document"]))
    whole = not _false(old["train_on_documents"]) if "train_on_documents" in old else "document" in usual
    return (*(["document"] if whole else []), *parts)


def _listed(value: Any) -> list[str]:
    return [one.strip() for one in value.split(",") if one.strip()] if isinstance(value, str) else list(value)


def _false(value: Any) -> bool:
    return str(value).lower() in ("false", "no", "0")


def saved_settings(cls: type[S], values: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> S:
    """Settings that this or an earlier version saved, without those that the method no longer has.

    A warning names retired settings whose values had an effect.
    """
    values = translated(cls, dict(getattr(cls, "former_defaults", {})) | dict(values), base, saved=True)
    known = _defaults(cls).keys()
    gone = {name: value for name, value in values.items() if name not in known and name in RETIRED}
    changed = [f"{name}={value}" for name, value in gone.items() if name in CONSTANTS and not _default(name, value)]
    if changed:
        warnings.warn(
            f"this index was fitted with {', '.join(changed)}: retired settings, which a new fit will not have",
            stacklevel=3,
        )
    return make(cls, {name: value for name, value in values.items() if name not in gone})
