"""The code writer: its cached steps against its own teacher forcing, and its attention against PyTorch's."""

from __future__ import annotations

import pytest
import torch

from callslip.decoders.writer import Attention, CodeWriter
from callslip.errors import BadSetting


@pytest.fixture
def model() -> CodeWriter:
    torch.manual_seed(0)
    return CodeWriter(12, [5, 7, 3], width=16, layers=3, heads=4, memory_slots=2, dropout=0.5).eval()


def test_steps_with_a_cache_equal_teacher_forcing(model):
    queries, codes = torch.randn(6, 12), torch.stack([torch.randint(0, w, (6,)) for w in (5, 7, 3)], dim=1)
    with torch.inference_mode():
        whole = [logits.log_softmax(-1) for logits in model(queries, codes)]
        state, step = model.start(queries)
        torch.testing.assert_close(step[:, 0], whole[0])
        for level in (1, 2):
            step = model.advance(state, torch.zeros(6, 1, dtype=torch.long), codes[:, level - 1 : level])
            torch.testing.assert_close(step[:, 0], whole[level])


def test_beams_may_branch_and_change_places(model):
    """Beam b continues parent parents[b]: its scores are those of that parent's prefix."""
    queries = torch.randn(2, 12)
    with torch.inference_mode():
        state, _ = model.start(queries)
        first = torch.tensor([[0, 1, 2], [3, 4, 0]])
        model.advance(state, torch.zeros(2, 3, dtype=torch.long), first)
        parents, second = torch.tensor([[2, 0, 2, 1], [1, 1, 0, 2]]), torch.tensor([[6, 1, 0, 3], [2, 5, 4, 0]])
        step = model.advance(state, parents, second)
        for b in range(2):
            for beam in range(4):
                code = torch.tensor([[first[b, parents[b, beam]], second[b, beam], 0]])
                alone = model(queries[b : b + 1], code)[2].log_softmax(-1)[0]
                torch.testing.assert_close(step[b, beam], alone)


def test_attention_equals_pytorchs_own():
    torch.manual_seed(0)
    ours, theirs = Attention(16, 4), torch.nn.MultiheadAttention(16, 4, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key_value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key_value.bias]))
        theirs.out_proj.weight.copy_(ours.out.weight)
        theirs.out_proj.bias.copy_(ours.out.bias)
    x, memory = torch.randn(3, 5, 16), torch.randn(3, 7, 16)
    torch.testing.assert_close(ours.attend(x, *ours.keys_values(memory)), theirs(x, memory, memory)[0])


def test_a_level_sees_only_the_tokens_before_it(model):
    queries, codes = torch.randn(1, 12), torch.tensor([[1, 2, 0]])
    before = model(queries, codes)
    changed = model(queries, torch.tensor([[1, 6, 2]]))
    torch.testing.assert_close(before[0], changed[0])
    torch.testing.assert_close(before[1], changed[1])
    assert not torch.allclose(before[2], changed[2])


def test_heads_must_divide_the_width():
    with pytest.raises(BadSetting, match="multiple"):
        CodeWriter(4, [3], width=10, heads=4)
