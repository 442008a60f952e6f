"""Training in less memory: activation checkpointing, and lower precision on GPUs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
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


def autocast(device: torch.device, wanted: bool) -> AbstractContextManager[Any]:
    """bfloat16 on a GPU that has it. Never on a CPU, where it is several times slower than float32."""
    if wanted and device.type == "cuda" and torch.cuda.is_bf16_supported():
        return torch.autocast("cuda", torch.bfloat16)
    return nullcontext()
