"""The files of a trained model: weights, the shape that they fit, and the training log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callslip.errors import IndexCorrupt

if TYPE_CHECKING:
    from torch import nn

    from callslip.training.log import TrainingLog

WEIGHTS, SHAPE, TRAINING = "model.safetensors", "model.json", "training.jsonl"


def save_model(folder: Path, model: nn.Module, shape: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    save_file({name: value.contiguous().cpu() for name, value in model.state_dict().items()}, folder / WEIGHTS)
    (folder / SHAPE).write_text(json.dumps(shape, indent=2) + "\n", encoding="utf-8")


def read_shape(folder: Path) -> dict[str, Any]:
    return json.loads((folder / SHAPE).read_text(encoding="utf-8"))


def load_weights(folder: Path, model: nn.Module) -> None:
    from safetensors.torch import load_file

    model.load_state_dict(load_file(folder / WEIGHTS))


def save_parts(folder: Path, model: nn.Module, without: str) -> None:
    """Save the weights of a model, except for those of the part whose names have the prefix `without`."""
    from safetensors.torch import save_file

    parts = {name: value for name, value in model.state_dict().items() if not name.startswith(without)}
    save_file({name: value.contiguous().cpu() for name, value in parts.items()}, folder / WEIGHTS)


def load_parts(folder: Path, model: nn.Module, without: str) -> None:
    """Load what `save_parts` saved."""
    from safetensors.torch import load_file

    held = load_file(folder / WEIGHTS)
    missing = {name for name in model.state_dict() if not name.startswith(without)} ^ set(held)
    if missing:
        raise IndexCorrupt(folder / WEIGHTS, f"{min(missing)} is missing or unknown")
    model.load_state_dict(held, strict=False)


def save_log(folder: Path, log: TrainingLog | None) -> None:
    if log is not None:
        lines = "".join(f"{json.dumps(record)}\n" for record in log.records)
        (folder / TRAINING).write_text(lines, encoding="utf-8")


def load_log(folder: Path) -> TrainingLog | None:
    from callslip.training.log import TrainingLog

    if not (folder / TRAINING).exists():
        return None
    return TrainingLog([json.loads(line) for line in (folder / TRAINING).read_bytes().splitlines()])
