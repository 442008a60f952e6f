"""GradCache (Gao et al., 2021): the gradient of one big batch, in the memory of a small one.

A loss with in-batch negatives needs the representations of all texts of a batch at once, but not all of their
activations. The batch is encoded in chunks, without a graph; the loss is computed on these representations; in the
backward pass each chunk is encoded again, with a graph, and passed the gradient of its representations. The RNG state
of each chunk is saved and restored, so that dropout and noise are the same both times.

    states = in_chunks(model.memory, tokens, 32)      instead of model.memory(tokens)

The representations can be used like any other tensors: `backward` does the rest. In a training of several processes
each encodes a share of the batch, in chunks, and the representations are gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from callslip.training import ranks

Encode = Callable[..., Any]
"""Inputs of a chunk -> its representations: a tensor [b, …], or a tuple of them."""


def in_chunks(encode: Encode, inputs: Any, size: int | None) -> Any:
    """`encode(inputs)`, or `encode(*inputs)` for a tuple of inputs, in chunks of at most `size` examples.

    Inputs have a length and can be sliced (tensors, `Tokens`). `encode` must use no RNG but torch's, and change no
    state. Its parameters receive their gradients directly: call `backward`, not `torch.autograd.grad`.
    """
    parts = inputs if isinstance(inputs, tuple) else (inputs,)
    if not torch.is_grad_enabled():
        return encode(*parts)
    count, world = len(parts[0]), ranks.current()
    if any(len(part) != count for part in parts):
        raise ValueError(f"inputs of different lengths: {[len(part) for part in parts]}")
    if world.divides(count):
        own = tuple(part[world.slice_of(count)] for part in parts)
        with world.own_share():
            found = in_chunks(encode, own, size)
        if isinstance(found, Tensor):
            return world.gathered(found, count)
        if isinstance(found, tuple):
            return tuple(world.gathered(one, count) for one in found)
        # States of an encoder, padded to the longest text of a share: every rank encodes the whole batch.
    if size is None or count <= size:
        return encode(*parts)
    chunks = [tuple(part[start : start + size] for part in parts) for start in range(0, count, size)]
    # A tensor that requires a gradient makes autograd call `backward`, although no input does.
    found = _Chunks.apply(torch.zeros((), requires_grad=True), encode, chunks)
    return found if len(found) > 1 else found[0]


class _Chunks(torch.autograd.Function):
    """Encodes without a graph; encodes again, with one, when gradients arrive."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, encode: Encode, chunks: list[tuple[Any, ...]]) -> tuple[Tensor, ...]:
        ctx.encode, ctx.chunks, ctx.states, ctx.autocast = encode, chunks, [], _autocast_now()
        outputs: list[tuple[Tensor, ...]] = []
        for chunk in chunks:
            ctx.states.append(_rng_states())
            outputs.append(_tuple(encode(*chunk)))
        ctx.sizes = [len(one[0]) for one in outputs]
        return tuple(torch.cat(parts) for parts in zip(*outputs, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        cut = list(zip(*(gradient.split(ctx.sizes) for gradient in gradients), strict=True))
        with _rng_restored():
            for chunk, states, some in zip(ctx.chunks, ctx.states, cut, strict=True):
                _set_rng_states(states)
                with torch.enable_grad(), torch.autocast(**ctx.autocast):
                    outputs = _tuple(ctx.encode(*chunk))
                pairs = [(one, gradient) for one, gradient in zip(outputs, some, strict=True) if one.requires_grad]
                if pairs:  # none if nothing that encodes is trained
                    torch.autograd.backward([one for one, _ in pairs], [gradient for _, gradient in pairs])
        return None, None, None


def _tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _autocast_now() -> dict[str, Any]:
    """Arguments of `torch.autocast` that restore its present state on the device in use."""
    device = "cuda" if torch.is_autocast_enabled("cuda") else "cpu"
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return {"device_type": device, "enabled": enabled, "dtype": dtype}


def _rng_states() -> tuple[Tensor, list[Tensor]]:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


def _set_rng_states(states: tuple[Tensor, list[Tensor]]) -> None:
    torch.set_rng_state(states[0])
    if states[1]:
        torch.cuda.set_rng_state_all(states[1])


@contextmanager
def _rng_restored() -> Iterator[None]:
    """Restore the RNG afterwards: the backward pass must not change what the next step draws."""
    before = _rng_states()
    try:
        yield
    finally:
        _set_rng_states(before)
