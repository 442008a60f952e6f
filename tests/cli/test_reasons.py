"""`--explain` in words: every method's reasons become sentences, with a legend."""

from __future__ import annotations

import json

import pytest

from callslip import api
from callslip.cli.reasons import LEGEND, legend, sentences
from callslip.methods import METHODS

GENERATIVE = {"code_score": -1.234, "level_scores": [-1.0, -0.234], "similarity": 0.5, "beam_rank": 2, "bucket_size": 3}


def test_a_code_is_explained_by_its_place_in_the_beam_its_levels_and_its_bucket():
    (line,) = sentences(GENERATIVE)
    assert line == (
        "code number 2 of the beam, log-probability -1.23 (by level -1.00, -0.23); one of 3 documents in its bucket, "
        "similarity 0.500"
    )
    assert "alone in its bucket" in sentences(GENERATIVE | {"bucket_size": 1})[0]
    assert [line.partition(":")[0] for line in legend([line])] == ["similarity", "log-probability", "beam", "bucket"]


def test_an_earlier_question_comes_first():
    why = {"meaning": 0.5, "words": 0.1, "memory": 2.0, "similarity": 0.3, "bm25": 1.5}
    why |= {"earlier_query": "who ate it", "earlier_similarity": 0.9}
    first, second = sentences(why)
    assert first == "found by this earlier question: who ate it  (similarity 0.900)"
    assert second == "meaning 0.500, words 0.100, memory 2.000  (similarity 0.300, BM25 1.50)"
    _, nearer = lines = sentences(why | {"segment_similarity": 0.42})
    assert nearer == "meaning 0.500, words 0.100, memory 2.000  (similarity 0.300, nearest segment 0.420, BM25 1.50)"
    assert "nearest segment" in " ".join(legend(lines)) and "nearest segment" not in " ".join(legend([second]))


def test_words_items_and_counts():
    assert sentences({"words": {"a": 1.0, "b": 2.0}}) == ["words in common, with their BM25: b 2.00, a 1.00"]
    glen = {"words": [{"word": "sea", "query": 0.4, "document": 0.5}]}
    assert sentences(GENERATIVE | glen)[1] == "words of the code: sea (query 0.40, document 0.50)"
    assert sentences({"because": {"x": 0.1, "y": 0.2}}) == ["because of y (0.2), x (0.1)"]
    counted = {"codes": 1.25, "memory": 0.5, "because": {"x": 0.5}}
    assert sentences(counted) == ["because of x (0.5)", "factors and texts, by the code, 1.250; rules 0.500"]
    assert sentences(counted | {"repeat": -1.5})[1].endswith("rules 0.500, less 1.500 because the user has had it")
    assert sentences({"popularity": 0.25}) == ["no history: 25% as popular as the most popular item"]
    assert sentences({"count": 1200}) == ["occurs 1,200 times in the log"]


def test_what_is_unknown_or_nested_is_listed_by_its_name():
    assert sentences({"my_reason": 0.25}) == ["my reason 0.25"]
    assert sentences({"parts": {"one": {"count": 2}, "two": {"count": 3}}}) == [
        "parts: one: occurs 2 times in the log",
        "parts: two: occurs 3 times in the log",
    ]
    assert sentences({"places": [1, 2]}) == ["places: 1, 2"]


FAST = {
    "encoder": "scratch",
    "epochs": 1,
    "width": 4,
    "decoder_width": 16,
    "decoder_layers": 1,
    "training_texts": "title",
}


@pytest.mark.parametrize("method", ["bm25", "hybrid", "memory", "tied-residual", "tied-atomic", "dsi-semantic"])
def test_no_method_is_explained_as_json(small_corpus, method):
    settings = METHODS[method].load().Settings.__dataclass_fields__
    index = api.fit(small_corpus, method, settings={k: v for k, v in FAST.items() if k in settings})
    hits = index.search("which violin has the mark music5", k=3, explain=True)
    lines = [line for hit in hits for line in sentences(hit.why)]
    assert lines and not any("{" in line for line in lines)
    for hit in hits:
        for line in sentences(hit.why):
            with pytest.raises(ValueError):
                json.loads(line)


def test_the_legend_explains_only_what_was_said():
    assert legend(["occurs 2 times in the log"]) == []
    assert legend(["because of a (1)"]) == [f"because of: {LEGEND['because of']}"]
