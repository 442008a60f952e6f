"""The int8 graph against float32, and the file it is kept in."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from callslip.encoders import int8 as module
from callslip.encoders.encoder import load_encoder
from callslip.encoders.pretrained import open_checkpoint
from callslip.encoders.smoothing import smooth
from callslip.errors import CallslipError, MissingExtra

pytestmark = pytest.mark.slow  # one export of MiniLM

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

TEXTS = [
    "Aspirin inhibits the production of prostaglandins in platelets.",
    "how do I sort a list of dictionaries by a key",
    "The parliament was dissolved in the spring and an election was called for June, which the government lost. " * 6,
    "Return an iterator over the lines of the file, one at a time, without the newline at the end of each line.",
    "interest rate swap",
    "",
    "A 54-year-old man presented with chest pain; his electrocardiogram showed ST elevation in leads II, III and aVF.",
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CALLSLIP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield module.cache_folder()


@pytest.fixture(scope="module")
def int8(cache):
    return load_encoder("minilm", backend="onnx")


@pytest.fixture(scope="module")
def fp32():
    return load_encoder("minilm", backend="torch", device="cpu")


def test_cosine_to_float(int8, fp32):
    cosines = (int8.encode(TEXTS) * fp32.encode(TEXTS)).sum(axis=1)
    assert cosines.mean() >= 0.995 and cosines.min() >= 0.99, cosines
    assert int8.backend == "onnx" and fp32.backend == "torch" and int8.fingerprint != fp32.fingerprint


def test_a_vector_does_not_depend_on_its_neighbours(int8):
    whole = int8.encode(TEXTS)
    for batch_size in (1, 3):
        np.testing.assert_allclose(int8.encode(TEXTS, batch_size=batch_size), whole, atol=1e-6)
    np.testing.assert_allclose(np.concatenate([int8.encode([text]) for text in TEXTS]), whole, atol=1e-6)


def test_kept_whole_and_read_again_without_torch(int8, cache):
    code = (
        "import sys; from callslip.encoders import int8 as module, load_encoder\n"
        "module.export = None\n"
        "device = None if sys.platform == 'linux' else 'cpu'\n"
        "encoder = load_encoder('minilm', backend=sys.argv[1], device=device)\n"
        "print(encoder.encode(['interest rate swap'])[0, :4].tolist())\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    has_gpu = any(Path(node).exists() for node in module.GPU_NODES)
    for backend in ["onnx"] if has_gpu else ["onnx", "auto"]:
        done = subprocess.run([sys.executable, "-c", code, backend], capture_output=True, text=True, check=True)
        np.testing.assert_allclose(json.loads(done.stdout), int8.encode(["interest rate swap"])[0, :4], atol=1e-6)
    assert not list((cache / "onnx").glob(".*"))


def test_auto_chooses_the_graph_only_where_it_suits(int8, cache, monkeypatch):
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        assert load_encoder("minilm").backend == "onnx"
    assert load_encoder("minilm", device="cpu").backend == "onnx"
    monkeypatch.setenv("CALLSLIP_CACHE", "off")
    assert not module.suits("cpu")
    monkeypatch.setenv("CALLSLIP_CACHE", str(cache))
    assert not module.suits("cuda")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert not module.suits("cpu")
    with pytest.raises(MissingExtra, match=r"callslip\[onnx\]"):
        load_encoder("minilm", backend="onnx")


@pytest.mark.parametrize("damage", ["flip", "truncate", "no graph", "note is not JSON", "note of another"])
def test_a_damaged_graph_is_exported_again(tmp_path, damage):
    module.keep_graph(tmp_path, "key", b"the graph" * 100)
    (graph,), (note,) = tmp_path.glob("*.onnx"), tmp_path.glob("*.json")
    assert module.read_graph(tmp_path, "key") == b"the graph" * 100
    if damage == "flip":
        graph.write_bytes(b"X" + graph.read_bytes()[1:])
    elif damage == "truncate":
        graph.write_bytes(graph.read_bytes()[:-1])
    elif damage == "no graph":
        graph.unlink()
    elif damage == "note is not JSON":
        note.write_text("{")
    else:
        note.write_text(json.dumps({"file": graph.name, "sha256": "0" * 64}))
    assert module.read_graph(tmp_path, "key") is None
    assert module.read_graph(tmp_path, "another key") is None


def test_a_model_that_does_not_export_runs_in_torch(cache, monkeypatch):
    def fails(checkpoint, path):
        raise RuntimeError("no such operator\nand a long story")

    monkeypatch.setattr(module, "RECIPE", "never kept")
    monkeypatch.setattr(module, "_export_plain", fails)
    with pytest.warns(UserWarning, match="no such operator"):
        assert load_encoder("minilm", device="cpu").backend == "torch"
    with pytest.raises(CallslipError, match="backend='torch'"):
        load_encoder("minilm", backend="onnx")


def test_smoothing_changes_nothing_in_float(fp32):
    checkpoint = open_checkpoint("minilm")
    ids = torch.tensor([checkpoint.tokenizer.encode(TEXTS[0]).ids])
    mask = torch.ones_like(ids)
    plain, smoothed = checkpoint.load_model(), smooth(checkpoint.load_model(), checkpoint.tokenizer)
    with torch.inference_mode():
        expected, found = (model(input_ids=ids, attention_mask=mask)[0] for model in (plain, smoothed))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    changed = smoothed.encoder.layer[0].intermediate.dense
    assert changed.inverse.max() / changed.inverse.min() > 2  # and it did something


def test_threads_follow_the_setting(monkeypatch):
    assert module.threads() == torch.get_num_threads()
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert module.threads() == 3
