"""doc2query with a tiny model of our own: the plumbing, not the quality."""

from __future__ import annotations

import pytest

from callslip.corpus import Document, doc2query
from callslip.errors import BadSetting, CallslipError

WORDS = ["how", "to", "lift", "wing", "what", "is", "heat", "flow", "speed", "air"]
DOCUMENTS = [
    Document("a", "lift of the wing " * 9),
    Document("b", "heat"),
    Document("c", "", ""),
    Document("d", "air flow"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A random T5 of a few thousand weights and a tokenizer of whole words, saved as usual."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    vocabulary = {word: number for number, word in enumerate(["<pad>", "</s>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    folder = tmp_path_factory.mktemp("checkpoint")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(vocabulary), d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


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
