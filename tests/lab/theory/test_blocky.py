"""Blocky risks: the number for it, the population risk, and three statements whose wrong formulas are noticed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from irmtv.core.types import Statistics
from irmtv.datasets import make_simulation
from irmtv.lab.theory import blocky, blocky_time
from irmtv.lab.theory.blocky import blockiness, blockiness_in_w, coarea_prefers_blocks, two_step_distance
from irmtv.lab.theory.blocky_time import blocky_over_time, wave
from irmtv.lab.theory.simulated_risk import Linear, fit, risk_gradient
from irmtv.objectives.irm_tv_l1 import tv_l1
from irmtv.objectives.irm_tv_l2 import tv_l2

SMALL = {"repetitions": 2, "n_samples": 2000, "steps": 450}


def failed(found, role):
    return [c.what for c in found.comparisons if c.role == role and not c.agrees]


# -- the number ----------------------------------------------------------------------------------------


def test_blockiness_of_known_functions():
    w = (np.arange(100_000) + 0.5) / 50_000  # [0, 2]
    assert blockiness(np.abs(2 * (w - 1))) == pytest.approx(0.25, abs=1e-8)  # (w - 1)^2: 1 - 2^2 / (2 * 8/3)
    assert blockiness(np.exp(-w)) == pytest.approx(1 - (1 - np.exp(-2)) ** 2 / (1 - np.exp(-4)), abs=1e-8)
    assert blockiness(np.ones((3, 7))).tolist() == [0.0] * 3
    one_of = np.zeros(50)
    one_of[3] = 2.0
    assert blockiness(one_of) == pytest.approx(0.98)


def test_blockiness_over_environments_is_the_ratio_of_the_papers_penalties():
    slope = torch.tensor([[0.3, -0.1, 0.5, 0.0]], dtype=torch.float64)
    e = Statistics(slope.mean(-1), torch.full_like(slope, 0.25), torch.zeros_like(slope), slope)
    assert 1 - blockiness(slope.abs().numpy()) == pytest.approx((tv_l1(e, e.mass) / tv_l2(e, e.mass)).item())


# -- section 2.2 ---------------------------------------------------------------------------------------


def test_blocks_are_not_cheaper():
    found = coarea_prefers_blocks()
    assert found.verdict == "does not hold as printed"
    assert failed(found, "claim") == [
        "total variation, on a line",
        "total variation, blocks of heights 0, 1, 0, 1",
        "total variation, a disc",
    ]
    up_and_down = next(c for c in found.comparisons if "0, 1, 0, 1" in c.what)
    assert up_and_down.left == pytest.approx(3) and up_and_down.right == pytest.approx(1)


def missing_cell(modulus, cell):
    return float(modulus.sum())


def root_of_squares(modulus, cell):
    return float(np.sqrt((modulus**2).sum() * cell))


@pytest.mark.parametrize("wrong", [{"l1": missing_cell}, {"l1": root_of_squares}, {"l2": root_of_squares}])
def test_wrong_energies_are_noticed(wrong):
    assert coarea_prefers_blocks(**wrong).verdict == "not verified"


def without_the_square(modulus):
    return 1 - modulus.mean(-1) / np.sqrt((modulus**2).mean(-1))


def without_the_volume(modulus):
    return 1 - modulus.mean(-1) ** 2 / (modulus**2).sum(-1)


def peak_to_mean(modulus):
    return 1 - modulus.mean(-1) / modulus.max(-1)


@pytest.mark.parametrize("wrong", [without_the_square, without_the_volume, peak_to_mean])
def test_another_number_for_blockiness_is_noticed(wrong):
    assert coarea_prefers_blocks(measure=wrong).verdict == "not verified"


def test_figure_of_the_climb():
    shapes, energies, blocks = coarea_prefers_blocks(widths=(1.0, 0.2, 0.1)).draw().axes
    assert len(shapes.lines) == 3
    np.testing.assert_allclose(energies.lines[0].get_ydata(), 1, atol=1e-10)
    np.testing.assert_allclose(energies.lines[1].get_ydata(), [1.2, 6, 12], rtol=1e-4)
    np.testing.assert_allclose(blocks.lines[0].get_ydata(), 1 - np.array([1, 0.2, 0.1]) * 5 / 6, atol=1e-4)


@pytest.mark.parametrize("widths", [(0.5,), (0.5, 0.0), (2.0, 0.5)])
def test_widths_that_do_not_fit(widths):
    with pytest.raises(ValueError, match=r"widths must be two or more numbers in \(0, 1\].*Got"):
        coarea_prefers_blocks(widths=widths)


# -- in w ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_w():
    return blockiness_in_w(**SMALL)


def test_squashed_but_not_blockier(in_w):
    assert in_w.verdict == "does not hold as printed"
    assert failed(in_w, "ours") == []
    (plateau,) = failed(in_w, "claim")
    assert plateau.startswith("piecewise-constant: flat share")
    assert {c.role for c in in_w.comparisons if "blockiness" in c.what or c.right_name == "TV-l2"} == {"ours"}


def test_a_graph_with_a_plateau_would_pass_the_test_for_blocks():
    """The share of flat cells does not depend on the tolerance where there is a block, and does where there is none."""
    w = np.linspace(-1, 1, 4001)
    block, bowl = np.where(np.abs(w) < 0.5, 0.0, w), w
    for slope, ratio in ((block, 1.0), (bowl, 10.0)):
        few, many = blocky._flat_share(slope, np.array([1e-3, 1e-2]))
        assert many / few == pytest.approx(ratio, rel=0.01)


def test_the_distance_to_two_steps():
    """A parabola's is half its height, wherever the jump; by brute force over the jump and both heights."""
    w = np.linspace(0, 2, 401)
    assert two_step_distance((w - 1) ** 2) == pytest.approx(0.5)
    assert two_step_distance(np.where(w < 0.3, 4.0, -1.0)) == 0
    curve = np.exp(-w) + 0.1 * w**2
    heights = np.linspace(curve.min(), curve.max(), 201)

    def one_side(values):
        return np.abs(values[:, None] - heights).max(0).min()

    brute = min(max(one_side(curve[:k]), one_side(curve[k:])) for k in range(1, len(w)))
    assert two_step_distance(curve) == pytest.approx(brute, abs=heights[1] - heights[0])
    assert two_step_distance(np.stack([curve, 2 * curve])) == pytest.approx(two_step_distance(curve) * np.array([1, 2]))


def signs_exchanged(model, w):
    """The gradient where the spurious sign agrees in place of that where it does not."""
    return risk_gradient(model, w)[..., ::-1, :, :]


def twice(model, w):
    return 2 * risk_gradient(model, w)


@pytest.mark.parametrize("wrong", [{"gradient": twice}, {"gradient": signs_exchanged}, {"measure": peak_to_mean}])
def test_wrong_formulas_in_w_are_noticed(wrong):
    assert blockiness_in_w(**{**SMALL, "steps": 150}, **wrong).verdict == "not verified"


def test_figure_in_w(in_w):
    graph, dots, flat = in_w.draw().axes
    assert len(graph.lines) == 9 + 2  # three methods, three environments, two entries of the legend
    for curve in graph.lines[:9]:  # convex, from log 2
        assert (np.diff(curve.get_ydata(), 2) > 0).all()
        assert curve.get_ydata()[0] == pytest.approx(np.log(2), abs=0.01)
    assert len(dots.lines) == 3 * 6 + 1
    share = flat.lines[2].get_ydata()
    assert share[8] / share[0] == pytest.approx(10, abs=0.5)


def test_one_repetition_has_no_scatter():
    for run in (blockiness_in_w, blocky_over_time):
        with pytest.raises(ValueError, match=r"repetitions must be an integer of at least 2.*Got 1"):
            run(repetitions=1)


# -- over time -----------------------------------------------------------------------------------------

QUICK = {**SMALL, "other_weights": (100.0,)}


@pytest.fixture(scope="module")
def over_time():
    return blocky_over_time(**QUICK)


def test_smaller_but_of_the_same_shape(over_time):
    assert over_time.verdict == "does not hold as printed"
    assert failed(over_time, "ours") == []
    still = [c for c in over_time.comparisons if c.what.startswith("share of time")]
    assert [(c.role, c.right_name) for c in still] == [("claim", "TV-l2"), ("claim", "ERM")]
    assert still[1].agrees and all(0 < c.left < 1 for c in still)
    assert "total variation over time" not in failed(over_time, "claim")
    assert {c.role for c in over_time.comparisons if "blockiness" in c.what} == {"ours"}
    assert len(failed(over_time, "beyond")) == 1  # labels that tell nothing apart


def test_range_and_variation_have_the_ratio_of_the_wave(over_time):
    """0.85 + 0.1 sin(3 pi t): up 0.1, down 0.2, up 0.2, down 0.1, within a range of 0.2."""
    reach, variation = over_time.comparisons[:2]
    assert reach.what.startswith("range") and variation.what.startswith("total variation")
    assert variation.left / reach.left == pytest.approx(3, abs=1e-5)
    assert variation.right / reach.right == pytest.approx(3, abs=1e-5)
    halves = wave((np.arange(1000) + 0.5) / 1000).reshape(2, -1).mean(1)
    assert halves[0] == pytest.approx(halves[1], abs=1e-12)


def swapped(agree, disagree, p_s):
    return agree[..., None] * (1 - p_s) + disagree[..., None] * p_s


def curved(agree, disagree, p_s):
    return agree[..., None] * p_s**2 + disagree[..., None] * (1 - p_s**2)


@pytest.mark.parametrize("wrong", [swapped, curved])
def test_a_wrong_line_is_noticed(wrong, monkeypatch):
    few = fit([make_simulation(500, random_state=r, n_test=4) for r in range(2)], "erm", 0.8, 200)
    trained = {"erm": few}
    calls = []

    def instead(tasks, objective, p_v, steps, weights=None, **more):  # the formula is under test, not the training
        calls.append(objective)
        return trained["erm"] if weights is None else Linear(
            np.repeat(few.coef, len(weights), 0) * 0.9, np.repeat(few.intercept, len(weights), 0), p_v
        )  # fmt: skip

    monkeypatch.setattr(blocky_time, "fit", instead)
    assert failed(blocky_over_time(**QUICK), "ours") == []
    assert blocky_over_time(**QUICK, line=wrong).verdict == "not verified"
    assert calls.count("irm-tv-l1") == 4


def test_figure_over_time(over_time):
    graph, bars, front = over_time.draw().axes
    assert len(graph.lines) == 6
    for line, dots in zip(graph.lines[::2], graph.lines[1::2], strict=True):
        p = wave(np.asarray(line.get_xdata()))
        assert abs(np.corrcoef(p, line.get_ydata())[0, 1]) == pytest.approx(1, abs=1e-9)
        assert len(dots.get_xdata()) == 80
    assert len(bars.patches) == 9 and bars.patches[0].get_width() == pytest.approx(1)
    assert len(front.lines) == 3 and len(front.lines[0].get_xdata()) == 2


def test_an_agreement_that_stands_still():
    with pytest.raises(ValueError, match=r"p_s must vary over time.*Got values from 0.9 to 0.9"):
        blocky_over_time(p_s=lambda t: np.full_like(t, 0.9))
