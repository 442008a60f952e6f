"""Checkpoints: a fit that was killed goes on where it was, to the same weights bit for bit. No pickle.

A folder of checkpoints belongs to one fit: one method, its settings, one corpus, one version of torch and of us. In it
every save is a folder of its own, synced before it gets its name, so that a save cut short is no save:

    run.json                        whose checkpoints these are
    phase-NAME-000120/              after step 120 of the phase; the last two are kept, of a finished phase the last
        weights.safetensors  optimizer.safetensors  chance.safetensors  position.json
    kept-NAME/                      what `remember` was given

A fit is a straight line of phases and of what is made between them. A resumed fit walks the line again: finished phases
give their weights, their part of the log and the random state that they left behind.
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
from callslip.runtime.interrupts import outside_imports
from callslip.runtime.versions import versions

if TYPE_CHECKING:
    from types import FrameType

RUN, POSITION, PART = "run.json", "position.json", "part-"
SAVES_KEPT = 2


class Stop:
    """Whether somebody asked the training to stop. All phases and parts of a fit share one."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.waiting = False
        """Whether a phase will see the request at its next step."""

    def request(self, number: int, frame: FrameType | None = None) -> None:
        """A signal handler: a phase saves first; between phases, or when asked twice, we stop at once."""
        again, self.signal = self.signal is not None, number
        if again or not self.waiting:
            raise KeyboardInterrupt

    @contextmanager
    def on_signals(self, remedy: str) -> Iterator[None]:
        """Let SIGTERM and Ctrl-C stop the fit. What then comes out is `TrainingStopped` with the remedy."""
        handler = outside_imports(self.request)
        before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        except TrainingStopped as stopped:
            raise TrainingStopped(stopped.problem, remedy, signal=stopped.signal) from None
        except KeyboardInterrupt:
            number = self.signal or signal.SIGINT
            raise TrainingStopped("the fit was stopped between two saves", remedy, signal=number) from None
        finally:
            for number, earlier in before.items():
                signal.signal(number, earlier)


class Checkpoints:
    """Where a fit saves its state, and finds it again with `resume`."""

    def __init__(
        self, folder: str | Path, *, every: float = 60.0, resume: bool = False, again: str | None = None
    ) -> None:
        """`every`: seconds between saves inside a phase; its end is always saved. `again`: a phase ("level 2") that a
        resumed fit does again, with all that follows it; settings may be others from there on."""
        self.folder, self.every, self.resume, self.again = Path(folder), every, resume or again is not None, again
        self.stop = Stop()
        self._afresh = False
        self._phases: set[str] = set()
        self._claimed = False
        self._began, self._before = time.perf_counter(), 0.0

    def spent(self) -> float:
        """Seconds of this fit up to now; those of an earlier run of it count up to the save that was taken up."""
        return self._before + time.perf_counter() - self._began

    # Whose checkpoints these are.

    def exist(self) -> bool:
        """Whether there is an earlier fit to resume, or to overwrite."""
        return (self.folder / RUN).is_file()

    def nothing_saved(self) -> bool:
        """Whether the folder holds no more than whose it is, and whose its parts are."""
        return self.folder.is_dir() and all(path.name == RUN for path in self.folder.rglob("*") if path.is_file())

    def claim(self, method: str, settings: Mapping[str, Any], corpus: Mapping[str, Any]) -> None:
        """Begin a fit: resume the one that is there if it is the same, or make place for a new one."""
        ours = {"method": method, "settings": dict(settings), "corpus": dict(corpus), "versions": _versions()}
        ours = json.loads(json.dumps(ours))  # as it is read back: tuples are lists
        self._phases, self._claimed, self._afresh = set(), True, False
        self._began, self._before = time.perf_counter(), 0.0
        if self.resume and self.exist():
            self._check_same(ours)
            durable.remove_drafts(self.folder)
            self._check_again()
            if self.again is not None:
                durable.replace(self.folder / RUN, _json(ours))
            return
        found = self.folder.iterdir() if self.folder.exists() and not self.exist() else ()
        if not all(map(_is_draft_of_run, found)):
            raise CallslipError(f"{self.folder} has other files in it", "Choose another folder for checkpoints.")
        try:
            self.remove()
            self.folder.mkdir(parents=True, exist_ok=True)
            durable.remove_drafts(self.folder)
            durable.replace(self.folder / RUN, _json(ours))
        except OSError as error:
            raise CallslipError(
                f"cannot keep checkpoints in {self.folder}: {error.strerror}", "Free some space, or do without them."
            ) from None

    def remove(self) -> None:
        """Remove the checkpoints, when the index is saved. Whose they are goes last: a kill leaves what is ours."""
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
        """The checkpoints of one part of a method made of several."""
        inner = Checkpoints(self.folder / f"{PART}{_slug(name)}", every=self.every, resume=self.resume)
        inner.stop = self.stop
        return inner

    def _check_same(self, ours: dict[str, Any]) -> None:
        path = self.folder / RUN
        try:
            theirs = json.loads(path.read_bytes())
            free = set() if self.again is None else {"settings"}
            differ = [
                _difference(key, theirs[key], ours[key]) for key in ours.keys() - free if theirs[key] != ours[key]
            ]
        except (ValueError, KeyError, TypeError):
            raise CallslipError(f"{path} cannot be read", f"Delete {self.folder} and start again.") from None
        if differ:
            raise CallslipError(
                f"the checkpoints in {self.folder} are of another fit: {'; '.join(differ)}",
                f"Resume with the same method, settings, corpus and versions, or delete {self.folder} and start again.",
            )

    def _check_again(self) -> None:
        known = sorted({name for place in self.folder.glob("phase-*") if (name := _phase_of(place)) is not None})
        if self.again is not None and not any(self._is_again(name) for name in known):
            listed = ", ".join(known) or "none"
            raise CallslipError(f"no phase {self.again!r} was trained in {self.folder}", f"Phases there: {listed}.")

    def _is_again(self, phase: str) -> bool:
        return self.again is not None and (phase == self.again or phase.startswith(f"{self.again}:"))

    # What is made between phases.

    def remember(self, name: str, **arrays: np.ndarray) -> None:
        """Keep arrays (codes, codebooks, …) that a resumed fit shall not make again."""
        from safetensors.numpy import save

        from callslip.training.states import chance_now

        self._check_claimed()
        contents = {key: np.ascontiguousarray(value) for key, value in arrays.items()}
        self._save(self.folder / f"kept-{_slug(name)}", {"arrays": save(contents), "chance": chance_now()}, {})

    def recall(self, name: str) -> dict[str, np.ndarray] | None:
        """The arrays that an earlier run of this fit remembered; None if they must be made.

        The random state becomes that of the moment when they were remembered: what is done next has the same chance as
        if they had been made now.
        """
        from safetensors.numpy import load

        from callslip.training.states import set_chance

        self._check_claimed()
        place = self.folder / f"kept-{_slug(name)}"
        if self._afresh or self._taken_up(place) is None:
            return None
        set_chance((place / "chance.safetensors").read_bytes())
        return load((place / "arrays.safetensors").read_bytes())

    # Phases.

    def enter(self, phase: str) -> None:
        """Begin a phase. Its name must be new in this fit: a resumed fit knows it by that."""
        self._check_claimed()
        if phase in self._phases:
            raise ValueError(f"two phases of one fit are called {phase!r}: give each a name of its own")
        self._phases.add(phase)
        self._afresh = self._afresh or self._is_again(phase)
        for save in self._saves(phase) if self._afresh else ():
            durable.system.remove(save)

    def latest(self, phase: str) -> tuple[Path, dict[str, Any]] | None:
        """The last whole save of a phase, and its position. Saves with damaged files are passed over."""
        for place in reversed(self._saves(phase)):
            position = self._taken_up(place)
            if position is not None:
                return place, position
        return None

    def _taken_up(self, place: Path) -> dict[str, Any] | None:
        """The position of a save, if it is whole, and the clock as it was then."""
        whole = _read(place)
        if whole is None:
            return None
        self._began, self._before = time.perf_counter(), whole["spent"]
        return whole["position"]

    def save(self, phase: str, step: int, files: Mapping[str, bytes], position: Mapping[str, Any]) -> None:
        """Save a phase's state after a step, then let go of older saves."""
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
            durable.system.remove(place)  # an earlier save of the same moment, perhaps a damaged one
            with durable.new_folder(place) as draft:
                entries = {
                    f"{name}.safetensors": durable.write(draft / f"{name}.safetensors", contents)
                    for name, contents in files.items()
                }
                told = {"phase": phase, "spent": round(self.spent(), 3), "files": entries, "position": dict(position)}
                durable.write(draft / POSITION, _json(told))
        except OSError as error:
            raise CallslipError(
                f"the checkpoint {place} could not be written: {error.strerror}",
                "Free some space and resume: earlier checkpoints are whole.",
            ) from None

    def _check_claimed(self) -> None:
        if not self._claimed:
            raise ValueError("checkpoints belong to a fit: give them to Retriever.fit, or call claim first")


def _read(place: Path) -> dict[str, Any] | None:
    """What a save says of itself, if all its files are whole."""
    try:
        whole = json.loads((place / POSITION).read_bytes())
        if any(durable.problem_with(place / name, entry) for name, entry in whole["files"].items()):
            return None
        return {"phase": str(whole["phase"]), "spent": float(whole.get("spent", 0.0)), "position": whole["position"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _phase_of(place: Path) -> str | None:
    """The name of the phase that a save is of."""
    whole = _read(place)
    return None if whole is None else whole["phase"]


class Clock:
    """Says when it is time for the next save."""

    def __init__(self, every: float) -> None:
        self.every, self._last = every, time.monotonic()

    def due(self) -> bool:
        if time.monotonic() - self._last < self.every:
            return False
        self._last = time.monotonic()
        return True


def _is_draft_of_run(path: Path) -> bool:
    """Whether this is all that a fit has left which was killed before its folder was known as its own."""
    return path.name.startswith(f"{durable.DRAFT}{RUN}-")


def _versions() -> dict[str, str]:
    known = versions()
    return {name: known[name] for name in ("callslip", "torch") if name in known}


def _difference(key: str, theirs: Any, ours: Any) -> str:
    """What differs, in words: for settings and versions each one of them."""
    if not isinstance(theirs, dict) or not isinstance(ours, dict):
        return f"{key} {theirs!r}, not {ours!r}"
    if key == "corpus":
        return f"the corpus {theirs.get('name')!r} has other contents" if _alike(theirs, ours) else (
            f"the corpus {theirs.get('name')!r} of {theirs.get('documents')} documents, "
            f"not {ours.get('name')!r} of {ours.get('documents')}"
        )  # fmt: skip
    names = sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name))
    return ", ".join(f"{name} {theirs.get(name)!r}, not {ours.get(name)!r}" for name in names)


def _alike(theirs: dict[str, Any], ours: dict[str, Any]) -> bool:
    return all(theirs.get(key) == ours.get(key) for key in ("name", "documents"))


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def _slug(name: str) -> str:
    """A name as a part of a file's; if letters had to change, with what tells it from others that end up alike."""
    plain = re.sub(r"[^a-z0-9]+", "-", name)
    return plain if plain == name else f"{plain.strip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
