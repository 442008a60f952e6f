"""Data-parallel training: two Gloo processes take the steps of one process with the whole batch."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from callslip import api
from callslip.errors import BadSetting, CallslipError, Unsupported
from callslip.jobs.plan import Job
from callslip.jobs.train import document_vectors
from callslip.training import ranks
from callslip.training.checkpoints import Checkpoints

SETTINGS = {"encoder": "scratch:dim=16", "epochs": 2, "batch_size": 24, "decoder_width": 16, "decoder_heads": 2}
SETTINGS |= {"dropout": 0.0, "noise": 0.3, "width": 4, "leaf": 3}


@pytest.fixture(scope="module")
def two(beir, tmp_path_factory) -> SimpleNamespace:
    """Every scenario of `two_ranks`, run once: what each rank wrote, and the exit codes."""
    folder = tmp_path_factory.mktemp("two")
    api.plan(beir, folder / "job", "dsi-semantic", settings=SETTINGS | {"noise": 0.0}, shard_rows=15)
    program = Path(__file__).with_name("two_ranks.py")
    done = subprocess.run(
        [sys.executable, str(program), str(folder)], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    exits = json.loads((folder / "exits.json").read_text())

    def of(name: str, number: int = 0):
        file = folder / f"{name} {number}.json"
        assert file.exists(), done.stderr
        return json.loads(file.read_text())

    return SimpleNamespace(folder=folder, exits=exits, of=of)


@pytest.mark.parametrize("kind", ["mean", "mean in micro-batches", "in-batch", "in-batch in chunks", "not divided"])
def test_losses_and_weights_are_those_of_one_process_with_the_whole_batch(two, kind):
    from two_ranks import toy

    one, first, second = toy(kind), two.of("every kind")[kind], two.of("every kind", 1)[kind]
    np.testing.assert_allclose(first["losses"], one["losses"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(first["weights"], one["weights"], rtol=0, atol=1e-4)
    assert first["hash"] == second["hash"]  # both ranks have the same weights to the last bit
    assert first["next draw"] == second["next draw"] == one["next draw"]
    shares = [first["encoded"], second["encoded"]]
    if kind == "not divided":
        assert shares == [one["encoded"]] * 2
    else:  # batches of 10 and 5, as 5 and 5, 2 and 3; chunks are encoded twice, except where a share is one
        assert shares[0] < shares[1] < 0.6 * one["encoded"]


def test_ranks_draw_dropout_of_their_own_and_stay_together(two):
    first, second = (two.of("every kind", number)["with dropout"] for number in (0, 1))
    assert first["hash"] == second["hash"] and first["next draw"] == second["next draw"]
    assert first["losses"] != two.of("every kind")["in-batch"]["losses"]
    draws = [two.of("refusals", number) for number in (0, 1)]
    assert draws[0]["own draw"] != draws[1]["own draw"] and draws[0]["common draw"] == draws[1]["common draw"]


def test_ranks_that_differ_are_refused_by_name(two):
    for number in (0, 1):
        assert "codes: process 1 differs from process 0" in two.of("refusals", number)["differ"]


def test_a_step_that_is_not_finite_on_one_rank_is_skipped_on_all(two):
    assert [two.of("refusals", number)["skipped"] for number in (0, 1)] == [1, 1]
    assert all(two.of("refusals", number)["any"] for number in (0, 1))


def test_a_killed_rank_ends_the_others_and_the_training_resumes_bit_for_bit(two):
    assert two.exits["killed"] == [0, -signal.SIGKILL]
    survivor = two.of("killed")
    assert "another process of this training ended" in survivor["error"] and survivor["saved"] > 0
    assert two.of("resumed")["hash"] == two.of("resumed", 1)["hash"] == two.of("whole")["hash"]
    assert two.of("resumed")["losses"] == two.of("whole")["losses"]
    assert two.of("resumed")["encoded"] < two.of("whole")["encoded"]  # it went on, and did not begin again


def test_a_rank_that_is_stopped_stops_all_after_the_same_step(two):
    for number in (0, 1):
        assert "was stopped after step 3 and saved" in two.of("stopped", number)["error"]
    assert [path.name[-9:] for path in (two.folder / "stopped").glob("phase-*")] == ["000000003"]


def test_another_number_of_processes_is_refused(two):
    from two_ranks import WHO

    with pytest.raises(CallslipError, match="runs on 2 processes, and this is one process"):
        Checkpoints(two.folder / "stopped", resume=True).claim(**WHO)


def test_a_job_is_trained_by_two_processes_as_by_one(two, beir, tmp_path):
    assert two.of("job") == {"trained": True, "said": ["training dsi-semantic on 2 processes: 24 examples a step"]}
    assert two.of("job", 1) == {"trained": True, "said": []}  # the first alone prints
    api.plan(beir, tmp_path / "job", "dsi-semantic", settings=SETTINGS | {"noise": 0.0}, shard_rows=15)
    with pytest.raises(CallslipError, match="is not trained yet"):
        api.build(tmp_path / "job", tmp_path / "index")
    assert api.train(tmp_path / "job") and not api.train(tmp_path / "job")
    one, both = (api.build(job, tmp_path / name) for name, job in (("a", tmp_path / "job"), ("b", two.folder / "job")))
    assert [record["generation"] for record in both.log.records] == pytest.approx(
        [record["generation"] for record in one.log.records], abs=1e-5
    )
    assert not (two.folder / "job" / "training").exists()
    api.check(tmp_path / "b")


def test_the_training_reads_the_vectors_of_the_parts(beir, tmp_path, spy):
    from callslip.encoders.encoder import TextVectors

    api.plan(beir, tmp_path / "job", "dsi-semantic", settings=SETTINGS, shard_rows=15)
    job = Job.open(tmp_path / "job")
    assert document_vectors(job, job.corpus()) is None
    api.encode(tmp_path / "job", part=(1, 2))
    with pytest.raises(CallslipError, match="1 of 3 parts are missing: part-00001"):
        api.train(tmp_path / "job")
    assert api.encode(tmp_path / "job", workers=2) == 1
    own = job.learner().texts.documents(job.corpus(), "encoding")
    np.testing.assert_allclose(document_vectors(job, job.corpus()).vectors, own, atol=1e-3)
    calls = spy(TextVectors, "documents")
    api.train(tmp_path / "job")
    given = document_vectors(job, job.corpus()).vectors
    assert any(np.array_equal(call["result"], given) for call in calls)
    assert api.build(tmp_path / "job", tmp_path / "index").search("which violin has the mark music3", k=5)


def test_what_is_not_trained_is_refused(beir, tmp_path, monkeypatch):
    api.plan(beir, tmp_path / "job", settings={"encoder": "scratch:dim=16", "length": 6}, shard_rows=15)
    with pytest.raises(Unsupported, match="tied-residual is not trained"):
        api.train(tmp_path / "job")
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(BadSetting, match="WORLD_SIZE"), ranks.joined():
        pass
