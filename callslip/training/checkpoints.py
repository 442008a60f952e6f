"""Checkpoints: a fit that was killed resumes where it stopped, and ends with bit-identical weights. No pickle.

A checkpoint folder belongs to one fit: a method, its settings, a corpus, and the versions of torch and callslip. Each
checkpoint is a subfolder that is synced before it is renamed to its final name, so that an interrupted one is ignored:

    run.json                        the fit that the checkpoints belong to
    phase-NAME-000120/              after step 120 of the phase; the last two are kept, or the last of a finished phase
        weights.safetensors  optimizer.safetensors  chance.safetensors  position.json
    kept-NAME/                      arrays stored by `remember`

A fit is a sequence of phases and intermediate results. A resumed fit runs the same sequence: finished phases restore
their weights, their part of the log, and the RNG state at their end. Of several processes of a training, the first one
writes and all of them read.
"""

from __future__ import annotations

import hashlib
import json
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from callslip.errors import CallslipError, TrainingStopped
from callslip.runtime import durable
from callslip.runtime.process import outside_imports, versions
from callslip.training import ranks

if TYPE_CHECKING:
    from types import FrameType

RUN, POSITION, PART = "run.json", "position.json", "part-"
SAVES_KEPT = 2


class Stop:
    """A request to stop training, shared by all phases and parts of a fit."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.waiting = False
        """Whether a phase is running, which will check for the request at its next step."""

    def request(self, number: int, frame: FrameType | None = None) -> None:
        """Signal handler: a phase saves before it stops; between phases, or at the second signal, stop immediately."""
        again, self.signal = self.signal is not None, number
        if again or not self.waiting:
            raise KeyboardInterrupt

    @contextmanager
    def on_signals(self, remedy: str) -> Iterator[None]:
        """Let SIGTERM and Ctrl-C stop the fit, which then raises `TrainingStopped` with the remedy."""
        handler = outside_imports(self.request)
        before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        except TrainingStopped as stopped:
            raise TrainingStopped(stopped.problem, remedy, signal=stopped.signal) from None
        except KeyboardInterrupt:
            number = self.signal or signal.SIGINT
            raise TrainingStopped("the fit was stopped between two checkpoints", remedy, signal=number) from None
        finally:
            for number, earlier in before.items():
                signal.signal(number, earlier)


class Checkpoints:
    """The folder where a fit saves its state, and from which `resume` restores it."""

    def __init__(
        self, folder: str | Path, *, every: float = 60.0, resume: bool = False, again: str | None = None
    ) -> None:
        """`every`: seconds between checkpoints within a phase; the end of a phase is always saved. `again`: a phase
        ("level 2") that a resumed fit repeats, with all later phases; their settings may change."""
        self.folder, self.every, self.resume, self.again = Path(folder), every, resume or again is not None, again
        self.stop = Stop()
        self._afresh = False
        self._phases: set[str] = set()
        self._claimed = False
        self._began, self._before = time.perf_counter(), 0.0

    def spent(self) -> float:
        """Duration of the fit in seconds, including that of earlier runs up to the checkpoint it resumed from."""
        return self._before + time.perf_counter() - self._began

    # Ownership of the folder.

    def exist(self) -> bool:
        """Whether there is an earlier fit to resume or to overwrite."""
        return (self.folder / RUN).is_file()

    def nothing_saved(self) -> bool:
        """Whether the folder has no checkpoints yet, only `run.json`, its own and those of its parts."""
        return self.folder.is_dir() and all(path.name == RUN for path in self.folder.rglob("*") if path.is_file())

    def claim(self, method: str, settings: Mapping[str, Any], corpus: Mapping[str, Any]) -> None:
        """Begin a fit: resume the fit in the folder if it is the same one, or clear the folder for a new one."""
        world = ranks.current()
        ours: dict[str, Any] = {"method": method, "settings": dict(settings), "corpus": dict(corpus)}
        ours |= {"versions": _versions(), "processes": world.count}
        ours = json.loads(json.dumps(ours))  # as JSON reads it back, with lists for tuples
        self._phases, self._claimed, self._afresh = set(), True, False
        self._began, self._before = time.perf_counter(), 0.0
        if self.resume and self.exist():
            self._check_same(ours)
            self._check_again()
        if world.first:
            self._take(ours)
        world.wait()

    def _take(self, ours: dict[str, Any]) -> None:
        """Make the folder ours."""
        if self.resume and self.exist():
            durable.remove_drafts(self.folder)
            if self.again is not None:
                durable.replace(self.folder / RUN, _json(ours))
            return
        found = self.folder.iterdir() if self.folder.exists() and not self.exist() else ()
        if not all(map(_is_draft_of_run, found)):
            raise CallslipError(f"{self.folder} contains other files", "Choose another folder for checkpoints.")
        try:
            self.remove()
            self.folder.mkdir(parents=True, exist_ok=True)
            durable.remove_drafts(self.folder)
            durable.replace(self.folder / RUN, _json(ours))
        except OSError as error:
            remedy = "Choose another place, or do without checkpoints: --no-checkpoints."
            raise durable.not_written(self.folder, error, remedy) from None

    def remove(self) -> None:
        """Delete the checkpoints after the index has been saved. `run.json` is deleted last, so an interrupted deletion
        is still recognised."""
        if not self.exist():
            return
        for path in self.folder.iterdir():
            if path.name.startswith(PART):
                Checkpoints(path).remove()
            elif path.name != RUN:
                durable.system.remove(path)
        durable.system.remove(self.folder / RUN)
        durable.system.remove(self.folder)

    def part(self, name: str) -> Checkpoints:
        """The checkpoints of one part of a method that consists of several."""
        inner = Checkpoints(self.folder / f"{PART}{_slug(name)}", every=self.every, resume=self.resume)
        inner.stop = self.stop
        return inner

    def _check_same(self, ours: dict[str, Any]) -> None:
        path = self.folder / RUN
        try:
            theirs = {"processes": 1} | json.loads(path.read_bytes())
            free = set() if self.again is None else {"settings"}
            differ = [
                _difference(key, theirs[key], ours[key]) for key in ours.keys() - free if theirs[key] != ours[key]
            ]
        except (ValueError, KeyError, TypeError):
            raise CallslipError(f"{path} cannot be read", f"Delete {self.folder} and start again.") from None
        if theirs["processes"] != ours["processes"]:
            raise CallslipError(
                f"the training in {self.folder} runs on {_processes(theirs['processes'])}, and this is "
                f"{_processes(ours['processes'])}",
                f"Resume it on {_processes(theirs['processes'])} (torchrun --nproc-per-node, --nnodes), or delete "
                f"{self.folder} and start again.",
            )
        if differ:
            raise CallslipError(
                f"the checkpoints in {self.folder} belong to another fit: {'; '.join(differ)}",
                f"Resume with the same method, settings, corpus and versions, or delete {self.folder} and start again.",
            )

    def _check_again(self) -> None:
        known = sorted({name for place in self.folder.glob("phase-*") if (name := _phase_of(place)) is not None})
        if self.again is not None and not any(self._is_again(name) for name in known):
            listed = ", ".join(known) or "none"
            raise CallslipError(f"{self.folder} has no phase {self.again!r}", f"Available phases: {listed}.")

    def _is_again(self, phase: str) -> bool:
        return self.again is not None and (phase == self.again or phase.startswith(f"{self.again}:"))

    # Intermediate results.

    def remember(self, name: str, **arrays: np.ndarray) -> None:
        """Store arrays (codes, codebooks, …) that a resumed fit need not compute again."""
        from safetensors.numpy import save

        from callslip.training.loop import chance_now

        self._check_claimed()
        if not ranks.current().first:
            return
        contents = {key: np.ascontiguousarray(value) for key, value in arrays.items()}
        self._save(self.folder / f"kept-{_slug(name)}", {"arrays": save(contents), "chance": chance_now()}, {})

    def recall(self, name: str) -> dict[str, np.ndarray] | None:
        """The arrays stored by an earlier run of this fit, or None if they must be computed.

        The RNG state at the time of `remember` is restored, so that the rest of the fit draws the same random numbers
        as if the arrays had just been computed.
        """
        from safetensors.numpy import load

        from callslip.training.loop import set_chance

        self._check_claimed()
        place, held = self.folder / f"kept-{_slug(name)}", None
        if not self._afresh and self._taken_up(place) is not None:
            set_chance((place / "chance.safetensors").read_bytes())
            held = load((place / "arrays.safetensors").read_bytes())
        ranks.current().wait()  # rank 0 must not write what others have not looked for yet
        return held

    # Phases.

    def enter(self, phase: str) -> None:
        """Begin a phase. Its name must be unique in the fit, since a resumed fit identifies it by name."""
        self._check_claimed()
        if phase in self._phases:
            raise ValueError(f"duplicate phase {phase!r}: the phases of a fit need unique names")
        self._phases.add(phase)
        self._afresh = self._afresh or self._is_again(phase)
        if self._afresh and ranks.current().first:
            for save in self._saves(phase):
                durable.system.remove(save)
        ranks.current().wait()

    def latest(self, phase: str) -> tuple[Path, dict[str, Any]] | None:
        """The latest intact checkpoint of a phase, and its position. Corrupt checkpoints are skipped."""
        for place in reversed(self._saves(phase)):
            position = self._taken_up(place)
            if position is not None:
                return place, position
        return None

    def _taken_up(self, place: Path) -> dict[str, Any] | None:
        """The position of a checkpoint, if it is intact; also restores the elapsed time."""
        whole = _read(place)
        if whole is None:
            return None
        self._began, self._before = time.perf_counter(), whole["spent"]
        return whole["position"]

    def save(self, phase: str, step: int, files: Mapping[str, bytes], position: Mapping[str, Any]) -> None:
        """Save a phase's state after a step, then delete older checkpoints."""
        place = self.folder / f"phase-{_slug(phase)}-{step:09d}{'-end' if position['finished'] else ''}"
        self._save(place, files, position, phase)
        older = [save for save in self._saves(phase) if save != place]
        for save in older if position["finished"] else older[: len(older) - SAVES_KEPT + 1]:
            durable.system.remove(save)

    def _saves(self, phase: str) -> list[Path]:
        name = re.compile(rf"phase-{re.escape(_slug(phase))}-\d{{9}}(-end)?")
        return sorted(path for path in self.folder.iterdir() if name.fullmatch(path.name))

    def _save(self, place: Path, files: Mapping[str, bytes], position: Mapping[str, Any], phase: str = "") -> None:
        try:
            durable.system.remove(place)  # an earlier checkpoint of the same step, possibly corrupt
            with durable.new_folder(place) as draft:
                entries = {
                    f"{name}.safetensors": durable.write(draft / f"{name}.safetensors", contents)
                    for name, contents in files.items()
                }
                record = {"phase": phase, "spent": round(self.spent(), 3), "files": entries, "position": dict(position)}
                durable.write(draft / POSITION, _json(record))
        except OSError as error:
            raise durable.not_written(place, error, "Then resume: earlier checkpoints are intact.") from None

    def _check_claimed(self) -> None:
        if not self._claimed:
            raise ValueError("checkpoints belong to a fit: pass them to Retriever.fit, or call claim first")


def _read(place: Path) -> dict[str, Any] | None:
    """The position of a checkpoint, if all its files are intact."""
    try:
        whole = json.loads((place / POSITION).read_bytes())
        if any(durable.problem_with(place / name, entry) for name, entry in whole["files"].items()):
            return None
        return {"phase": str(whole["phase"]), "spent": float(whole.get("spent", 0.0)), "position": whole["position"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _phase_of(place: Path) -> str | None:
    """The name of a checkpoint's phase."""
    whole = _read(place)
    return None if whole is None else whole["phase"]


class Clock:
    """Timer for the next checkpoint."""

    def __init__(self, every: float) -> None:
        self.every, self._last = every, time.monotonic()

    def due(self) -> bool:
        if time.monotonic() - self._last < self.every:
            return False
        self._last = time.monotonic()
        return True


def _is_draft_of_run(path: Path) -> bool:
    """Whether a file is the temporary `run.json` of a fit that was killed before it claimed its folder."""
    return path.name.startswith(f"{durable.DRAFT}{RUN}-")


def _versions() -> dict[str, str]:
    known = versions()
    return {name: known[name] for name in ("callslip", "torch") if name in known}


def _difference(key: str, theirs: Any, ours: Any) -> str:
    """Describe a difference; for settings and versions, list each."""
    if not isinstance(theirs, dict) or not isinstance(ours, dict):
        return f"{key} {theirs!r}, not {ours!r}"
    if key == "corpus":
        return f"the corpus {theirs.get('name')!r} has other contents" if _alike(theirs, ours) else (
            f"the corpus {theirs.get('name')!r} of {theirs.get('documents')} documents, "
            f"not {ours.get('name')!r} of {ours.get('documents')}"
        )  # fmt: skip
    names = sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name))
    return ", ".join(f"{name} {theirs.get(name)!r}, not {ours.get(name)!r}" for name in names)


def _processes(count: int) -> str:
    return "one process" if count == 1 else f"{count} processes"


def _alike(theirs: dict[str, Any], ours: dict[str, Any]) -> bool:
    return all(theirs.get(key) == ours.get(key) for key in ("name", "documents"))


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def _slug(name: str) -> str:
    """A name as part of a file name; if characters were replaced, with a hash suffix to keep it unique."""
    plain = re.sub(r"[^a-z0-9]+", "-", name)
    return plain if plain == name else f"{plain.strip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
