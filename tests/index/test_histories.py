"""Generative methods on logs of users and items: what they learn, keep, refuse, and take in later."""

from __future__ import annotations

import functools
import shutil

import numpy as np
import pytest
import torch
from small_log import small_log

from callslip import api
from callslip.corpus.documents import Document, Query
from callslip.corpus.logs import numbers_of
from callslip.decoders.histories import HistoryShape, ItemTable, Read
from callslip.encoders.interaction_vectors import interaction_vectors
from callslip.errors import BadSetting, CallslipError, UnknownName, Unsupported
from callslip.filters.filter import Filter
from callslip.methods import make
from callslip.settings import describe
from callslip.training.batches import HistoryExamples
from callslip.training.item_ranking import no_negatives, ranking_term

QUICK = {"encoder": "scratch", "epochs": 12, "decoder_width": 32, "batch_size": 64, "history_width": 32, "width": 4}


@pytest.fixture(scope="module")
def fitted(log):
    @functools.cache
    def fit(**more):
        return make("dsi-semantic", QUICK | {"leaf": 3} | more).fit(log)

    return fit


def share_found(index, log, k=5):
    """How many test items are among the first k."""
    queries, judgements = log.split("test")
    hits = index.search_batch(list(queries.values()), k=k, keep_history=True)  # users of this log walk in rings
    return np.mean([bool(set(h.doc_ids) & set(judgements[q])) for q, h in zip(queries, hits, strict=True)])


def test_a_log_makes_the_queries_histories(fitted, log):
    index = fitted()
    assert index.reads_histories and index.reader.kind == "sequence"
    assert share_found(index, log) > 0.6  # 5 of 48 by chance are 0.1; the last item tells the next
    last = index.search(Query("q", "", ("soap-2", "soap-3", "soap-4")), k=3)
    assert "soap-5" in last.doc_ids


def test_order_matters_to_a_sequence_and_not_to_a_set(fitted):
    one, other = (Query("q", "", items) for items in (("tea-1", "tea-2", "kite-5"), ("kite-5", "tea-1", "tea-2")))
    sequence, group = fitted(), fitted(queries="set")
    assert group.reader.kind == "set"
    assert sequence.search(one, k=5).doc_ids != sequence.search(other, k=5).doc_ids
    assert group.search(one, k=5).doc_ids == group.search(other, k=5).doc_ids


def test_a_saved_index_answers_alike_and_knows_its_users(fitted, log, tmp_path):
    index = fitted()
    index.save(tmp_path / "index")
    loaded = api.load(tmp_path / "index")
    assert loaded.reads_histories
    for query in list(log.split("test")[0].values())[:5]:
        before, after = index.search(query, k=5), loaded.search(query, k=5)
        assert before.doc_ids == after.doc_ids
        assert before.scores == pytest.approx(after.scores, abs=1e-4)
    assert loaded.users.histories == index.users.histories and len(loaded.users.histories) == 90


def test_new_items_are_found_and_read_and_compacting_changes_nothing(fitted, log, tmp_path):
    fitted().save(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "index")  # what is fitted lives on in the first
    index = api.load(tmp_path / "index")
    index.add([Document("soap-new", "A soap of kind 5, made for soap lovers.", "soap 5")])
    asked = Query("q", "", ("soap-2", "soap-3", "soap-4"))
    assert "soap-new" in index.search(asked, k=49).doc_ids
    with_new = index.search(Query("q", "", ("soap-2", "soap-new")), k=5)
    assert with_new.scores != pytest.approx(index.search(Query("q", "", ("soap-2",)), k=5).scores, abs=1e-3)
    index.delete(["comb-3", "lamp-0"])
    expected = index.search(asked, k=60)
    assert len(expected) == 44  # of 47, without the history
    index.compact()
    for again in (index, api.load(tmp_path / "index")):
        hits = again.search(asked, k=60)
        assert hits.doc_ids == expected.doc_ids
        assert hits.scores == pytest.approx(expected.scores, abs=1e-4)


def test_by_id_alone_a_new_item_can_be_found_and_is_passed_over_in_histories(fitted, tmp_path):
    fitted(items="id").save(tmp_path / "index")
    index = api.load(tmp_path / "index")
    index.add([Document("soap-new", "A soap of kind 5, made for soap lovers.", "soap 5")])
    plain = index.search(Query("q", "", ("soap-2",)), k=49, keep_history=True)
    assert "soap-new" in plain.doc_ids
    with_new = index.search(Query("q", "", ("soap-2", "soap-new")), k=49, keep_history=True)
    assert with_new.scores == pytest.approx(plain.scores, abs=1e-5)


def test_filters_and_unknown_items(fitted):
    hits = fitted().search(Query("q", "", ("soap-2", "nobody knows this")), k=4, filter=Filter(where={"topic": "tea"}))
    assert len(hits) == 4 and all(doc_id.startswith("tea") for doc_id in hits.doc_ids)
    assert len(fitted().search(Query("q", "", ("unknown",)), k=4)) == 4
    assert len(fitted().search(Query("q", ""), k=4)) == 4  # a new user


def test_texts_and_histories_are_not_confused(fitted, log):
    with pytest.raises(Unsupported, match="fitted on histories") as refusal:
        fitted().search("soap")
    assert "--history" in refusal.value.remedy
    by_text = make("dsi-semantic", QUICK | {"queries": "text", "epochs": 2}).fit(log)
    assert not by_text.reads_histories
    assert by_text.search("soap 3", k=3)
    with pytest.raises(Unsupported, match="searches by text"):
        by_text.search(Query("q", "", ("soap-2",)))
    for name in ("genret", "glen"):
        with pytest.raises(UnknownName, match="queries"):
            make(name, {"queries": "sequence"})
    with pytest.raises(BadSetting, match="texts"):
        make("dsi-semantic", {"queries": "set", "seq2seq": "t5-small"})


def test_items_without_texts_are_coded_by_who_has_them(tmp_path):
    bare = small_log(texts=False)
    quick = QUICK | {"leaf": 3, "epochs": 8, "encoder": "no such encoder"}  # none is needed
    index = make("dsi-semantic", quick).fit(bare)
    assert share_found(index, bare) > 0.3
    index.save(tmp_path / "index")
    index.add([Document("new", "")])
    assert "new" in index.search(Query("q", "", ("soap-2",)), k=60).doc_ids


def test_interaction_vectors_are_near_for_items_of_the_same_users(log):
    vectors = interaction_vectors(log.sequences(), len(log))
    same, other = vectors[0] @ vectors[1], vectors[0] @ vectors[20]  # of one ring, and of two
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    assert same > other + 0.3


def test_a_log_too_short_to_train_on_says_so():
    corpus = small_log(users=1)
    corpus.judgements["train"] = {}
    with pytest.raises(CallslipError, match="last two are held out"):
        make("dsi-semantic", QUICK | {"queries": "sequence"}).fit(corpus)


def test_numbers_leave_out_what_is_not_known():
    queries = [Query("a", "", ("x", "y", "z")), Query("b", "", ())]
    known = np.array([True, False, True])
    assert numbers_of(queries, {"x": 0, "y": 1, "z": 2}, 5, known).tolist() == [[1, 3], [0, 0]]
    assert numbers_of(queries, {"x": 0, "y": 1, "z": 2}, 2).tolist() == [[2, 3], [0, 0]]


def test_the_ranking_term_is_the_softmax_over_all_or_drawn_items():
    torch.manual_seed(0)
    items, query, target = ItemTable(30, 8, "id"), torch.randn(4, 8), torch.tensor([3, 0, 29, 3])
    logits = query @ items.all().T
    expected = -(logits.log_softmax(-1)[range(4), target]).mean()
    torch.testing.assert_close(ranking_term(Read(query), target, items, 0), expected)
    torch.manual_seed(1)
    sampled = ranking_term(Read(query), target, items, 12)
    torch.manual_seed(1)
    drawn = torch.randint(30, (12,))
    each = []
    for row, right in enumerate(target.tolist()):
        wrong = [logits[row, item] for item in drawn.tolist() if item != right]
        each.append(torch.stack([logits[row, right], *wrong]).logsumexp(0) - logits[row, right])
    torch.testing.assert_close(sampled, torch.stack(each).mean())


@pytest.mark.parametrize("method", ["dsi-semantic", "uri", "deep-retrieval", "sasrec"])
def test_items_have_a_weight_decay_of_their_own(log, method):
    """So strong a decay leaves nothing of the items' vectors, and all of the rest as it would be without."""
    shared = {"encoder": "scratch", "epochs": 3, "history_width": 16, "items": "id", "queries": "set"}
    known = {field.name for field in describe(make(method).Settings)}
    sizes = {}
    for decay in (0.0, 100.0):
        values = QUICK | {"leaf": 3, "warmup_epochs": 2} | shared | {"item_decay": decay}
        index = make(method, {key: value for key, value in values.items() if key in known}).fit(log)
        sizes[decay] = {name: float(p.detach().norm()) for name, p in index.model.named_parameters()}
    (items,) = (name for name in sizes[0.0] if name.endswith("items.ids.weight"))
    assert sizes[100.0][items] < 0.2 * sizes[0.0][items]
    others = [name for name in sizes[0.0] if name != items and sizes[0.0][name] > 1]
    assert others
    assert all(sizes[100.0][name] > 0.5 * sizes[0.0][name] for name in others)
    with pytest.raises(BadSetting, match="item_decay"):
        make(method, {"item_decay": -1})


def test_items_of_a_set_are_not_among_the_wrong_ones():
    torch.manual_seed(0)
    items, query, target = ItemTable(30, 8, "id"), torch.randn(3, 8), torch.tensor([3, 0, 29])
    members = torch.tensor([[1, 6, 0], [30, 2, 9], [30, 30, 7]])  # the last holds its own target, which still counts
    logits, read = query @ items.all().T, Read(query, None, members)

    def naive(drawn: list[int]) -> torch.Tensor:
        each = []
        for row, right in enumerate(target.tolist()):
            wrong = [item for item in drawn if item != right and item + 1 not in members[row].tolist()]
            each.append(logits[row, [right, *wrong]].logsumexp(0) - logits[row, right])
        return torch.stack(each).mean()

    torch.testing.assert_close(ranking_term(read, target, items, 0), naive(list(range(30))))
    torch.manual_seed(1)
    sampled = ranking_term(read, target, items, 25)
    torch.manual_seed(1)
    drawn = torch.randint(30, (25,))
    torch.testing.assert_close(sampled, naive(drawn.tolist()))
    marked = no_negatives(read, drawn.expand(3, -1), target)
    assert torch.equal(marked, no_negatives(read, drawn.unsqueeze(0), target))
    assert marked.sum() > (drawn == target[:, None]).sum()


@pytest.mark.parametrize("kind", ["set", "sequence"])
@pytest.mark.parametrize("memory", ["vector", "states"])
def test_batches_read_every_example_as_it_is_alone(log, kind, memory):
    vectors = np.zeros((len(log), 0), np.float32)
    shape = HistoryShape(kind, len(log), 0, "id", 8, 20, 1, 1, 0.0, memory)
    torch.manual_seed(0)
    encoder = shape.encoder(vectors).eval()
    sequences = log.sequences()
    examples = sequences.sequential(20) if kind == "sequence" else sequences.general(20)
    batches = HistoryExamples(shape, examples.histories, examples.targets, 50)
    assert len(batches.bounds) - 1 == (len(sequences) if (kind, memory) == ("sequence", "vector") else len(examples))
    seen = []
    with torch.no_grad():
        alone = encoder(torch.from_numpy(examples.histories)).vector
        for numbers in batches.order(seed=0, epoch=0):
            rows = batches.examples(numbers)
            torch.testing.assert_close(batches.read(encoder, numbers).vector, alone[rows])
            seen += rows.tolist()
    assert sorted(seen) == list(range(len(examples)))
    assert len(list(batches.order(seed=0, epoch=1))) == len(batches)


def test_a_decoder_may_read_all_states(log):
    index = make("dsi-semantic", QUICK | {"leaf": 3, "history_memory": "states", "epochs": 6}).fit(log)
    assert index.model.writer.reads == "states"
    assert share_found(index, log) > 0.4
