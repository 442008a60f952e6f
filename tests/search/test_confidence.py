"""Confidence: the calibration is what naive counting and another library say, and an index says when it is unsure."""

from __future__ import annotations

import json
import math
import statistics

import numpy as np
import pytest
from typer.testing import CliRunner

from callslip import api
from callslip.cli import app, register
from callslip.corpus.documents import Corpus, Document, Query
from callslip.methods import make
from callslip.search.confidence import ALARMS, ENOUGH, Calibration, calibrated
from callslip.search.postings import Postings

TOPICS = {
    "bread": "flour yeast oven dough crust loaf sourdough rye baker proofing",
    "boats": "sail mast hull anchor keel harbour tide rudder deck rope",
    "music": "violin flute chord tempo melody rhythm oboe cello pitch score",
    "metal": "iron steel forge anvil copper alloy weld furnace rust hammer",
    "birds": "wing feather nest beak migrate hatch sparrow owl plumage song",
    "stars": "orbit comet nebula planet eclipse lunar telescope galaxy dust meteor",
}
FAST = {"encoder": "scratch:dim=64", "length": 24}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    rng, documents, queries, judgements = np.random.default_rng(0), [], {}, {}
    for topic, words in TOPICS.items():
        for number in range(8):
            own = rng.choice(words.split(), 6, replace=False).tolist()
            doc_id = f"{topic}{number}"
            documents.append(Document(doc_id, f"{' '.join(own)} {doc_id}"))
            queries[doc_id] = Query(doc_id, f"{own[0]} {own[1]} {doc_id}")
            judgements[doc_id] = {doc_id: 1}
    return Corpus(documents, queries, {"train": judgements})


@pytest.fixture(scope="module")
def index(corpus):
    return make("tied-residual", FAST).fit(corpus)


def two_clouds(count: int = 4000):
    rng = np.random.default_rng(0)
    answered = rng.normal([0.6, 0.5], [0.1, 0.2], (count, 2))
    return answered, rng.normal([0.45, 0.3], [0.1, 0.2], (count, 2))


def test_signals_count_in_units_of_their_spread():
    answered, left_out = two_clouds()
    made = calibrated(answered, left_out)
    for column, weight in enumerate(made.weights):
        assert weight == pytest.approx(1 / statistics.pstdev([*answered[:, column], *left_out[:, column]]))


def test_confidence_is_the_share_of_held_out_queries_with_less():
    answered, left_out = two_clouds()
    made = calibrated(answered, left_out)
    sums = answered @ made.weights
    for signals in (*answered[:20], *left_out[:20]):
        naive = np.mean(sums < signals @ made.weights)
        assert made.confidence(signals) == pytest.approx(naive, abs=0.005)
    flagged = [made.unsure(made.confidence(signals)) for signals in answered]
    assert np.mean(flagged) == pytest.approx(ALARMS, abs=0.002)
    flagged = [made.unsure(made.confidence(signals)) for signals in left_out]
    assert np.mean(flagged) == pytest.approx(made.caught, abs=0.005) and made.caught > 0.2
    assert made.confidence(np.array([-9.0, 0.0])) == 0.0 and made.confidence(np.array([9.0, 9.0])) == 1.0


def test_signals_that_say_nothing_have_no_weight():
    answered, left_out = two_clouds(200)
    answered[:, 1] = left_out[:, 1] = 0.0
    made = calibrated(answered, left_out)
    assert made.weights[0] > 0 and made.weights[1] == 0
    assert calibrated(left_out, answered) is None  # less of it would mean an answer: no such weight is taken
    assert calibrated(answered[: ENOUGH - 1], left_out) is None


def test_it_is_saved_as_plain_json():
    made = calibrated(*two_clouds(100))
    again = Calibration.from_dict(json.loads(json.dumps(made.to_dict())))
    np.testing.assert_allclose(again.quantiles, made.quantiles, atol=1e-6)
    assert (again.queries, again.alarms) == (100, ALARMS)
    np.testing.assert_array_equal(again.weights, made.weights)


def test_rarity_is_the_sum_of_inverse_document_frequencies_and_bounds_the_scores():
    texts = ["oak elm oak", "oak ash", "fir", "fir oak yew"]
    words = Postings(k1=1.2, b=0.75).index(texts)
    stems = words.tokenize(["oak fir zebra"])[0]

    def idf(count):
        return math.log(1 + (len(texts) - count + 0.5) / (count + 0.5))

    assert words.rarity(stems) == pytest.approx(idf(3) + idf(2) + idf(0))
    assert words.matches(stems).scores.max() < words.rarity(stems)
    assert words.rarity([]) == 0


def test_what_nothing_answers_is_unsure(index, corpus):
    asked = [index.search(query) for query in corpus.queries.values()]
    assert all(0 <= hits.confidence <= 1 for hits in asked)
    index.adjust({"memory": False})
    assert np.mean([hits.unsure for hits in index.search_batch(corpus.queries.values())]) <= 0.1
    index.adjust({"memory": True})
    strange = ["mortgage interest rates", "how to file a tax return", "vaccine trial placebo arm", "quantum chess"]
    found = index.search_batch(strange)
    assert all(hits.unsure and len(hits) == 10 for hits in found)
    assert index.weights.calibration.queries == 48


def test_answers_are_left_out_for_the_calibration(index, corpus):
    """The signals without answers are those of a search in an index without the documents."""
    from callslip.methods.tied_residual import weights

    query = corpus.queries["bread3"]
    held = weights.left_out(index, [query.text], [{index.row_of()["bread3"]: 1}], index.memory)
    table = index.tables(index.texts.training([query.text]))[0]
    stems = index.words.tokenize([query.text])[0]
    mask = np.ones(len(corpus), bool)
    mask[index.row_of()["bread3"]] = False
    without = index.evidence(table, stems, 100, mask)
    np.testing.assert_allclose(held.unanswered[0], without.signals(), atol=1e-6)
    assert (held.unanswered[0] < held.answered[0]).all()


def test_it_survives_saving_and_older_folders_are_never_unsure(index, corpus, tmp_path):
    make("tied-residual", FAST).fit(corpus).save(tmp_path / "i")
    loaded = api.load(tmp_path / "i")
    assert loaded.search("quantum chess").unsure
    assert loaded.search("quantum chess").confidence == index.search("quantum chess").confidence
    loaded.adjust({"words": False})
    assert loaded.search("quantum chess").confidence is None  # nothing to compare with
    held = loaded.weights.to_dict()
    del held["calibration"]
    loaded.weights = type(loaded.weights).from_dict(held)
    assert not loaded.adjust({"words": True}).search("quantum chess").unsure


def test_what_was_learned_is_sure(corpus):
    own = make("tied-residual", FAST).fit(corpus)
    assert own.search("quantum chess").unsure
    own.learn_answers({"quantum chess": ["stars1"]})
    hits = own.search("quantum chess")
    assert not hits.unsure and hits.doc_ids[0] == "stars1"
    assert own.search("mortgage interest rates").unsure


def test_methods_without_a_calibration_are_never_unsure(corpus):
    hits = make("bm25").fit(corpus).search("quantum chess flour")
    assert not hits.unsure and hits.confidence is None


def test_the_command_line_says_so(corpus, tmp_path):
    make("tied-residual", FAST).fit(corpus).save(tmp_path / "i")
    register()
    done = CliRunner().invoke(app, ["search", str(tmp_path / "i"), "quantum chess", "-k", "2"])
    assert done.stdout.startswith("Not sure: nothing in this index answers this well (the evidence is weaker than for ")
    done = CliRunner().invoke(app, ["search", str(tmp_path / "i"), corpus.queries["bread3"].text, "-k", "2"])
    assert "Not sure" not in done.stdout
    done = CliRunner().invoke(app, ["search", str(tmp_path / "i"), "quantum chess", "--json"])
    answer = json.loads(done.stdout)
    assert answer["unsure"] is True and answer["confidence"] < ALARMS
