"""Ray and Dask as engines: the bytes of the plain loop, whatever dies; skipped where they are not installed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from callslip import api
from callslip.errors import BadSetting, CallslipError, MissingExtra
from callslip.jobs import clusters, engines


@pytest.fixture
def job(small_corpus, tmp_path) -> Path:
    """Forty documents in ten shards."""
    file = tmp_path / "corpus.jsonl"
    file.write_text("".join(json.dumps({"id": d.doc_id, "text": d.text}) + "\n" for d in small_corpus))
    api.plan(file, tmp_path / "job", settings={"encoder": "scratch:dim=32", "length": 12}, shard_rows=4)
    return tmp_path / "job"


@pytest.fixture
def expected(job) -> dict[str, bytes]:
    """The parts that the plain loop makes."""
    copy = job.with_name("loop")
    shutil.copytree(job, copy)
    assert api.encode(copy) == 10
    return parts(copy)


def parts(job: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((job / "parts").iterdir())}


def break_shard(job: Path, number: int) -> None:
    file = job / "shards" / f"shard-{number:05d}.jsonl"
    file.write_bytes(file.read_bytes()[:-2])


@pytest.fixture
def ray_nodes(monkeypatch):
    """A Ray cluster of three nodes of one core each on this machine."""
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    head = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
    yield cluster
    cluster.shutdown()


@pytest.fixture
def dask_workers():
    """A Dask scheduler and three workers on this machine."""
    pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
    from distributed import LocalCluster

    with LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster


def test_a_ray_node_is_removed_and_the_bytes_are_those_of_the_loop(job, expected, ray_nodes):
    done = []

    def tell(number):
        done.append(number)
        if len(done) == 2:
            ray_nodes.remove_node(next(iter(ray_nodes.worker_nodes)), allow_graceful=False)

    assert api.encode(job, engine="ray", address=ray_nodes.address, tell=tell) == 10
    assert sorted(done) == list(range(10)) and len(ray_nodes.list_all_nodes()) == 2
    assert parts(job) == expected
    (job / "parts" / "part-00003.json").unlink()
    break_shard(job, 3)
    with pytest.raises(CallslipError, match=r"shard-00003 \(.*corpus.jsonl, lines 13 to 16\): failed 3 times"):
        api.encode(job, engine="ray", address=ray_nodes.address)


def test_a_dask_worker_is_killed_and_the_bytes_are_those_of_the_loop(job, expected, dask_workers):
    done = []

    def tell(number):
        done.append(number)
        if len(done) == 2:
            os.kill(dask_workers.workers[0].pid, signal.SIGKILL)

    assert api.encode(job, engine="dask", address=dask_workers.scheduler_address, tell=tell) == 10
    assert sorted(done) == list(range(10))
    assert parts(job) == expected
    (job / "parts" / "part-00003.json").unlink()
    break_shard(job, 3)
    with pytest.raises(CallslipError, match=r"shard-00003 \(.*corpus.jsonl, lines 13 to 16\): failed 3 times"):
        api.encode(job, engine="dask", address=dask_workers.scheduler_address)


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("dask", "distributed")])
def test_a_missing_package_names_its_extra(job, engine, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"callslip\[{engine}\]"):
        api.encode(job, engine=engine)


def test_contradictory_options_are_refused(job):
    for options, said in (
        ({"engine": "spark"}, "Engines: local, ray, dask"),
        ({"address": "auto"}, "without an engine"),
        ({"engine": "ray", "address": "auto", "workers": 2}, "--workers and --address exclude each other"),
        ({"engine": "dask", "workers": 0}, "--workers is 0"),
    ):
        with pytest.raises(BadSetting, match=said):
            api.encode(job, **options)


@pytest.mark.parametrize(
    ("engine", "package", "address"), [("ray", "ray", "auto"), ("dask", "distributed", "tcp://127.0.0.1:9")]
)
def test_no_cluster_at_the_address(job, engine, package, address, monkeypatch):
    pytest.importorskip(package, reason=f"the extra {engine!r} is not installed")
    monkeypatch.setattr(clusters, "WAIT", 1)
    with pytest.raises(CallslipError, match=f"no {engine.capitalize()} cluster at {address}"):
        api.encode(job, engine=engine, address=address)


def test_the_task_makes_parts_and_answers_in_words(job, expected, monkeypatch):
    path, loads, load = str(job), [], clusters.Worker
    monkeypatch.setattr(clusters, "Worker", lambda job: loads.append(job) or load(job))
    assert [clusters.make_part(path, number) for number in range(10)] == [""] * 10
    assert parts(job) == expected
    assert len(loads) == 1  # one model for ten shards
    (job / "parts" / "part-00003.json").unlink()
    break_shard(job, 3)
    assert "shard-00003.jsonl" in clusters.make_part(path, 3)
    plan = json.loads((job / "plan.json").read_text())
    (job / "plan.json").write_text(json.dumps(plan | {"name": "another"}))
    clusters.make_part(path, 3)
    assert len(loads) == 2  # a long-lived worker of a cluster sees that the plan has changed
    assert "every node needs the job folder" in clusters.make_part(str(job / "elsewhere"), 3)


def test_a_shard_is_tried_three_times():
    told = []
    tries = engines.Tries(told.append)
    assert [tries.again(4, "no") for _ in range(3)] == [True, True, False]
    assert tries.again(5, "no") and not tries.again(5, None)
    assert told == [5]
    assert tries.failed == {4: "failed 3 times, last: no"}
