"""DSI with a T5 that reads the query's text, from a small checkpoint on disk."""

from __future__ import annotations

import numpy as np
import pytest
from small_t5 import save_small_t5

import callslip
from callslip.errors import CallslipError, Unsupported

WORDS = [
    "cat",
    "dog",
    "purrs",
    "barks",
    "sleeps",
    "eats",
    "fish",
    "bone",
    "house",
    "garden",
    "tree",
    "river",
    "boat",
    "sails",
    "wind",
    "storm",
    "rain",
    "sun",
    "moon",
    "star",
]


@pytest.fixture(scope="module")
def corpus() -> callslip.Corpus:
    rng = np.random.default_rng(0)
    documents = [
        callslip.Document(str(row), " ".join(rng.choice(WORDS, 6, replace=False).tolist())) for row in range(24)
    ]
    return callslip.Corpus(documents)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    shape = {"d_model": 48, "d_kv": 12, "d_ff": 96, "num_heads": 4, "dropout_rate": 0.0}
    return save_small_t5(tmp_path_factory.mktemp("t5"), WORDS, **shape)


@pytest.fixture(scope="module", params=["tokens", "codebooks"])
def index(corpus, checkpoint, request):
    settings = {
        "encoder": "scratch", "seq2seq": str(checkpoint), "seq2seq_codes": request.param,
        "training_texts": ["document"],
        "epochs": 60, "batch_size": 8, "learning_rate": 3e-3, "width": 4, "length": 2, "beam": 4, "ranking": "bucket",
    }  # fmt: skip
    return callslip.fit(corpus, method="dsi-semantic", settings=settings)


def test_it_learns_to_write_the_codes_of_its_documents(index, corpus):
    codes = dict(zip(*index.identifiers.in_row_order(), strict=True))
    hits = index.search_batch([document.text for document in corpus], k=1)
    right = [tuple(codes[d.doc_id]) == hit[0].code for d, hit in zip(corpus, hits, strict=True)]
    assert np.mean(right) > 0.9
    assert index.log.records[-1]["generation"] < 0.3 * index.log.records[0]["generation"]


def test_saved_and_loaded_it_finds_the_same(index, corpus, tmp_path):
    index.save(tmp_path / "index")
    again = callslip.load(tmp_path / "index")
    for document in list(corpus)[:5]:
        before, after = index.search(document.text, explain=True), again.search(document.text, explain=True)
        assert before.doc_ids == after.doc_ids
        np.testing.assert_allclose(before.scores, after.scores, atol=1e-4)
        assert before[0].why["level_scores"] == pytest.approx(after[0].why["level_scores"], abs=1e-3)


def test_exact_and_beam_agree_when_the_beam_is_wide(index, corpus):
    queries = [document.text for document in list(corpus)[:5]]
    wide = index.adjust({"beam": 16}).search_batch(queries, 24)
    exact = index.adjust({"decoding": "exact"}).search_batch(queries, 24)
    index.adjust({"decoding": "beam", "beam": 4})
    assert [hits.doc_ids for hits in wide] == [hits.doc_ids for hits in exact]


def test_new_documents_and_deletions(index, corpus):
    index.add([callslip.Document("new", corpus.documents[3].text)])
    assert {"3", "new"} <= set(index.search(corpus.documents[3].text, k=25).doc_ids)
    index.delete(["new"])
    assert "new" not in index.search(corpus.documents[3].text, k=25).doc_ids
    index.add([callslip.Document("new", corpus.documents[5].text)])  # the name may be used again
    assert {"5", "new"} <= set(index.search(corpus.documents[5].text, k=25).doc_ids)
    index.delete(["new"])


def test_pickled_weights_are_not_read(corpus, checkpoint, tmp_path):
    import shutil

    shutil.copytree(checkpoint, tmp_path / "t5")
    (tmp_path / "t5" / "model.safetensors").rename(tmp_path / "t5" / "pytorch_model.bin")
    settings = {"encoder": "scratch", "seq2seq": str(tmp_path / "t5"), "training_texts": ["document"]}
    with pytest.raises(CallslipError, match="safetensors"):
        callslip.fit(corpus, method="dsi-semantic", settings=settings)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("no tokenizer", "tokenizer"),
        ("truncated", "cannot be loaded"),
        ("half", "lacks"),
    ],
)
def test_damaged_checkpoints_are_refused(corpus, checkpoint, tmp_path, damage, words):
    import shutil

    from safetensors.torch import load_file, save_file

    folder = tmp_path / "t5"
    shutil.copytree(checkpoint, folder)
    weights = folder / "model.safetensors"
    if damage == "no tokenizer":
        (folder / "tokenizer.json").unlink()
    elif damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:2000])
    else:
        kept = {name: value for name, value in load_file(weights).items() if not name.startswith("decoder.")}
        save_file(kept, weights, metadata={"format": "pt"})
    with pytest.raises(CallslipError, match=words):
        callslip.fit(corpus, method="dsi-semantic", settings={"encoder": "scratch", "seq2seq": str(folder)})


def test_what_is_no_t5_is_refused(corpus, tmp_path):
    from transformers import BartConfig

    BartConfig(d_model=8).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(Unsupported, match="bart"):
        callslip.fit(corpus, method="dsi-semantic", settings={"encoder": "scratch", "seq2seq": str(tmp_path)})
    with pytest.raises(CallslipError, match="no-such"):
        callslip.fit(corpus, method="dsi-semantic", settings={"encoder": "scratch", "seq2seq": "/no-such/folder"})
