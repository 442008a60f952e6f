"""What nothing reads is not encoded: with a model that reads texts itself and a ranking by codes alone, the frozen
encoder is asked for neither documents, training texts, queries nor new documents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small_bert import save_small_bert
from small_log import small_log
from small_t5 import save_small_t5

from callslip import api
from callslip.corpus.documents import Corpus, Document
from callslip.encoders.encoder import TextVectors
from callslip.errors import Unsupported
from callslip.methods import make

TINY: dict[str, Any] = {
    "epochs": 1, "batch_size": 16, "width": 4, "length": 2, "training_texts": (),
    "seq2seq_length": 12, "backend": "torch", "decoder_width": 16, "decoder_heads": 2, "decoder_layers": 1,
}  # fmt: skip
GENRET = {"level_epochs": 1, "level_steps": 1, "stop_collapsed": False}
NEW = Document("new/1", "The violin is a music.", "About violin")


@pytest.fixture(scope="module")
def corpus(small_corpus) -> Corpus:
    some = small_corpus.documents[:12]
    judged = {f"t-{d.doc_id}": {d.doc_id: 1} for d in some}
    return Corpus(some, {name: small_corpus.queries[name] for name in judged}, {"train": judged}, name="few")


@pytest.fixture(scope="module")
def readers(corpus, tmp_path_factory) -> dict[str, dict[str, Any]]:
    words = sorted({word.strip(".,") for d in corpus for word in d.content.split()})
    bert = str(save_small_bert(tmp_path_factory.mktemp("bert"), words))
    t5 = str(save_small_t5(tmp_path_factory.mktemp("t5"), words))
    return {
        "t5": {"seq2seq": t5, "encoder": "no/such-encoder"},
        "tuned": {"encoder": bert, "train_encoder": "top"},
        "states": {"encoder": bert, "train_encoder": "top", "encoder_memory": "states"},
        "vectors": {"encoder": bert},
        "t5 and bert": {"seq2seq": t5, "encoder": bert},
    }


@pytest.fixture
def asked(monkeypatch) -> list[tuple[str, int]]:
    """What the frozen encoder is asked for: `cached` are documents and training texts, `encode` queries."""
    calls: list[tuple[str, int]] = []
    for name in ("cached", "encode"):
        inner = getattr(TextVectors, name)

        def spied(self: Any, texts: list[str], *more: Any, name: str = name, inner: Any = inner) -> np.ndarray:
            calls.append((name, len(texts)))
            return inner(self, texts, *more)

        monkeypatch.setattr(TextVectors, name, spied)
    return calls


@pytest.mark.parametrize("reader", ["t5", "tuned", "states"])
@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("genret", GENRET),
        ("asi++", {"writing_epochs": 1}),
        ("dsi-random", {}),
        ("uri", {"level_epochs": 1, "level_steps": 1}),
    ],
)
def test_nothing_is_encoded_for_a_reader_of_texts_ranked_by_code(
    corpus, readers, asked, tmp_path, method, more, reader
):
    index = make(method, TINY | readers[reader] | more | {"ranking": "code"}).fit(corpus)
    assert index.vectors.shape == (12, 0)
    index.save(tmp_path / "index")
    loaded = api.load(tmp_path / "index")
    assert len(loaded.search("which apple", k=5)) == 5
    if method != "dsi-random":  # which cannot code new documents
        loaded.add([NEW])
        assert loaded.vectors.shape == (13, 0) and "new/1" in loaded.search("violin", k=13).doc_ids
    assert asked == []
    with pytest.raises(Unsupported, match="fitted without"):
        loaded.adjust({"ranking": "bucket"})
    assert loaded.settings.ranking == "code" and loaded.search("which apple", k=5)


@pytest.mark.parametrize(
    ("method", "kept"), [("dsi-semantic", 0), ("nci", 0), ("ultron-pq", 0), ("tiger", 16), ("dsi-random", None)]
)
def test_codes_of_vectors_need_those_of_the_documents_and_no_others(corpus, readers, asked, method, kept):
    values = TINY | readers["t5 and bert"] | {"ranking": "code"} | ({"rqvae_epochs": 1} if method == "tiger" else {})
    index = make(method, values).fit(corpus)
    index.search("which apple", k=3)
    assert asked == ([] if kept is None else [("cached", 12)])
    assert index.vectors.shape == (12, kept or 0)
    if kept is not None:
        index.add([NEW])
        assert asked == [("cached", 12), ("cached", 1)] and index.vectors.shape == (13, kept)
        assert "new/1" in index.search("violin", k=13).doc_ids


@pytest.mark.parametrize("ranking", ["bucket", "share", "sum", "union"])
def test_a_ranking_by_similarity_asks_for_documents_and_queries(corpus, readers, asked, ranking):
    index = make("dsi-random", TINY | readers["t5 and bert"] | {"ranking": ranking}).fit(corpus)
    index.search("which apple", k=3)
    assert asked == [("cached", 12), ("encode", 1)] and index.vectors.shape == (12, 16)
    index.adjust({"ranking": "code"}).search("which apple", k=3)
    assert len(asked) == 2
    index.adjust({"ranking": ranking}).search("which apple", k=3)
    assert asked[2:] == [("encode", 1)]


def test_a_reader_of_vectors_is_given_them_whatever_the_ranking(corpus, readers, asked):
    index = make("dsi-random", TINY | readers["vectors"] | {"ranking": "code"}).fit(corpus)
    index.search("which apple", k=3)
    assert [name for name, _ in asked] == ["cached", "cached", "encode"] and index.vectors.shape == (12, 16)


@pytest.mark.parametrize(("items", "dim"), [("id", 0), ("both", 64)])
def test_items_of_a_log_are_encoded_if_their_texts_are_read(asked, items, dim):
    values = {"encoder": "scratch", "items": items, "width": 4, "length": 2, "epochs": 1, "level_epochs": 1}
    values |= {"level_steps": 1, "warmup_epochs": 0, "history_width": 8, "decoder_width": 8, "decoder_heads": 2}
    index = make("uri", values).fit(small_log(users=24))
    assert index.vectors.shape == (48, dim) and len(asked) == (1 if dim else 0)
    index.add([Document("new", "A tea of kind 9.")])
    assert index.vectors.shape == (49, dim) and len(asked) == (2 if dim else 0)


# ranking=code.


@pytest.fixture(scope="module")
def coarse(small_corpus) -> Any:
    values = {
        "encoder": "scratch",
        "epochs": 1,
        "width": 2,
        "length": 2,
        "decoder_width": 16,
        "training_texts": ("document",),
    }
    return make("dsi-semantic", values | {"ranking": "code", "beam": 4}).fit(small_corpus)


def test_by_code_hits_are_in_the_order_of_codes_and_otherwise_in_an_arbitrary_order_that_never_changes(
    coarse, small_corpus, tmp_path
):
    hits = coarse.search("which apple has the mark fruit0", k=40, explain=True)
    assert set(hits.doc_ids) == set(small_corpus.doc_ids)
    ranks = [hit.why["beam_rank"] for hit in hits]
    assert ranks == sorted(ranks) and len(set(ranks)) < len(ranks) / 2
    assert all("similarity" not in hit.why and hit.score == pytest.approx(hit.why["code_score"]) for hit in hits)
    first = [hit.doc_id for hit in hits if hit.why["beam_rank"] == 1]
    by_similarity = coarse.adjust({"ranking": "bucket"}).search("which apple has the mark fruit0", k=40).doc_ids
    coarse.adjust({"ranking": "code"})
    rows = [small_corpus.doc_ids.index(doc_id) for doc_id in first]
    assert set(first) == set(by_similarity[: len(first)]) and first != by_similarity[: len(first)]
    assert rows != sorted(rows)
    other = coarse.search("where is the nile", k=40, explain=True)
    place = {doc_id: n for n, doc_id in enumerate(other.doc_ids)}
    assert [place[doc_id] for doc_id in first] == sorted(place[doc_id] for doc_id in first)  # of the query, nothing
    coarse.save(tmp_path / "index")
    changed = api.load(tmp_path / "index")
    changed.delete([small_corpus.doc_ids[0]])
    before = changed.search("where is the nile", k=39).doc_ids
    changed.compact()
    assert api.load(tmp_path / "index").search("where is the nile", k=39).doc_ids == before


def test_a_bucket_limit_holds_by_code_too(coarse):
    hits = coarse.adjust({"bucket_limit": 1}).search("which apple", k=40)
    coarse.adjust({"bucket_limit": None})
    codes = [hit.code for hit in hits]
    assert len(set(codes[: len(set(codes))])) == len(set(codes)) < len(codes)
