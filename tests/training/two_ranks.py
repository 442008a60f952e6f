"""Scenarios of a training on two Gloo processes, for `test_ranks`: python two_ranks.py FOLDER.

Torch is imported once; each scenario forks its processes from there, before any thread is started. What a process found
is written to FOLDER as JSON.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from callslip import api
from callslip.errors import CallslipError
from callslip.training import batches, ranks
from callslip.training.checkpoints import Checkpoints
from callslip.training.gradcache import in_chunks
from callslip.training.loop import train

KINDS = ("mean", "mean in micro-batches", "in-batch", "in-batch in chunks", "not divided")
WHO = {"method": "toy", "settings": {}, "corpus": {"name": "c", "documents": 3, "sha256": "x"}}
EXAMPLES, BATCH = 45, 10


def network(dropout: float) -> nn.Module:
    torch.manual_seed(3)
    parts = {"in": nn.Linear(6, 16), "drop": nn.Dropout(dropout), "out": nn.Linear(16, 8), "unused": nn.Linear(2, 2)}
    return nn.ModuleDict(parts)


def toy(
    kind: str, dropout: float = 0.0, checkpoints: Checkpoints | None = None, on_step: Callable[[int], Any] = id
) -> dict[str, Any]:
    """Train a small network on batches of 10 of 45 examples, of which the last is short and odd."""
    model, x, y = network(dropout), *torch.randn(2, EXAMPLES, 6, generator=torch.Generator().manual_seed(1))
    size = 2 if "micro" in kind or "chunks" in kind else None
    steps, encoded = [], []
    if checkpoints is not None:
        checkpoints.claim(**WHO)

    def encode(some: torch.Tensor) -> torch.Tensor:
        encoded.append(len(some))
        return model["out"](model["drop"](torch.tanh(model["in"](some))))

    def objective(rows: np.ndarray, progress: float) -> dict[str, torch.Tensor]:
        steps.append(1)
        on_step(len(steps))
        if kind.startswith("mean"):
            return {"error": (encode(x[rows]) - torch.tanh(y[rows]).sum(1, keepdim=True)).square().mean()}
        noise = 0.1 * torch.randn(6)  # of the RNG that ranks have in common
        if kind == "not divided":
            q, d = encode(x[rows] + noise), encode(y[rows] + noise)
        else:
            q, d = (in_chunks(encode, some[rows] + noise, size) for some in (x, y))
        # AdamW does not see the scale of a gradient; that of two parts of it, one gathered and one not, it does.
        size_of = model["out"].weight.square().sum()
        return {"contrast": functional.cross_entropy(q @ d.T, torch.arange(len(q))), "size": 0.05 * size_of}

    log = train(
        model,
        lambda epoch: batches.shuffled(EXAMPLES, BATCH, 0, epoch),
        objective,
        epochs=4,
        steps_per_epoch=5,
        learning_rate=1e-2,
        micro_batch=size if kind.startswith("mean") else None,
        by_example=kind.startswith("mean"),
        checkpoints=checkpoints,
    )
    return {
        "losses": [record.get("error", record.get("contrast")) for record in log.records],
        "weights": torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist(),
        "hash": hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest(),
        "encoded": sum(encoded),
        "next draw": float(torch.rand(())),
    }


def every_kind(folder: Path) -> dict[str, Any]:
    return {kind: toy(kind) for kind in KINDS} | {"with dropout": toy("in-batch", 0.3)}


def refusals(folder: Path) -> dict[str, Any]:
    """What happens to values that differ, to random draws, and to a step that is not finite on one rank."""
    world, found = ranks.current(), {}
    torch.manual_seed(0)
    with world.own_share():
        found["own draw"] = float(torch.rand(()))
    found["common draw"] = float(torch.rand(()))
    world.agree("the same", np.arange(3), "text")
    try:
        world.agree("codes", np.arange(3) + world.number)
    except CallslipError as error:
        found["differ"] = str(error)
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(0.0)
    x = torch.tensor([[1.0, 2.0], [torch.nan, 0.0], [3.0, 4.0]])
    order = [np.array([0, 1]), np.array([0, 2])]  # the second example of the first batch is that of rank 1
    log = train(
        model,
        lambda epoch: order,
        lambda rows, progress: {"error": model(x[rows]).square().mean()},
        epochs=1,
        steps_per_epoch=2,
        learning_rate=1e-2,
        by_example=True,
    )
    return found | {"skipped": log.skipped_steps, "any": world.any(world.number == 1)}


def whole(folder: Path) -> dict[str, Any]:
    return toy("in-batch", 0.3, Checkpoints(folder / "whole", every=0.0))


def killed(folder: Path) -> dict[str, Any]:
    """Rank 1 dies in the ninth step."""

    def on_step(step: int) -> None:
        if step == 9 and ranks.current().number == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        toy("in-batch", 0.3, Checkpoints(folder / "killed", every=0.0, resume=True), on_step)
    except CallslipError as error:
        return {"error": str(error), "saved": len(list((folder / "killed").glob("phase-*")))}
    return {}


def resumed(folder: Path) -> dict[str, Any]:
    return toy("in-batch", 0.3, Checkpoints(folder / "killed", every=0.0, resume=True))


def stopped(folder: Path) -> dict[str, Any]:
    """Rank 1 is asked to stop in its third step: both save and stop after it."""
    checkpoints = Checkpoints(folder / "stopped", every=1e6, resume=True)

    def on_step(step: int) -> None:
        if step == 3 and ranks.current().number == 1:
            checkpoints.stop.signal = signal.SIGTERM

    try:
        toy("mean", 0.0, checkpoints, on_step)
    except CallslipError as error:
        return {"error": str(error)}
    return {}


def job(folder: Path) -> dict[str, Any]:
    said: list[str] = []
    made = api.train(folder / "job", tell=said.append)
    return {"trained": made, "said": said}


SCENARIOS = {
    "every kind": every_kind, "refusals": refusals, "whole": whole, "killed": killed, "resumed": resumed,
    "stopped": stopped, "job": job,
}  # fmt: skip


def run(name: str, number: int, count: int, port: int, folder: Path) -> None:
    """One rank of a scenario."""
    os.environ |= {"RANK": str(number), "WORLD_SIZE": str(count), "LOCAL_RANK": str(number)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    if name == "job":  # joins by itself
        found = job(folder)
    else:
        with ranks.joined():
            found = SCENARIOS[name](folder)
    (folder / f"{name} {number}.json").write_text(json.dumps(found))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def hold_store(port: int) -> int:
    """A process that holds a store, as torchrun's agent does for the processes that it starts and restarts."""
    child = os.fork()
    if child == 0:
        store = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        signal.pause()
        del store
    return child


def fork(name: str, folder: Path, count: int = 2, port: int | None = None) -> list[int]:
    """Run a scenario in forked processes; returns their exit codes."""
    port, children = port or free_port(), []
    for number in range(count):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run(name, number, count, port, folder)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def import_all() -> None:
    """Import, once for all processes, what a first step or a fit imports when it is needed."""
    for name in (
        "sklearn.cluster",
        "torch._dynamo",
        "torch.distributed",
        "callslip.jobs.train",
        "callslip.methods.dsi",
    ):
        importlib.import_module(name)


if __name__ == "__main__":
    where = Path(sys.argv[1])
    import_all()
    alone = [name for name in SCENARIOS if name not in ("killed", "resumed")]
    codes = {name: fork(name, where) for name in alone}
    kept = free_port()
    holder = hold_store(kept)
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    for attempt, name in enumerate(("killed", "resumed")):
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
        codes[name] = fork(name, where, port=kept)
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    (where / "exits.json").write_text(json.dumps(codes))
