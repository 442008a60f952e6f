"""The training loop: it learns, it sums what it is given, and bad numbers do not get into the weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from callslip.errors import BadSetting, TrainingFailed
from callslip.training import batches, loop
from callslip.training.loop import rate_factor, train


def fit_line(objective=None, epochs=60, **options):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    x = torch.randn(64, 3)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.3

    def squared(rows, progress):
        return {"error": ((model(x[rows]) - y[rows]) ** 2).mean()}

    log = train(
        model,
        lambda epoch: batches.shuffled(64, 16, 0, epoch),
        objective(model, squared) if objective else squared,
        epochs=epochs,
        steps_per_epoch=4,
        learning_rate=0.05,
        weight_decay=0.0,
        **options,
    )
    return model, log


def test_it_finds_the_line():
    model, log = fit_line()
    torch.testing.assert_close(model.weight.detach(), torch.tensor([[1.0, -2.0, 0.5]]), atol=0.02, rtol=0)
    assert log.records[-1]["error"] < 1e-3 < log.records[0]["error"]
    assert [record["epoch"] for record in log.records] == list(range(60))
    assert not model.training


def test_terms_are_summed_and_logged_by_name():
    def two_terms(model, squared):
        return lambda rows, progress: {
            "half": 0.5 * squared(rows, progress)["error"],
            "rest": 0.5 * squared(rows, progress)["error"],
        }

    once, _ = fit_line(epochs=3)
    halves, log = fit_line(two_terms, epochs=3)
    torch.testing.assert_close(once.weight, halves.weight)
    assert log.records[0]["half"] == pytest.approx(log.records[0]["rest"])


def test_one_bad_step_is_skipped_and_counted():
    def sometimes(model, squared):
        seen = []

        def objective(rows, progress):
            seen.append(1)
            return {"error": squared(rows, progress)["error"] * (math.nan if len(seen) == 5 else 1.0)}

        return objective

    model, log = fit_line(sometimes)
    assert log.skipped_steps == 1
    assert torch.isfinite(model.weight).all()
    assert log.records[-1]["error"] < 1e-3


def test_three_bad_steps_end_the_training_with_good_weights():
    def broken(model, squared):
        return lambda rows, progress: {
            "error": squared(rows, progress)["error"] * (math.inf if progress > 0.5 else 1.0)
        }

    with pytest.raises(TrainingFailed, match="learning_rate"):
        fit_line(broken)


def test_a_gradient_that_is_not_finite_never_reaches_the_weights():
    def steep(model, squared):
        # finite loss, infinite gradient: the square root at zero
        return lambda rows, progress: {"error": squared(rows, progress)["error"] + torch.sqrt((model.weight * 0).sum())}

    with pytest.raises(TrainingFailed):
        fit_line(steep)


def test_the_learning_rate_rises_then_follows_the_schedule():
    for schedule in ("cosine", "linear", "constant"):
        assert rate_factor(0.0, 0.1, schedule) < 0.05
        assert rate_factor(0.1, 0.1, schedule) == pytest.approx(1.0)
        assert rate_factor(0.0, 0.0, schedule) == 1.0
    assert rate_factor(0.55, 0.1, "cosine") == pytest.approx(0.5)
    assert rate_factor(0.55, 0.1, "linear") == pytest.approx(0.5)
    assert rate_factor(0.325, 0.1, "linear") == pytest.approx(0.75)
    assert rate_factor(0.325, 0.1, "cosine") == pytest.approx(0.5 + 0.5 * math.cos(math.pi / 4))
    assert rate_factor(1.0, 0.1, "cosine") == pytest.approx(0.0, abs=1e-9)
    assert rate_factor(1.0, 0.1, "linear") == pytest.approx(0.0, abs=1e-9)
    assert rate_factor(0.9, 0.1, "constant") == 1.0


@pytest.mark.parametrize(
    ("options", "kind"),
    [({}, "cosine"), ({"schedule": "linear"}, "linear"), ({"decay": False, "schedule": "linear"}, "constant")],
)
def test_steps_have_the_rate_of_the_schedule(options, kind):
    _, log = fit_line(epochs=5, warmup=0.2, **options)
    expected = [0.05 * rate_factor((4 * epoch + 3) / 20, 0.2, kind) for epoch in range(5)]
    assert [record["learning_rate"] for record in log.records] == pytest.approx(expected)


def test_batches_cover_every_row_once_and_change_with_the_epoch():
    first = [rows.tolist() for rows in batches.shuffled(10, 4, seed=1, epoch=0)]
    assert sorted(row for rows in first for row in rows) == list(range(10))
    assert [len(rows) for rows in first] == [4, 4, 2]
    assert batches.steps(10, 4) == 3
    assert first == [rows.tolist() for rows in batches.shuffled(10, 4, seed=1, epoch=0)]
    assert first != [rows.tolist() for rows in batches.shuffled(10, 4, seed=1, epoch=1)]


def test_a_parameter_has_its_share_of_the_learning_rate():
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 1) for name in ("slow", "fast", "still")})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(8, 2)
    train(
        model,
        lambda epoch: [None],
        lambda batch, progress: {"up": -sum(part(x).mean() for part in model.values())},
        epochs=1,
        steps_per_epoch=1,
        learning_rate=0.1,
        weight_decay=0.0,
        warmup=0.0,
        share=lambda name: {"slow": 0.01, "fast": 1.0, "still": 0.0}[name.partition(".")[0]],
    )
    moved = {name: float((value - before[f"{name}.bias"]).abs()) for name, value in
             ((name, model.state_dict()[f"{name}.bias"]) for name in model)}  # fmt: skip
    # the first step of Adam is as long as the learning rate
    assert moved["fast"] == pytest.approx(0.1, rel=1e-3)
    assert moved["slow"] == pytest.approx(0.001, rel=1e-3)
    assert moved["still"] == 0


def test_a_parameter_has_its_own_weight_decay():
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 1, bias=False) for name in ("table", "others")})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    train(
        model,
        lambda epoch: [None],
        lambda batch, progress: {"nothing": 0.0 * sum(part.weight.sum() for part in model.values())},
        epochs=1,
        steps_per_epoch=1,
        learning_rate=0.1,
        weight_decay=lambda name: 2.0 if name.startswith("table") else 0.5,
        warmup=0.0,
    )
    after = model.state_dict()  # with a gradient of zero a step only shrinks: by the rate times the decay
    torch.testing.assert_close(after["table.weight"], 0.8 * before["table.weight"])
    torch.testing.assert_close(after["others.weight"], 0.95 * before["others.weight"])


def test_what_is_watched_is_in_the_log():
    _, log = fit_line(epochs=3, after_epoch=lambda epoch: {"watched": epoch * 0.5, "codes": 7})
    assert [record["watched"] for record in log.records] == [0.0, 0.5, 1.0]
    assert all(record["codes"] == 7 for record in log.records)


def test_an_objective_without_terms_is_a_mistake_of_the_settings():
    with pytest.raises(BadSetting, match="has no loss terms"):
        fit_line(lambda model, plain: lambda rows, progress: {})


# Gradient accumulation, and precision.


def gradients(micro_batch, batch, terms=("error",), autocast=False):
    """The gradient that a step is taken along, and the log of that step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    x, seen = torch.randn(64, 3), []

    def objective(chosen, progress):
        rows = chosen if isinstance(chosen, np.ndarray) else chosen[0]
        seen.append(len(rows))
        error = (model(x[rows]) - x[rows, :1]) ** 2
        return {name: (n + 1) * error.mean() for n, name in enumerate(terms)}

    log = train(
        model, lambda epoch: [batch], objective, epochs=1, steps_per_epoch=1, learning_rate=0.0, clip=1e9,
        micro_batch=micro_batch, autocast=autocast,
    )  # fmt: skip
    return [p.grad.clone() for p in model.parameters()], log.records[0], seen


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("micro_batch", [1, 5, 16, 37, 50])
def test_accumulated_gradients_are_those_of_one_big_batch(micro_batch, paired):
    """Also where the last part is short: it counts for its size."""
    rows = np.random.default_rng(1).permutation(64)[:37]
    batch = (rows, rows + 1) if paired else rows
    whole, logged, _ = gradients(None, batch, ("error", "twice"))
    found, again, seen = gradients(micro_batch, batch, ("error", "twice"))
    assert sum(seen) == 37 and max(seen) == min(37, micro_batch)
    for one, other in zip(found, whole, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    assert {name: again[name] for name in ("error", "twice")} == pytest.approx(
        {name: logged[name] for name in ("error", "twice")}, rel=1e-5
    )


def test_parts_of_a_batch_belong_together():
    rows = np.arange(7)
    found = batches.parts((rows, 10 * rows), 3)
    assert [weight for _, weight in found] == pytest.approx([3 / 7, 3 / 7, 1 / 7])
    assert all((second == 10 * first).all() for (first, second), _ in found)
    assert batches.parts(rows, None) == [(rows, 1.0)]
    with pytest.raises(ValueError, match="different lengths"):
        batches.parts((rows, rows[:2]), 3)


def test_a_bad_part_skips_the_whole_step():
    def sometimes(model, squared):
        seen = []

        def objective(rows, progress):
            seen.append(1)
            return {"error": squared(rows, progress)["error"] * (math.nan if len(seen) == 6 else 1.0)}

        return objective

    model, log = fit_line(sometimes, micro_batch=4)
    assert log.skipped_steps == 1 and torch.isfinite(model.weight).all()
    assert log.records[-1]["error"] < 1e-3


def test_autocast_is_for_gpus_alone(monkeypatch):
    """On a CPU bfloat16 is slower than float32: there the setting changes nothing."""
    plain, *_ = gradients(None, np.arange(8))
    monkeypatch.setattr(torch, "autocast", lambda *given: pytest.fail("autocast on a CPU"))
    found, *_ = gradients(None, np.arange(8), autocast=True)
    assert all(torch.equal(one, other) for one, other in zip(found, plain, strict=True))


@pytest.mark.parametrize(
    ("wanted", "able", "expected"), [(True, True, [("cuda", torch.bfloat16)]), (True, False, []), (False, True, [])]
)
def test_autocast_is_bfloat16_where_a_gpu_has_it(monkeypatch, wanted, able, expected):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: able)
    monkeypatch.setattr(torch, "autocast", lambda *given: asked.append(given))
    loop.precision(torch.device("cuda"), wanted)
    assert asked == expected
