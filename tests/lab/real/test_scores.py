"""Bootstrap standard errors against closed forms; intervals against numbers made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from irmtv.lab.real.scores import AT_ONCE, covers, interval_score, paired_gain, score, score_error


@pytest.mark.parametrize("n", [400, AT_ONCE // 500])  # in one part, and in several
def test_the_standard_error_of_a_difference_of_accuracies(n):
    rng = np.random.default_rng(710)
    plain, chosen = (rng.random((2, n)) < [[0.7], [0.75]]).astype(float)
    gain, se = paired_gain(plain, chosen, "accuracy")
    assert gain == pytest.approx((chosen - plain).mean())
    assert se == pytest.approx((chosen - plain).std() / np.sqrt(n), rel=0.07)  # 1,000 draws: 2.2 % each
    worse, again = paired_gain(chosen, plain, "accuracy")
    assert (worse, again) == (pytest.approx(-gain), pytest.approx(se))


def test_pairs_that_agree_have_a_smaller_standard_error():
    rng = np.random.default_rng(711)
    plain = (rng.random(500) < 0.7).astype(float)
    chosen = np.where(rng.random(500) < 0.05, 1 - plain, plain)
    unpaired = np.sqrt((plain.var() + chosen.var()) / 500)
    assert paired_gain(plain, chosen, "accuracy")[1] < unpaired / 2


def test_the_standard_error_of_a_difference_of_root_mean_squares():
    rng = np.random.default_rng(712)
    residual = rng.normal(size=2000)
    plain, chosen = residual**2, (0.8 * residual + 0.3 * rng.normal(size=2000)) ** 2
    gain, se = paired_gain(plain, chosen, "rmse")
    a, b = np.sqrt(plain.mean()), np.sqrt(chosen.mean())
    assert gain == pytest.approx(a - b) and gain > 0  # less error is a gain
    linearised = chosen / (2 * b) - plain / (2 * a)  # the delta method
    assert se == pytest.approx(linearised.std() / np.sqrt(2000), rel=0.07)


def test_the_standard_error_of_a_score():
    rng = np.random.default_rng(714)
    right, squares = (rng.random((2000, 300)) < 0.8).astype(float), rng.normal(size=(2000, 300)) ** 2
    for rows, metric in ((right, "accuracy"), (squares, "rmse")):
        spread = np.std([score(r, metric) for r in rows])
        assert np.mean([score_error(r, metric) for r in rows]) == pytest.approx(spread, rel=0.05)
    assert score_error(np.zeros(5), "rmse") == 0.0


def test_the_same_predictions_gain_nothing_for_sure():
    same = np.array([0.0, 1.0, 1.0])
    assert paired_gain(same, same.copy(), "accuracy") == (0.0, 0.0)


def test_the_draws_are_those_of_the_seed():
    rng = np.random.default_rng(713)
    plain, chosen = rng.random((2, 50))
    assert paired_gain(plain, chosen, "rmse") == paired_gain(plain, chosen, "rmse")
    assert paired_gain(plain, chosen, "rmse")[1] != paired_gain(plain, chosen, "rmse", seed=1)[1]


def test_score_of_rows():
    assert score(np.array([1.0, 0.0, 1.0, 1.0]), "accuracy") == 0.75
    assert score(np.array([9.0, 16.0]), "rmse") == pytest.approx(np.sqrt(12.5))


@pytest.mark.parametrize(
    ("value", "covered", "expected"),
    [
        (0.8, True, 0.2),
        (0.7, True, 0.2),
        (0.9, True, 0.2),
        (0.65, False, 0.2 + 20 * 0.05),
        (1.0, False, 0.2 + 20 * 0.1),
    ],
)
def test_an_interval_pays_for_its_width_and_for_what_it_misses(value, covered, expected):
    assert covers(0.7, 0.9, value) == covered
    assert interval_score(0.7, 0.9, value, coverage=0.9) == pytest.approx(expected)
