"""`irmtv fit`: what to expect in an environment that nobody has seen, or why nothing is known of it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression

from irmtv.app.fit import fit_table
from irmtv.app.pages.model import model_content
from irmtv.html.page import page

QUICK = {"model": "linear", "penalty_weights": [100]}


def sites(n_sites: int = 3, n: int = 120) -> pd.DataFrame:
    """y is a line in x, with a noise that differs from site to site."""
    rng = np.random.default_rng(703)
    site = np.repeat(np.arange(n_sites), n)
    x = rng.normal(size=n_sites * n)
    y = 50 + 20 * x + (3 + site) * rng.normal(size=len(x))
    return pd.DataFrame({"x": x, "z": rng.normal(size=len(x)), "y": y, "site": [f"s{s}" for s in site]})


def by_hand(frame: pd.DataFrame) -> list[float]:
    found = []
    for site in sorted(set(frame["site"])):
        inside, outside = frame[frame["site"] == site], frame[frame["site"] != site]
        line = LinearRegression().fit(outside[["x", "z"]], outside["y"])
        found.append(float(np.mean((line.predict(inside[["x", "z"]]) - inside["y"]) ** 2)))
    return found


@pytest.mark.parametrize("metric", ["rmse", "mse", "mae"])
def test_the_scores_are_those_of_models_without_each_site(metric):
    frame = sites()
    summary = fit_table(frame, "y", ["site"], model="linear", objective="erm", metric=metric).summary
    unseen = summary["new_environment"]
    (family,) = unseen["families"]
    assert unseen["metric"] == ("mse" if metric == "mse" else "rmse")  # of absolute errors nothing is measured there
    each = np.array(by_hand(frame)) if metric == "mse" else np.sqrt(by_hand(frame))
    assert [row["plain"] for row in family["environments"]] == pytest.approx(each, rel=1e-3)
    assert [row["name"] for row in family["environments"]] == ["s0", "s1", "s2"]
    assert unseen["expected"] == family["expected"] == family["plain_expected"]
    assert unseen["expected"]["mean"] == pytest.approx(each.mean(), rel=1e-3)
    words = {"mse": "mean squared error"}.get(metric, "root mean squared error")
    assert unseen["message"].startswith(f"In an environment that nobody has seen: {words} about ")
    assert " in s2; 90 % of new ones between " in unseen["message"]
    assert unseen["seconds"] > 0
    assert "worst environment" not in summary["headline"]  # the first number is that of a new environment


def test_two_sites_have_no_estimate_and_the_reason_is_said():
    summary = fit_table(sites(2), "y", ["site"], **QUICK).summary
    unseen = summary["new_environment"]
    assert unseen["expected"] is None and unseen["families"] == [] and unseen["seconds"] == 0
    assert "it takes 3 or more environments, to leave each out in turn, and 2 are given" in unseen["message"]
    assert "in the worst environment" in summary["headline"]


def test_other_reasons_for_no_estimate_are_said():
    frame = sites().assign(when=np.linspace(0, 1, 360))
    by_rule = fit_table(frame.drop(columns="when"), "y", ["site"], rule="iid", **QUICK).summary
    assert "rule 'iid' does not leave environments out" in by_rule["new_environment"]["message"]
    halves = frame.drop(columns="site").assign(when=np.repeat([0, 1], 180))
    inferred = fit_table(halves, "y", aux=["when"], **QUICK).summary
    assert "environments are inferred here, from fewer than three" in inferred["new_environment"]["message"]


def test_blocks_of_aux_and_the_order_of_time_are_said():
    frame = sites(4)
    inferred = fit_table(frame.assign(when=np.linspace(0, 1, 480)).drop(columns="site"), "y", aux=["when"], **QUICK)
    unseen = inferred.summary["new_environment"]
    assert unseen["left_out"] == "blocks of aux" and "(worst of 5 blocks of the first aux column: " in unseen["message"]
    summary = fit_table(frame, "y", ["site"], time_ordered=True, **QUICK).summary
    unseen = summary["new_environment"]
    assert [row["name"] for row in unseen["families"][0]["environments"]] == ["s2", "s3"]
    assert unseen["left_out"] == "in order"
    assert "(worst of 2 times, each predicted from what came before: " in unseen["message"]
    assert "on what came before each of these times" in page(model_content(summary))


def test_pooled_times_are_refused():
    frame = sites(4).iloc[: 3 * 120 + 5]
    with pytest.raises(ValueError, match="no place in the order of time"):
        fit_table(frame, "y", ["site"], time_ordered=True, **QUICK)


def test_every_kind_has_its_table_and_a_missing_class_is_named():
    frame = sites(3, 90)
    frame["y"] = np.where(frame["x"] + np.random.default_rng(704).normal(size=270) > 0, "high", "low")
    frame.loc[[180, 181, 182, 190, 191, 192, 200, 201, 202], "y"] = "other"
    summary = fit_table(frame, "y", ["site"], steps=100, rounds=20, penalty_weights=[100]).summary
    unseen = summary["new_environment"]
    assert [family["name"] for family in unseen["families"]] == ["linear", "mlp", "trees"]
    (taken,) = (family for family in unseen["families"] if family["taken"])
    assert summary["model"].startswith(taken["name"]) and unseen["expected"] == taken["expected"]
    assert all([row["missing"] for row in family["environments"]] == ["", "", "other"] for family in unseen["families"])
    assert "Classes that no other environment has: other (in s2)." in unseen["message"]
    worst = {family["name"]: family["expected"]["worst"] for family in unseen["families"]}
    assert all(value <= 81 / 90 for value in worst.values())
