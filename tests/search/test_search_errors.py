"""Searches that cannot be meant are refused, not answered with something else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from callslip.decoders.t5 import T5CodeWriter
from callslip.decoders.writer import CodeWriter
from callslip.errors import BadSetting, CallslipError, UnknownName
from callslip.identifiers.table import Identifiers
from callslip.search.beam import beam_search
from callslip.search.exact import exact_search
from callslip.search.trees import FreeTree


@pytest.fixture(scope="module")
def model() -> CodeWriter:
    torch.manual_seed(0)
    return CodeWriter(4, [5, 5], width=8, layers=1, heads=2).eval()


@pytest.fixture(scope="module")
def table() -> Identifiers:
    return Identifiers([str(i) for i in range(30)], np.random.default_rng(0).integers(0, 5, (30, 2)))


def test_no_queries_no_lists(model, table):
    assert beam_search(model, torch.zeros(0, 4), table.trie(), 3) == []
    assert beam_search(model, torch.zeros(0, 4), FreeTree((5, 5)), 3) == []


def test_masks_for_all_or_for_each(model, table):
    trie, queries = table.trie(), torch.randn(3, 4)
    one = trie.live(np.arange(30) < 10)
    both = [beam_search(model, queries, trie, 4, live) for live in (one, [one])]
    assert [b.nodes.tolist() for b in both[0]] == [b.nodes.tolist() for b in both[1]]
    alone = [exact_search(model, queries[:1], trie, 4, live) for live in (one, [one])]
    assert alone[0].nodes.tolist() == alone[1].nodes.tolist()
    for wrong in ([], [one, one], [one] * 4):
        with pytest.raises(BadSetting, match="masks for 3 queries"):
            beam_search(model, queries, trie, 4, wrong)
    with pytest.raises(BadSetting, match="needs a trie"):
        beam_search(model, queries, FreeTree((5, 5)), 4, [one])


def test_codes_that_the_model_cannot_write(model):
    short = Identifiers.from_sequences(["a", "b"], [[1, 2], [3]]).trie()
    longer = Identifiers(["a"], [[1, 2, 3]]).trie()
    for trie, words in ((short, "short"), (longer, "3 levels")):
        with pytest.raises(BadSetting, match=words):
            beam_search(model, torch.zeros(1, 4), trie, 2)
        with pytest.raises(BadSetting, match=words):
            exact_search(model, torch.zeros(1, 4), trie, 2)


def test_senseless_numbers(model, table):
    with pytest.raises(BadSetting, match="beam size is 0"):
        beam_search(model, torch.zeros(1, 4), table.trie(), 0)
    for size, n in ((2, 3), (1, 0), (1, -1)):
        with pytest.raises(BadSetting):
            exact_search(model, torch.zeros(size, 4), table.trie(), n)
    with pytest.raises(BadSetting, match="shape"):
        table.trie().leaves_of(np.zeros((2, 1), int))


def test_choices_of_a_t5_writer_are_checked():
    from transformers import T5Config, T5ForConditionalGeneration

    t5 = T5ForConditionalGeneration(T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2))
    for wrong in ({"codes": "foo"}, {"normalise": "foo"}, {"engine": "foo"}):
        with pytest.raises(UnknownName, match="foo"):
            T5CodeWriter(t5, [4], **wrong)
    for widths in ([], [0, 5]):
        with pytest.raises(BadSetting, match="widths"):
            T5CodeWriter(t5, widths)


def test_a_string_is_not_a_list(small_corpus):
    from callslip.methods import make

    index = make("bm25").fit(small_corpus)
    for call in (lambda: index.delete("d1"), lambda: index.search_batch("lift"), lambda: index.search(None)):
        with pytest.raises(CallslipError):
            call()


def test_the_example_of_the_page_on_search_runs(capsys):
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs" / "search.md").read_text(encoding="utf-8")
    (block,) = (part.split("```")[0] for part in page.split("```python\n")[1:])
    names: dict[str, object] = {}
    exec(compile(block, "docs/search.md", "exec"), names)
    assert {tuple(code) for code in names["first"].codes.tolist()} == {(0, 1), (0, 2)}
    assert "[" in capsys.readouterr().out
