"""Activation checkpointing: training in less memory."""

from __future__ import annotations

from typing import Any

from torch import nn

from callslip.errors import Unsupported


def recompute_activations(model: nn.Module) -> None:
    """Let every transformers model inside keep only its layers' inputs, and compute the rest again when needed."""
    from transformers import PreTrainedModel

    found: list[Any] = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    if not any(part.supports_gradient_checkpointing for part in found):
        raise Unsupported(
            "save_memory=activations: the model has no layers that transformers could compute again",
            "Use save_memory=micro_batch=32 instead.",
        )
    for part in found:
        if part.supports_gradient_checkpointing:
            part.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
