"""The four readers: what each gives a model to read, against naive computations, and which one reads a saved folder."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from half_precision import HALF
from small_log import small_log
from small_t5 import save_small_t5
from training_spies import Plan, plan

from callslip.corpus.documents import Document, Query
from callslip.decoders.writer import States
from callslip.encoders.encoder import load_encoder
from callslip.index.readers import HistoryReader, T5Reader, TunedReader, VectorReader, saved_reader
from callslip.methods import make

BASE: dict[str, Any] = {
    "encoder": "scratch", "width": 4, "length": 2, "decoder_width": 16, "decoder_heads": 2, "decoder_layers": 1,
    "batch_size": 16, "noise": 0.0, "history_width": 12, "history_layers": 1, "history_heads": 1, "history_length": 4,
    "seq2seq_length": 6, "training_texts": ("document",),
}  # fmt: skip
TEXTS = ["where is the violin with music3", "the nile"]
ROWS = np.array([5, 0, 33])


@pytest.fixture(scope="module")
def planned(small_corpus, tmp_path_factory):
    """A fit without training, with the reader of that name."""

    @functools.cache
    def make_plan(name: str, **values: Any) -> Plan:
        values = BASE | values
        if name == "tuned":
            values |= {"encoder": "minilm", "train_encoder": "top", "backend": "torch"}
        if name == "t5":
            words = sorted({word.strip(".,").lower() for d in small_corpus for word in d.content.split()})
            values |= {"seq2seq": str(save_small_t5(tmp_path_factory.mktemp("t5"), words))}
        return plan("dsi-semantic", small_log(users=24) if name == "histories" else small_corpus, values)

    return make_plan


READERS = {"vectors": VectorReader, "tuned": TunedReader, "t5": T5Reader, "histories": HistoryReader}


def queries(texts: list[str]) -> list[Query]:
    return [Query(str(number), text) for number, text in enumerate(texts)]


def inputs_of(made: Plan, texts: list[str]) -> Any:
    reader, asked = made.index.reader, queries(texts)
    return reader.inputs(asked, reader.query_vectors(asked))


# Texts.


@pytest.mark.parametrize("name", ["vectors", "tuned", "t5"])
def test_the_vectors_of_queries_and_documents_are_those_of_the_frozen_encoder(planned, small_corpus, name):
    index = planned(name).index
    encoder = load_encoder("minilm" if name == "tuned" else "scratch", backend="torch")
    np.testing.assert_allclose(index.reader.query_vectors(queries(TEXTS)), encoder.encode(TEXTS), atol=1e-5)
    contents = [document.content for document in small_corpus]
    np.testing.assert_allclose(index.vectors, encoder.encode(contents), **HALF)
    assert index.reader.document_vectors(index.vectors) is index.vectors
    new = index.reader.encode_new(small_corpus.documents[:3], index.vectors.shape[1])
    np.testing.assert_allclose(new, encoder.encode(contents[:3]), atol=1e-5)


@pytest.mark.parametrize("name", ["vectors", "tuned", "t5"])
@pytest.mark.parametrize("documents", [True, False])
def test_examples_are_the_pairs_and_then_the_documents(planned, small_corpus, name, documents):
    made = planned(name)
    pairs, reader = small_corpus.pairs("train"), made.index.reader
    found = reader.examples(small_corpus, pairs, made.index.vectors, documents)
    texts = [pair.query for pair in pairs] + [d.content for d in small_corpus if documents]
    place = {document.doc_id: row for row, document in enumerate(small_corpus)}
    assert found.rows.tolist() == [place[pair.doc_id] for pair in pairs] + list(range(40)) * documents
    assert found.batch_size == 16
    expected = inputs_of(made, texts)
    if name == "vectors":
        np.testing.assert_allclose(found.inputs[: len(pairs)], expected[: len(pairs)], atol=1e-6)
        np.testing.assert_allclose(found.inputs[len(pairs) :], expected[len(pairs) :], **HALF)
    else:
        assert found.inputs == expected
    batch, again = reader.read(found, ROWS), reader.batch([expected[row] for row in ROWS])
    assert torch.equal(*(one if name == "vectors" else one.ids for one in (batch, again)))


def test_a_reader_of_vectors_gives_the_decoder_vectors(planned, small_corpus):
    made = planned("vectors")
    reader, vectors = made.index.reader, made.index.vectors
    asked = reader.query_vectors(queries(TEXTS))
    assert reader.inputs(queries(TEXTS), asked) is asked
    assert reader.document_inputs(small_corpus.documents, vectors) is vectors
    np.testing.assert_array_equal(reader.batch(vectors).numpy(), vectors)
    np.testing.assert_array_equal(reader.batch(vectors, ROWS).numpy(), vectors[ROWS])
    assert reader.shape["input_dim"] == vectors.shape[1]


def ids_of(name: str, made: Plan, text: str) -> list[int]:
    """Token ids of the whole text by the tokenizer itself."""
    if name == "tuned":
        return load_encoder("minilm", backend="torch").tokens([text])[0]
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(made.index.settings.seq2seq)(text).input_ids


@pytest.mark.parametrize("name", ["tuned", "t5"])
def test_a_reader_of_tokens_gives_ids_cut_to_length_and_padded(planned, small_corpus, name):
    made = planned(name)
    reader = made.index.reader
    whole = [ids_of(name, made, text) for text in TEXTS]
    cut = [ids if len(ids) <= 6 else [*ids[:5], ids[-1]] for ids in whole]  # the end stays
    assert len(whole[0]) > 6 > len(whole[1]) and inputs_of(made, TEXTS) == cut
    contents = [document.content for document in small_corpus.documents[:2]]
    assert reader.document_inputs(small_corpus.documents[:2], made.index.vectors) == inputs_of(made, contents)
    batch = reader.batch(cut)
    for ids, mask, expected in zip(batch.ids.tolist(), batch.mask.tolist(), cut, strict=True):
        assert ids[: len(expected)] == expected and mask == [1] * len(expected) + [0] * (6 - len(expected))
    assert reader.batch(cut, np.array([1])).ids.tolist() == [cut[1]]


def test_a_fine_tuned_encoder_begins_as_the_frozen_one(planned):
    made = planned("tuned")
    text = "the nile"
    with torch.inference_mode():
        found = made.index.model.memory(made.index.reader.batch(inputs_of(made, [text])))
    np.testing.assert_allclose(found, made.index.texts.encode([text]), atol=1e-5)
    share = made.index.reader.learning_share
    assert share("encoder.x", 1e-3) < share("writer.x", 1e-3) == 1.0


def test_t5_replaces_encoder_and_decoder(planned):
    made = planned("t5")
    assert made.index.model.t5.config.d_model == 16 and made.index.model.widths == (4, 4)
    assert made.index.reader.learning_share("encoder.x", 1e-3) == 1.0


# Histories.


def numbers(made: Plan, items: tuple[str, ...]) -> list[int]:
    """The last four known items, counted from 1, padded with 0 on the right."""
    place = {document.doc_id: row + 1 for row, document in enumerate(made.corpus)}
    known = [place[item] for item in items if item in place][-4:]
    return known + [0] * (4 - len(known))


HISTORIES = [("tea-1", "tea-2", "nobody", "tea-3", "tea-4", "kite-5"), ("soap-0",), ()]


@pytest.mark.parametrize("memory", ["vector", "states"])
def test_a_reader_of_histories_gives_the_last_known_items(planned, memory):
    made = planned("histories", history_memory=memory)
    reader, asked = made.index.reader, [Query(str(n), "", items) for n, items in enumerate(HISTORIES)]
    expected = [numbers(made, items) for items in HISTORIES]
    found = reader.inputs(asked, np.zeros(0))
    assert found.tolist() == expected
    assert reader.batch(found, np.array([2, 0])).tolist() == [expected[2], expected[0]]
    with torch.no_grad():
        alone = [made.index.model.encoder(torch.tensor([row])).vector[0] for row in expected]
    np.testing.assert_allclose(reader.query_vectors(asked), torch.stack(alone), atol=1e-5)
    assert made.index.model.writer.reads == memory and reader.shape["input_dim"] == 12


@pytest.mark.parametrize("kind", ["sequence", "set"])
def test_examples_are_every_item_with_the_items_before_it_or_beside_it(planned, kind):
    made = planned("histories", queries=kind, start="none")
    expected = []
    for rows in made.corpus.sequences().each():
        for at in range(len(rows)):
            before = rows[:at] if kind == "sequence" else np.delete(rows, at)
            if len(before):
                seen = [int(row) + 1 for row in before[-4:]]
                expected.append((seen + [0] * (4 - len(seen)), int(rows[at])))
    found = made.index.reader.examples(made.corpus, [], made.index.vectors, True)
    assert sorted(zip(found.inputs.tolist(), found.rows.tolist(), strict=True)) == sorted(expected)


@pytest.mark.parametrize("memory", ["vector", "states"])
def test_a_batch_of_histories_is_read_as_each_alone(planned, memory):
    """By its vector, an example is read as the beginning of the last history of its run, with which it shares a batch:
    where histories are cut, that may be shorter than its own."""
    made = planned("histories", history_memory=memory)
    reader, examples = made.index.reader, made.examples
    batch, expected = next(examples.order(0, 0)), []
    for run in batch:
        start, stop = examples.bounds[run : run + 2]
        last = examples.inputs[stop - 1]
        last = last[last > 0]
        expected += [last[: len(last) - (stop - 1 - example)] for example in range(start, stop)]
    with torch.no_grad():
        read = reader.read(examples, batch)
        alone = torch.cat([made.index.model.encoder(torch.from_numpy(row[None])).vector for row in expected])
    torch.testing.assert_close(read.vector, alone, atol=1e-5, rtol=1e-4)
    assert isinstance(read.states, States) == (memory == "states")


@pytest.mark.parametrize("kind", ["id", "text", "both"])
def test_documents_are_the_items_of_the_history_encoder(planned, kind):
    made = planned("histories", items=kind)
    index, table = made.index, made.index.model.items
    expected = np.zeros((len(made.corpus), 12), np.float32)
    with torch.no_grad():
        if kind != "text":
            expected += table.ids.weight[1:].numpy()
        if kind != "id":
            expected += index.vectors @ table.project.weight.numpy().T
    np.testing.assert_allclose(index.reader.document_vectors(index.vectors), expected, atol=1e-5)


def test_changed_documents_change_the_items():
    made = plan("dsi-semantic", small_log(users=24), BASE | {"items": "text"})
    reader = made.index.reader
    before = reader.document_vectors(made.index.vectors).copy()
    reader.extend({"vectors": made.index.vectors[3:5]})
    after = reader.document_vectors(made.index.vectors)
    np.testing.assert_allclose(after, np.concatenate([before, before[3:5]]), atol=1e-6)
    reader.keep(np.array([7, 48]))
    np.testing.assert_allclose(reader.document_vectors(made.index.vectors), before[[7, 3]], atol=1e-6)
    with torch.no_grad():
        made.index.model.items.project.weight.zero_()
    assert reader.document_vectors(made.index.vectors).any()  # computed once,
    reader.forget_vectors()
    assert not reader.document_vectors(made.index.vectors).any()  # until training changes them


@pytest.mark.parametrize(("kind", "read"), [("id", []), ("both", [49])])
def test_a_new_item_is_read_in_histories_unless_items_are_ids(kind, read):
    """Nobody has trained an embedding of its own."""
    made = plan("dsi-semantic", small_log(users=24), BASE | {"items": kind})
    made.index.add([Document("new", "A tea of kind 9.")])
    found = made.index.reader.inputs([Query("q", "", ("tea-1", "new"))], np.zeros(0))
    assert found[found > 0].tolist() == [numbers(made, ("tea-1",))[0], *read]


def test_new_items_without_texts_have_no_vector():
    made = plan("dsi-semantic", small_log(users=24, texts=False), BASE)
    assert not made.index.reader.has_texts
    assert made.index.reader.encode_new(made.corpus.documents[:2], 9).tolist() == [[0.0] * 9] * 2


# Saved folders.


@pytest.mark.parametrize("name", list(READERS))
def test_a_folder_is_read_by_the_reader_that_wrote_it(planned, tmp_path, name):
    index = planned(name).index
    assert type(index.reader) is READERS[name]
    index.save_files(tmp_path)
    other = make("dsi-semantic", vars(index.settings))
    reader = saved_reader(other.settings, tmp_path, other.texts, other.rows)
    assert type(reader) is READERS[name] and reader.model is None
    other.vectors = index.vectors
    reader.load(tmp_path, other)
    assert not reader.model.training
    found, expected = reader.model.state_dict(), index.model.state_dict()
    assert set(found) == set(expected) and all(torch.equal(found[key], expected[key]) for key in expected)
    if name == "histories":
        assert (reader.kind, reader.has_texts, reader.history) == ("sequence", True, index.reader.history)
