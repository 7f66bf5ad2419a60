"""The split of the loss against integrals, and against worlds in which one part is zero."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from app.diagnose.worlds import regression, rows_of
from irmtv.app.diagnose.erm_model import ErmModel, fit_erm
from irmtv.app.diagnose.loss_split import decompose, split_losses


def integrals(mean_p, mean_q, loss_p, loss_q):
    """Gap, part of X, part of y given X, overlap, for normal X and given E[l | x] on both sides."""
    p, q = norm(mean_p, 1).pdf, norm(mean_q, 1).pdf

    def under(density, value):
        return quad(lambda x: density(x) * value(x), -12, 12, limit=200)[0]

    def shared(x):
        return p(x) * q(x) / (p(x) + q(x))

    mass = under(shared, lambda x: 1.0)
    e_p, e_q = under(p, loss_p), under(q, loss_q)
    s_p, s_q = under(shared, loss_p) / mass, under(shared, loss_q) / mass
    return e_q - e_p, (s_p - e_p) + (e_q - s_q), s_q - s_p, 2 * mass


WORLDS = {
    "X alone": (0.0, 1.0, lambda x: 1 + x**2, lambda x: 1 + x**2),
    "y given X alone": (0.0, 0.0, lambda x: 1 + x**2, lambda x: 2 + x**2),
    "both": (0.0, 1.0, lambda x: 1.0 + 0 * x, lambda x: 1 + x**2),
}


@pytest.mark.parametrize("world", WORLDS)
def test_the_parts_are_the_integrals(world):
    mean_p, mean_q, loss_p, loss_q = WORLDS[world]
    gap, from_x, from_y, overlap = integrals(*WORLDS[world])
    rng = np.random.default_rng(0)
    xp, xq = rng.normal(mean_p, 1, 20_000), rng.normal(mean_q, 1, 20_000)
    noise = rng.exponential(1.0, (2, 20_000))  # the loss has a mean given x, and varies around it

    def pi(x):
        return norm.pdf(x - mean_q) / (norm.pdf(x - mean_p) + norm.pdf(x - mean_q))

    found = decompose("b", loss_p(xp) * noise[0], pi(xp), loss_q(xq) * noise[1], pi(xq), rng)
    assert found.gap["value"] == pytest.approx(gap, abs=0.08)
    for part, expected in ((found.from_x, from_x), (found.from_y_given_x, from_y)):
        assert part["value"] == pytest.approx(expected, abs=0.08)
        assert part["low"] - 0.03 < expected < part["high"] + 0.03
    assert found.from_x["value"] + found.from_y_given_x["value"] == pytest.approx(found.gap["value"])
    assert found.overlap == pytest.approx(overlap, abs=0.02)
    assert found.trusted


@pytest.mark.parametrize("world", WORLDS)
def test_with_a_classifier_that_was_learned(world):
    """The same integrals, with pi from the rows, and 0.0 where a part is zero."""
    mean_p, mean_q, loss_p, loss_q = WORLDS[world]
    gap, from_x, from_y, overlap = integrals(*WORLDS[world])
    rng = np.random.default_rng(1)
    x = np.r_[rng.normal(mean_p, 1, 5000), rng.normal(mean_q, 1, 1000)]  # unequal sizes must not matter
    e = np.repeat([0, 1], [5000, 1000])
    loss = np.where(e == 0, loss_p(x), loss_q(x)) * (1 + 0.3 * rng.normal(size=6000))
    rows = rows_of(
        np.column_stack([x, rng.normal(size=6000)]), rng.normal(size=6000), environment=np.array(["p", "q"])[e]
    )
    model = ErmModel(np.zeros(6000), loss, np.zeros(6000), rows.folds(0))
    found = split_losses(rows, model, 0).splits[1]
    assert found.name == "q" and found.rows == 1000
    assert found.gap["value"] == pytest.approx(gap, abs=0.15)
    assert found.from_x["value"] == pytest.approx(from_x, abs=0.15)
    assert found.from_y_given_x["value"] == pytest.approx(from_y, abs=0.15)
    assert found.overlap == pytest.approx(overlap, abs=0.04)


def test_a_level_of_its_own_is_a_change_in_y_given_x():
    rows = regression(n=2000, level=(0.0, 3.0), noise=(0.5, 0.5), seed=0)
    rows = rows.take(np.r_[0:1000, 1000:1400])  # fewer in b: the model fits a
    found = split_losses(rows, fit_erm(rows, 0), 0)
    largest = found.largest
    assert largest.name == "b"
    assert largest.from_y_given_x["low"] > 0 and abs(largest.from_x["value"]) < 0.1 * largest.from_y_given_x["value"]
    assert "In b the loss is" in found.sentence and "higher than in the rest" in found.sentence


def test_a_curve_that_a_line_misses_where_only_one_environment_goes_is_a_change_in_x():
    rng = np.random.default_rng(0)
    x = np.r_[rng.normal(0, 0.5, 1500), rng.normal(1.2, 0.7, 500)]
    y = np.maximum(x, 0) ** 2 + 0.1 * rng.normal(size=2000)
    rows = rows_of(x, y, environment=np.repeat(["near", "far"], [1500, 500]))
    found = {s.name: s for s in split_losses(rows, fit_erm(rows, 0), 0).splits}["far"]
    assert found.gap["value"] > 0.02
    assert found.from_x["value"] > 3 * abs(found.from_y_given_x["value"])


def test_supports_that_hardly_overlap_are_warned_of():
    rows = regression(n=1000, shift=(0.0, 12.0))
    found = split_losses(rows, fit_erm(rows, 0), 0).largest
    assert not found.trusted and found.overlap < 0.1
    assert "hardly overlap" in found.sentence and found.summary()["trusted"] is False
