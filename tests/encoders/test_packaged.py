"""Weights in packages as int8 graphs: read, converted once, checked by hash; the real ones where installed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from small_t5 import save_small_t5

from callslip.encoders import load_encoder, packaged
from callslip.encoders.embedded import Package, sha256_of
from callslip.encoders.onnx_weights import float_weights
from callslip.encoders.packaged import MODELS, PackagedModel
from callslip.errors import CallslipError, IndexCorrupt

onnx = pytest.importorskip("onnx")


def real(name: str) -> pytest.MarkDecorator:
    model = MODELS[name]
    return pytest.mark.skipif(not model.installed, reason=f"needs the package {model.package.requirement}")


# Reading a graph.


def quantised(values: np.ndarray, kind: type) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    low = float(values.min()) if kind is np.uint8 else 0.0
    scale = np.float32((values.max() - low) / 255 if kind is np.uint8 else abs(values).max() / 127)
    zero = kind(round(-low / scale))
    return (
        np.clip(np.round(values / scale) + zero, *((0, 255) if kind is np.uint8 else (-127, 127))).astype(kind),
        (scale),
        zero,
    )


def save_graph(path, linear: dict[str, np.ndarray], embeddings: dict[str, np.ndarray], plain: dict[str, np.ndarray]):
    """A graph as ONNX Runtime's dynamic quantisation leaves it, as far as weights go."""
    from onnx import TensorProto, helper, numpy_helper

    arrays, nodes = dict(plain), []
    for number, (name, values) in enumerate(linear.items()):
        key = f"onnx::MatMul_{number}"
        some = quantised(values.T, np.int8)
        arrays |= {key + ending: part for ending, part in zip(("_quantized", "_scale", "_zero_point"), some)}
        node = "/" + name.removesuffix(".weight").replace(".", "/").replace("layer/", "layer.") + "/MatMul_quant"
        nodes.append(
            helper.make_node("MatMulInteger", ["x", key + "_quantized", "z", key + "_zero_point"], ["y"], node)
        )
    for name, values in embeddings.items():
        some = quantised(values, np.uint8)
        arrays |= {name + ending: part for ending, part in zip(("_quantized", "_scale", "_zero_point"), some)}
    shape = helper.make_tensor_value_info("x", TensorProto.UINT8, None)
    tensors = [numpy_helper.from_array(np.asarray(values), name) for name, values in arrays.items()]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [shape], [], tensors)), str(path))


def test_every_weight_has_its_name_its_shape_and_about_its_values(tmp_path):
    rng = np.random.default_rng(0)
    linear = {f"encoder.layer.{n}.dense.weight": rng.normal(size=(5, 3)).astype(np.float32) for n in range(2)}
    embeddings = {"embeddings.words.weight": rng.normal(1.0, size=(7, 4)).astype(np.float32)}
    plain = {"encoder.layer.0.dense.bias": rng.normal(size=5).astype(np.float32)}
    save_graph(tmp_path / "g.onnx", linear, embeddings, plain | {"constant": np.float32(3)})
    found = float_weights(tmp_path / "g.onnx")
    assert set(found) == {*linear, *embeddings, *plain}
    for name, values in (linear | embeddings).items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], values, atol=abs(values).max() / 100)
    np.testing.assert_array_equal(found["encoder.layer.0.dense.bias"], plain["encoder.layer.0.dense.bias"])


def test_a_file_that_is_no_graph(tmp_path):
    (tmp_path / "g.onnx").write_bytes(b"\xff not a graph")
    with pytest.raises(IndexCorrupt, match=r"g\.onnx"):
        float_weights(tmp_path / "g.onnx")


# Converting once.


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A package that holds one file, and a conversion that counts how often it runs."""
    (tmp_path / "some_weights" / "data").mkdir(parents=True)
    source = tmp_path / "some_weights" / "data" / "model.onnx"
    source.write_bytes(b"weights")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("CALLSLIP_CACHE", str(tmp_path / "cache"))
    runs = []

    def convert(folder):
        runs.append(folder)
        return {"model.safetensors": (folder / "model.onnx").read_bytes() * 2, "1_Pooling/config.json": b"{}"}

    files = {"model.onnx": sha256_of(source)}
    made = PackagedModel("some", "t5", "owner/some", Package("some_weights", "some-weights==1", "data", files), convert)
    monkeypatch.setitem(MODELS, "some", made)
    return made, runs, source


def test_a_model_is_converted_once_and_again_if_it_is_damaged(model, tmp_path):
    _, runs, source = model
    folder = tmp_path / "cache" / "models"
    first = packaged.folder_of("some")
    assert first.startswith(str(folder)) and len(runs) == 1
    assert (folder / first / "model.safetensors").read_bytes() == b"weightsweights"
    assert packaged.folder_of("some") == first and len(runs) == 1
    (folder / first / "model.safetensors").write_bytes(b"weightsweighty")
    assert packaged.folder_of("some") == first and len(runs) == 2
    assert (folder / first / "model.safetensors").read_bytes() == b"weightsweights"
    assert packaged.folder_of("google/flan-t5-small") == "google/flan-t5-small"
    assert source.read_bytes() == b"weights"


def test_another_file_than_the_tested_one_is_refused(model):
    _, runs, source = model
    source.write_bytes(b"others!")
    with pytest.raises(IndexCorrupt, match="not the tested file"):
        packaged.folder_of("some")
    assert not runs


def test_without_a_cache_it_is_converted_for_the_process(model, monkeypatch):
    _, runs, _ = model
    monkeypatch.setenv("CALLSLIP_CACHE", "off")
    assert packaged.folder_of("some") == packaged.folder_of("some") and len(runs) == 1


@pytest.mark.parametrize(
    ("name", "extra"), [("flan-t5-small", "t5"), ("ms-marco-minilm", "rerank"), ("bge-small", "rerank")]
)
def test_a_model_whose_package_is_missing_names_the_extra(monkeypatch, name, extra):
    from callslip.decoders.t5 import check_checkpoint
    from callslip.training.teachers import CrossEncoder

    monkeypatch.setattr(Package, "find", lambda self: None)
    use = {"flan-t5-small": check_checkpoint, "ms-marco-minilm": CrossEncoder, "bge-small": load_encoder}[name]
    with pytest.raises(CallslipError, match=name) as refused:
        use(name)
    assert f"callslip[{extra}]" in refused.value.remedy and MODELS[name].hub in refused.value.remedy


# A head of its own.


@pytest.mark.parametrize("codes", ["tokens", "codebooks"])
def test_a_t5_with_a_head_of_its_own_keeps_it(tmp_path, codes):
    """transformers ties every T5's head to its embeddings when the vocabulary grows, unless it is told not to."""
    from safetensors.torch import load_file, save_file

    from callslip.decoders.t5 import T5CodeWriter

    folder = save_small_t5(tmp_path / "t5", ["lift", "wing"])
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = torch.randn_like(weights["shared.weight"])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    config.pop("scale_decoder_outputs", None)  # as in flan's own file
    (folder / "config.json").write_text(json.dumps(config))
    writer = T5CodeWriter.from_pretrained(folder, [4, 4], codes=codes)
    size = len(weights["lm_head.weight"])
    assert writer.scale == 1.0
    for _ in range(2):
        assert torch.equal(writer.t5.lm_head.weight[:size], weights["lm_head.weight"])
        assert torch.equal(writer.t5.shared.weight[:size], weights["shared.weight"])
        writer.save(tmp_path / "saved")
        writer = T5CodeWriter.load(tmp_path / "saved")
        assert writer.scale == 1.0


# The real weights.


@real("flan-t5-small")
def test_flan_t5_small_follows_instructions():
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    folder = packaged.folder_of("flan-t5-small")
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert sum(p.numel() for p in model.parameters()) == 76_961_152
    assert not torch.equal(model.lm_head.weight, model.shared.weight)
    asked = {"Translate to German: My name is Arthur.": "Name ist Arthur", "Is this review positive or negative? "
             "This movie was wonderful, I loved it.": "positive"}  # fmt: skip
    for question, part in asked.items():
        written = model.generate(**tokenizer([question], return_tensors="pt"), max_new_tokens=20, do_sample=False)
        assert part in tokenizer.decode(written[0], skip_special_tokens=True)
    long = tokenizer(["word " * 300])["input_ids"][0]
    assert len(long) > 300  # the publisher's limit of 48 tokens is gone


@real("ms-marco-minilm")
def test_the_cross_encoder_ranks_as_its_graph_does():
    from callslip.training.teachers import CrossEncoder

    query = "how many people live in berlin"
    documents = ["Berlin has 3.5 million registered inhabitants.", "Berlin is full of museums.", "Iron is a metal."]
    scores = CrossEncoder("ms-marco-minilm", device="cpu").scores([query] * 3, documents)
    assert scores[0] > scores[1] > scores[2] and scores[0] > 0 > scores[2]
    runtime, tokens = graph("ms-marco-minilm", [(query, text) for text in documents])
    np.testing.assert_allclose(runtime.run(None, tokens)[0][:, 0], scores, atol=1.0)  # it also rounds activations


@real("bge-small")
def test_bge_small_encodes_as_its_graph_does():
    texts = ["what is a violin", "a violin is a wooden string instrument", "iron is a metal"]
    vectors = load_encoder("bge-small", backend="torch", device="cpu").encode(texts)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.1
    runtime, tokens = graph("bge-small", texts)
    first = runtime.run(None, tokens)[0][:, 0]
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    assert (first * vectors).sum(axis=1).min() > 0.98


def graph(name, texts):
    """The package's own graph, to compare with, and texts as it reads them."""
    onnxruntime = pytest.importorskip("onnxruntime")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(packaged.folder_of(name) + "/tokenizer.json")
    tokenizer.enable_padding()
    rows = tokenizer.encode_batch(texts)
    parts = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    tokens = {key: np.array([getattr(row, part) for row in rows], np.int64) for key, part in parts.items()}
    return onnxruntime.InferenceSession(str(MODELS[name].package.find() / "model.onnx")), tokens
