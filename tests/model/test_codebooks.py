"""GenRet's code writer: its states are the texts' vectors until it is trained, and always of one length."""

from __future__ import annotations

import torch
from torch.nn import functional

from callslip.model.codebooks import CodebookWriter


def writer(trained: bool) -> CodebookWriter:
    torch.manual_seed(0)
    model = CodebookWriter(16, [4, 5, 3], width=8, heads=2, dropout=0.0).eval()
    if trained:
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    return model


def test_an_untrained_state_is_the_vector():
    vectors = functional.normalize(torch.randn(6, 16), dim=-1)
    states = writer(False).hidden(vectors, torch.zeros((6, 2), dtype=torch.long))
    assert states.shape == (6, 3, 16)
    for level in range(3):
        torch.testing.assert_close(states[:, level], 2 * vectors)  # 16^¼ long


def test_states_have_one_length_whatever_was_learned():
    states = writer(True).hidden(torch.randn(6, 16), torch.randint(0, 3, (6, 2)))
    torch.testing.assert_close(states.norm(dim=-1), torch.full((6, 3), 2.0))
    assert not torch.allclose(states[:, 0], states[:, 1])


def test_codes_that_are_not_whole_give_the_states_so_far():
    model, vectors, codes = writer(True), torch.randn(5, 16), torch.randint(0, 3, (5, 3))
    whole = model.hidden(vectors, codes)
    for written in range(3):
        torch.testing.assert_close(model.hidden(vectors, codes[:, :written]), whole[:, : written + 1])


def test_steps_of_search_equal_teacher_forcing():
    model, vectors, codes = writer(True), torch.randn(5, 16), torch.randint(0, 3, (5, 3))
    with torch.inference_mode():
        logits = model(vectors, codes)
        state, found = model.start(vectors)
        for level in range(3):
            torch.testing.assert_close(found[:, 0], logits[level].log_softmax(-1), atol=1e-4, rtol=1e-4)
            if level < 2:
                first = torch.zeros((5, 1), dtype=torch.long)
                found = model.advance(state, first, codes[:, level : level + 1])
