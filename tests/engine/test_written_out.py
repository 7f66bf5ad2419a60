"""Gradients that a step has written out, against autograd on the formulas; float32 against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from irmtv import Runs, train
from irmtv.core.risk import summarise
from irmtv.datasets import make_simulation
from irmtv.engine.linear_step import LinearStep
from irmtv.engine.step import GradientStep

AUTHORS = {"penalty_weight": 1e4, "l2": 1e-3, "learning_rate": 5e-3}


def task_of(seed, layout="sorted", weighted=False, n_rows=300):
    task = make_simulation(n_rows, (0.999, 0.9), 0.8, random_state=seed, n_test=8)
    rows = task.train
    if layout == "grouped":
        rows = replace(rows, aux=(rows.aux * 10 / rows.aux.max()).round())
    elif layout == "plain":
        rows = replace(rows, aux=torch.cat([rows.aux, rows.x[:, :1]], 1))
    if weighted:
        rows = replace(rows, weight=torch.arange(len(rows)) % 4 / 2)  # some of them 0
    return replace(task, train=rows)


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("layout", ["sorted", "grouped", "plain"])
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("minimax-tv-l1", {"n_environments": 3}),
        ("minimax-tv-l1", {"batch_size": 50}),
        ("minimax-tv-l2", {}),
        ("minimax-tv-l2", {"n_environments": 3}),
        ("zin", {}),
        ("eiil", {"variant": "joint"}),
        ("eiil", {"variant": "joint", "batch_size": 50}),
        ("tiva", {}),
        ("tiva", {"gated": False, "batch_size": 50}),
    ],
    ids=str,
)
def test_environments_climb_by_the_gradient_of_the_penalty(monkeypatch, name, more, layout, weighted):
    """At every step, what is written out beside what autograd finds."""
    seen = []
    climb = GradientStep.climb

    def both(step, value, slope, rows, halves):
        source = step.source
        source.parameters.gradient.zero_()
        value = slope if value is None else value  # where nothing asks for the loss: the penalty does not either
        with torch.enable_grad():
            # l1 has something to climb where the environments' slopes differ in sign, so these do
            mean = summarise(slope, None, step._from_source(rows), step.uses).mean_risk
            slope = slope - mean.detach().view(*slope.shape[:2], *(1,) * len(rows.shape))
            e = summarise(value, slope, step._from_source(rows), step.uses)
            torch.stack(step.objective.penalty_values(e, step.static)).sum().backward()
        expected = source.parameters.gradient.clone()
        source.climb(rows, slope, step.objective.penalties[0], step.static.get("reduction"))
        torch.testing.assert_close(source.parameters.gradient, expected, rtol=1e-8, atol=1e-12)
        seen.append(float(expected.abs().max()))
        assert step.climbs_by_hand
        climb(step, value, slope, rows, halves)

    monkeypatch.setattr(GradientStep, "climb", both)
    tasks = [task_of(seed, layout, weighted) for seed in range(2)]
    runs = Runs(seed=range(4), data=[0, 0, 1, 1])
    train(tasks, name, runs, steps=4, warmup=3, penalty_weight=1e3, dtype=torch.float64, **more)
    assert max(seen) > 1e-6


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("irm-tv-l1", {}),
        ("irm-tv-l1", {"normalise": False, "reduction": "authors"}),
        ("irm-tv-l2", {"measure": "empirical"}),
        ("irm-tv-l2", {"reduction": "authors"}),
        ("minimax-tv-l1", {"schedule": "alternating"}),
        ("zin", {}),
        ("eiil", {"variant": "joint"}),
        ("tiva", {}),
    ],
    ids=str,
)
def test_the_short_way_from_slopes_to_logits_is_the_long_one(monkeypatch, name, more, weighted):
    """Environments of unequal sizes, on two data sets; half of the runs are still in the warm-up."""
    monkeypatch.setattr(LinearStep, "of", lambda _: None)
    tasks = [task_of(seed, "plain", weighted) for seed in range(2)]
    codes = (torch.arange(300) > 100).long()
    tasks = [replace(t, train=replace(t.train, environment=codes)) for t in tasks]
    runs = Runs(seed=range(4), data=[0, 0, 1, 1], penalty_weight=[1.0, 1e3, 1.0, 1e3], warmup=[5, 10, 5, 10])
    settings = {"steps": 20, "l2": 1e-2, "dtype": torch.float64, **more}
    short = train(tasks, name, runs, **settings).coefficients()
    begin = GradientStep.begin

    def long_way(step, phase):
        begin(step, phase)
        step.plain, step.pulling = False, None

    monkeypatch.setattr(GradientStep, "begin", long_way)
    for a, b in zip(short, train(tasks, name, runs, **settings).coefficients(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("layout", ["sorted", "grouped", "plain"])
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("erm", {}),
        ("irm-tv-l1", {}),
        ("irm-tv-l1", {"normalise": False, "reduction": "authors"}),
        ("irm-tv-l2", {}),
        ("minimax-tv-l1", {}),
        ("minimax-tv-l1", {"n_environments": 3, "schedule": "alternating"}),
        ("zin", {}),
        ("eiil", {"variant": "joint"}),
        ("tiva", {"gated": False}),
    ],
    ids=str,
)
def test_the_step_of_linear_models_is_the_general_one(monkeypatch, name, more, layout):
    """Environments of unequal sizes, on two data sets; half of the runs are still in the warm-up."""
    tasks = [task_of(seed, layout) for seed in range(2)]
    codes = (torch.arange(300) > 100).long()
    tasks = [replace(t, train=replace(t.train, environment=codes)) for t in tasks]
    runs = Runs(seed=range(4), data=[0, 0, 1, 1], penalty_weight=[1.0, 1e3, 1.0, 1e3], warmup=[5, 10, 5, 10])
    runs = Runs(seed=range(4), data=[0, 0, 1, 1]) if name == "erm" else runs
    settings = {"steps": 20, "l2": 1e-2, "dtype": torch.float64, **more}
    taken, take = [], LinearStep._take

    def counted(*args):
        taken.append(1)
        take(*args)

    monkeypatch.setattr(LinearStep, "_take", counted)
    few_passes = train(tasks, name, runs, **settings).coefficients()
    assert len(taken) == 20
    monkeypatch.setattr(LinearStep, "of", lambda _: None)
    for a, b in zip(few_passes, train(tasks, name, runs, **settings).coefficients(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    assert len(taken) == 20


@pytest.mark.slow
@pytest.mark.parametrize("warmup", [0, 100])
@pytest.mark.parametrize("hidden", [(), (32,)], ids=str)
@pytest.mark.parametrize("name", ["erm", "irm-tv-l1", "minimax-tv-l1"])
def test_float32_gives_what_float64_gives(name, hidden, warmup):
    """Two hundred steps of the benchmarks' settings: equal to a thousandth, relative to the largest logit."""
    task = make_simulation(500, (0.999, 0.9), 0.8, random_state=0, n_test=8)
    settings = {"l2": 1e-3, "learning_rate": 5e-3} if name == "erm" else {**AUTHORS, "warmup": warmup}
    if name == "minimax-tv-l1" and warmup == 0:
        settings["schedule"] = "alternating"  # otherwise nothing infers the environments
    logits = []
    for dtype in (torch.float32, torch.float64):
        fitted = train(task, name, Runs(seed=range(2)), steps=200, hidden=hidden, dtype=dtype, **settings)
        logits.append(fitted.logits(task.train.x.to(dtype)).double())
    assert float((logits[0] - logits[1]).abs().max() / logits[1].abs().max()) < 1e-3
