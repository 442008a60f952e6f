"""doc2query with a tiny model of our own: the plumbing, not the quality."""

from __future__ import annotations

import importlib
import json

import pytest
from small_t5 import save_small_t5

from callslip.corpus import Document, doc2query
from callslip.errors import BadSetting, CallslipError, UnknownName

WORDS = ["how", "to", "lift", "wing", "what", "is", "heat", "flow", "speed", "air"]
DOCUMENTS = [
    Document("a", "lift of the wing " * 9),
    Document("b", "heat"),
    Document("c", "", ""),
    Document("d", "air flow"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_small_t5(tmp_path_factory.mktemp("checkpoint"), WORDS)


def test_queries_for_every_document_in_order(checkpoint):
    import torch

    state = torch.random.get_rng_state()
    pairs = doc2query(DOCUMENTS, checkpoint, per_document=4, batch_size=3, max_length=6, device="cpu")
    assert torch.equal(state, torch.random.get_rng_state())  # the caller's chance is left alone
    ids = [pair.doc_id for pair in pairs]
    assert ids == sorted(ids)
    assert set(ids) == {"a", "b", "c", "d"}
    for doc_id in set(ids):
        queries = [pair.query for pair in pairs if pair.doc_id == doc_id]
        assert 1 <= len(queries) == len(set(queries)) <= 4
        assert all(set(query.split()) <= set(WORDS) and len(query.split()) <= 6 for query in queries)


def test_the_seed_decides(checkpoint):
    def made(seed):
        return doc2query(DOCUMENTS, str(checkpoint), per_document=3, seed=seed, max_length=8, device="cpu")

    assert made(1) == made(1)
    assert made(1) != made(2)


@pytest.mark.parametrize(
    ("sampling", "options"), [("top-k", {"top_k": 10}), ("nucleus", {"top_k": 0, "top_p": 0.8, "temperature": 0.8})]
)
def test_queries_are_drawn_from_the_likeliest_tokens_or_from_the_nucleus(checkpoint, monkeypatch, sampling, options):
    from transformers import T5ForConditionalGeneration

    asked, generate = [], T5ForConditionalGeneration.generate

    def spied(self, *arguments, **more):
        asked.append({name: more[name] for name in ("top_k", "top_p", "temperature") if name in more})
        assert more["do_sample"]
        return generate(self, *arguments, **more)

    monkeypatch.setattr(T5ForConditionalGeneration, "generate", spied)
    assert doc2query(DOCUMENTS, checkpoint, per_document=2, max_length=4, device="cpu", sampling=sampling)
    assert asked == [options]
    with pytest.raises(UnknownName, match="sampling"):
        doc2query(DOCUMENTS, checkpoint, sampling="greedy")


def test_checkpoints_that_are_none(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CallslipError, match=r"no sequence-to-sequence checkpoint at .*nowhere") as refusal:
        doc2query(DOCUMENTS, tmp_path / "nowhere")
    assert "config.json" in refusal.value.remedy
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(CallslipError):
        doc2query(DOCUMENTS, tmp_path)
    (tmp_path / "config.json").write_text("not json")
    with pytest.raises(CallslipError):
        doc2query(DOCUMENTS, tmp_path)
    with pytest.raises(BadSetting, match="batch_size"):
        doc2query(DOCUMENTS, tmp_path, batch_size=0)


# The cache.


@pytest.fixture
def counted(checkpoint, tmp_path, monkeypatch):
    """doc2query with a cache of its own, in chunks of three documents, and what the model was asked to write."""
    module = importlib.import_module("callslip.corpus.doc2query")
    monkeypatch.setenv("CALLSLIP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "CHUNK", 3)
    write, asked = module._write, []

    def watched(tokenizer, model, texts, *more):
        asked.append(texts)
        return write(tokenizer, model, texts, *more)

    monkeypatch.setattr(module, "_write", watched)

    def run(documents=DOCUMENTS, **more):
        asked.clear()
        options = {"per_document": 3, "max_length": 6, "device": "cpu"} | more
        return list(doc2query(documents, more.pop("checkpoint", checkpoint), **options)), len(asked)

    return run


def test_queries_are_generated_once(counted, monkeypatch):
    pairs, written = counted()
    assert written == 2  # chunks
    module = importlib.import_module("callslip.corpus.doc2query")
    monkeypatch.setattr(module, "_load", lambda checkpoint: pytest.fail("the model was loaded"))
    assert counted() == (pairs, 0)


@pytest.mark.parametrize("change", [{"seed": 1}, {"per_document": 2}, {"max_length": 5}, {"batch_size": 2}], ids=str)
def test_whatever_changes_queries_generates_them_again(counted, change):
    counted()
    assert counted(**change)[1] > 0


def test_another_text_or_checkpoint_generates_its_own(counted, checkpoint, tmp_path):
    pairs, _ = counted()
    others = [*DOCUMENTS[:3], Document("d", "air flow speed")]
    assert counted(others)[1] > 0 and counted(others)[1] == 0
    other = save_small_t5(tmp_path / "other", WORDS, d_model=24)
    options = {"per_document": 3, "max_length": 6, "device": "cpu"}
    assert list(doc2query(DOCUMENTS, other, **options)) != pairs
    assert counted() == (pairs, 0)


def test_an_interrupted_run_goes_on_and_ends_alike(counted, tmp_path):
    """As if killed after the first chunk: its file is there, the second's is not."""
    pairs, _ = counted()
    files = sorted((tmp_path / "cache" / "doc2query").iterdir())
    assert len(files) == 2
    files[0].unlink()
    assert counted() == (pairs, 1)
    files[1].write_text(files[1].read_text().replace('"queries"', '"questions"'))
    assert counted() == (pairs, 1)
    files[1].write_bytes(files[1].read_bytes()[:-9])
    assert counted() == (pairs, 1)
    held = json.loads(files[1].read_text())
    held["queries"][0] = ["forged"]
    files[1].write_text(json.dumps(held))
    assert counted() == (pairs, 1)


def test_without_a_cache_queries_are_the_same(counted, monkeypatch, tmp_path):
    pairs, _ = counted()
    monkeypatch.setenv("CALLSLIP_CACHE", "off")
    assert counted() == (pairs, 2)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CALLSLIP_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="not cached"):
        assert counted() == (pairs, 2)
