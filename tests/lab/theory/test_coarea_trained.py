"""The coarea formula of trained networks: the two sides' ingredients, and formulas that must not pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from irmtv import train
from irmtv.datasets import make_simulation
from irmtv.lab.theory import coarea_trained as module
from irmtv.lab.theory.coarea import contour_lengths, crossings
from irmtv.lab.theory.coarea_trained import coarea_trained
from lab.theory.wrong import FAILED, agreements

FAST = {"n_samples": 200, "steps": 60, "cells": (16, 32)}


@pytest.fixture(scope="module")
def found():
    return coarea_trained()


@pytest.fixture(scope="module")
def small():
    """On coarse grids the order is not yet 2, so only the claims count."""
    return coarea_trained(**FAST)


def test_it_holds_for_both_models_in_both_environments(found):
    assert found.verdict == "holds"
    *sides, order = found.comparisons
    assert len(sides) == 8 and {c.role for c in sides} == {"claim"}
    assert max(c.error / c.left for c in sides) < 1e-3
    assert order.role == "ours" and 1.7 < order.left < 2.3
    assert f"falls like n^-{order.left:.1f}" in found.meaning


def test_the_penalty_turns_the_contours(found):
    """The map of IRM-TV-l1 depends less on the spurious axis than that of ERM."""
    panels = found.draw().axes
    assert [p.get_title() for p in panels[:2]] == ["ERM, environment 1", "ERM, environment 2"]

    def lean(axes):  # mean |cos| of the contour's direction with the spurious axis: 1 where lines run along w_s
        steps = np.concatenate([np.diff(p.vertices, axis=0) for p in axes.collections[0].get_paths() if len(p) > 1])
        steps = steps[np.hypot(*steps.T) < 0.2]  # not the moves from one line to the next
        return np.abs(steps[:, 1]).sum() / np.hypot(*steps.T).sum()

    assert lean(panels[3]) > lean(panels[0]) + 0.05 and lean(panels[4]) > lean(panels[1]) + 0.05


@pytest.mark.parametrize("hidden", [(), (8,), (6, 4)])
def test_gradients_and_values_agree_by_finite_differences(hidden):
    task = make_simulation(100, random_state=0, n_test=4)
    fitted = train(task, "erm", hidden=hidden, steps=30, dtype=torch.float64)
    rows = torch.arange(100)
    w = np.array([[0.7, -0.3], [1.0, 1.0], [-0.5, 1.4]])
    gradient = module._gradient_2d(module._layers(fitted, 0), task, rows, w)
    h = 1e-6
    for axis, e in enumerate(np.eye(2) * h):
        up, down = (module._risks_2d(fitted, task, w + d)[0].mean(1).numpy() for d in (e, -e))
        np.testing.assert_allclose(gradient[axis], (up - down) / (2 * h), atol=1e-6)
    f = fitted.logits(task.train.x)[0]
    slope = module._gradient_1d(f, task, rows, np.array([0.5, 1.0]))
    losses = [task.loss.value(v * f, task.train.y).mean().item() for v in (0.5 + h, 0.5 - h)]
    assert slope[0] == pytest.approx((losses[0] - losses[1]) / (2 * h), abs=1e-6)


def test_a_linear_model():
    assert coarea_trained(hidden=(), **FAST).verdict == "holds"


@pytest.mark.parametrize(
    "wrong",
    [
        {"modulus": lambda g: (g**2).sum(0)},
        {"modulus": lambda g: np.abs(g).sum(0)},
        {"level_size_1d": lambda v, g, weight: crossings(v, g) / 2},
        {"level_size_2d": lambda axis, v, g: 2 * contour_lengths(axis, v, g)},
        {"level_size_2d": lambda axis, v, g: contour_lengths(axis, v**2, g)},
    ],
)
def test_a_wrong_formula_is_noticed(wrong, small):
    wronged = coarea_trained(**FAST, **wrong)
    assert wronged.verdict in FAILED
    assert not all(agreements(wronged, "claim")) and all(agreements(small, "claim"))


def test_message():
    for cells in ((), (32,), (4, 8), (32, 16), (16, 24)):
        with pytest.raises(ValueError, match="cells must be two or more increasing numbers of at least 8"):
            coarea_trained(cells=cells)
