"""Methods whose loss compares the texts of a batch: with `micro_batch`, no more texts are read at once, by GradCache,
and gradients stay the same."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from small_t5 import save_small_t5
from training_spies import plan, watch, without_steps

from callslip.corpus.on_disk import TokenTable
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


@pytest.mark.parametrize("reader", ["tuned", "t5"])
@pytest.mark.parametrize("method", ["dsi-semantic", "glen", "tied-atomic", "asi++", "genret", "uri"])
def test_texts_and_tokens_that_are_trained_on_stay_on_disk(small_corpus, tiny, monkeypatch, method, reader):
    """No training reads a list of texts or of token ids: those grow with the corpus and its queries."""
    values = {"encoder": tiny["BERT"], "train_encoder": "top"} if reader == "tuned" else {"seq2seq": tiny["T5"]}
    values |= {"epochs": 1, "training_texts": ("document", "title"), "batch_size": 8, "seq2seq_length": 8}
    values |= {"width": 4} if method not in ("glen", "tied-atomic") else {}
    made, tokenized, read = make(method, values | {"ranking": "code"} if method != "tied-atomic" else values), [], []
    kind = type(made.reader)
    watch(monkeypatch, kind, "_tokenized", lambda given, more, result: tokenized.append(given[1]))
    watch(monkeypatch, kind, "batch", lambda given, more, result: read.append(given[1]))
    with monkeypatch.context() as patch:
        phases = without_steps(patch, lambda phase: phase.objective(phase.first(), 0.5))
        made.fit(small_corpus)
    assert any(phase.epochs for phase in phases)
    assert tokenized and not any(isinstance(texts, (list, tuple)) for texts in tokenized)
    assert read and all(isinstance(inputs, TokenTable) for inputs in read)
