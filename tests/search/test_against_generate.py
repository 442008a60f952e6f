"""Our search on a T5 against transformers' own `generate` with `prefix_allowed_tokens_fn`, and against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MT5Config, MT5ForConditionalGeneration, T5Config, T5ForConditionalGeneration

from callslip.decoders.t5 import T5CodeWriter, Tokens
from callslip.identifiers.table import END, Identifiers
from callslip.search.beam import beam_search
from callslip.search.exact import exact_search

WORDS, EOS = 40, 1
KINDS = {
    "t5": (T5ForConditionalGeneration, T5Config, {"feed_forward_proj": "relu"}),
    "flan": (T5ForConditionalGeneration, T5Config, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": (MT5ForConditionalGeneration, MT5Config, {"feed_forward_proj": "gated-gelu"}),
}


def random_t5(kind: str, extra: int, seed: int = 0):
    """Random weights, large enough that probabilities differ."""
    model, config, more = KINDS[kind]
    torch.manual_seed(seed)
    t5 = model(
        config(
            vocab_size=WORDS + extra, d_model=24, d_kv=6, d_ff=40, num_layers=2, num_heads=4,
            decoder_start_token_id=0, pad_token_id=0, eos_token_id=EOS, **more,
        )
    ).eval()  # fmt: skip
    head = 2.0 if kind == "t5" else 0.5  # only T5's own outputs are scaled down, and scores should stay below 100
    for name, parameter in t5.named_parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=head if "shared" in name or "lm_head" in name else 0.3)
    return t5


def generated(t5, queries: Tokens, codes, widths, beam: int, renormalise: bool):
    """The same by `generate`: lists of (code, score), best first, for each query."""
    length = len(widths)
    offsets = np.cumsum([WORDS, *widths])[:-1]
    allowed: dict[tuple[int, ...], set[int]] = {}
    for code in codes:
        ids = [int(offset + token) if token != END else EOS for offset, token in zip(offsets, code, strict=True)]
        for at, token in enumerate(ids):
            allowed.setdefault(tuple(ids[:at]), set()).add(token)
            if token == EOS:
                break
    found = t5.generate(
        queries.ids, attention_mask=queries.mask, num_beams=beam, num_return_sequences=beam, max_new_tokens=length,
        prefix_allowed_tokens_fn=lambda _, ids: sorted(allowed.get(tuple(ids[1:].tolist()), {0})),
        length_penalty=0.0, renormalize_logits=renormalise, return_dict_in_generate=True, output_scores=True,
        do_sample=False, eos_token_id=EOS, pad_token_id=0,
    )  # fmt: skip
    lists: list[list[tuple[tuple[int, ...], float]]] = [[] for _ in queries.ids]
    for number, (ids, score) in enumerate(zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True)):
        if score > -1e6:  # generate fills up with impossible beams when there are too few codes
            code = [int(token - offset) if token >= WORDS else END for token, offset in zip(ids[1:], offsets)]
            lists[number // beam].append((tuple(code + [END] * (length - len(code))), score))
    return lists


def same_lists(ours, theirs) -> None:
    """The same codes in the same order, up to neighbours whose scores are equal to rounding."""
    for beams, wanted in zip(ours, theirs, strict=True):
        assert len(beams.scores) == len(wanted)
        np.testing.assert_allclose(beams.scores, [score for _, score in wanted], atol=1e-4, rtol=1e-5)
        scores = dict(wanted)
        for code, score in zip(beams.codes.tolist(), beams.scores.tolist(), strict=True):
            assert abs(scores[tuple(code)] - score) < 1e-4 + 1e-5 * abs(score)


@st.composite
def problems(draw):
    length = draw(st.integers(1, 4))
    widths = [draw(st.integers(1, 6)) for _ in range(length)]
    with_end = draw(st.booleans())
    codes = set()
    for _ in range(draw(st.integers(1, 40))):
        stop = draw(st.integers(1, length)) if with_end else length
        codes.add((*[draw(st.integers(0, widths[level] - 1)) for level in range(stop)], *[END] * (length - stop)))
    return widths, with_end, sorted(codes), draw(st.integers(2, 12)), draw(st.integers(0, 1000))


def queries_of(seed: int, size: int = 3) -> Tokens:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, WORDS, (size, 7), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, size):
        mask[row, 7 - row :] = 0
    return Tokens(ids.masked_fill(mask == 0, 0), mask)


@pytest.mark.parametrize("engine", ["torch", "onnx"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("normalise", ["vocabulary", "children"])
def test_the_list_is_that_of_generate(kind, engine, normalise):
    if engine == "onnx":
        pytest.importorskip("onnxruntime")

    @settings(max_examples=12, deadline=None)
    @given(problems())
    def check(problem):
        widths, with_end, codes, beam, seed = problem
        t5 = random_t5(kind, sum(widths), seed % 3)
        writer = T5CodeWriter(t5, widths, with_end=with_end, normalise=normalise, engine=engine).eval()
        queries = queries_of(seed)
        table = Identifiers([str(i) for i in range(len(codes))], np.array(codes))
        children = normalise == "children"
        ours = beam_search(writer, queries, table.trie(), beam, renormalise=children)
        same_lists(ours, generated(t5, queries, codes, widths, beam, children))

    check()


@settings(max_examples=15, deadline=None)
@given(problems())
def test_a_mask_is_generate_with_fewer_codes(problem):
    """One mask for each query of the batch."""
    widths, with_end, codes, beam, seed = problem
    t5 = random_t5("t5", sum(widths), seed % 3)
    writer = T5CodeWriter(t5, widths, with_end=with_end, normalise="vocabulary").eval()
    queries = queries_of(seed)
    table = Identifiers([str(i) for i in range(len(codes))], np.array(codes))
    rng = np.random.default_rng(seed)
    keeps = [rng.random(len(codes)) < share for share in (0.5, 0.9)]
    live = [*(table.trie().live(keep[table.rows]) for keep in keeps), None]
    ours = beam_search(writer, queries, table.trie(), beam, live)
    for number, keep in enumerate([*keeps, np.ones(len(codes), bool)]):
        left = [code for code, kept in zip(codes, keep, strict=True) if kept]
        one = Tokens(queries.ids[number : number + 1], queries.mask[number : number + 1])
        theirs = generated(t5, one, left, widths, beam, False) if left else [[]]
        same_lists([ours[number]], theirs)


@settings(max_examples=15, deadline=None)
@given(problems(), st.sampled_from(["tokens", "codebooks", "words"]), st.sampled_from(["level", "children"]))
def test_an_unbounded_beam_and_exact_search_are_brute_force(problem, kind, normalise):
    widths, with_end, codes, _, seed = problem
    extra = sum(widths) if kind == "tokens" else 0
    t5 = random_t5("t5", extra, seed % 3)
    torch.manual_seed(seed)
    words = list(range(5, 5 + max(widths))) if kind == "words" else None
    writer = T5CodeWriter(t5, widths, codes=kind, with_end=with_end, normalise=normalise, vocabulary=words).eval()
    queries = queries_of(seed, 2)
    table = Identifiers([str(i) for i in range(len(codes))], np.array(codes))
    children = normalise == "children"
    beams = beam_search(writer, queries, table.trie(), 1000, renormalise=children)
    for number, wide in enumerate(beams):
        one = Tokens(queries.ids[number : number + 1], queries.mask[number : number + 1])
        truth = brute_force(writer, one, codes, children)
        order = sorted(truth, key=lambda code: -truth[code])
        np.testing.assert_allclose(wide.scores, [truth[code] for code in order], atol=1e-4, rtol=1e-5)
        assert sorted(map(tuple, wide.codes.tolist())) == codes
        np.testing.assert_allclose(wide.levels.sum(axis=1), wide.scores, atol=1e-4, rtol=1e-5)
        for n in (1, 3, len(codes)):
            exact = exact_search(writer, one, table.trie(), n, renormalise=children, chunk=2)
            np.testing.assert_allclose(exact.scores, [truth[code] for code in order[:n]], atol=1e-4, rtol=1e-5)
            np.testing.assert_allclose(
                exact.scores, [truth[tuple(code)] for code in exact.codes.tolist()], atol=1e-4, rtol=1e-5
            )
            assert table.trie().codes_of(exact.nodes).tolist() == exact.codes.tolist()


def brute_force(writer: T5CodeWriter, query: Tokens, codes, children: bool) -> dict[tuple[int, ...], float]:
    """Every code scored alone by teacher forcing, through transformers' modules."""
    scores = {}
    with torch.inference_mode():
        for code in codes:
            logits = writer(query, torch.tensor([code]))
            total = 0.0
            for level, token in enumerate(code):
                row = logits[level][0]
                if children:
                    siblings = sorted({other[level] for other in codes if other[:level] == code[:level]})
                    total += float(row[token] - row[siblings].logsumexp(0))
                else:
                    total += float(row.log_softmax(0)[token])
                if token == END:
                    break
            scores[code] = total
    return scores
