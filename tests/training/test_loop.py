"""The training loop: it learns, it sums what it is given, and bad numbers do not get into the weights."""

from __future__ import annotations

import math

import pytest
import torch

from callslip.errors import BadSetting, TrainingFailed
from callslip.training import batches
from callslip.training.loop import schedule, train


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


def test_schedule_rises_then_falls():
    assert schedule(0.0, 0.1, True) < 0.05
    assert schedule(0.1, 0.1, True) == pytest.approx(1.0)
    assert schedule(0.55, 0.1, True) == pytest.approx(0.5)
    assert schedule(1.0, 0.1, True) == pytest.approx(0.0, abs=1e-9)
    assert schedule(0.9, 0.1, False) == 1.0


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
