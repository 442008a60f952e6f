"""Code writers that begin at the similarity of query and code: untrained they rank by it, held-out queries decide the
rest."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from callslip import api
from callslip.corpus.documents import Corpus, Document, Query
from callslip.errors import BadSetting, IndexCorrupt
from callslip.index import tied_start as module
from callslip.index.tied_start import SHARPNESSES, OwnLevels, TiedStart, best_sharpness, chosen
from callslip.methods import make
from callslip.storage.check import check
from callslip.training import held_out as held_module
from callslip.training.batches import training_pairs
from callslip.training.held_out import HeldOutQueries, held_out, pairs_without, without_judged

QUICK = {
    "encoder": "scratch", "start": "tied", "width": 4, "length": 2, "decoder_width": 16, "batch_size": 32, "beam": 99,
    "ranking": "sum", "epochs": 1, "warmup_epochs": 0, "level_epochs": 1, "level_steps": 1, "rqvae_epochs": 1,
    "rounds": 0, "writing_epochs": 0, "ranker_epochs": 1,
}  # fmt: skip
METHODS = ["dsi-semantic", "dsi-random", "dsi-atomic", "dsi-naive", "nci", "ultron-pq", "tiger", "deep-retrieval"]
METHODS += ["uri", "asi", "asi++", "genret"]
ASKED = "where is the banana with fruit1"


@pytest.fixture(scope="module", autouse=True)
def few_levels():
    """Codebooks of 64 levels would take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LEVELS", 8)
        yield


def quick(method: str = "dsi-semantic", **values):
    """An unfitted index, quick to fit."""
    known = vars(make(method).settings)
    return make(method, {k: v for k, v in (QUICK | values).items() if k in known})


@pytest.fixture(scope="module")
def fitted(small_corpus):
    return functools.cache(lambda method="dsi-semantic", **values: quick(method, **values).fit(small_corpus))


@pytest.fixture
def trusted():
    """trusted(index, trust): the index with another trust, until the test ends."""
    kept = []

    def change(index, trust):
        kept.append((index, index.reader.start))
        index.reader.start = replace(index.reader.start, trust=trust)
        return index

    yield change
    for index, start in reversed(kept):
        index.reader.start = start


def naive_similarities(start: TiedStart, query: np.ndarray) -> np.ndarray:
    """q·d̂ of every document: each vector put together token by token, brought to unit length, and multiplied."""
    maker, found = start.maker, []
    for code in start.codes:
        whole = np.zeros(maker.dim)
        for level, token in enumerate(code):
            if level < maker.tree:
                whole += maker.codebooks[level][token]
            else:
                whole += maker.rotation[:, maker.axes[level - maker.tree]] @ maker.codebooks[level][token]
        found.append(float(query @ whole) / np.linalg.norm(whole))
    return np.array(found)


def plain_order(scores: np.ndarray, corpus: Corpus) -> list[str]:
    return [corpus.documents[row].doc_id for row in sorted(range(len(corpus)), key=lambda row: (-scores[row], row))]


def written(index, query: str) -> np.ndarray:
    """The model's log-probability of every document's code, by teacher forcing."""
    codes = torch.from_numpy(index.identifiers.in_row_order()[1].astype(np.int64))
    vectors = torch.from_numpy(index.reader.query_vectors([Query("q", query)]))
    with torch.no_grad():
        logits = index.model(vectors.expand(len(codes), -1), codes)
        levels = [one.log_softmax(-1).gather(1, codes[:, [n]]) for n, one in enumerate(logits)]
    return torch.cat(levels, dim=1).sum(dim=1).numpy()


# The ranking.


@pytest.mark.parametrize("method", METHODS)
def test_without_trust_an_index_ranks_by_the_similarity_of_query_and_code(fitted, trusted, small_corpus, method):
    """Against a plain loop over all documents; the beam holds all codes."""
    index = trusted(fitted(method), 0.0)
    start, query = index.reader.start, index.reader.query_vectors([Query("q", ASKED)])[0]
    expected = naive_similarities(start, query)
    hits = index.search(ASKED, k=40)
    row_of = small_corpus.rows()
    found = np.array([expected[row_of[doc_id]] for doc_id in hits.doc_ids])
    assert len(found) == 40 and (np.diff(found) <= 2e-4).all()  # scales have 16 bits
    assert hits.scores == pytest.approx(start.sharpness * found, abs=start.sharpness * 1e-3)
    assert index.vectors.shape[1] == 0 or index.codes_near


def test_reconstructions_are_near_the_vectors(fitted, small_corpus):
    index = fitted()
    vectors = index.texts.documents(small_corpus, "")
    near = (index.reader.start.maker.decode(index.reader.start.codes) * vectors).sum(axis=1)
    assert near.min() > 0.6 and near.mean() > 0.8
    alone = index.reader.start.own.tokens(index.identifiers.in_row_order()[1])
    tree = sum(index.reader.start.maker.codebooks[level][alone[:, level]] for level in range(alone.shape[1]))
    assert near.mean() > (tree / np.linalg.norm(tree, axis=1, keepdims=True) * vectors).sum(axis=1).mean()


@pytest.mark.parametrize("ranking", ["sum", "union", "bucket", "share", "code"])
def test_an_untrained_model_is_not_trusted_and_ranks_as_it_begins(fitted, small_corpus, ranking):
    index = fitted(epochs=0, ranking=ranking)
    start = index.reader.start
    assert start.trust == 0 and index.log.records[-1]["trust"] == 0
    query = index.reader.query_vectors([Query("q", ASKED)])[0]
    near = start.similarity(query[None])[0].astype(np.float64)
    codes = [tuple(code) for code in index.identifiers.in_row_order()[1].tolist()]
    p = np.exp(start.sharpness * near)
    mass = {
        code: np.log(max(one for one, own in zip(p, codes, strict=True) if own == code) / p.sum()) for code in codes
    }
    size = {code: codes.count(code) for code in codes}
    hits = index.search(ASKED, k=40)
    if ranking in ("sum", "union"):
        assert hits.doc_ids == plain_order(near, small_corpus)
        return
    by_code = np.array([mass[code] - (np.log(size[code]) if ranking == "share" else 0) for code in codes])
    found = [small_corpus.rows()[doc_id] for doc_id in hits.doc_ids]
    assert (np.diff(by_code[found]) <= 1e-5).all()
    assert hits.scores == pytest.approx(by_code[found], abs=1e-4)
    if ranking != "code":
        for before, after in itertools.pairwise(found):
            assert codes[before] != codes[after] or near[before] >= near[after]


@pytest.mark.parametrize("method", ["dsi-semantic", "genret", "uri"])
@pytest.mark.parametrize(("trust", "ranking"), [(0.3, "sum"), (1.0, "sum"), (0.3, "union")])
def test_a_trained_model_is_added_as_far_as_it_is_trusted(fitted, trusted, small_corpus, method, trust, ranking):
    """Up to a constant: sharpness · q·d̂ + trust · log-probability of the code, for every document."""
    index = trusted(fitted(method, ranking=ranking), trust)
    start, query = index.reader.start, index.reader.query_vectors([Query("q", ASKED)])[0]
    expected = start.sharpness * start.similarity(query[None])[0] + trust * written(index, ASKED)
    hits = index.search(ASKED, k=40)
    found = np.array([expected[small_corpus.rows()[doc_id]] for doc_id in hits.doc_ids])
    assert len(found) == 40 and np.ptp(np.array(hits.scores) - found) < 1e-3
    assert (np.diff(found) <= 1e-4).all()


def test_without_trust_the_model_is_not_asked(fitted, trusted, monkeypatch):
    index = trusted(fitted(), 0.0)
    monkeypatch.setattr(index.model, "start", lambda queries: pytest.fail("the model was asked"))
    assert len(index.search(ASKED, k=3)) == 3


def test_a_level_of_many_tokens_is_not_a_place_for_vectors():
    codes = np.array([[0, 300, -1], [3, 2, 1], [1, 0, -1]])
    own = OwnLevels.of(codes, [4, 301, 255])
    assert own.numbers.tolist() == [0, 2] and own.tree == [4, 256]
    assert own.tokens(codes).tolist() == [[0, 0], [3, 2], [1, 0]]
    assert own.tokens(np.array([[9, 0, 0]])).tolist() == [[3, 1]]  # a token that the model does not have
    atomic = OwnLevels.of(np.arange(300)[:, None], [300])
    assert atomic.tree == [1] and atomic.tokens(np.array([[7]])).tolist() == [[0]]


def test_codes_alone_are_this_ranking(fitted, trusted, small_corpus):
    index = trusted(fitted(), 0.3)
    report = api.evaluate(index, small_corpus, measures=["nDCG@10"])
    assert report.codes_alone["nDCG@10"].mean == pytest.approx(report.measures["nDCG@10"].mean)
    bucket = trusted(fitted(ranking="bucket"), 0.3)
    alone = api.evaluate(bucket, small_corpus, measures=["nDCG@10"]).codes_alone
    assert alone["nDCG@10"].mean == pytest.approx(report.measures["nDCG@10"].mean)
    assert bucket.settings.ranking == "bucket"


def test_hits_are_explained(fitted, trusted):
    index = trusted(fitted(), 0.3)
    query = index.reader.query_vectors([Query("q", ASKED)])[0]
    near = index.reader.start.similarity(query[None])[0]
    for hit in index.search(ASKED, k=3, explain=True):
        assert hit.why["similarity"] == pytest.approx(near[index.row_of()[hit.doc_id]], abs=1e-5)
        assert len(hit.why["level_scores"]) == 2 and hit.why["bucket_size"] >= 1


def test_exact_decoding_and_a_wide_beam_agree(fitted, trusted):
    index = trusted(fitted(), 0.3)
    wide = index.search(ASKED, k=40)
    try:
        exact = index.adjust({"decoding": "exact", "beam": 5}).search(ASKED, k=40)
    finally:
        index.adjust({"decoding": "beam", "beam": 99})
    assert exact.doc_ids == wide.doc_ids


# Changes and the folder.


@pytest.mark.parametrize("method", ["dsi-semantic", "uri", "asi", "genret", "tiger"])
def test_documents_are_added_deleted_updated_compacted_and_loaded(fitted, trusted, tmp_path, method):
    trusted(fitted(method), 0.1).save(tmp_path / "index")
    index = api.load(tmp_path / "index")
    same = fitted(method).search(ASKED, k=40)
    hits = index.search(ASKED, k=40)
    assert hits.doc_ids == same.doc_ids and hits.scores == pytest.approx(same.scores, abs=1e-4)
    assert index.reader.start.trust == 0.1
    index.add([Document("new", "The zebrafish swims with the mark zebra77.", "About zebrafish")])
    assert index.search("The zebrafish swims with the mark zebra77", k=1).doc_ids == ["new"]
    assert not any("fresh" in hit.why for hit in index.search("violin cello flute zebra77", k=41, explain=True))
    start, query = index.reader.start, index.reader.query_vectors([Query("q", ASKED)])[0]
    assert start.similarity(query[None])[0] == pytest.approx(naive_similarities(start, query), abs=1e-3)
    index.update([Document("new", "A submarine dives under the mark zebra78.", "About submarines")])
    assert index.search("A submarine dives under the mark zebra78", k=1).doc_ids == ["new"]
    index.delete(["fruit/1", "fruit/2"])
    before = index.search(ASKED, k=39)
    assert not {"fruit/1", "fruit/2"} & set(before.doc_ids) and len(before) == 39
    index.compact()
    check(tmp_path / "index")
    for one in (index, api.load(tmp_path / "index")):
        after = one.search(ASKED, k=39)
        assert after.doc_ids == before.doc_ids and after.scores == pytest.approx(before.scores, abs=1e-4)
        assert len(one.reader.start.codes) == len(one.reader.start.scales) == 39


def test_no_vectors_are_stored_and_the_bytes_are_reported(fitted, tmp_path):
    index = fitted()
    index.save(tmp_path / "index")
    generation = tmp_path / "index" / "generation-000001"
    assert np.load(generation / "vectors-by-code.npy", allow_pickle=False).shape == (40, 0)
    size = sum((generation / name).stat().st_size for name in (module.CODES, module.STATE))
    assert index.log.records[-1]["bytes_per_document"] == pytest.approx(size / 40, abs=8192 / 40)


def test_codes_that_do_not_fit_are_refused(fitted, tmp_path):
    fitted().reader.start.save(tmp_path)
    with pytest.raises(IndexCorrupt, match="41 documents"):
        TiedStart.load(tmp_path, 41)
    codes = np.load(tmp_path / module.CODES, allow_pickle=False)
    codes[3, 0] = 77
    np.save(tmp_path / module.CODES, codes, allow_pickle=False)
    with pytest.raises(IndexCorrupt, match="token"):
        TiedStart.load(tmp_path, 40)


# What is held out, and what it decides.


def test_judged_queries_are_held_out_of_training(small_corpus, monkeypatch):
    monkeypatch.setattr(held_module, "LEAST", 4)
    settings = quick().settings
    held = held_out(small_corpus, settings)
    assert held.judged and len(held) == 8
    rest = without_judged(small_corpus, 0)
    names = {query.query_id for query in held.queries}
    assert names == small_corpus.judgements["train"].keys() - rest.judgements["train"].keys()
    assert rest.judgements["test"] == small_corpus.judgements["test"]
    gone = {query.text for query in held.queries}
    texts = set(pairs_without(small_corpus, settings).texts)
    assert gone <= set(training_pairs(small_corpus, settings, whole_documents=False).texts) and not gone & texts
    for query, grades in zip(held.queries, held.grades, strict=True):
        (doc_id,) = small_corpus.judgements["train"][query.query_id]
        assert grades == {small_corpus.rows()[doc_id]: 1}
    monkeypatch.setattr(held_module, "HELD_OUT", 5)
    assert len(held_out(small_corpus, settings)) == 5
    other = quick(seed=3).settings
    assert held_out(small_corpus, other).queries != held_out(small_corpus, settings).queries


def test_pseudo_queries_are_held_out_where_few_queries_are_judged(small_corpus, monkeypatch):
    monkeypatch.setattr(held_module, "PSEUDO", 12)
    settings = quick().settings
    held, rest = held_out(small_corpus, settings), pairs_without(small_corpus, settings)
    assert not held.judged and len(held) == 12 == len({row for grades in held.grades for row in grades})
    whole = training_pairs(small_corpus, settings, whole_documents=False)
    gone = {(query.text, row) for query, grades in zip(held.queries, held.grades, strict=True) for row in grades}
    assert gone <= set(zip(whole.texts, whole.rows.tolist(), strict=True))
    assert not gone & set(zip(rest.texts, rest.rows.tolist(), strict=True))
    assert len(rest) == len(whole) - 12 and set(rest.rows) == set(whole.rows)
    judged = {pair.query for pair in small_corpus.pairs("train")}
    assert not judged & {query.text for query in held.queries} and judged <= set(rest.texts)
    assert len(held_out(Corpus([Document("a", "x")]), make("dsi-semantic", {"training_texts": ()}).settings)) == 0


@pytest.mark.parametrize("method", ["dsi-semantic", "asi", "genret", "uri"])
def test_no_method_trains_on_what_is_held_out(small_corpus, monkeypatch, method):
    monkeypatch.setattr(held_module, "LEAST", 4)
    plain, seen = quick(method), []
    monkeypatch.setattr(plain.texts, "training", lambda texts: seen.extend(texts) or plain.texts.encode(list(texts)))
    plain.fit(small_corpus)
    gone = {query.text for query in held_out(small_corpus, plain.settings).queries}
    assert seen and not gone & set(seen)
    assert plain.log.records[-1]["held_out"] == len(gone) == 8 and plain.log.records[-1]["judged"]


def test_codes_by_em_know_nothing_of_what_is_held_out(small_corpus, monkeypatch):
    from callslip.methods.uri import training

    monkeypatch.setattr(held_module, "LEAST", 4)
    given = []
    plain = training.positives_of
    monkeypatch.setattr(training, "positives_of", lambda corpus, h: given.append(corpus) or plain(corpus, h))
    quick("uri", codes="em").fit(small_corpus)
    assert len(given[0].judgements["train"]) == 32


def test_gains_are_those_of_the_evaluation():
    from callslip.evaluation.measures import parse_measures, per_query

    rng = np.random.default_rng(0)
    grades = [{int(row): int(rng.integers(1, 4)) for row in rng.choice(50, 12, replace=False)} for _ in range(6)]
    ranked = [rng.permutation(50)[: rng.integers(3, 30)] for _ in range(6)]
    held = HeldOutQueries([Query(str(n), "") for n in range(6)], grades)
    run = {str(n): [(str(row), -float(at)) for at, row in enumerate(rows)] for n, rows in enumerate(ranked)}
    judged = {str(n): {str(row): grade for row, grade in one.items()} for n, one in enumerate(grades)}
    expected = per_query(run, judged, parse_measures(["nDCG@10"]))["nDCG@10"]
    assert held.gains(ranked) == pytest.approx([expected[str(n)] for n in range(6)])


@pytest.fixture
def toy(small_corpus, fitted) -> tuple[TiedStart, HeldOutQueries, np.ndarray]:
    index = fitted()
    queries = [small_corpus.queries[f"t-{document.doc_id}"] for document in small_corpus]
    held = HeldOutQueries(queries, [{row: 1} for row in range(40)], judged=True)
    return index.reader.start, held, index.reader.query_vectors(queries)


@pytest.mark.parametrize(("good", "expected"), [(0.3, 0.3), (0.0, 0.0), (None, 0.0), ("few", 0.0)])
def test_the_trust_is_the_best_on_held_out_queries_and_0_in_case_of_doubt(toy, good, expected):
    start, held, vectors = toy

    def ranked(tried: TiedStart) -> list[np.ndarray]:
        found = [np.array([row] if good is None or tried.trust == good else [99, row]) for row in range(40)]
        if good == "few" and tried.trust == 1:  # two queries gain and one loses: less than the standard error
            found[:3] = [np.array([0]), np.array([1]), np.array([99])]
        return found

    found, record = chosen(start, held, vectors, ranked)
    assert found.trust == record["trust"] == expected
    assert record["held_out"] == 40 and record["judged"]
    assert record["nDCG@10, trust 0.3"] == pytest.approx(1.0 if good in (None, 0.3) else 0.6309, abs=1e-4)
    assert chosen(start, held, vectors, None)[0].trust == 0
    assert chosen(start, HeldOutQueries(), vectors[:0], ranked)[0].trust == 0


def test_the_sharpness_is_the_likeliest(toy):
    start, held, vectors = toy
    figures = []
    for sharpness in SHARPNESSES:
        total = 0.0
        for row, query in enumerate(vectors):
            scores = sharpness * naive_similarities(start, query)
            total += scores[row] - np.log(np.exp(scores).sum())
        figures.append(total)
    assert best_sharpness(start, held, vectors) == SHARPNESSES[int(np.argmax(figures))]
    assert int(np.argmax(figures)) > 0 or figures[0] > figures[1]
    assert chosen(start, held, vectors, None)[0].sharpness == SHARPNESSES[int(np.argmax(figures))]


# The setting.


def test_texts_begin_at_nothing_unless_they_are_told(small_corpus):
    for method in ("dsi-semantic", "asi", "genret"):
        assert make(method).settings.start != "tied"
    index = quick(start="counts", epochs=0).fit(small_corpus)
    assert index.reader.start is None and index.searched is index.model and index.vectors.shape[1]
    assert list(index.training_pairs(small_corpus)) == list(
        training_pairs(small_corpus, index.settings, whole_documents=False)
    )


@pytest.mark.parametrize("method", ["asi", "asi++", "genret"])
def test_papers_begin_at_nothing(method):
    assert make(method, preset="paper").settings.start == "none"


@pytest.mark.parametrize(
    "values",
    [{"seq2seq": "some/t5"}, {"train_encoder": "top"}, {"queries": "sequence"}],
    ids=lambda one: next(iter(one)),
)
def test_what_cannot_begin_there_is_refused(values):
    with pytest.raises(BadSetting, match="start=tied"):
        make("dsi-semantic", {"start": "tied"} | values)


def test_free_decoding_and_logs_are_refused():
    from small_log import small_log

    with pytest.raises(BadSetting, match="decoding=free"):
        make("asi", {"start": "tied", "decoding": "free"})
    with pytest.raises(BadSetting, match="start=tied"):
        make("dsi-semantic", {"start": "tied", "encoder": "scratch"}).fit(small_log(users=12))
    with pytest.raises(BadSetting, match="tied"):
        make("recforest", {"start": "tied"})
