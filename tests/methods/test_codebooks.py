"""GenRet's code writer: its states are of one length, and its steps those of teacher forcing."""

from __future__ import annotations

import torch

from callslip.methods.genret.model import CodebookWriter


def writer() -> CodebookWriter:
    torch.manual_seed(0)
    model = CodebookWriter(8, [4, 5, 3], width=16, heads=2, dropout=0.0).eval()
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.5)
    return model


def test_states_have_one_length_whatever_was_learned():
    states = writer().hidden(torch.randn(6, 8), torch.randint(0, 3, (6, 2)))
    torch.testing.assert_close(states.norm(dim=-1), torch.full((6, 3), 2.0), atol=1e-3, rtol=0)  # 16^¼
    assert not torch.allclose(states[:, 0], states[:, 1])


def test_heads_are_codebooks_without_bias_and_the_length_is_not_learned():
    model = writer()
    assert [tuple(head.weight.shape) for head in model.heads] == [(4, 16), (5, 16), (3, 16)]
    assert all(head.bias is None for head in model.heads)
    assert not any(p.requires_grad for p in model.norm.parameters())


def test_codes_that_are_not_whole_give_the_states_so_far():
    model, vectors, codes = writer(), torch.randn(5, 8), torch.randint(0, 3, (5, 3))
    whole = model.hidden(vectors, codes)
    for written in range(3):
        torch.testing.assert_close(model.hidden(vectors, codes[:, :written]), whole[:, : written + 1])


def test_steps_of_search_equal_teacher_forcing():
    model, vectors, codes = writer(), torch.randn(5, 8), torch.randint(0, 3, (5, 3))
    with torch.inference_mode():
        logits = model(vectors, codes)
        state, found = model.start(vectors)
        for level in range(3):
            torch.testing.assert_close(found[:, 0], logits[level].log_softmax(-1), atol=1e-4, rtol=1e-4)
            if level < 2:
                first = torch.zeros((5, 1), dtype=torch.long)
                found = model.advance(state, first, codes[:, level : level + 1])
