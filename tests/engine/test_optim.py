"""The flat parameters and Adam, against torch's own."""

from __future__ import annotations

import pytest
import torch

from irmtv.engine.optim import Adam, FlatParameters

SHAPES = {"a": (2, 3), "b": (4,), "c": (1, 1)}
RATES = torch.tensor([1e-3, 5e-2, 0.3], dtype=torch.float64)
CPU = torch.device("cpu")


def starts(n_runs=3):
    generator = torch.Generator().manual_seed(0)
    return [
        {k: torch.randn(s, generator=generator, dtype=torch.float64) for k, s in SHAPES.items()} for _ in range(n_runs)
    ]


def flat(dtype=torch.float64):
    return FlatParameters(starts(), CPU, dtype)


def bumpy(p, run):
    """A loss with a minimum of its own for every run; some gradients are exactly 0."""
    a, b, c = p["a"], p["b"], p["c"]
    return (run + 1) * (a - run).square().sum() + torch.sin(3 * b).sum() + c.relu().sum()


def step_engine(parameters, optimizer):
    parameters.gradient.zero_()
    runs = range(parameters.n_runs)
    sum(bumpy({k: v[r] for k, v in parameters.views.items()}, r) for r in runs).backward()
    optimizer.step()


@pytest.mark.parametrize("maximise", [False, True])
def test_two_hundred_steps_are_those_of_torch_for_every_run(maximise):
    parameters = flat()
    ours = Adam(parameters, RATES, maximise)
    theirs = [{k: v.clone().requires_grad_() for k, v in s.items()} for s in starts()]
    adams = [
        torch.optim.Adam(p.values(), lr=float(rate), maximize=maximise) for p, rate in zip(theirs, RATES, strict=True)
    ]
    for _ in range(200):
        step_engine(parameters, ours)
        for run, (p, adam) in enumerate(zip(theirs, adams, strict=True)):
            adam.zero_grad()
            bumpy(p, run).backward()
            adam.step()
    for name in SHAPES:
        expected = torch.stack([p[name] for p in theirs])
        torch.testing.assert_close(parameters.views[name], expected, rtol=1e-10, atol=1e-12)


def test_a_rate_of_zero_holds_a_run_still():
    parameters = flat()
    before = parameters.state()
    optimizer = Adam(parameters, RATES * torch.tensor([1.0, 0.0, 1.0]))
    for _ in range(5):
        step_engine(parameters, optimizer)
    for name, start in before.items():
        moved = (parameters.views[name] != start).flatten(1).any(1)
        assert moved[0] or name == "c"  # relu may be flat there
        assert not moved[1]
    assert (parameters.views["a"] != before["a"]).flatten(1).any(1).tolist() == [True, False, True]


def test_a_new_rate_keeps_the_moments():
    """As torch does when a scheduler sets the rate."""
    parameters = flat()
    ours = Adam(parameters, RATES)
    theirs = {k: v.clone().requires_grad_() for k, v in starts()[1].items()}
    adam = torch.optim.Adam(theirs.values(), lr=float(RATES[1]))
    for step in range(20):
        if step == 10:
            ours.set_rate(RATES / 7)
            adam.param_groups[0]["lr"] = float(RATES[1]) / 7
        step_engine(parameters, ours)
        adam.zero_grad()
        bumpy(theirs, 1).backward()
        adam.step()
    for name, p in theirs.items():
        torch.testing.assert_close(parameters.views[name][1], p, rtol=1e-10, atol=1e-12)


def test_spread_gives_every_element_its_runs_value():
    parameters = flat()
    per_run = torch.tensor([10.0, 20.0, 30.0], dtype=torch.float64)
    with torch.no_grad():  # write a run's number into each of its elements, through the views
        for view in parameters.views.values():
            for r in range(3):
                view[r] = per_run[r]
    assert torch.equal(parameters.vector, parameters.spread(per_run))
    assert parameters.spread(per_run.to(torch.int32)).dtype == torch.float64


def test_by_run_sums_over_the_elements_of_a_run():
    parameters = flat()
    expected = torch.stack([v.detach().flatten(1).sum(1) for v in parameters.views.values()]).sum(0)
    torch.testing.assert_close(parameters.by_run(parameters.vector), expected)
    ones = torch.ones_like(parameters.vector)
    assert parameters.by_run(ones).tolist() == [2 * 3 + 4 + 1] * 3


def test_views_and_gradients_are_windows_on_the_vectors():
    parameters = flat(torch.float32)
    assert all(v.dtype == torch.float32 for v in parameters.views.values())
    sum(v.sum() for v in parameters.views.values()).backward()
    assert torch.equal(parameters.gradient, torch.ones_like(parameters.vector))
    parameters.vector.fill_(7)
    assert all((v == 7).all() for v in parameters.views.values())
    for name, shape in SHAPES.items():
        assert parameters.views[name].shape == (3, *shape)


def test_state_is_a_copy():
    parameters = flat()
    kept = parameters.state()
    parameters.vector.zero_()
    assert all(v.abs().sum() > 0 and not v.requires_grad for v in kept.values())
