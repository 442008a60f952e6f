"""The first queries of a process in NumPy: the same vectors as torch's, without importing torch."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from small_bert import save_small_bert
from transformers import AutoModel

from callslip.encoders import cold_start
from callslip.encoders.cold_start import ColdStart, NumpyBert
from callslip.encoders.encoder import load_encoder

TEXTS = ["who ate my sandwich", "a", "", "refunds take five days after the parcel has arrived"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_small_bert(tmp_path_factory.mktemp("bert"), ["who", "ate", "my", "sandwich"])


def test_states_are_those_of_transformers(folder):
    import torch

    rng = np.random.default_rng(0)
    model = AutoModel.from_pretrained(str(folder)).eval()
    ids = rng.integers(0, model.config.vocab_size, (3, 7))
    mask = np.array([[1] * 7, [1] * 4 + [0] * 3, [1] + [0] * 6])
    with torch.inference_mode():
        states = model(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).last_hidden_state.numpy()
    found = NumpyBert(folder)(ids, mask)
    kept = mask.astype(bool)
    np.testing.assert_allclose(found[kept], states[kept], atol=2e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_pooling_is_that_of_torch(pooling):
    import torch

    from callslip.encoders.pooling import pool

    states = np.random.default_rng(1).normal(size=(2, 5, 4)).astype(np.float32)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    expected = pool(torch.from_numpy(states), torch.from_numpy(mask), pooling).numpy()
    np.testing.assert_allclose(cold_start.pooled(states, mask, pooling), expected, atol=1e-6)


QUERY = """
import json, sys
from callslip.encoders.encoder import load_encoder
encoder = load_encoder("minilm", backend="torch")
vectors = [encoder.encode([text])[0].tolist() for text in json.loads(sys.argv[1])]
print(json.dumps({"vectors": vectors, "torch": "torch" in sys.modules}))
"""


def test_a_process_that_only_asks_never_imports_torch_and_gets_the_same_vectors():
    done = subprocess.run([sys.executable, "-c", QUERY, json.dumps(TEXTS)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert not found["torch"]
    in_torch = load_encoder("minilm", backend="torch", device="cpu").encode(TEXTS)  # a device: no cold start
    np.testing.assert_allclose(np.array(found["vectors"]), in_torch, atol=1e-5)


class Loaded:
    """A runner that counts its batches."""

    batch_tokens = 7

    def __init__(self):
        self.batches = 0

    def __call__(self, ids, mask):
        self.batches += 1
        return np.zeros((len(ids), 1))


@pytest.mark.parametrize(("tokens", "batches", "in_torch"), [(5, 16, 0), (5, 18, 2), (64, 1, 0), (65, 1, 1)])
def test_long_batches_and_later_ones_are_torchs(folder, monkeypatch, tokens, batches, in_torch):
    runner = Loaded()
    cold = ColdStart(folder, "mean", lambda: runner)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(cold_start, "NumpyBert", lambda folder: lambda ids, mask: np.zeros((*ids.shape, 3)))
    for _ in range(batches):
        cold(np.ones((1, tokens), np.int64), np.ones((1, tokens), np.int64))
    assert runner.batches == in_torch
    assert cold.batch_tokens == (7 if in_torch else 2048)


def test_where_torch_is_imported_already_it_is_used(folder):
    runner = Loaded()
    ColdStart(folder, "mean", lambda: runner)(np.ones((1, 3), np.int64), np.ones((1, 3), np.int64))
    assert runner.batches == 1


def test_other_models_start_in_torch(folder, tmp_path):
    assert cold_start.suits(folder, "mean", ()) and not cold_start.suits(None, "mean", ())
    assert not cold_start.suits(folder, "max", ()) and not cold_start.suits(folder, "mean", ("dense",))
    config = json.loads((folder / "config.json").read_text())
    for change in ({"model_type": "roberta"}, {"hidden_act": "relu"}, {"position_embedding_type": "relative_key"}):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
        assert not cold_start.suits(tmp_path, "mean", ())
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert cold_start.suits(tmp_path, "mean", ())
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    assert not cold_start.suits(tmp_path, "mean", ())
