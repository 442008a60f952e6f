"""Checkpoints: killed at any moment, a fit goes on to the weights it would have had, bit for bit."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from counted_disk import CountedDisk
from test_contract import quick

from callslip.errors import CallslipError, TrainingFailed, TrainingStopped
from callslip.runtime import durable
from callslip.training import batches
from callslip.training.checkpoints import Checkpoints
from callslip.training.loop import TrainingLog, train

WHO = {"method": "toy", "settings": {"a": 1, "b": [1, 2]}, "corpus": {"name": "c", "documents": 3, "sha256": "x"}}


def hash_of(module: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode() + value.cpu().numpy().tobytes())
    return digest.hexdigest()


def toy_fit(
    checkpoints: Checkpoints | None, on_step=lambda step: None, epochs=3, micro_batch=None
) -> tuple[torch.nn.Module, TrainingLog]:
    """Two phases with dropout, noise from a NumPy generator, and something random made between them."""
    torch.manual_seed(0)
    rng = np.random.default_rng(5)
    x = torch.randn(48, 6)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
    if checkpoints is not None:
        checkpoints.claim(**WHO)
    log, steps = TrainingLog(), []

    def phase(name: str, target: torch.Tensor) -> None:
        def objective(rows, progress):
            steps.append(1)
            on_step(len(steps))
            noise = torch.from_numpy(rng.normal(size=(len(rows), 1)).astype(np.float32))
            return {"error": ((model(x[rows]) - target[rows] + 0.1 * noise) ** 2).mean()}

        train(
            model,
            lambda epoch: batches.shuffled(48, 8, 0, epoch),
            objective,
            epochs=3,
            steps_per_epoch=6,
            learning_rate=0.01,
            phase=name,
            log=log,
            checkpoints=checkpoints,
            generators=[rng],
            micro_batch=micro_batch,
        )

    phase("first phase", x[:, :1])
    made = checkpoints.recall("between") if checkpoints is not None else None
    if made is None:
        made = {"target": torch.randn(48, 1).numpy()}
        if checkpoints is not None:
            checkpoints.remember("between", **made)
    phase("second phase", torch.from_numpy(np.array(made["target"])))
    return model, log


def without_seconds(log: TrainingLog) -> list[dict]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in log.records]


def in_child(work, after: float | None) -> bool:
    """Run in a forked process and kill it after so many seconds; whether the kill came before the end."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    end, status, ended = time.perf_counter() + (after or 0), 0, 0
    while after is not None and not ended and time.perf_counter() < end:
        time.sleep(0.001)
        ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        if after is not None:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(status)
    assert killed or os.WEXITSTATUS(status) == 0
    return killed


def kill_until(kills: int, fit_to_hash, tmp_path: Path, seed: int) -> None:
    """Kill the fit again and again; whenever it gets through, its hash is that of an undisturbed run."""
    chance, out = random.Random(seed), tmp_path / "hash"
    expected = fit_to_hash(None)
    began = time.perf_counter()
    assert fit_to_hash(Checkpoints(tmp_path / "first", every=0.0)) == expected
    whole = time.perf_counter() - began

    def work():
        out.write_text(fit_to_hash(Checkpoints(tmp_path / "training", every=0.0, resume=True)))

    done = finished = 0
    while done < kills or not finished:
        if in_child(work, chance.uniform(0, 0.7 * whole) if done < kills else None):
            done += 1
        else:
            finished += 1
            assert out.read_text() == expected
            Checkpoints(tmp_path / "training").remove()


@pytest.mark.parametrize("stop_at", [1, 7, 16, 40])
def test_a_fit_with_micro_batches_resumes_bit_for_bit(tmp_path, stop_at):
    """Parts of three of eight examples: a stop in the middle of a batch takes effect after it."""
    expected, _ = toy_fit(None, micro_batch=3)
    first = Checkpoints(tmp_path / "t", every=1e9)
    with pytest.raises(TrainingStopped):
        toy_fit(first, lambda step: first.stop.request(signal.SIGTERM) if step == stop_at else None, micro_batch=3)
    taken = []
    model, _ = toy_fit(Checkpoints(tmp_path / "t", every=1e9, resume=True), taken.append, micro_batch=3)
    assert hash_of(model) == hash_of(expected)
    assert len(taken) == 2 * 3 * 6 * 3 - -(-stop_at // 3) * 3


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kills"), [("toy", 12), ("dsi-semantic", 4), ("tied-atomic", 4), ("glen", 3)])
def test_twenty_kills_end_in_the_same_weights(name, kills, small_corpus, tmp_path):
    def fit_to_hash(checkpoints):
        if name == "toy":
            return hash_of(toy_fit(checkpoints)[0])
        return hash_of(quick(name, epochs=4).fit(small_corpus, checkpoints).model)

    kill_until(kills, fit_to_hash, tmp_path, seed=len(name))


@pytest.mark.parametrize("stop_at", [1, 5, 6, 7, 18, 19, 30, 36])
def test_a_stop_saves_and_resuming_gives_the_same_weights_and_log(tmp_path, stop_at):
    expected, log = toy_fit(None)
    first = Checkpoints(tmp_path / "t", every=1e9)
    with pytest.raises(TrainingStopped, match=f"step {(stop_at - 1) % 18 + 1}") as stopped:
        toy_fit(first, lambda step: first.stop.request(signal.SIGTERM) if step == stop_at else None)
    assert stopped.value.exit_code == 143
    taken = []
    model, again = toy_fit(Checkpoints(tmp_path / "t", every=1e9, resume=True), taken.append)
    assert hash_of(model) == hash_of(expected)
    assert without_seconds(again) == without_seconds(log)
    assert len(taken) == 36 - stop_at  # nothing was done twice


@pytest.mark.parametrize("stop_at", [5, 18, 20])
def test_the_seconds_of_a_resumed_fit_are_those_of_one_that_was_not_stopped(tmp_path, monkeypatch, stop_at):
    """A clock that goes by ten with every step: both runs together have as many steps as one has."""
    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0], monotonic=time.monotonic)
    monkeypatch.setattr("callslip.training.checkpoints.time", clock)

    def ticking(checkpoints, last=None):
        def on_step(step):
            now[0] += 10
            if step == last:
                checkpoints.stop.request(signal.SIGTERM)

        toy_fit(checkpoints, on_step)

    first = Checkpoints(tmp_path / "t", every=1e9)
    with pytest.raises(TrainingStopped):
        ticking(first, stop_at)
    assert first.spent() == 10 * stop_at
    now[0] += 1000  # nobody works on it meanwhile
    again = Checkpoints(tmp_path / "t", every=1e9, resume=True)
    ticking(again)
    assert again.spent() == 360


def test_what_a_method_makes_between_phases_is_made_once(tmp_path):
    """A resumed fit has what the first one made; without checkpoints it is made each time."""
    made = []

    def make_anew():
        made.append(np.full(3, len(made)))
        return made[-1]

    def asked(checkpoints):
        index = quick("asi")
        index.checkpoints = checkpoints
        if checkpoints is not None:
            checkpoints.claim(**WHO)
        return index.computed_once("codes", make_anew).tolist()

    assert asked(Checkpoints(tmp_path / "t")) == [0, 0, 0]
    assert asked(Checkpoints(tmp_path / "t", resume=True)) == [0, 0, 0] and len(made) == 1
    assert asked(Checkpoints(tmp_path / "t")) == [1, 1, 1]
    assert asked(None) == [2, 2, 2]


def test_a_finished_phase_is_not_trained_again(tmp_path):
    model, log = toy_fit(Checkpoints(tmp_path / "t"))
    again, log_again = toy_fit(Checkpoints(tmp_path / "t", resume=True), lambda step: pytest.fail("trained again"))
    assert hash_of(again) == hash_of(model)
    assert log_again.records == log.records


def test_without_resume_a_fit_starts_again(tmp_path):
    toy_fit(Checkpoints(tmp_path / "t"))
    taken = []
    toy_fit(Checkpoints(tmp_path / "t"), taken.append)
    assert len(taken) == 36


@pytest.mark.parametrize("damage", ["truncate", "flip", "delete", "empty position"])
def test_a_torn_checkpoint_is_passed_over(tmp_path, damage):
    expected, _ = toy_fit(None)
    first = Checkpoints(tmp_path / "t", every=0.0)
    with pytest.raises(TrainingStopped):
        toy_fit(first, lambda step: first.stop.request(signal.SIGTERM) if step == 9 else None)
    saves = sorted((tmp_path / "t").glob("phase-*"))
    assert [save.name[-9:] for save in saves] == ["000000008", "000000009"]
    weights = saves[-1] / "weights.safetensors"
    data = weights.read_bytes()
    if damage == "truncate":
        weights.write_bytes(data[:-5])
    elif damage == "flip":
        weights.write_bytes(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
    elif damage == "delete":
        weights.unlink()
    else:
        (saves[-1] / "position.json").write_bytes(b"")
    (tmp_path / "t" / ".new-phase-cut-short").mkdir()
    taken = []
    model, _ = toy_fit(Checkpoints(tmp_path / "t", every=1e9, resume=True), taken.append)
    assert len(taken) == 36 - 8
    assert hash_of(model) == hash_of(expected)
    assert not list((tmp_path / "t").glob(".new-*"))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"method": "other"}, "method 'toy', not 'other'"),
        ({"settings": {"a": 2, "b": [1, 2]}}, "a 1, not 2"),
        ({"corpus": {"name": "c", "documents": 3, "sha256": "y"}}, "other contents"),
        ({"corpus": {"name": "d", "documents": 4, "sha256": "y"}}, "'d' of 4"),
    ],
)
def test_the_checkpoints_of_another_fit_are_refused(tmp_path, change, named):
    Checkpoints(tmp_path / "t").claim(**WHO)
    with pytest.raises(CallslipError, match=named) as refused:
        Checkpoints(tmp_path / "t", resume=True).claim(**(WHO | change))
    assert "delete" in refused.value.remedy
    Checkpoints(tmp_path / "t", resume=True).claim(**WHO)


def test_a_folder_with_other_files_is_not_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CallslipError, match="other files"):
        Checkpoints(tmp_path).claim(**WHO)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


class Killer(CountedDisk):
    """Ends the process at its nth call; a file is then half written, and a folder that was to be removed half gone."""

    def __init__(self, at: int) -> None:
        self.left = at

    def on_call(self) -> None:
        self.left -= 1
        if not self.left:
            os._exit(9)

    def write(self, descriptor, data):
        if self.left == 1:
            durable.System.write(self, descriptor, data[: len(data) // 2])
        return super().write(descriptor, data)

    def remove(self, path):
        if self.left == 1 and path.is_dir():
            for one in sorted(path.iterdir(), reverse=True)[:2]:
                durable.System.remove(self, one)
        super().remove(path)


@pytest.mark.parametrize("resume", [True, False])
def test_a_fit_killed_at_any_call_to_the_disk_can_be_begun_again(tmp_path, resume):
    """Also while its folder is made, and while checkpoints are removed, those of its parts among them."""
    expected, folder = hash_of(toy_fit(None)[0]), tmp_path / "t"

    def fit_and_remove():
        whole = Checkpoints(folder, every=1e9, resume=resume)
        toy_fit(whole)
        part = whole.part("inner")
        toy_fit(part)
        hashes = hash_of(toy_fit(Checkpoints(folder, resume=True))[0])
        whole.remove()
        return hashes

    for at in range(1, 500):
        pid = os.fork()
        if pid == 0:
            durable.system = Killer(at)
            fit_and_remove()
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, 9)
        assert fit_and_remove() == expected
        assert not folder.exists()
        if not code:
            assert at > 30
            return
    pytest.fail("there was no end to the calls")


def test_phases_have_names_of_their_own(tmp_path):
    checkpoints = Checkpoints(tmp_path / "t")
    with pytest.raises(ValueError, match="belong to a fit"):
        checkpoints.enter("x")
    checkpoints.claim(**WHO)
    checkpoints.enter("x y")
    checkpoints.enter("x-y")
    with pytest.raises(ValueError, match="'x y'"):
        checkpoints.enter("x y")


def test_what_is_remembered_comes_back_or_not_at_all(tmp_path):
    checkpoints = Checkpoints(tmp_path / "t")
    checkpoints.claim(**WHO)
    codes = np.arange(6, dtype=np.int32).reshape(3, 2)
    checkpoints.remember("codes of level 1", codes=codes, book=np.ones(3)[::2])
    assert checkpoints.recall("codes-of-level-1") is None
    later = Checkpoints(tmp_path / "t", resume=True)
    later.claim(**WHO)
    found = later.recall("codes of level 1")
    np.testing.assert_array_equal(found["codes"], codes)
    np.testing.assert_array_equal(found["book"], np.ones(2))
    arrays = next((tmp_path / "t").glob("kept-*")) / "arrays.safetensors"
    arrays.write_bytes(arrays.read_bytes()[:-1] + b"\x07")
    assert later.recall("codes of level 1") is None


def test_bad_numbers_leave_the_last_good_checkpoint(tmp_path):
    """Weights that are not finite are never saved: after the failure a resumed fit starts from good ones."""
    checkpoints = Checkpoints(tmp_path / "t", every=0.0)
    checkpoints.claim(**WHO)
    model = torch.nn.Linear(2, 1)

    def objective(rows, progress):
        if progress > 0.5:
            with torch.no_grad():
                model.weight.fill_(math.nan)  # as an overflow inside a step would
        return {"error": (model(torch.ones(4, 2)) ** 2).mean()}

    with pytest.raises(TrainingFailed):
        train(model, lambda e: range(20), objective, epochs=1, steps_per_epoch=20, learning_rate=0.1,
              phase="p", checkpoints=checkpoints)  # fmt: skip
    place, position = checkpoints.latest("p")
    assert position["step"] == 11
    from safetensors.numpy import load_file

    assert all(np.isfinite(value).all() for value in load_file(place / "weights.safetensors").values())


def test_a_full_disk_ends_the_fit_with_a_remedy(tmp_path, monkeypatch):
    from callslip.runtime import durable

    first = Checkpoints(tmp_path / "t", every=0.0)

    class Full(durable.System):
        def sync(self, descriptor):
            if any((tmp_path / "t").glob("phase-*-000000004")):
                raise OSError(28, "No space left on device")
            super().sync(descriptor)

    monkeypatch.setattr(durable, "system", Full())
    with pytest.raises(CallslipError, match="No space left"):
        toy_fit(first)
    monkeypatch.undo()
    model, _ = toy_fit(Checkpoints(tmp_path / "t", resume=True))
    assert hash_of(model) == hash_of(toy_fit(None)[0])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_saves_says_how_to_go_on_and_goes_on(small_corpus, tmp_path, number):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"_id": d.doc_id, "text": d.text}) + "\n" for d in small_corpus))
    out, training = tmp_path / "index", tmp_path / "index.training"
    quickly = ["--set", "encoder=scratch", "--set", "decoder_width=32", "--set", "width=4", "--set", "batch_size=8"]
    arguments = ["fit", str(corpus), "--out", str(out), "-m", "dsi-semantic", *quickly, "--set", "epochs=25"]
    command = [sys.executable, "-c", "from callslip.cli import main; main()", *arguments]
    fit = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not training.exists():
        time.sleep(0.01)
        assert fit.poll() is None, fit.stderr.read()
    time.sleep(0.5)  # into the training, or before it: both must end well
    fit.send_signal(number)
    _, said = fit.communicate()
    assert fit.returncode == 128 + number
    assert f"callslip fit {corpus} --out {out}" in said and said.rstrip().endswith("--resume")
    assert "Traceback" not in said

    if number == signal.SIGINT:
        return

    def run(*more):
        return subprocess.run([*command, *more], capture_output=True, text=True, check=False)

    assert "--resume" in run().stderr  # forgotten: refused rather than overwritten
    other = run("--resume", "--set", "dropout=0.2")
    assert other.returncode == 2 and "dropout 0.1, not 0.2" in other.stderr
    done = run("--resume")
    assert done.returncode == 0, done.stderr
    assert out.is_dir() and not training.exists()


def test_a_phase_is_trained_again_with_all_that_follows_it(tmp_path):
    """Three phases; from the second on with another learning rate, and the first as it was."""

    def line(folder, rate, **options):
        torch.manual_seed(0)
        model, made = torch.nn.Linear(2, 1), []
        checkpoints = Checkpoints(folder, **options)
        checkpoints.claim("m", {"rate": rate}, {"name": "c"})
        weights, x = [], torch.ones(4, 2)
        for phase in ("level 1", "level 2: warm-up", "level 2"):
            if checkpoints.recall(f"before {phase}") is None:
                made.append(phase)
                checkpoints.remember(f"before {phase}", x=np.zeros(1))
            train(
                model,
                lambda epoch: [0, 1],
                lambda batch, progress: {"loss": (model(x) ** 2).mean()},
                epochs=1,
                steps_per_epoch=2,
                learning_rate=rate,
                phase=phase,
                checkpoints=checkpoints,
            )
            weights.append(model.weight.detach().clone())
        return weights, made

    first, made = line(tmp_path / "a", 0.1)
    assert made == ["level 1", "level 2: warm-up", "level 2"]
    with pytest.raises(CallslipError, match="another fit"):
        line(tmp_path / "a", 0.5, resume=True)
    with pytest.raises(CallslipError, match="no phase 'level 7'") as caught:
        line(tmp_path / "a", 0.5, again="level 7")
    assert "level 1" in caught.value.remedy
    again, made = line(tmp_path / "a", 0.5, again="level 2")
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[1], again[1]) and not torch.equal(first[2], again[2])
    assert made == ["level 2"]  # what came before the phase that is done again was kept
    resumed, made = line(tmp_path / "a", 0.5, resume=True)
    assert all(torch.equal(a, b) for a, b in zip(again, resumed, strict=True)) and made == []
