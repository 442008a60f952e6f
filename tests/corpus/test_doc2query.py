"""doc2query with a tiny model of our own: the plumbing, not the quality."""

from __future__ import annotations

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
