"""Jobs: the same bytes from any order of work and after any kill, and the index that a fit would have made."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from callslip import api
from callslip.corpus.load import load_corpus
from callslip.errors import BadInput, BadSetting, CallslipError, Unsupported
from callslip.identifiers import tied
from callslip.jobs import engines, plan, worker
from callslip.jobs.plan import Job, ShardedDocuments
from callslip.search import postings
from callslip.storage.folder import footprint

FAST = {"encoder": "scratch:dim=32", "length": 12}
QUESTIONS = ["which violin has the mark music3", "a river", "copper unlike silver", "where is the apple with fruit5"]


@pytest.fixture
def job(beir, tmp_path) -> Path:
    """Forty documents in fourteen shards."""
    assert len(api.plan(beir, tmp_path / "job", settings=FAST, shard_rows=3).shards) == 14
    return tmp_path / "job"


def parts(job: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((job / "parts").iterdir())}


def twin(job: Path, name: str) -> Path:
    """A copy of a job whose parts are not made yet."""
    import shutil

    copy = job.with_name(name)
    shutil.copytree(job, copy)
    for path in (copy / "parts").iterdir():
        path.unlink()
    return copy


def hits(index) -> list[list[tuple[str, float]]]:
    return [[(hit.doc_id, hit.score) for hit in found] for found in index.search_batch(QUESTIONS, k=10)]


def test_the_loop_three_processes_and_shares_in_any_order_give_the_same_bytes(job):
    assert api.encode(job) == 14
    expected = parts(job)
    assert len(expected) == 28
    processes, shares = twin(job, "processes"), twin(job, "shares")
    api.encode(processes, workers=3)
    for i in (3, 1, 4, 2):
        api.encode(shares, part=(i, 4))
    assert parts(processes) == expected
    assert parts(shares) == expected


@pytest.mark.slow
def test_random_kills_cost_shards_and_never_bytes(job, monkeypatch):
    api.encode(job)
    killed, kills, rng = twin(job, "killed"), 0, random.Random(1)
    over = threading.Event()
    lock = threading.Lock()
    running: list[subprocess.Popen] = []
    start = engines.subprocess.Popen

    def started(*arguments, **options):
        process = start(*arguments, **options)
        with lock:
            running.append(process)
        return process

    def kill():
        nonlocal kills
        while not over.wait(rng.uniform(0.02, 0.4)):
            with lock:
                alive = [process for process in running if process.poll() is None]
            if alive and kills < 20:
                os.kill(rng.choice(alive).pid, signal.SIGKILL)
                kills += 1

    monkeypatch.setattr(engines.subprocess, "Popen", started)
    thread = threading.Thread(target=kill)
    thread.start()
    runs, deadline = 0, time.monotonic() + 120
    try:
        while kills < 20 and time.monotonic() < deadline:
            for file in rng.sample(sorted((killed / "parts").glob("*.json")), k=min(runs, 6)):
                file.unlink()  # as if it had never been made
            runs += 1
            try:
                api.encode(killed, workers=3)
            except CallslipError as error:  # the same shard was hit three times
                assert "the worker died (exit code -9)" in error.problem
    finally:
        over.set()
        thread.join()
    assert kills == 20
    api.encode(killed)
    assert parts(killed) == parts(job)  # with no drafts beside them


def test_a_killed_driver_leaves_whole_parts_and_the_next_run_makes_the_rest(job):
    api.encode(job)
    stopped = twin(job, "stopped")
    command = [sys.executable, "-m", "callslip", "encode", str(stopped), "--workers", "2"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not list((stopped / "parts").glob("*.json")) and process.poll() is None:
        time.sleep(0.005)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while list((stopped / "parts").glob(".new-*")) and time.monotonic() < deadline:
        time.sleep(0.05)  # workers finish the shard in hand, then see that nobody asks
    for file in (stopped / "parts").glob("*.json"):
        assert file.read_bytes() == (job / "parts" / file.name).read_bytes()
    api.encode(stopped)
    assert parts(stopped) == parts(job)


@pytest.mark.parametrize("settings", [{}, {"passages": 2}, {"words": False, "memory": False}])
def test_the_built_index_is_the_fitted_one(beir, tmp_path, settings):
    fitted = api.fit(beir, "tied-residual", tmp_path / "fitted", settings=FAST | settings)
    api.plan(beir, tmp_path / "job", settings=FAST | settings, shard_rows=7)
    api.encode(tmp_path / "job")
    api.build(tmp_path / "job", tmp_path / "built")
    built = api.load(tmp_path / "built")
    assert hits(built) == hits(fitted)
    assert built.corpus_fingerprint["sha256"] == fitted.corpus_fingerprint["sha256"]
    one, other = (folder / "generation-000001" for folder in (tmp_path / "fitted", tmp_path / "built"))
    for name in ("codebooks.safetensors", "entries.npy", "scales.npy", "owners.npy", "weights.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    api.check(tmp_path / "built")
    built.add([api.Document("new", "A zither bears the mark music99.")])
    assert api.load(tmp_path / "built").search("zither with the mark music99", k=1)[0].doc_id == "new"


def test_a_build_reads_documents_from_the_shards_and_never_holds_all(job, small_corpus, tmp_path, monkeypatch):
    api.encode(job)
    documents = Job.open(job).corpus().documents
    expected = list(small_corpus)
    assert isinstance(documents, ShardedDocuments) and list(documents) == expected
    assert [documents[row] for row in (39, 0, 17, -1)] == [expected[row] for row in (39, 0, 17, -1)]
    assert documents[5:9] == expected[5:9] and documents.rows([3, 20]) == [expected[3], expected[20]]
    assert list(documents.doc_ids()) == small_corpus.doc_ids
    assert [dict(one) for one in documents.metadata()] == [dict(one.metadata) for one in expected]
    with pytest.raises(IndexError):
        documents[40]
    held, most, read = weakref.WeakSet(), 0, plan.read_shard

    class Counted(str):  # a text that can be counted while it is held
        __slots__ = ("__weakref__",)

    def counted(path):
        nonlocal most
        for document in read(path):
            text = Counted(document.text)
            held.add(text)
            most = max(most, len(held))
            yield replace(document, text=text)

    monkeypatch.setattr(plan, "read_shard", counted)
    monkeypatch.setattr(postings, "BLOCK", 4)
    api.build(job, tmp_path / "index")
    assert 0 < most < 20


def test_codebooks_of_a_large_corpus_are_learned_from_the_sample_of_a_fit(monkeypatch):
    monkeypatch.setattr(tied, "SAMPLE", 4)
    vectors = np.random.default_rng(0).normal(size=(300, 16)).astype(np.float32)
    whole, sampled = (tied.TiedQuantizer(8, 1, width=16) for _ in range(2))
    codes = whole.fit(vectors)
    rows = sampled.sample(len(vectors))
    assert len(rows) == 64 and (np.diff(rows) > 0).all()
    sampled.learn(vectors[rows], len(vectors))
    np.testing.assert_array_equal(sampled.assign(vectors), codes)


def test_given_vectors_are_cut_into_shards(beir, tmp_path):
    corpus = load_corpus(beir)
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, 24)).astype(np.float32)
    queries = {q: rng.normal(size=24).astype(np.float32) for q in corpus.queries}
    np.save(tmp_path / "vectors.npy", vectors)
    settings = {"length": 12}
    fitted = api.fit(corpus, "tied-residual", settings=settings, vectors=vectors, query_vectors=queries)
    api.plan(beir, tmp_path / "job", settings=settings, shard_rows=7, vectors=tmp_path / "vectors.npy")
    api.encode(tmp_path / "job")
    built = api.build(tmp_path / "job", tmp_path / "built", query_vectors=queries)
    asked = list(corpus.queries.values())[:10]
    for one, other in zip(fitted.search_batch(asked), built.search_batch(asked), strict=True):
        assert [(hit.doc_id, hit.score) for hit in one] == [(hit.doc_id, hit.score) for hit in other]
    np.save(tmp_path / "short.npy", vectors[:39])
    with pytest.raises(BadInput, match="39 for 40 documents"):
        api.plan(beir, tmp_path / "other", settings=settings, vectors=tmp_path / "short.npy")
    assert not (tmp_path / "other").exists()


def test_missing_parts_are_refused_by_name(job, tmp_path):
    with pytest.raises(CallslipError, match=r"14 of 14 parts are missing: part-00000, .* and 4 more"):
        api.build(job, tmp_path / "index")
    api.encode(job)
    (job / "parts" / "part-00005.json").unlink()
    with pytest.raises(CallslipError, match="1 of 14 parts are missing: part-00005\n"):
        api.build(job, tmp_path / "index")
    assert not (tmp_path / "index").exists()
    assert api.encode(job) == 1


def test_a_damaged_part_is_refused_by_name(job, tmp_path):
    api.encode(job)
    file = job / "parts" / "part-00004.npz"
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)
    with pytest.raises(CallslipError, match=r"part-00004.npz: .*SHA-256"):
        api.build(job, tmp_path / "index")
    file.write_bytes(whole[:-1])  # cut short: encode makes it again
    assert api.encode(job) == 1
    api.build(job, tmp_path / "index")


def test_changed_settings_encoders_and_makers_are_refused_by_part(job, tmp_path, monkeypatch):
    api.encode(job, part=(2, 2))
    plan = json.loads((job / "plan.json").read_text())
    for change, said in (
        ({"settings": plan["settings"] | {"length": 10}}, "part-00001 was made with a different set of settings"),
        ({"encoder": "weights=other"}, "part-00001 was made with a different encoder"),
        ({"maker": plan["maker"] | {"sha256": "0" * 64}}, "part-00001 was made with a different maker of codes"),
    ):
        (job / "plan.json").write_text(json.dumps(plan | change))
        for work in (lambda: api.encode(job), lambda: api.build(job, tmp_path / "index")):
            with pytest.raises(CallslipError, match=said):
                work()
    (job / "plan.json").write_text(json.dumps(plan))
    monkeypatch.setattr(worker, "encoder_print", lambda *_: "scratch dim=33")
    with pytest.raises(CallslipError, match=r"part-00000: the encoder here is \[scratch dim=33\]"):
        api.encode(job)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_shard_is_tried_three_times_and_named_with_file_and_lines(job, workers, monkeypatch):
    file = job / "shards" / "shard-00002.jsonl"
    file.write_bytes(file.read_bytes()[:-2])
    runs, run = [], worker.Worker.run
    monkeypatch.setattr(worker.Worker, "run", lambda self, number: runs.append(number) or run(self, number))
    with pytest.raises(CallslipError, match=r"shard-00002 \(.*corpus.jsonl, lines 7 to 9\): failed 3 times"):
        api.encode(job, workers=workers)
    assert len(list((job / "parts").glob("*.json"))) == 13
    assert workers > 1 or runs.count(2) == 3  # other processes do not run what was set here


def test_a_plan_is_whole_or_not_there(beir, tmp_path):
    lines = (beir / "corpus.jsonl").read_text().splitlines()
    (tmp_path / "bad.jsonl").write_text("\n".join([*lines[:5], "{", *lines[5:], lines[0]]) + "\n")
    with pytest.raises(BadInput, match=r"bad.jsonl:6"):
        api.plan(tmp_path / "bad.jsonl", tmp_path / "job", settings=FAST, shard_rows=2)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]
    job = api.plan(tmp_path / "bad.jsonl", tmp_path / "job", settings=FAST, shard_rows=2, skip_bad=True)
    assert job.rows == 40  # the broken line and the duplicate are left out
    with pytest.raises(CallslipError, match="exists"):
        api.plan(tmp_path / "bad.jsonl", tmp_path / "job", settings=FAST)
    with pytest.raises(CallslipError, match="is not a job"):
        Job.open(tmp_path)


def test_what_cannot_be_sharded_is_refused(beir, tmp_path):
    with pytest.raises(Unsupported, match="bm25 cannot be fitted in shards"):
        api.plan(beir, tmp_path / "job", "bm25")
    with pytest.raises(BadSetting, match="shard-rows is 0"):
        api.plan(beir, tmp_path / "job", shard_rows=0)
    api.plan(beir, tmp_path / "job", settings=FAST, shard_rows=30)
    for part in ((0, 3), (4, 3)):
        with pytest.raises(BadSetting, match="part"):
            api.encode(tmp_path / "job", part=part)
    with pytest.raises(BadSetting, match="workers"):
        api.encode(tmp_path / "job", workers=0)


def test_the_command_line(beir, tmp_path):
    def run(*arguments):
        command = [sys.executable, "-m", "callslip", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    job, index = tmp_path / "job", tmp_path / "index"
    made = run("plan", beir, "--out", job, "--shard-rows", 15, "--set", "encoder=scratch:dim=32", "--set", "length=12")
    assert made.returncode == 0, made.stderr
    assert "40 documents in 3 shards" in made.stderr
    assert run("encode", job, "--part", "2/2").returncode == 0
    missing = run("build", job, "--out", index)
    assert missing.returncode == 2 and "part-00000, part-00002" in missing.stderr
    assert "Traceback" not in missing.stderr
    assert run("encode", job, "--part", "x").returncode == 2
    assert "2 parts made" in run("encode", job, "--workers", "2").stderr
    built = run("build", job, "--out", index)
    assert built.returncode == 0
    sizes = footprint(index)
    files = [file for file in index.glob("generation-*/**/*") if file.is_file()]
    assert sum(sizes.values()) * 40 == pytest.approx(sum(file.stat().st_size for file in files))
    assert f"bytes a document, beside the texts: {sum(sizes.values()):.0f}" in built.stderr
    assert "peak memory" in built.stderr
    assert "music/3" in run("search", index, "which nickel trumpet has the mark music3").stdout
