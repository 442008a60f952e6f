"""The wiring of the settings that methods share: each reaches the quantity that it names.

Most fits are without training: the training loop records its arguments, see `training_spies.plan`.
"""

from __future__ import annotations

import functools
import importlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from half_precision import HALF
from small_log import small_log
from small_t5 import save_small_t5
from training_spies import plan

from callslip.corpus.documents import Corpus, Pair, Query
from callslip.corpus.pseudo_queries import pseudo_queries
from callslip.decoders.writer import Attention
from callslip.encoders.encoder import TextVectors
from callslip.encoders.interaction_vectors import interaction_vectors
from callslip.errors import BadSetting
from callslip.index import vectors as vectors_module
from callslip.index.readers import HistoryReader, T5Reader, TunedReader, VectorReader
from callslip.index.rows import Rows
from callslip.methods import make
from callslip.methods.dsi import DSISettings
from callslip.training.batches import HistoryExamples

BASE: dict[str, Any] = {
    "encoder": "scratch", "width": 4, "length": 2, "seed": 7, "batch_size": 48, "epochs": 3, "learning_rate": 4e-3,
    "weight_decay": 0.03, "decoder_width": 24, "decoder_layers": 3, "decoder_heads": 6, "dropout": 0.25, "noise": 0.3,
    "beam": 5, "history_width": 12, "history_layers": 1, "history_heads": 3, "history_dropout": 0.15,
    "history_length": 4, "ranker_weight": 0.4, "ranker_negatives": 11, "item_decay": 0.7, "start": "none",
}  # fmt: skip
"""No value is a default, so that a setting that is ignored shows."""


@pytest.fixture(scope="module")
def log() -> Corpus:
    return small_log(users=24)


@pytest.fixture(scope="module")
def planned(small_corpus, log):
    """A fit of DSI without training, on texts or on the log, made once for each set of values."""
    return functools.cache(
        lambda on="texts", **values: plan("dsi-semantic", log if on == "log" else small_corpus, BASE | values)
    )


def settings(**values: Any) -> Any:
    return DSISettings(**(BASE | values))


def reader(kind: Any = VectorReader, **values: Any) -> Any:
    """A reader that has no corpus yet."""
    return kind(settings(**values), None, Rows())


# Encoder.


@pytest.mark.parametrize("method", ["dsi-semantic", "dense"])
def test_the_encoder_is_loaded_as_the_settings_say(monkeypatch, method):
    asked = []
    values = {"backend": "torch", "device": "cpu"}
    monkeypatch.setattr("callslip.encoders.encoder.load_encoder", lambda name, **more: asked.append((name, more)))
    index = make(method, values | {"encoder": "scratch:dim=8"})
    _ = index.texts.encoder
    assert asked == [("scratch:dim=8", values)]
    index.adjust({"backend": "onnx"})
    _ = index.texts.encoder
    assert asked[1] == ("scratch:dim=8", values | {"backend": "onnx"})


def test_vectors_are_those_of_the_encoder(planned, small_corpus):
    index = planned(encoder="scratch:dim=24,max_length=6").index
    assert index.vectors.shape == (40, 24) and index.texts.encoder.max_length == 6
    expected = index.texts.encode([document.content for document in small_corpus])
    np.testing.assert_allclose(index.vectors, expected, **HALF)


def test_the_model_is_on_the_device_of_the_settings(planned, small_corpus):
    """torch's "meta" stands for a device other than the best."""
    one = reader(device="meta")
    one.use(torch.nn.Linear(1, 1))
    assert one.model.weight.device.type == "meta"
    index = plan("dsi-semantic", small_corpus, BASE | {"device": "cpu"}).index
    assert index.model.begin.device.type == "cpu"
    index.adjust({"device": "meta"})
    assert index.model.begin.device.type == "meta"


# Training texts.


def pairs_of(planned: Any, **values: Any) -> list[Pair]:
    made = planned(**values)
    return made.index.training_pairs(made.corpus)


def test_pseudo_queries_are_the_parts_asked_for(planned, small_corpus):
    values = {"training_texts": ("lead", "spans"), "query_repeat": 0}
    expected = pseudo_queries(small_corpus, kinds=("lead", "spans"), seed=7)
    assert pairs_of(planned, **values) == expected != pseudo_queries(small_corpus, kinds=("lead", "spans"), seed=0)
    assert pairs_of(planned, training_texts=(), query_repeat=0) == []


@pytest.mark.parametrize(
    ("values", "times"),
    [({}, 1), ({"query_repeat": 3}, 3), ({"query_repeat": 0}, 0),
     ({"query_repeat": None, "training_texts": ("title", "lead", "sentences", "spans")}, None)],
    ids=str,
)  # fmt: skip
def test_judged_queries_are_repeated(planned, small_corpus, values, times):
    """As often as asked; by None until they are about a third as many as the others."""
    pairs, judged = pairs_of(planned, **values), small_corpus.pairs("train")
    if times is None:
        others = [pair for pair in pairs if pair not in judged]
        times = max(1, round(len(others) / 3 / len(judged)))
        assert times > 1
    assert [pair for pair in pairs if pair in judged] == judged * times


def test_doc2query_generates_so_many_queries(monkeypatch, small_corpus):
    asked = []
    monkeypatch.setattr(
        importlib.import_module("callslip.corpus.doc2query"),  # the package has a function of that name
        "doc2query",
        lambda corpus, name, count, **more: asked.append((name, count, more)) or [Pair("generated", "fruit/0")],
    )
    generated = {"doc2query": "some/t5:count=9,sampling=nucleus"}
    index = make("dsi-semantic", BASE | generated | {"device": "cpu"})
    assert Pair("generated", "fruit/0") in index.training_pairs(small_corpus)
    assert asked == [("some/t5", 9, {"device": "cpu", "seed": 7, "sampling": "nucleus"})]
    make("dsi-semantic", BASE).training_pairs(small_corpus)
    assert len(asked) == 1


@pytest.mark.parametrize("documents", [True, False])
def test_documents_are_trained_on_unless_they_are_left_out(planned, documents):
    made = planned(training_texts=("document", "title") if documents else ("title",))
    pairs = made.index.training_pairs(made.corpus)
    assert {pair.query for pair in pairs}.isdisjoint(document.content for document in made.corpus)  # no document twice
    count = len(pairs)
    assert len(made.examples.rows) == count + (40 if documents else 0)
    if documents:
        assert (made.examples.rows[count:] == np.arange(40)).all()
        np.testing.assert_array_equal(made.examples.inputs[count:], made.index.vectors)


# Decoder.


def test_the_decoder_has_the_shape_of_the_settings(planned):
    model = planned().index.model
    assert model.begin.shape == (24,) and len(model.layers) == 3
    assert {part.heads for part in model.modules() if isinstance(part, Attention)} == {6}
    assert {part.p for part in model.modules() if isinstance(part, torch.nn.Dropout)} == {0.25}


def test_queries_have_noise_of_the_norm_asked_for_in_training(planned):
    made = planned()
    numbers = made.phases["training the decoder"].first()
    plain = torch.from_numpy(made.examples.inputs[numbers])
    torch.manual_seed(2)
    found = made.index.reader.read(made.examples, numbers)
    torch.manual_seed(2)
    torch.testing.assert_close(found, plain + 0.3 * torch.randn_like(plain) / plain.shape[1] ** 0.5)
    assert (found - plain).norm(dim=1).mean() == pytest.approx(0.3, rel=0.1)
    assert torch.equal(planned(noise=0.0).index.reader.read(made.examples, numbers), plain)


# Schedule.


@pytest.mark.parametrize("on", ["texts", "log"])
def test_the_schedule_is_that_of_the_settings(planned, on):
    made = planned(on)
    phase = made.phases["training the decoder"]
    assert (phase.epochs, phase.learning_rate, phase.steps) == (3, 4e-3, len(made.examples))
    assert phase.more["weight_decay"]("heads.0.weight") == 0.03
    assert phase.more["share"]("heads.0.weight") == 1.0
    for epoch in (0, 1):
        for found, expected in zip(phase.batches(epoch), made.examples.order(7, epoch), strict=True):
            assert (found == expected).all()


def test_a_batch_holds_so_many_examples(planned):
    """Of histories about as many: a run of examples is never split."""
    assert {len(some) for some in planned().examples.order(0, 0)} - {48} == {len(planned().examples.rows) % 48} - {0}
    found = planned("log").examples
    expected = HistoryExamples(planned("log").index.reader.history, found.histories, found.rows, 48)
    assert len(found) == len(expected)
    sizes = [len(found.rows_of(some)) for some in found.order(0, 0)]
    assert np.mean(sizes[:-1]) == pytest.approx(48, rel=0.3)


def test_item_vectors_have_a_weight_decay_of_their_own(planned):
    decay = planned("log").phases["training the decoder"].more["weight_decay"]
    assert decay("encoder.items.ids.weight") == 0.7 and decay("writer.begin") == 0.03


@pytest.mark.parametrize("on", ["texts", "log"])
def test_weights_come_from_the_seed(planned, on):
    """A fit without training leaves the model as the seed makes it."""
    index = planned(on).index
    other = make("dsi-semantic", BASE)
    other.rows = index.rows
    other.read_corpus(planned(on).corpus)
    torch.manual_seed(7)
    other.new_model(index.identifiers.widths)
    for name, value in other.model.state_dict().items():
        assert torch.equal(value, index.model.state_dict()[name]), name


# Search.


def search_naively(made: Any, query: Query, score: Any) -> list[tuple[str, float]]:
    """All documents by `score(log-probability of the code, similarity, size of the bucket)`, best first."""
    index, codes = made.index, made.codes
    vector = index.reader.query_vectors([query])
    inputs = index.reader.batch(index.reader.inputs([query], vector))
    with torch.no_grad():
        every = inputs.expand(len(codes), -1)
        logits = index.model(every, torch.from_numpy(codes))
        levels = [one.log_softmax(-1).gather(1, torch.from_numpy(codes[:, [n]])) for n, one in enumerate(logits)]
    written = torch.cat(levels, dim=1).sum(dim=1).numpy()
    similarity = index.reader.document_vectors(index.vectors) @ vector[0]
    size = np.array([(codes == code).all(axis=1).sum() for code in codes])
    scores = score(written, similarity, size)
    first = written if score is by_bucket else scores
    order = sorted(range(len(codes)), key=lambda row: (-first[row], -similarity[row], row))
    return [(made.corpus.documents[row].doc_id, float(scores[row])) for row in order]


def by_bucket(written, similarity, size):
    return written


RANKINGS = {
    "bucket": by_bucket,
    "share": lambda written, similarity, size: written - np.log(size),
    "sum": lambda written, similarity, size: written + 2.5 * similarity,
    "union": lambda written, similarity, size: similarity,
}
ASKED = {"texts": Query("q", "where is the violin with music3"), "log": Query("q", "", ("tea-1", "tea-2"))}


@pytest.mark.parametrize("explain", [False, True])
@pytest.mark.parametrize("ranking", list(RANKINGS))
@pytest.mark.parametrize("on", ["texts", "log"])
def test_hits_are_ranked_as_asked(planned, on, ranking, explain):
    """Against all documents scored naively: the beam holds every code."""
    values = {"beam": 99, "ranking": ranking, "similarity_weight": 2.5, "history_weight": 2.5}
    values |= {"history_weight": 9.0} if on == "texts" else {"similarity_weight": 9.0}
    made = planned(on, **values)
    hits = made.index.search(ASKED[on], k=99, explain=explain, keep_history=True)
    expected = search_naively(made, ASKED[on], RANKINGS[ranking])
    assert hits.scores == pytest.approx([score for _, score in expected], abs=1e-3)
    assert hits.doc_ids == [doc_id for doc_id, _ in expected]


def test_bucket_ranking_keeps_a_bucket_together_where_codes_tie(small_corpus):
    made = plan("dsi-semantic", small_corpus, BASE | {"ranking": "bucket", "beam": 99})
    for head in made.index.model.heads:
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.zeros_(head.bias)
    hits = made.index.search(ASKED["texts"], k=40)
    assert max(hits.scores) == pytest.approx(min(hits.scores), abs=1e-5)
    changes = sum(a.code != b.code for a, b in zip(list(hits)[:-1], list(hits)[1:], strict=True))
    assert changes == made.index.identifiers.unique - 1


@pytest.mark.parametrize("limit", [None, 1, 2])
def test_bucket_limit_bounds_the_documents_of_a_bucket_that_come_first(planned, limit):
    made = planned(beam=99, bucket_limit=limit, ranking="bucket")
    _, sizes = np.unique(made.codes, axis=0, return_counts=True)
    assert sizes.max() > 2
    codes = [hit.code for hit in made.index.search(ASKED["texts"], k=40)]
    within = int(np.minimum(sizes, limit or 40).sum())
    assert max(codes[:within].count(code) for code in set(codes)) == min(int(sizes.max()), limit or 40)


@pytest.mark.parametrize("decoding", ["beam", "exact"])
def test_the_decoder_writes_with_the_beam_and_the_decoding_asked_for(planned, monkeypatch, decoding):
    from callslip.search import candidates

    made, asked = planned(beam=6, decoding=decoding), []
    plain = candidates.best_codes

    def watched(*given, exact):
        asked.append((given[3], exact))
        return plain(*given, exact=exact)

    monkeypatch.setattr(candidates, "best_codes", watched)
    made.index.search(ASKED["texts"], k=1)
    assert asked == [(6, decoding == "exact")]


# Histories.


def test_the_history_encoder_has_the_shape_of_the_settings(planned):
    encoder = planned("log").index.model.encoder
    assert encoder.items.dim == 12 and encoder.longest == 4 and len(encoder.layers) == 1
    assert encoder.layers[0].attention.heads == 3
    assert {part.p for part in encoder.modules() if isinstance(part, torch.nn.Dropout)} == {0.15}


@pytest.mark.parametrize("kind", ["id", "text", "both"])
def test_items_are_represented_as_asked(planned, kind):
    items = planned("log", items=kind).index.model.items
    assert (items.ids is not None, items.project is not None) == (kind != "text", kind != "id")


@pytest.mark.parametrize(
    ("on", "queries", "kind"),
    [("texts", "auto", None), ("log", "auto", "sequence"), ("log", "text", None), ("log", "set", "set"),
     ("log", "sequence", "sequence")],
)  # fmt: skip
def test_queries_are_read_as_asked(planned, on, queries, kind):
    index = planned(on, queries=queries).index
    assert index.reads_histories == (kind is not None) and getattr(index.reader, "kind", None) == kind
    assert index.could_read(histories=True) == (queries != "text")
    assert index.could_read(histories=False) == (queries in ("auto", "text"))


@pytest.mark.parametrize("memory", ["vector", "states"])
def test_the_decoder_attends_to_the_vector_or_the_states_of_a_history(planned, memory):
    made = planned("log", history_memory=memory)
    assert made.index.model.writer.reads == memory == made.index.reader.history.memory


@pytest.mark.parametrize("weight", [0.4, 0.0])
def test_the_item_ranking_has_its_weight_and_negatives(planned, monkeypatch, weight):
    asked = []
    monkeypatch.setattr(
        "callslip.training.item_ranking.ranking_term",
        lambda read, target, items, count: asked.append(count) or torch.tensor(10.0),
    )
    phase = planned("log", ranker_weight=weight).phases["training the decoder"]
    terms = phase.objective(phase.first(), 0.5)
    assert set(terms) == ({"generation", "ranking"} if weight else {"generation"})
    assert float(terms.get("ranking", 0)) == pytest.approx(10 * weight)
    assert asked == ([11] if weight else [])


def test_items_without_texts_have_the_interaction_vectors_of_the_seed():
    bare = small_log(users=24, texts=False)
    made = plan("dsi-semantic", bare, BASE)
    expected = interaction_vectors(bare.sequences(), len(bare), 7)
    np.testing.assert_array_equal(made.index.vectors, expected.astype(np.float16))
    assert not np.array_equal(expected, interaction_vectors(bare.sequences(), len(bare), 0))


# Fine-tuned encoders and T5.


def test_a_fine_tuned_encoder_is_made_as_the_settings_say(monkeypatch):
    asked = []
    monkeypatch.setattr("callslip.decoders.tuned.TunedWriter", lambda *given: asked.append(given))
    values = {"encoder": "some/encoder", "train_encoder": "all"}
    reader(TunedReader, **values).join(make("dsi-semantic", BASE | values), "writer")
    assert asked == [("some/encoder", "writer", "all")]


def test_a_fine_tuned_encoder_has_a_learning_rate_of_its_own():
    share = reader(TunedReader, train_encoder="top", encoder_learning_rate=1e-4).learning_share
    assert share("encoder.layers.0.weight", 4e-3) == pytest.approx(1e-4 / 4e-3) and share("writer.begin", 4e-3) == 1.0
    assert reader(T5Reader, seq2seq="t5").learning_share("encoder.weight", 4e-3) == 1.0  # T5 is tuned as a whole


def test_a_reader_of_tokens_cuts_texts_at_seq2seq_length(small_corpus):
    one, asked = reader(TunedReader, train_encoder="top", seq2seq_length=17), []
    one.model = SimpleNamespace(tokenize=lambda texts, longest: asked.append((texts, longest)) or [[1]] * len(texts))
    one.texts = TextVectors(settings(encoder="scratch"))
    one.inputs([Query("q", "one")], None)
    one.training_inputs(["two"], small_corpus, None)
    contents = [document.content for document in small_corpus]
    assert asked == [(["one"], 17), (["two"], 17), (contents, 17)]


@pytest.mark.parametrize(("values", "kind"), [({}, VectorReader), ({"train_encoder": "top"}, TunedReader)])
def test_train_encoder_chooses_the_reader(values, kind):
    assert type(make("dsi-semantic", BASE | values).reader) is kind


@pytest.mark.parametrize("codes", ["tokens", "codebooks"])
def test_seq2seq_names_the_t5_and_how_it_writes_codes(small_corpus, tmp_path, codes):
    words = sorted({word.strip(".,").lower() for d in small_corpus for word in d.content.split()})
    folder = save_small_t5(tmp_path / "t5", words)
    index = plan("dsi-semantic", small_corpus, BASE | {"seq2seq": str(folder), "seq2seq_codes": codes}).index
    assert type(index.reader) is T5Reader and index.model.codes == codes
    assert index.model.t5.config.d_model == 16 and index.model.widths == (4, 4)
    assert not index.could_read(histories=True)


# Codes of another index.


def test_codes_from_another_index_replace_the_methods_own(planned, small_corpus, tmp_path):
    source = planned(width=3, length=3).index
    source.save(tmp_path / "source")
    made = plan("dsi-semantic", small_corpus, BASE | {"codes_from": str(tmp_path / "source")})
    assert (made.codes == source.identifiers.in_row_order()[1]).all() and made.codes.shape[1] == 3
    assert made.index.maker is None and planned().index.maker is not None


# Nearest vectors.


def test_nearest_vectors_are_searched_as_the_settings_say(monkeypatch, small_corpus):
    asked = []

    class Watched(vectors_module.Nearest):
        def __init__(self, vectors, *given):
            asked.append(given)
            super().__init__(vectors, *given)

        def search(self, vectors, k, mask, effort):
            asked.append(effort)
            return super().search(vectors, k, mask, effort)

    monkeypatch.setattr(vectors_module, "Nearest", Watched)
    index = make("dense", {"encoder": "scratch", "index": "exact", "neighbours": 7, "effort": 9}).fit(small_corpus)
    index.search("violin", k=3)
    index.adjust({"effort": 30}).search("violin", k=3)
    assert asked == [("exact", 7, 9, None), 9, 30]


def test_history_readers_are_the_only_ones_that_read_histories():
    kinds = (VectorReader, TunedReader, T5Reader, HistoryReader)
    assert [kind.histories for kind in kinds] == [False, False, False, True]


# Training that does not fit into memory.


@pytest.mark.parametrize(("on", "expected"), [("texts", 5), ("log", None)])
def test_gradients_are_accumulated_over_micro_batches_of_texts(planned, on, expected):
    """Histories share their negatives, so that their batches stay whole."""
    assert planned(on, save_memory="micro_batch=5").phases["training the decoder"].more["micro_batch"] == expected
    assert planned(on).phases["training the decoder"].more["micro_batch"] is None


def test_the_schedule_and_the_warm_up_reach_the_loop(planned):
    more = planned(schedule="linear", warmup=0.25).phases["training the decoder"].more
    assert (more["schedule"], more["warmup"]) == ("linear", 0.25)
    more = planned().phases["training the decoder"].more
    assert (more["schedule"], more["warmup"], more["autocast"]) == ("cosine", 0.05, False)


@pytest.mark.parametrize("method", ["sasrec", "tied-atomic"])
def test_methods_with_a_loop_of_their_own_have_the_schedule(small_corpus, log, method):
    values = {"encoder": "scratch", "schedule": "constant", "warmup": 0.5, "epochs": 1}
    (phase,) = plan(method, log if method == "sasrec" else small_corpus, values).phases.values()
    assert (phase.more["schedule"], phase.more["warmup"]) == ("constant", 0.5)


def test_autocast_reaches_the_loop(planned):
    assert planned(save_memory=("autocast",)).phases["training the decoder"].more["autocast"] is True


@pytest.mark.parametrize("saving", [(), ("activations",)])
def test_layers_are_computed_again_if_asked(small_corpus, tmp_path, saving):
    """In T5 and in a fine-tuned encoder, and with the same gradients."""
    words = sorted({word.strip(".,").lower() for d in small_corpus for word in d.content.split()})
    folder = save_small_t5(tmp_path / "t5", words)
    for values in ({"seq2seq": str(folder)}, {"encoder": "minilm", "train_encoder": "top", "seq2seq_length": 8}):
        made = plan("dsi-semantic", small_corpus, BASE | values | {"save_memory": saving})
        parts = [part for part in made.index.model.modules() if hasattr(part, "gradient_checkpointing_enable")]
        assert parts and any(part.is_gradient_checkpointing for part in parts) == bool(saving)
        if saving:
            phase = made.phases["training the decoder"]
            found = [gradient_of(phase, made.index.model, again) for again in (True, False)]
            assert max(float(one.abs().max()) for one in found[0]) > 0
            for one, other in zip(*found, strict=True):
                torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def gradient_of(phase: Any, model: torch.nn.Module, again: bool) -> list[torch.Tensor]:
    for part in model.modules():
        if not again and hasattr(part, "gradient_checkpointing_disable"):
            part.gradient_checkpointing_disable()
    model.train()
    model.zero_grad()
    torch.manual_seed(0)
    sum(phase.objective(phase.first()[:6], 0.5).values()).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_an_unknown_way_to_save_memory_is_refused():
    with pytest.raises(BadSetting, match="save_memory"):
        make("dsi-semantic", {"save_memory": "activations,disk"})
    with pytest.raises(BadSetting, match="contrastive"):
        make("nci", {"save_memory": "micro_batch=8", "consistency": "contrastive"})
    assert make("nci", {"save_memory": "micro_batch=8", "consistency": "divergence"}).settings.micro_batch == 8
    for size in ("0", "-1", "", "eight"):
        with pytest.raises(BadSetting, match="micro_batch=32"):
            make("nci", {"save_memory": f"micro_batch={size}"})
