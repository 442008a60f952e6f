"""The logits processor over our trie against `prefix_allowed_tokens_fn`, for both kinds of models, under masks."""

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, T5Config, T5ForConditionalGeneration

from callslip.adapters.generation import TrieLogitsProcessor, live_nodes, token_ids
from callslip.errors import BadSetting
from callslip.identifiers.table import END, Identifiers

WORDS, PAD, EOS = 30, 0, 1


def causal(size):
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=size, hidden_size=24, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=6, eos_token_id=EOS, pad_token_id=PAD,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def t5(size):
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=size, d_model=24, d_kv=6, d_ff=40, num_layers=2, num_heads=4, decoder_start_token_id=PAD,
        pad_token_id=PAD, eos_token_id=EOS,
    )  # fmt: skip
    return T5ForConditionalGeneration(config).eval()


def random_table(seed, short):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 4, (40, 3))
    if short:
        codes[::5, 2] = END
        codes[::9, 1:] = END
    return Identifiers([f"d{n}" for n in range(40)], codes)


@pytest.mark.parametrize("make", [causal, t5])
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_the_same_lists_as_prefix_allowed_tokens_fn(make, short, masked):
    table = random_table(3, short)
    ids = token_ids(table.widths, WORDS)
    model = make(WORDS + sum(table.widths))
    mask = np.random.default_rng(1).random(40) < 0.4 if masked else np.ones(40, bool)
    prompt = torch.randint(2, WORDS, (3, 5), generator=torch.Generator().manual_seed(2))
    begin = 1 if make is t5 else 5
    allowed: dict[tuple[int, ...], set[int]] = {}
    _, codes = table.in_row_order()
    for code in codes[mask]:
        written: tuple[int, ...] = ()
        for level, token in enumerate(code.tolist()):
            here = EOS if token == END else int(ids[level][token])
            allowed.setdefault(written, set()).add(here)
            written = (*written, here)
            if token == END:
                break
    options = {
        "attention_mask": torch.ones_like(prompt), "num_beams": 6, "num_return_sequences": 6, "do_sample": False,
        "max_new_tokens": table.length, "return_dict_in_generate": True, "output_scores": True, "length_penalty": 0.0,
    }  # fmt: skip
    theirs = model.generate(
        prompt,
        prefix_allowed_tokens_fn=lambda _, row: sorted(allowed.get(tuple(row[begin:].tolist()), {EOS})),
        **options,
    )
    live = live_nodes(table, mask) if masked else None
    processor = TrieLogitsProcessor(table.trie(), ids, eos=EOS, prompt=begin, live=live)
    ours = model.generate(prompt, logits_processor=[processor], **options)
    assert torch.equal(ours.sequences, theirs.sequences)
    torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores)


def test_allowed_tokens_and_wrong_shapes():
    table = Identifiers.from_sequences(["a", "b", "c"], [[0, 1], [0], [1, 0]])
    processor = TrieLogitsProcessor(table.trie(), token_ids(table.widths, 10), eos=1)
    assert sorted(processor.allowed([]).tolist()) == [10, 11]
    assert sorted(processor.allowed([10]).tolist()) == [1, 13]  # the short code ends, or goes on
    assert processor.allowed([11]).tolist() == [12] and processor.allowed([11, 12]).tolist() == [1]
    assert processor.allowed([10, 1]).tolist() == [1] and processor.allowed([29]).tolist() == [1]
    processor.live = live_nodes(table, np.array([True, False, False]))
    assert processor.allowed([]).tolist() == [10] and processor.allowed([10]).tolist() == [13]
    with pytest.raises(BadSetting, match="levels"):
        TrieLogitsProcessor(table.trie(), token_ids([2], 10), eos=1)
