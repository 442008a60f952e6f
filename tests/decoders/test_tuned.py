"""The encoder trained with the decoder: which layers move, and that the index still saves, loads and grows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import callslip
from callslip.decoders.tuned import TOP, TunedWriter, layers_of
from callslip.decoders.writer import CodeWriter
from callslip.encoders.encoder import load_encoder
from callslip.errors import BadSetting, Unsupported
from callslip.methods import make


def tuned(trained: str) -> TunedWriter:
    torch.manual_seed(0)
    return TunedWriter("minilm", CodeWriter(384, [4, 4], width=32, heads=2), trained).eval()


def test_it_reads_as_the_encoder_does():
    texts = ["A cat sleeps.", "the storm at sea and the boats that never came home", ""]
    model = tuned("top")
    with torch.inference_mode():
        found = model.memory(model.batch(model.tokenize(texts))).numpy()
    np.testing.assert_allclose(found, load_encoder("minilm", backend="torch").encode(texts), atol=1e-5)


def test_a_text_that_is_cut_still_ends():
    model = tuned("top")
    (whole,), (cut,) = (
        model.tokenize(["one two three four five six"]),
        model.tokenize(["one two three four five six"], 4),
    )
    assert len(cut) == 4 and cut[:3] == whole[:3] and cut[-1] == whole[-1]


@pytest.mark.parametrize("trained", ["top", "all"])
def test_the_layers_that_were_asked_for_are_trained(trained):
    model = tuned(trained)
    layers = layers_of(model.encoder)
    moving = {id(p) for p in model.parameters() if p.requires_grad}
    top = {id(p) for layer in layers[-TOP:] for p in layer.parameters()}
    rest = {id(p) for p in model.encoder.parameters()} - top
    assert top <= moving
    assert (rest <= moving) if trained == "all" else not rest & moving
    loss = sum(one.logsumexp(-1).sum() for one in model(model.batch(model.tokenize(["a cat"])), torch.tensor([[1, 2]])))
    loss.backward()
    assert all(p.grad is not None for layer in layers[-TOP:] for p in layer.parameters())


def test_an_encoder_without_layers_is_refused():
    with pytest.raises(Unsupported, match="no layers to train"):
        TunedWriter("scratch", CodeWriter(64, [4], width=32, heads=2), "top")


@pytest.mark.parametrize("method", ["genret", "nci"])
def test_an_index_with_a_trained_encoder_lives_like_any_other(method, small_corpus, tmp_path):
    values = {
        "train_encoder": "top", "encoder_learning_rate": 1e-3, "seq2seq_length": 16, "training_texts": [], "epochs": 1,
        "level_epochs": 1, "warmup_epochs": 0, "decoder_width": 32, "width": 4, "length": 2, "batch_size": 16,
        "backend": "torch",
    }  # fmt: skip
    if method == "nci":
        values = {key: value for key, value in values.items() if key not in ("level_epochs", "warmup_epochs")}
    index = make(method, values).fit(small_corpus)
    before = load_encoder("minilm", backend="torch").runner.model.state_dict()
    after = index.model.encoder.state_dict()
    moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert moved and all(".layer.4." in name or ".layer.5." in name for name in moved)
    index.add([callslip.Document("new/1", "the violin is a music")])
    index.save(tmp_path / "index")
    loaded = callslip.load(tmp_path / "index")
    asked = [query.text for query in list(small_corpus.queries.values())[:4]]
    for one, other in zip(index.search_batch(asked, 5), loaded.search_batch(asked, 5), strict=True):
        assert one.doc_ids == other.doc_ids
    assert "new/1" in index.search("the violin is a music", 41).doc_ids


def test_t5_and_a_trained_encoder_exclude_one_another():
    with pytest.raises(BadSetting, match="train_encoder"):
        make("dsi-semantic", {"train_encoder": "top", "seq2seq": "t5-small"})
