"""Methods whose loss compares the texts of a batch: with `micro_batch`, no more texts are read at once, by GradCache,
and gradients stay the same."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from small_t5 import save_small_t5
from training_spies import plan

from callslip.methods import make

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
    saved = {5: "micro_batch=5", None: ""}
    found, expected = (
        gradients(plan(case.split()[0], small_corpus, BASE | values | {"save_memory": saved[size]}), name, reads[size])
        for size in (5, None)
    )
    chunked, whole = reads[5], reads[None]
    assert max(chunked) == 5 and max(whole) > 5
    assert found.keys() == expected.keys() and any("encoder" in name for name in found)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-3, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize(
    ("method", "values"),
    [
        ("glen", {"length": 3, "keyword_epochs": 0}),
        ("tied-atomic", {"products": "dot", "temperature": 1.0}),
    ],
)
def test_micro_batches_and_checkpointed_activations_change_no_weight(small_corpus, tmp_path, spy, method, values):
    words = sorted({word.strip(".,") for document in small_corpus for word in document.content.split()})
    values |= {"seq2seq": str(save_small_t5(tmp_path, words, dropout_rate=0.0)), "batch_size": 32, "epochs": 1}
    values |= {"training_texts": "title", "seq2seq_length": 9, "learning_rate": 1e-4}
    training = importlib.import_module(f"callslip.methods.{method.replace('-', '_')}.training")
    calls, found = spy(training, "in_chunks"), []
    for saved in ("", "micro_batch=5", "activations"):
        index = make(method, values | {"save_memory": saved}).fit(small_corpus)
        found.append(torch.cat([parameter.detach().flatten() for parameter in index.model.parameters()]))
        assert index.model.t5.is_gradient_checkpointing == (saved == "activations")
    assert {call["size"] for call in calls} == {None, 5}
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=1e-6, rtol=0)
