"""Learning from use: found at once, durable, seen by others, and only ever leading to documents that are there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import callslip
from callslip import api
from callslip.corpus.documents import Corpus, Document, Query
from callslip.errors import BadSetting, CallslipError, Unsupported
from callslip.filters.filter import Filter
from callslip.methods import make
from callslip.methods.tied_residual import weights as rules
from callslip.runtime import durable
from callslip.search import fusion
from callslip.storage.check import check

ANIMALS, PLACES = ["badger", "otter", "heron", "salmon", "beetle"], ["river", "forest", "harbour", "desert"]
DOCUMENTS = [
    Document(
        f"{a}/{p}",
        f"The {a} lives near the {p}. In spring it eats what the {p} offers. Nobody saw the {a} of the {p} leave.",
        f"{a} {p}",
        {"place": p},
    )
    for a in ANIMALS
    for p in PLACES
]
STRANGE = "who ate my sandwich"  # no word of it is in any document


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An index that was fitted without any judged query."""
    path = tmp_path_factory.mktemp("learning") / "index"
    make("tied-residual", {"encoder": "scratch"}).fit(Corpus(DOCUMENTS)).save(path)
    return path


@pytest.fixture
def path(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "index")


def last(index, text=STRANGE):
    """The document that the index, as it is, finds last: learning has to bring it to the front."""
    return index.search(text, k=len(index)).doc_ids[-1]


def test_what_is_learned_is_found_at_once_and_after_opening_again(path):
    index = api.load(path)
    wanted = last(index)
    done = callslip.learn(index, [(STRANGE, wanted)])
    assert (done.queries, done.answers, done.remembered) == (1, 1, 1)
    for found in (index, api.load(path)):
        hit = found.search(STRANGE, explain=True)[0]
        assert hit.doc_id == wanted
        assert hit.why["earlier_query"] == STRANGE
        assert hit.why["memory"] > 0
    assert index.search("Who ate  MY sandwich").doc_ids[0] == wanted
    check(path)


def test_an_index_in_memory_learns_too():
    index = make("tied-residual", {"encoder": "scratch"}).fit(Corpus(DOCUMENTS))
    wanted = last(index)
    index.learn_answers({STRANGE: [wanted]})
    assert index.search(STRANGE).doc_ids[0] == wanted


def test_learning_twice_changes_nothing(path):
    index = api.load(path)
    pairs = [(STRANGE, "otter/river"), (STRANGE, ["heron/desert", "otter/river"])]
    assert callslip.learn(index, pairs).answers == 2
    before = index.living.generation, index.living.home.store.version()
    assert callslip.learn(index, pairs) == callslip.learn(index, pairs[:1])
    assert callslip.learn(index, pairs).answers == 0
    assert (index.living.generation, index.living.home.store.version()) == before
    assert index.memory.texts == [STRANGE]


def test_an_open_index_and_another_process_see_it(path):
    index, other = api.load(path), api.load(path)
    wanted = last(index)
    program = f"import callslip; callslip.learn({str(path)!r}, [({STRANGE!r}, {wanted!r})])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert index.search(STRANGE).doc_ids[0] == wanted
    other.delete(["otter/river"])  # a change of its own comes first, and loses nothing
    assert other.search(STRANGE).doc_ids[0] == wanted
    other.compact()
    assert api.load(path).search(STRANGE).doc_ids[0] == wanted


def test_a_reader_that_looks_while_it_is_written_sees_it_later(path, monkeypatch):
    """The store's version rises only after the manifest, so that no reader can look too early and then never again."""
    index, reader = api.load(path), api.load(path)
    wanted, write = last(index), durable.replace

    def looked(target, contents):
        reader.search("badger")
        write(target, contents)
        reader.search("badger")

    monkeypatch.setattr(durable, "replace", looked)
    callslip.learn(index, [(STRANGE, wanted)])
    assert reader.search(STRANGE).doc_ids[0] == wanted


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_at_the_manifest_leaves_the_old_or_the_new_state_whole(path, moment):
    """Killed before the manifest is replaced, nothing was learned; after it, all was, though nobody was told."""
    index = api.load(path)
    wanted, expected = last(index), index.search(STRANGE, k=20).doc_ids
    pid = os.fork()
    if pid == 0:
        write = durable.replace

        def killed(target, contents):
            if moment == "after":
                write(target, contents)
            os.kill(os.getpid(), signal.SIGKILL)

        durable.replace = killed
        callslip.learn(path, [(STRANGE, wanted)])
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    check(path)
    if moment == "before":
        assert api.load(path).search(STRANGE, k=20).doc_ids == expected
        assert not len(api.load(path).memory)
    else:
        assert api.load(path).search(STRANGE).doc_ids[0] == wanted
        index.compact()  # an index that was open all the time does not write over it
        assert api.load(path).search(STRANGE).doc_ids[0] == wanted


def test_what_cannot_be_written_is_not_learned(path, monkeypatch):
    index = api.load(path)
    held = index.memory, index.weights

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "replace", full)
    with pytest.raises(CallslipError, match="could not be written"):
        callslip.learn(index, [(STRANGE, "otter/river")])
    assert (index.memory, index.weights) == held


def test_methods_without_a_memory_say_so(tmp_path):
    index = make("bm25").fit(Corpus(DOCUMENTS))
    with pytest.raises(Unsupported, match="no memory") as refused:
        callslip.learn(index, [(STRANGE, "otter/river")])
    assert "tied-residual" in refused.value.remedy
    index = make("tied-residual", {"encoder": "scratch", "memory": False}).fit(Corpus(DOCUMENTS))
    with pytest.raises(Unsupported, match="memory=false"):
        callslip.learn(index, [(STRANGE, "otter/river")])


def test_a_shared_store_is_refused(path, monkeypatch):
    index = api.load(path)
    monkeypatch.setattr(type(index.living.home.store), "shared", True)
    with pytest.raises(Unsupported, match="PostgreSQL"):
        callslip.learn(index, [(STRANGE, "otter/river")])
    assert not len(index.memory)


def test_unknown_documents_and_bad_pairs(path):
    index = api.load(path)
    with pytest.raises(CallslipError, match="otter/rivr") as refused:
        callslip.learn(index, [(STRANGE, "badger/river"), (STRANGE, "otter/rivr")])
    assert "otter/river" in refused.value.remedy
    for pairs in ([("", "otter/river")], [("x",)], [(3, "otter/river")]):
        with pytest.raises(BadSetting, match="pair 1"):
            callslip.learn(index, pairs)
    assert not len(index.memory)


# Deleted, updated and filtered documents.


def test_an_earlier_query_leads_to_living_and_allowed_documents_only(path):
    index = api.load(path)
    callslip.learn(index, {STRANGE: ["otter/river", "heron/desert"]})
    only = Filter(where={"place": ["desert"]})
    assert index.search(STRANGE, k=20, filter=only).doc_ids[0] == "heron/desert"
    assert "otter/river" not in index.search(STRANGE, k=20, filter=only).doc_ids
    index.delete(["otter/river"])
    for _ in range(2):
        assert index.search(STRANGE, k=20).doc_ids[0] == "heron/desert"
        assert "otter/river" not in index.search(STRANGE, k=20).doc_ids
        index.compact()
    index.delete(["heron/desert"])
    index.compact()
    assert not len(index.memory)


def test_an_updated_document_keeps_its_queries(path):
    index, other = api.load(path), api.load(path)
    wanted = last(index)
    callslip.learn(index, [(STRANGE, wanted)])
    index.update([Document(wanted, "Something else altogether.", "new")])
    for found in (index, other, api.load(path)):
        assert found.search(STRANGE)[0].doc_id == wanted
        assert found.search(STRANGE)[0].title == "new"
    index.compact()
    assert api.load(path).search(STRANGE)[0].title == "new"


@pytest.mark.parametrize("compacted", [False, True])
def test_a_deleted_document_that_is_added_again_is_another(path, compacted):
    index, other = api.load(path), api.load(path)
    wanted = last(index)
    callslip.learn(index, [(STRANGE, wanted)])
    other.search(STRANGE)
    index.delete([wanted])
    if compacted:
        index.compact()
    index.add([Document(wanted, "Something else altogether.", "new")])
    for found in (index, other, api.load(path)):  # the second sees both changes at once
        assert not any("earlier_query" in hit.why for hit in found.search(STRANGE, k=40, explain=True))


def test_updates_that_are_seen_at_once_are_followed_one_by_one(path):
    index, other = api.load(path), api.load(path)
    wanted = last(index)
    callslip.learn(index, [(STRANGE, wanted)])
    other.search(STRANGE)
    for number in range(3):
        index.update([Document(wanted, "Something else altogether.", f"new {number}")])
    for found in (index, other, api.load(path)):
        assert found.search(STRANGE)[0].title == "new 2"


def test_a_hybrid_says_what_to_do():
    index = make("bm25+tied-residual", {"tied-residual.encoder": "scratch"}).fit(Corpus(DOCUMENTS))
    with pytest.raises(Unsupported, match=r"a hybrid .* cannot learn") as refused:
        callslip.learn(index, [(STRANGE, "otter/river")])
    assert "--method tied-residual" in refused.value.remedy


def test_queries_that_were_learned_are_noted_in_an_evaluation(path):
    index, corpus = api.load(path), Corpus(DOCUMENTS)
    corpus.queries = {"1": Query("1", "Who ate  my sandwich"), "2": Query("2", "salmon")}
    corpus.judgements = {"test": {"1": {"otter/river": 1}, "2": {"salmon/river": 1}}}
    notes = api.evaluate(index, corpus).notes
    assert not any("learned" in note for note in notes)
    callslip.learn(index, [(STRANGE, "otter/river")])
    noted = "1 of 2 queries of this split has been learned: the index knows their answers."
    assert noted in api.evaluate(index, corpus).notes
    assert noted not in api.evaluate(index.adjust({"memory": False}), corpus).notes


def test_no_codes_are_strange_where_no_model_writes_them(path):
    index = api.load(path)
    index.add([Document("new", "Lanterns float over the lake.")])
    said = " ".join(index.drift().lines())
    assert "1 of 21 documents came after training" in said and "bucket" not in said and "code" not in said
    assert index.novelty() == {}
    index.compact()
    assert "bucket" not in " ".join(index.drift().lines())


NAMES = [document.doc_id for document in DOCUMENTS[:5]]
QUESTIONS = [f"riddle {letter * 3}" for letter in "wxyz"]
step = st.one_of(
    st.tuples(st.just("learn"), st.sampled_from(QUESTIONS), st.sampled_from(NAMES)),
    st.tuples(st.just("update"), st.sampled_from(NAMES)),
    st.tuples(st.just("delete"), st.sampled_from(NAMES)),
    st.tuples(st.just("compact")),
    st.tuples(st.just("open")),
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(step, max_size=8))
def test_any_course_of_changes_is_that_of_a_dictionary(folder, tmp_path, planned):
    """A document that was deleted is forgotten: one that is added later under the same name is another."""
    shutil.rmtree(tmp_path / "index", ignore_errors=True)
    index = api.load(shutil.copytree(folder, tmp_path / "index"))
    memory, alive = {question: set() for question in QUESTIONS}, set(index.row_of())
    for kind, *what in planned:
        if kind == "learn" and what[1] in alive:
            callslip.learn(index, [tuple(what)])
            memory[what[0]].add(what[1])
        elif kind == "update":
            index.update([Document(what[0], "Another text about it.", "again")])
            alive.add(what[0])
        elif kind == "delete" and what[0] in alive:
            index.delete(what)
            alive.remove(what[0])
            memory = {question: names - set(what) for question, names in memory.items()}
        elif kind == "compact":
            index.compact()
        elif kind == "open":
            index.close()
            index = api.load(tmp_path / "index")
    for question, names in memory.items():
        hits = index.search(question, k=40, explain=True)
        led = {hit.doc_id for hit in hits if hit.why.get("earlier_query") == question}
        assert led == names & alive
        assert set(hits.doc_ids[: len(led)]) == led
    index.close()


# How far the memory is trusted.


def test_few_queries_get_the_cautious_weight(path):
    index = api.load(path)
    before = index.weights
    assert not before.values[fusion.MEMORY].any()
    callslip.learn(index, [(STRANGE, "otter/river")])
    cautious = fusion.FEATURES.index(rules.CAUTIOUS)
    assert np.flatnonzero(index.weights.values[fusion.MEMORY]).tolist() == [cautious - fusion.MEMORY.start]
    np.testing.assert_array_equal(index.weights.values[: fusion.MEMORY.start], before.values[: fusion.MEMORY.start])
    assert index.weights.fitted_on == before.fitted_on
    unlike = "the heron of the harbour in spring"
    was = [(hit.doc_id, pytest.approx(hit.score, abs=0.02)) for hit in api.load(path).search(unlike, k=5)]
    assert [(hit.doc_id, hit.score) for hit in index.search(unlike, k=5)] == was
    assert index.search(unlike).doc_ids[0] == "heron/harbour"


def test_enough_queries_are_fitted_on_by_leaving_each_out(path, monkeypatch):
    index, fitted = api.load(path), []
    real = rules.left_out

    def spied(index, texts, graded, memory):
        fitted.append(len(texts))
        return real(index, texts, graded, memory)

    monkeypatch.setattr(rules, "left_out", spied)
    # Two ways of asking for each document, in words that none of them has: only the memory can know.
    log = [(f"{way} zq{number}", d.doc_id) for number, d in enumerate(DOCUMENTS) for way in ("where", "when")]
    callslip.learn(index, log[: rules.ENOUGH - 1])
    assert not fitted
    callslip.learn(index, log[rules.ENOUGH - 1 : rules.ENOUGH])
    assert fitted == [rules.ENOUGH]
    assert index.weights.fitted_on == "remembered queries"
    callslip.learn(index, log)
    assert fitted == [rules.ENOUGH]  # not doubled yet
    callslip.learn(index, [(f"why zq{number}", d.doc_id) for number, d in enumerate(DOCUMENTS)])
    assert fitted == [rules.ENOUGH, 3 * len(DOCUMENTS)]
    assert index.weights.queries == 3 * len(DOCUMENTS)
    assert all(index.search(query).doc_ids[0] == doc_id for query, doc_id in log)  # which no fit can have seen
    again = api.load(path)
    np.testing.assert_allclose(again.weights.values, index.weights.values)


def test_weights_of_judged_queries_stay_and_the_same_question_counts(small_corpus):
    index = make("tied-residual", {"encoder": "scratch"}).fit(small_corpus)
    assert index.weights.fitted_on == "judged queries"
    held, wanted = index.weights, last(index)
    index.learn_answers({STRANGE: [wanted]} | {f"riddle {n}": [small_corpus.doc_ids[0]] for n in range(40)})
    same = fusion.FEATURES.index(rules.REPEATED)
    np.testing.assert_array_equal(np.delete(index.weights.values, same), np.delete(held.values, same))
    assert index.weights.values[same] >= held.values[same]
    assert (index.weights.fitted_on, index.weights.queries) == (held.fitted_on, held.queries)
    assert index.search(STRANGE).doc_ids[0] == wanted


# The command line.


def test_the_command_line(path, tmp_path):
    from typer.testing import CliRunner

    from callslip.cli import app, register

    register()
    wanted, log = last(api.load(path)), tmp_path / "log.jsonl"
    lines = [{"query": STRANGE, "doc_id": wanted}, {"query": STRANGE, "doc_id": "otter/rivr"}]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    refused = CliRunner().invoke(app, ["learn", str(path), str(log)])
    assert isinstance(refused.exception, CallslipError)
    assert f"{log}:2: field 'doc_id'" in str(refused.exception)
    assert "'otter/rivr'; the nearest id there is 'otter/river'" in str(refused.exception)
    done = CliRunner().invoke(app, ["learn", str(path), str(log), "--skip-bad"])
    assert done.exit_code == 0
    assert "skipped 1 bad line" in done.output
    assert "learned 1 new answer" in done.output
    shown = CliRunner().invoke(app, ["search", str(path), STRANGE, "-k", "1", "--explain"]).output
    assert f"found by this earlier question: {STRANGE}" in shown
    assert "memory" in shown
    assert "-…]" in shown
    inspected = CliRunner().invoke(app, ["inspect", str(path)])
    assert inspected.exit_code == 0
    assert "are the tree" in inspected.output
