"""Which columns give an environment away, and how a first look agrees with a diagnosis."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from irmtv.app.diagnose import diagnose_table
from irmtv.app.fit import fit_table
from irmtv.app.fit.first_look import telling_columns


def table(n=900, seed=0):
    """Three sites; every column but `noise` tells something of them."""
    rng = np.random.default_rng(seed)
    site = rng.choice(["a", "b", "c"], n)
    code = np.select([site == "a", site == "b"], [0, 1], 2)
    day = pd.Timestamp("2020-01-01") + pd.to_timedelta(100 * code + rng.integers(0, 100, n), unit="D")
    columns = {
        "noise": rng.normal(size=n),
        "shifted": code + rng.normal(size=n),  # some of it
        "zip": 1000.0 * code + rng.integers(0, 999, n),
        "day": day,
        "day as text": day.strftime("%Y-%m-%d"),
        "town": [f"{s}{k}" for s, k in zip(site, rng.integers(0, 20, n), strict=True)],
        "gaps": np.where(site == "b", np.nan, rng.normal(size=n)),
        "id": [f"row {k}" for k in range(n)],
    }
    return pd.DataFrame(columns), pd.Series(site)


def test_columns_that_give_an_environment_away_and_those_that_do_not():
    columns, site = table()
    found = {c["name"]: c for c in telling_columns(columns, site, np.random.default_rng(0))}
    assert set(found) == {"zip", "day", "day as text", "town", "gaps"}
    assert found["gaps"]["environment"] == "b" and found["gaps"]["share"] == pytest.approx(1.0)
    assert all(0.95 <= c["share"] <= 1 for c in found.values())


def test_the_share_is_that_of_rows_told_right():
    """A column that is right in 97 of 100 rows of either kind."""
    rng = np.random.default_rng(1)
    site = rng.choice(["a", "b"], 5000)
    column = np.where(rng.random(5000) < 0.97, site, np.where(site == "a", "b", "a"))
    (found,) = telling_columns(pd.DataFrame({"x": column}), pd.Series(site), rng)
    assert found["share"] == pytest.approx(0.97, abs=0.01)
    less = np.where(rng.random(5000) < 0.9, site, np.where(site == "a", "b", "a"))
    assert telling_columns(pd.DataFrame({"x": less}), pd.Series(site), rng) == []


def test_by_chance_no_column_is_named():
    rng = np.random.default_rng(2)
    columns = pd.DataFrame(rng.integers(0, 40, (120, 100))).add_prefix("x")
    site = pd.Series(rng.choice(["a", "b", "c"], 120))
    assert telling_columns(columns, site, rng) == []


def test_fit_says_what_diagnose_says():
    """The same table: features that overlap or do not, and a loss that differs or does not."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"x": rng.normal(size=800), "site": np.repeat(["a", "b"], 400)})
    frame["y"] = 2 * frame["x"] + np.where(frame["site"] == "a", 0.2, 2.0) * rng.normal(size=800)
    shifted = frame.assign(x=frame["x"] + 4 * (frame["site"] == "b"))
    for data, apart in ((frame, False), (shifted, True)):
        look = fit_table(data, "y", ["site"], model="linear", penalty_weights=[100]).summary["first_look"]
        diagnosis = diagnose_table(data, "y", ["site"], model="linear")
        assert (look["p"] < 0.05) == diagnosis.differ.differs == apart
        assert look["auc"] == pytest.approx(diagnosis.differ.auc["value"], abs=0.05)
        assert look["loss_p"] < 0.05 and diagnosis.losses.differs
        assert [c["name"] for c in look["telling"]] == (["x"] if apart else [])
        assert (look["smallest"], look["smallest_rows"]) == ("a", 400)


def test_without_environments_there_is_nothing_to_look_at():
    rng = np.random.default_rng(4)
    frame = pd.DataFrame({"x": rng.normal(size=200), "t": np.linspace(0, 1, 200)})
    frame["y"] = frame["x"] + rng.normal(size=200)
    assert fit_table(frame, "y", objective="erm", model="linear").summary["first_look"] is None
