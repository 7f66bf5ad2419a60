"""What the network finds in aux, and whether there is anything in it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from app.diagnose.worlds import regression, rows_of, task_rows
from irmtv.app.diagnose import inferred_environments, informative
from irmtv.app.diagnose.erm_model import fit_erm
from irmtv.app.diagnose.inferred_environments import crossings_of, environments_in_aux
from irmtv.app.diagnose.informative import given_informative, inferred_informative
from irmtv.app.diagnose.words import as_date, place
from irmtv.datasets import make_control, make_simulation
from irmtv.estimators.strength import split_strength


@pytest.fixture(scope="module")
def shifting():
    rows = task_rows(make_simulation(1500, p_s=(0.999, 0.7), random_state=0), aux=True)
    return rows, fit_erm(rows, 0)


def test_the_boundary_is_where_the_simulation_changes(shifting):
    found = environments_in_aux(*shifting, seed=0)
    assert len(found.crossings) == 1 and found.crossings[0] == pytest.approx(0.5, abs=0.05)
    assert found.divides and found.mass == pytest.approx((0.5, 0.5), abs=0.1)
    assert (found.labels == shifting[0].environment).mean() > 0.9
    assert found.curve[0, 1] < 0.1 and found.curve[-1, 1] > 0.9
    assert "at 0.4" in found.sentence or "at 0.5" in found.sentence
    summary = found.summary()
    assert len(summary["points"]) == len(summary["membership"]) == 1000
    assert summary["boundaries"] == [place(found.crossings[0], False)]


def test_dates_are_said_as_dates(shifting):
    from dataclasses import replace

    rows = replace(shifting[0], aux=2014 + shifting[0].aux, aux_names=("sold",), aux_is_date=(True,))
    found = environments_in_aux(rows, shifting[1], seed=0)
    assert found.summary()["boundaries"][0].startswith("2014-0")
    assert "divides the rows by sold at 2014-0" in found.sentence


def test_labels_come_from_networks_that_have_not_seen_the_row(monkeypatch):
    """The network of a fold reads the rows of the others alone."""
    rows = task_rows(make_simulation(400, p_s=(0.999, 0.7), random_state=0), aux=True)
    model = fit_erm(rows, 0)
    seen = []
    real = inferred_environments.train_environment_networks

    def watched(rows, model, parts, *more):
        seen.append(parts)
        return real(rows, model, parts, *more)

    monkeypatch.setattr(inferred_environments, "train_environment_networks", watched)
    monkeypatch.setattr(inferred_environments, "STEPS", 20)
    environments_in_aux(rows, model, seed=0)
    everyone, *others = (index.numpy() for index, _ in seen[0])
    assert len(everyone) == 400
    for k, index in enumerate(others):
        assert set(index) == set(np.flatnonzero(model.fold != k))


def test_two_columns_divide_a_plane():
    rng = np.random.default_rng(0)
    aux = rng.uniform(size=(1500, 2))
    north = aux[:, 1] > 0.5
    x = rng.normal(size=(1500, 1))
    y = np.where(north, 2.0, -0.5) * x[:, 0] + rng.normal(size=1500)
    rows = rows_of(x, y, aux=aux, aux_names=("long", "lat"))
    found = environments_in_aux(rows, fit_erm(rows, 0), seed=0)
    assert max(np.mean(found.labels == north), np.mean(found.labels != north)) > 0.85
    assert found.curve is None and found.crossings == ()
    assert "with means: long " in found.sentence


@pytest.mark.parametrize(
    ("curve", "where"),
    [
        ([[0, 0.2], [1, 0.4], [2, 0.8]], [1.25]),
        ([[0, 0.2], [1, 0.5], [2, 0.8]], [1.0]),
        ([[0, 0.9], [1, 0.1], [2, 0.9]], [0.5, 1.5]),
        ([[0, 0.9], [1, 0.8]], []),
    ],
)
def test_crossings_by_hand(curve, where):
    assert list(crossings_of(np.array(curve, dtype=float))) == pytest.approx(where)


def test_as_date_by_hand():
    assert [as_date(t) for t in (2016.0, 2016 + 59 / 366, 2015 + 364.5 / 365)] == [
        "2016-01-01",
        "2016-02-29",
        "2015-12-31",
    ]
    assert as_date(123456.0) == "123456"


def test_given_and_found_environments_of_the_simulation_are_informative(shifting):
    given = given_informative(*shifting, seed=0)
    assert given.p == 1 / 500 and given.ratio > 10 and "are informative" in given.sentence
    found = inferred_informative(*shifting, seed=0, permutations=39)
    assert found.p == 1 / 40 and found.ratio > 5 and found.source == "found"


def test_the_penalty_is_the_squared_total_variation_of_the_slopes(shifting):
    rows, model = shifting
    slope = model.slope - model.slope.mean()
    total = sum(abs(slope[rows.environment == e].sum()) for e in (0, 1)) / len(slope)
    assert given_informative(rows, model, 0).penalty == pytest.approx(total**2)
    q = np.eye(2)[rows.environment][None]
    assert informative._penalties(q, model.slope) == pytest.approx([total**2])


def test_where_nothing_differs_environments_are_informative_as_often_as_the_level_says(monkeypatch):
    """Searched with few steps and 19 permutations: p <= 0.05 has probability 1/20."""
    monkeypatch.setattr(inferred_environments, "STEPS", 30)
    n, by_found, by_given = 60, 0, 0
    for seed in range(n):
        rows = task_rows(make_control(150, "nothing", n_informative=2, n_noise=1, random_state=seed), aux=True)
        model = fit_erm(rows, seed)
        by_found += inferred_informative(rows, model, seed, permutations=19).p <= 0.05
        by_given += given_informative(rows, model, seed, permutations=39).p <= 0.05
    for rejected in (by_found, by_given):
        assert binom.ppf(0.001, n, 0.05) <= rejected <= binom.ppf(0.999, n, 0.05)


def test_a_small_noisy_environment_is_not_taken_for_an_informative_one():
    """Permutations of the penalty itself would say so in a quarter of these tables."""
    n, by_test, by_penalty = 120, 0, 0
    for seed in range(n):
        rows = regression(n=800, noise=(0.5, 1.5), seed=seed).take(np.r_[0:400, 400:480])
        model = fit_erm(rows, seed)
        by_test += given_informative(rows, model, seed, permutations=39).p <= 0.05
        by_penalty += split_strength(model.slope, rows.environment, 39, seed).p_value <= 0.05
    assert by_test <= binom.ppf(0.999, n, 0.06) < by_penalty


def test_the_statistics_by_hand():
    rng = np.random.default_rng(0)
    slope, codes = rng.normal(size=90), np.repeat([0, 1, 2], 30)
    groups = [slope[codes == e] for e in range(3)]
    inverse = np.array([30 / g.var(ddof=1) for g in groups])
    centre = np.average([g.mean() for g in groups], weights=inverse)
    expected = sum(w * (g.mean() - centre) ** 2 for w, g in zip(inverse, groups, strict=True))
    assert informative._of_labels(slope, codes, 3) == pytest.approx(expected)
    q = rng.random(90)
    away, around = q - q.mean(), slope - slope.mean()
    soft = informative._of_memberships(np.stack([q, 1 - q], 1)[None], slope)
    assert soft == pytest.approx([(away @ around) ** 2 / (away**2 @ around**2)])


def test_nothing_is_said_to_be_nothing():
    rows = task_rows(make_control(600, "nothing", random_state=1), aux=True)
    given = given_informative(rows, fit_erm(rows, 0), 0)
    assert not given.informative and "not shown to be informative" in given.sentence
