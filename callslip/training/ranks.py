"""Data-parallel training: the processes of one training, started by torchrun, each of which is a rank.

Every rank runs the whole fit with the same seed, so all of them have the same weights, batches and codes at every step;
only the work of a step is divided, in one of two ways:

- An objective that is a mean over examples is computed for the rank's slice of the batch (`training.loop`).
- An objective that compares the examples of a batch has their representations encoded in slices, one a rank, and
  gathered (`gradcache.in_chunks`); every rank then computes the loss of the whole batch.

Gradients are averaged over the ranks after either, and an objective that is not divided at all is right, too: the mean
of equal gradients is the gradient. Tensors and hashes are all that ranks exchange; objects would be pickled.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from callslip.errors import BadSetting, CallslipError
from callslip.runtime.device import seeded

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

PATIENCE = timedelta(hours=1)
"""How long a rank waits for the others: while rank 0 saves, or others still compute codes."""


class Ranks:
    """The processes of a training; alone unless `joined` says otherwise."""

    def __init__(self, number: int = 0, count: int = 1, device: torch.device | None = None) -> None:
        self.number, self.count = number, count
        self._device = device
        """Where tensors must be for the backend: the GPU for NCCL, the CPU for Gloo."""
        self._divided = False

    @property
    def first(self) -> bool:
        """Whether this is the rank that saves and prints."""
        return self.number == 0

    def divides(self, examples: int) -> bool:
        """Whether so many examples are shared out: not if a rank would have none, nor inside a rank's own share."""
        return 1 < self.count <= examples and not self._divided

    def slice_of(self, examples: int) -> slice:
        """This rank's share of a batch."""
        return self._slice(examples, self.number)

    def _slice(self, examples: int, number: int) -> slice:
        return slice(examples * number // self.count, examples * (number + 1) // self.count)

    @contextmanager
    def own_share(self) -> Iterator[None]:
        """A block in which this rank computes its own share, with random numbers of its own. If it draws any, the RNG
        that all ranks have in common advances by one draw; if not, a step is that of one process."""
        import torch

        seed = int.from_bytes(hashlib.sha256(_bytes(torch.get_rng_state())).digest()[:6])
        self._divided, before = True, self._divided
        try:
            with seeded(seed + self.number):
                begun = _rng_states()
                yield
                drawn = any(not torch.equal(now, then) for now, then in zip(_rng_states(), begun, strict=True))
        finally:
            self._divided = before
        if drawn:
            torch.rand(())

    # What ranks exchange.

    def gathered(self, own: Tensor, examples: int) -> Tensor:
        """The whole batch, of each rank's share of it. Its gradient is that of the whole batch on every rank, and the
        share is passed its own part, times the number of ranks: gradients of parameters are averaged later."""
        return _gathered(self, own, examples)

    def all_shares(self, own: Tensor, examples: int) -> Tensor:
        """The shares of all ranks, one after the other, without gradients."""
        import torch
        import torch.distributed as dist

        sizes = [cut.stop - cut.start for cut in (self._slice(examples, n) for n in range(self.count))]
        if len(own) != sizes[self.number]:
            raise ValueError(f"{len(own)} representations of {sizes[self.number]} examples")
        padded = own.new_zeros((max(sizes), *own.shape[1:]))
        padded[: len(own)] = own
        whole = [torch.empty_like(padded) for _ in sizes]
        with _peers():
            dist.all_gather(whole, padded)
        return torch.cat([one[:size] for one, size in zip(whole, sizes, strict=True)])

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their means over the ranks, in place."""
        import torch
        import torch.distributed as dist

        kinds = {(tensor.dtype, tensor.device) for tensor in tensors}
        for kind in sorted(kinds, key=str):
            some = [tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind]
            flat = self._moved(torch.cat([tensor.reshape(-1) for tensor in some]))
            with _peers():
                dist.all_reduce(flat)
            flat /= self.count
            start = 0
            for tensor in some:
                tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
                start += tensor.numel()

    def average_terms(self, terms: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The terms of the whole batch."""
        import torch

        if self.count == 1 or not terms:
            return dict(terms)
        values = torch.stack([value.detach().double() for value in terms.values()])
        self.average([values])
        return {name: value.to(old) for (name, old), value in zip(terms.items(), values, strict=True)}

    def average_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Average the gradients. A parameter without one on every rank stays without: the optimiser skips it."""
        import torch

        if self.count == 1:
            return
        there = self._largest(torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32))
        chosen = [parameter for parameter, some in zip(parameters, there.tolist(), strict=True) if some]
        for parameter in chosen:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.average([parameter.grad for parameter in chosen if parameter.grad is not None])

    def any(self, mine: bool) -> bool:
        """Whether something holds on any rank."""
        import torch

        return mine if self.count == 1 else bool(self._largest(torch.tensor([int(mine)], dtype=torch.int32)))

    def wait(self) -> None:
        """Wait for all ranks to come here."""
        self.any(False)

    def agree(self, what: str, *values: Any) -> None:
        """Refuse to go on unless all ranks have the same values: modules, arrays, or anything with a plain `repr`."""
        import torch
        import torch.distributed as dist

        if self.count == 1:
            return
        mine = self._moved(torch.frombuffer(bytearray(_digest(values)), dtype=torch.uint8))
        each = [torch.empty_like(mine) for _ in range(self.count)]
        with _peers():
            dist.all_gather(each, mine)
        others = [number for number, one in enumerate(each) if not torch.equal(one, each[0])]
        if others:
            raise CallslipError(
                f"{what}: process {', '.join(map(str, others))} differs from process 0",
                "All processes need the same job, the same encoder, the same versions and the same kind of processor.",
            )

    def _largest(self, values: Tensor) -> Tensor:
        import torch.distributed as dist

        moved = self._moved(values)
        with _peers():
            dist.all_reduce(moved, op=dist.ReduceOp.MAX)
        return moved

    def _moved(self, tensor: Tensor) -> Tensor:
        return tensor if self._device is None else tensor.to(self._device)


_current = Ranks()


def current() -> Ranks:
    """The ranks of the training that this process takes part in."""
    return _current


def is_first() -> bool:
    """Whether this process is the first that torchrun started, or the only one."""
    return _number("RANK", 0) == 0


@contextmanager
def joined() -> Iterator[Ranks]:
    """Join the other processes that torchrun started, if it did: Gloo on CPUs, NCCL on GPUs."""
    global _current
    number, count = (_number(name, value) for name, value in (("RANK", 0), ("WORLD_SIZE", 1)))
    if count == 1:
        yield _current
        return
    import torch
    import torch.distributed as dist

    device = None
    if torch.cuda.is_available():
        device = torch.device("cuda", _number("LOCAL_RANK", 0))
        torch.cuda.set_device(device)
    try:
        store, *_ = next(dist.rendezvous("env://", timeout=PATIENCE))
        # torchrun keeps its store when it restarts the processes; without a prefix of their own, they would look for
        # the addresses of those that died.
        store = dist.PrefixStore(f"attempt {_number('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        backend = "gloo" if device is None else "nccl"
        dist.init_process_group(backend, store=store, rank=number, world_size=count, timeout=PATIENCE)
    except (ValueError, RuntimeError) as error:
        raise CallslipError(
            f"process {number} of {count} cannot join the others: {str(error).splitlines()[0]}",
            "Start it with torchrun; the machine of process 0 must be reachable from all of them.",
        ) from None
    before, _current = _current, Ranks(number, count, device)
    try:
        yield _current
    finally:
        _current = before
        dist.destroy_process_group()


def _number(name: str, value: int) -> int:
    found = os.environ.get(name, str(value))
    if not found.isdigit():
        raise BadSetting(f"the environment variable {name} is {found!r}", "torchrun sets it to a number.")
    return int(found)


@contextmanager
def _peers() -> Iterator[None]:
    """Say in words that another process is gone: the backend's error names a socket."""
    try:
        yield
    except RuntimeError as error:
        raise CallslipError(
            f"another process of this training ended ({str(error).splitlines()[0][:200]})",
            "Look for its error above, then start the same command again: it resumes at the last checkpoint.",
        ) from None


def _gathered(ranks: Ranks, own: Tensor, examples: int) -> Tensor:
    import torch

    class Gather(torch.autograd.Function):
        """All shares; backwards, the part of the gradient that belongs to this rank's."""

        @staticmethod
        def forward(ctx: Any, share: Tensor) -> Tensor:
            return ranks.all_shares(share, examples)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return gradient[ranks.slice_of(examples)] * ranks.count

    return Gather.apply(own)  # type: ignore[no-untyped-call, no-any-return]


def _rng_states() -> list[Tensor]:
    import torch

    return [torch.get_rng_state()] + ([torch.cuda.get_rng_state()] if torch.cuda.is_available() else [])


def _digest(values: Sequence[Any]) -> bytes:
    whole = hashlib.sha256()
    for value in values:
        if hasattr(value, "state_dict"):
            for name, tensor in value.state_dict().items():
                whole.update(name.encode())
                whole.update(_bytes(tensor.detach().cpu().contiguous()))
        elif isinstance(value, np.ndarray):
            whole.update(f"{value.dtype} {value.shape}".encode())
            whole.update(np.ascontiguousarray(value).tobytes())
        else:
            whole.update(repr(value).encode())
    return whole.digest()


def _bytes(tensor: Tensor) -> bytes:
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
