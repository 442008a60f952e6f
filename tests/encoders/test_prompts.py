"""Prompts, Dense and Normalize modules and Matryoshka truncation, against sentence-transformers' own vectors."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from encoders.test_encoders import tiny_checkpoint
from half_precision import HALF
from safetensors.torch import save_file

import callslip
from callslip.encoders.encoder import EncoderSpec, TextVectors, load_encoder
from callslip.encoders.pretrained import Prompts
from callslip.encoders.vector_cache import shared_cache
from callslip.errors import BadInput, BadSetting, UnknownName, Unsupported
from callslip.index.settings import EncoderSettings
from callslip.index.vectors import VectorRetriever
from callslip.methods.glen import training as glen_training
from callslip.storage import folder as folders

TEXTS = ["the cat sat on the mat", "dog", "the dog ran far far far", "cat cat"]
PROMPTS = {"query": "dog ran ", "document": "on the mat "}


def with_modules(folder, *kinds, prompts=None, seed=0):
    """A tiny checkpoint with the files that sentence-transformers writes; Dense narrows 16 to 12."""
    tiny_checkpoint(folder, {"embedding_dimension": 16, "pooling_mode": "mean"}, seed=seed, positions=64)
    kinds = ("Transformer", "Pooling", *kinds)
    package = {"Dense": "base.modules.dense", "Normalize": "base.modules.normalize"}
    modules, width = [], 16
    for number, kind in enumerate(kinds):
        place = "" if number == 0 else f"{number}_{kind}"
        where = {"Transformer": "base.modules.transformer", "Pooling": "sentence_transformer.modules.pooling"} | package
        name = f"sentence_transformers.{where[kind]}.{kind}"
        modules.append({"idx": number, "name": str(number), "path": place, "type": name})
        if kind == "Dense":
            inner = folder / place
            inner.mkdir()
            tanh = "torch.nn.modules.activation.Tanh"
            config = {"in_features": width, "out_features": 12, "bias": True, "activation_function": tanh}
            (inner / "config.json").write_text(json.dumps(config))
            weights = {"linear.weight": torch.randn(12, width), "linear.bias": torch.randn(12)}
            save_file(weights, inner / "model.safetensors")
            width = 12
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32, "do_lower_case": False}))
    about = {"prompts": prompts or {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(about))
    return folder


def theirs(folder, **options):
    from sentence_transformers import SentenceTransformer

    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]"})
    )
    return SentenceTransformer(str(folder), device="cpu", **options)


@pytest.mark.parametrize("kinds", [(), ("Normalize",), ("Dense",), ("Normalize", "Dense"), ("Dense", "Normalize")])
@pytest.mark.parametrize("size", [None, 5])
def test_vectors_are_those_of_sentence_transformers(tmp_path, kinds, size):
    pytest.importorskip("sentence_transformers", reason="compared with sentence-transformers, which is not installed")
    folder = with_modules(tmp_path, *kinds, prompts=PROMPTS)
    model = theirs(folder, truncate_dim=size)
    encoder = load_encoder(str(folder) if size is None else f"{folder}:dim={size}", backend="torch", device="cpu")
    assert encoder.dim == (size or (12 if "Dense" in kinds else 16))
    queries = model.encode_query(TEXTS, normalize_embeddings=True)
    documents = model.encode_document(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(encoder.encode(TEXTS, kind="query"), queries, atol=1e-5)
    np.testing.assert_allclose(encoder.encode(TEXTS, kind="document"), documents, atol=1e-5)
    np.testing.assert_allclose(encoder.encode(TEXTS), model.encode(TEXTS, normalize_embeddings=True), atol=1e-5)
    assert np.abs(queries - documents).max() > 0.01  # the prompts matter


def test_the_int8_graph_has_the_modules(tmp_path):
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    folder = with_modules(tmp_path, "Normalize", "Dense", prompts=PROMPTS)
    plain, small = (load_encoder(str(folder), backend=backend, device="cpu") for backend in ("torch", "onnx"))
    cosines = (plain.encode(TEXTS, kind="query") * small.encode(TEXTS, kind="query")).sum(axis=1)
    assert cosines.min() > 0.98 and small.dim == 12


def test_the_passage_prompt_is_for_documents_and_a_given_prompt_wins(tmp_path):
    folder = with_modules(tmp_path, prompts={"query": "cat ", "passage": "dog "})
    encoder = load_encoder(str(folder), backend="torch")
    assert (encoder.prompts.query, encoder.prompts.document) == ("cat ", "dog ")
    other = load_encoder(f"{folder}:query_prompt=,document_prompt=far ", backend="torch")
    np.testing.assert_array_equal(other.encode(["mat"], kind="query"), encoder.encode(["mat"]))
    np.testing.assert_array_equal(other.encode(["mat"], kind="document"), encoder.encode(["far mat"]))


def test_the_cache_keeps_kinds_and_prompts_apart(tmp_path, monkeypatch):
    folder = with_modules(tmp_path / "model", prompts=PROMPTS)
    monkeypatch.setenv("CALLSLIP_CACHE", str(tmp_path / "cache"))
    chosen = EncoderSettings(encoder=str(folder), backend="torch")
    others = ["", ":query_prompt=mat ,document_prompt=", ":dim=7"]
    for number, other in enumerate(others, start=1):
        texts = TextVectors(dataclasses.replace(chosen, encoder=f"{folder}{other}"))
        for kind in ("query", "document", "plain", "query"):
            found = texts.cached(TEXTS, "encoding", kind)
            np.testing.assert_allclose(found, texts.encoder.encode(TEXTS, kind=kind), atol=1e-6)
        # The second has the plain texts of the first, and its documents are plain; a shorter vector is another one.
        assert len(shared_cache()) == {1: 3, 2: 4, 3: 7}[number] * len(TEXTS)


def test_fingerprint_follows_the_dense_weights(tmp_path):
    one, other = with_modules(tmp_path / "one", "Dense"), with_modules(tmp_path / "other", "Dense")
    before = load_encoder(str(one), backend="torch").fingerprint
    assert before == load_encoder(str(one), backend="torch").fingerprint
    save_file(
        {"linear.weight": torch.zeros(12, 16), "linear.bias": torch.ones(12)}, other / "2_Dense" / "model.safetensors"
    )
    assert before != load_encoder(str(other), backend="torch").fingerprint


def test_methods_prompt_queries_documents_and_training_texts(tmp_path, small_corpus):
    """Dense and generative methods give every text the prompt of what it is."""
    folder = with_modules(tmp_path, prompts=PROMPTS)
    settings = {"encoder": f"{folder}:dim=9", "backend": "torch"}
    index = callslip.fit(small_corpus, "dense", settings=settings)
    encoder = load_encoder(f"{folder}:dim=9", backend="torch")
    contents = [document.content for document in small_corpus]
    assert isinstance(index, VectorRetriever)
    np.testing.assert_allclose(index.vectors, encoder.encode(contents, kind="document"), **HALF)
    query = list(small_corpus.queries.values())[:1]
    expected = encoder.encode([query[0].text], kind="query")
    np.testing.assert_allclose(index.texts.queries(query), expected, atol=1e-6)
    generative = callslip.fit(small_corpus, "dsi-semantic", settings={**settings, "epochs": 1})
    np.testing.assert_allclose(generative.vectors, index.vectors, **HALF)
    found = generative.reader.training_inputs([query[0].text], small_corpus, generative.vectors)
    np.testing.assert_allclose(found, np.concatenate([expected, generative.vectors]), **HALF)


def test_a_fine_tuned_encoder_reads_the_prompts(tmp_path, small_corpus):
    folder = with_modules(tmp_path, "Dense", prompts=PROMPTS)
    settings = {"encoder": f"{folder}:dim=9", "backend": "torch", "train_encoder": "all", "epochs": 1}
    index = callslip.fit(small_corpus, "dsi-semantic", settings=settings)
    read = index.reader.inputs([callslip.Query("q", "cat sat")], np.zeros((1, 9)))
    assert read == [[2, 9, 10, 5, 6, 3]]  # [CLS] dog ran cat sat [SEP]
    some = index.reader.document_inputs([callslip.Document("d", "cat sat")], np.zeros((1, 9)))
    assert some == [[2, 7, 4, 8, 5, 6, 3]]  # [CLS] on the mat cat sat [SEP]
    assert index.reader.training_inputs(["cat sat"], (), np.zeros((1, 9))) == read
    assert index.model.memory(index.reader.batch(read)).shape == (1, 9)


@pytest.mark.parametrize(("tuned", "state"), [(False, "decoder"), (True, "decoder"), (True, "encoder")])
def test_tied_atomic_prompts_both_sides(tmp_path, small_corpus, tuned, state):
    """Untrained, it is dense retrieval: the encoder's vectors after Dense, cut, of prompted texts."""
    folder = with_modules(tmp_path, "Dense", prompts=PROMPTS)
    settings = {"encoder": f"{folder}:dim=9", "backend": "torch", "epochs": 0, "state": state}
    settings |= {"train_encoder": "all"} if tuned else {}
    index = callslip.fit(small_corpus, "tied-atomic", settings=settings)
    encoder = load_encoder(f"{folder}:dim=9", backend="torch")
    queries = list(small_corpus.queries.values())[:3]
    for found, texts, kind in (
        (index.vectors, [document.content for document in small_corpus], "document"),
        (index.query_vectors(queries), [query.text for query in queries], "query"),
    ):
        found = found / np.linalg.norm(found, axis=1, keepdims=True)
        np.testing.assert_allclose(found, encoder.encode(texts, kind=kind), **HALF)


def test_memories_hold_queries_as_queries(tmp_path, small_corpus):
    folder = with_modules(tmp_path, prompts=PROMPTS)
    settings = {"encoder": str(folder), "backend": "torch"}
    encoder = load_encoder(str(folder), backend="torch")
    contents = [document.content for document in small_corpus]
    memory = callslip.fit(small_corpus, "memory", settings=settings)
    np.testing.assert_allclose(memory.vectors, encoder.encode(contents, kind="document"), **HALF)
    np.testing.assert_allclose(memory.asked, encoder.encode(memory.asked_texts, kind="query"), **HALF)
    index = callslip.fit(small_corpus, "tied-residual", settings=settings)
    expected = index.maker.assign(encoder.encode(contents, kind="document"))
    np.testing.assert_array_equal(index.entries.codes_of_rows(len(small_corpus)), expected)
    held = index.maker.assign(encoder.encode(list(index.memory.texts), kind="query"))
    np.testing.assert_array_equal(index.memory.codes, held)
    assert len(held)


@pytest.mark.parametrize("tuned", [False, True])
def test_glen_reads_training_texts_as_queries_and_documents_as_documents(tmp_path, small_corpus, tuned):
    folder = with_modules(tmp_path, "Dense", prompts=PROMPTS)
    settings = {"encoder": f"{folder}:dim=9", "backend": "torch", "epochs": 0, "keyword_epochs": 0}
    settings |= {"train_encoder": "all"} if tuned else {}
    index = callslip.fit(small_corpus, "glen", settings=settings)
    texts = glen_training.Training(index, small_corpus).texts
    pairs, contents = index.training_pairs(small_corpus), [document.content for document in small_corpus]
    read = index.reader.batch(texts.inputs, texts.text)
    if tuned:
        with torch.no_grad():
            read = index.model.memory(read)
    encoder = load_encoder(f"{folder}:dim=9", backend="torch")
    asked = encoder.encode([pair.query for pair in pairs], kind="query")
    expected = np.concatenate([asked, encoder.encode(contents, kind="document")])
    np.testing.assert_allclose(read.numpy(), expected, **HALF)


def test_states_of_another_width_than_the_vectors_are_refused(tmp_path, small_corpus):
    settings = {"encoder": str(with_modules(tmp_path, "Dense")), "train_encoder": "all", "encoder_memory": "states"}
    with pytest.raises(BadSetting, match="16 numbers, its vectors 12"):
        callslip.fit(small_corpus, "dsi-semantic", settings=settings | {"backend": "torch", "epochs": 1})


def test_an_index_of_an_earlier_version_keeps_its_vectors_without_prompts(tmp_path, small_corpus):
    folder = with_modules(tmp_path / "model", prompts=PROMPTS)
    out = tmp_path / "index"
    callslip.fit(small_corpus, "dense", out, settings={"encoder": str(folder)})
    assert callslip.load(out).texts.encoder.prompts == Prompts("dog ran ", "on the mat ")
    manifest = folders.read_manifest(out)
    manifest["settings"]["max_length"] = None  # a setting of the versions before
    folders.write_manifest(out, manifest)
    assert callslip.load(out).texts.encoder.prompts == Prompts("", "")


def test_bad_files_and_sizes_are_named(tmp_path):
    folder = with_modules(tmp_path / "a", "Dense", prompts=PROMPTS)
    with pytest.raises(BadSetting, match="12 numbers"):
        load_encoder(f"{folder}:dim=13", backend="torch")
    with pytest.raises(BadSetting, match="dim is '0'"):
        EncoderSettings(encoder="minilm:dim=0")
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(BadInput, match="2_Dense"):
        load_encoder(str(folder), backend="torch")
    config = folder / "2_Dense" / "config.json"
    config.write_text(config.read_text().replace("Tanh", "Softmax2d"))
    with pytest.raises(Unsupported, match="Softmax2d"):
        load_encoder(str(folder), backend="torch")
    (folder / "modules.json").write_text("[1]")
    with pytest.raises(BadInput, match=r"modules\.json"):
        load_encoder(str(folder), backend="torch")
    prompts = with_modules(tmp_path / "b", prompts={"query": 3})
    with pytest.raises(BadInput, match="prompts"):
        load_encoder(str(prompts), backend="torch")
    left_out = with_modules(tmp_path / "c", prompts=PROMPTS)
    (left_out / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean", "include_prompt": False}))
    with pytest.raises(Unsupported, match="include_prompt"):
        load_encoder(str(left_out), backend="torch")


def test_text_vectors_pass_the_settings_on(tmp_path):
    folder = with_modules(tmp_path, prompts=PROMPTS)
    chosen = EncoderSettings(encoder=f"{folder}:dim=3,document_prompt=cat ", backend="torch")
    texts = TextVectors(chosen)
    assert texts.encoder.dim == 3 and dataclasses.astuple(texts.encoder.prompts) == ("dog ran ", "cat ")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("minilm", EncoderSpec("minilm")),
        ("minilm:dim=9,max_length=8", EncoderSpec("minilm", 8, 9)),
        ("a/b:query_prompt=Find, if any: ,document_prompt=", EncoderSpec("a/b", None, None, "Find, if any: ", "")),
        ("scratch:seed=1,max_length=7,dim=8", EncoderSpec("scratch:dim=8,seed=1", 7)),
        ("scratch:dim=8,query_prompt=q: ", EncoderSpec("scratch:dim=8", query_prompt="q: ")),
    ],
)
def test_an_encoder_is_named_with_its_options(spec, expected):
    assert EncoderSpec.parse(spec) == expected


def test_unknown_options_and_numbers_that_are_none_are_refused():
    with pytest.raises(UnknownName, match="option of an encoder 'size'"):
        EncoderSpec.parse("minilm:size=3")
    with pytest.raises(BadSetting, match="Options of an encoder: max_length, dim"):
        EncoderSpec.parse("minilm:dim=3,size=3")
    with pytest.raises(UnknownName, match="scratch encoder 'size'"):
        load_encoder("scratch:size=3")
