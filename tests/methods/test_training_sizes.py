"""Methods whose loss compares the texts of a batch: with `micro_batch`, no more texts are read at once, by GradCache,
and gradients stay the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_t5 import save_small_t5
from training_spies import plan

BASE: dict[str, Any] = {
    "width": 4, "length": 2, "batch_size": 14, "epochs": 1, "decoder_width": 24, "decoder_layers": 1,
    "decoder_heads": 2, "seq2seq_length": 8, "noise": 0.2,
}  # fmt: skip
TUNED: dict[str, Any] = {"encoder": "minilm", "train_encoder": "top"}
CASES = {
    "asi++": (TUNED | {"writing_epochs": 1, "neighbours": 0}, "learning codes and how to write them"),
    "genret": (TUNED | {"level_steps": 0}, "level 1"),
    "genret on t5": ({"seq2seq": True, "encoder": "scratch", "level_steps": 0}, "level 2"),
    "uri": (TUNED | {"ranker_epochs": 0, "leaf": 5}, None),
}


def gradients(made: Any, name: str | None, read: list[int]) -> dict[str, torch.Tensor]:
    """The gradient of the phase's first batch, and how many texts each forward pass read."""
    model, phase = made.index.model.eval(), made.phases[name or next(iter(made.phases))]
    model.zero_grad()
    trained = model.encoder.model if hasattr(model, "encoder") else model.t5.encoder
    handle = trained.register_forward_pre_hook(
        lambda module, given, named: read.append(len(named["input_ids"] if "input_ids" in named else given[0])),
        with_kwargs=True,
    )
    torch.manual_seed(0)
    sum(phase.objective(phase.first(), 0.5).values()).backward()
    handle.remove()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("case", CASES)
def test_a_big_batch_is_read_in_chunks_with_the_same_gradients(small_corpus, tmp_path, case):
    values, name = CASES[case]
    if values.get("seq2seq"):
        words = sorted({word.strip(".,").lower() for d in small_corpus for word in d.content.split()})
        values = values | {"seq2seq": str(save_small_t5(tmp_path / "t5", words))}
    reads: dict[int | None, list[int]] = {5: [], None: []}
    found, expected = (
        gradients(plan(case.split()[0], small_corpus, BASE | values | {"micro_batch": size}), name, reads[size])
        for size in (5, None)
    )
    chunked, whole = reads[5], reads[None]
    assert max(chunked) == 5 and max(whole) > 5
    assert found.keys() == expected.keys() and any("encoder" in name for name in found)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-3, msg=lambda m, name=name: f"{name}: {m}")
