"""`irmtv fit`: what to expect in an environment that nobody has seen, or why nothing is known of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score, roc_auc_score, root_mean_squared_error

from irmtv.app.fit import fit_table
from irmtv.app.pages.model import model_content
from irmtv.core.numbers import MetricFormat
from irmtv.html.page import page

QUICK = {"model": "linear", "penalty_weights": [100]}


def sites(n_sites: int = 3, n: int = 120) -> pd.DataFrame:
    """y is a line in x, with a noise that differs from site to site."""
    rng = np.random.default_rng(703)
    site = np.repeat(np.arange(n_sites), n)
    x = rng.normal(size=n_sites * n)
    y = 50 + 20 * x + (3 + site) * rng.normal(size=len(x))
    return pd.DataFrame({"x": x, "z": rng.normal(size=len(x)), "y": y, "site": [f"s{s}" for s in site]})


def by_hand(frame: pd.DataFrame, metric: Callable[[Any, Any], float]) -> Any:
    found = []
    for site in sorted(set(frame["site"])):
        inside, outside = frame[frame["site"] == site], frame[frame["site"] != site]
        line = LinearRegression().fit(outside[["x", "z"]], outside["y"])
        found.append(metric(inside["y"], line.predict(inside[["x", "z"]])))
    return np.array(found)


PEERS = {"rmse": root_mean_squared_error, "mse": mean_squared_error, "mae": mean_absolute_error, "r2": r2_score}


@pytest.mark.parametrize("metric", PEERS)
def test_the_scores_are_those_of_models_without_each_site(metric):
    frame = sites()
    summary = fit_table(frame, "y", ["site"], model="linear", objective="erm", metric=metric).summary
    unseen = summary["new_environment"]
    (family,) = unseen["families"]
    assert unseen["metric"] == metric
    each = by_hand(frame, PEERS[metric])
    assert [row["plain"] for row in family["environments"]] == pytest.approx(each, rel=1e-3)
    assert [row["name"] for row in family["environments"]] == ["s0", "s1", "s2"]
    assert unseen["expected"] == family["expected"] == family["plain_expected"]
    assert unseen["expected"]["mean"] == pytest.approx(each.mean(), rel=1e-3)
    words = MetricFormat(metric).words
    said = summary["answer"]["expect"]
    article = "an" if metric == "r2" else "a"
    assert (
        said.startswith(f"In a new environment expect {article} {words} of about ") and "; the worst (s2) had " in said
    )
    assert unseen["seconds"] > 0


@pytest.mark.parametrize("model", ["linear", "mlp", "trees"])
def test_a_metric_that_needs_outputs_is_had_of_every_kind_of_model(model):
    """The area under the curve in a site of models without it; a site of one class has none, and does not count."""
    frame = sites(4).assign(y=lambda f: np.where(f["y"] > 50, "high", "low"))
    frame.loc[frame["site"] == "s3", "y"] = "low"
    answer = fit_table(frame, "y", ["site"], model=model, objective="erm", metric="roc_auc", steps=200, rounds=20)
    unseen = answer.summary["new_environment"]
    (family,) = unseen["families"]
    values = [row["plain"] for row in family["environments"]]
    assert unseen["metric"] == "roc_auc" and values[3] is None
    assert unseen["expected"]["mean"] == pytest.approx(np.mean(values[:3]))
    if model == "linear":
        for site, value in zip(["s0", "s1", "s2"], values[:3], strict=True):
            inside, outside = frame[frame["site"] == site], frame[frame["site"] != site]
            line = LogisticRegression(C=1e6).fit(outside[["x", "z"]], outside["y"])
            peer = roc_auc_score(inside["y"] == "low", line.decision_function(inside[["x", "z"]]))
            assert value == pytest.approx(peer, abs=0.01)
    assert answer.summary["environments"][3]["erm"] == {"value": None, "low": None, "high": None}
    assert page(model_content(answer.summary))


def test_two_sites_have_no_estimate_and_the_reason_is_said():
    summary = fit_table(sites(2), "y", ["site"], **QUICK).summary
    unseen = summary["new_environment"]
    assert unseen["expected"] is None and unseen["families"] == [] and unseen["seconds"] == 0
    assert "it takes 3 or more environments, to leave each out in turn, and 2 are given" in unseen["message"]
    assert "and 2 are given. In the known environments root mean" in summary["answer"]["expect"]


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
    assert unseen["left_out"] == "blocks of aux"
    assert (
        "Models were trained without each of 5 blocks of when; the worst had " in inferred.summary["answer"]["expect"]
    )
    summary = fit_table(frame, "y", ["site"], time_ordered=True, **QUICK).summary
    unseen = summary["new_environment"]
    assert [row["name"] for row in unseen["families"][0]["environments"]] == ["s2", "s3"]
    assert unseen["left_out"] == "in order"
    assert "Each of 2 times was predicted by models of what came before it; the worst" in summary["answer"]["expect"]
    assert "on what came before each of these times" in page(model_content(summary))


def test_months_are_times_unless_it_is_denied():
    """In the sentence, the table, the page and a note."""
    frame = sites(5, 60)
    months = dict(zip(sorted(set(frame["site"])), ["2011-8", "2011-9", "2011-10", "2011-11", "2011-12"], strict=True))
    frame = frame.assign(month=frame["site"].map(months)).drop(columns="site")
    summary = fit_table(frame, "y", ["month"], **QUICK).summary
    unseen = summary["new_environment"]
    assert [row["name"] for row in unseen["families"][0]["environments"]] == ["2011-10", "2011-11", "2011-12"]
    assert unseen["left_out"] == "in order"
    before = "Each of 3 times was predicted by models of what came before it; the worst (2011-12) had "
    assert before in summary["answer"]["expect"]  # where the noise is largest
    (note,) = (note for note in summary["data"]["notes"] if "read as times" in note)
    assert note.startswith("'month' is read as times, in their order; --no-time-ordered")
    text = page(model_content(summary))
    assert "times, each predicted from what came before" in text
    denied = fit_table(frame, "y", ["month"], time_ordered=False, **QUICK).summary
    assert denied["new_environment"]["left_out"] == "environments"
    assert "trained without each of the 5 environments" in denied["answer"]["expect"]
    assert not any("read as times" in note for note in denied["data"]["notes"])
    said = fit_table(frame, "y", ["month"], time_ordered=True, **QUICK).summary
    assert said["new_environment"]["expected"] == unseen["expected"]
    assert not any("read as times" in note for note in said["data"]["notes"]), "they said so themselves"


def test_a_column_of_dates_and_groups_of_them():
    frame = sites(14, 30).assign(day=np.repeat(pd.date_range("2020-12-25", periods=14), 30)).drop(columns="site")
    summary = fit_table(frame, "y", ["day"], **QUICK).summary
    unseen = summary["new_environment"]
    names = [row["name"] for row in unseen["families"][0]["environments"]]
    assert len(names) == 10 and names[0] == "2020-12-27 to 2020-12-28" and names[-1] == "2021-01-07"
    assert (
        "Each of 10 groups (12 times in all) was predicted by models of what came before it"
        in summary["answer"]["expect"]
    )


def test_a_class_that_did_not_come_before_is_named():
    frame = sites(5, 60)
    frame["y"] = np.where(frame["x"] + np.random.default_rng(706).normal(size=300) > 0, "high", "low")
    frame.loc[240::4, "y"] = "new"  # of the last year
    frame["site"] = frame["site"].map({f"s{k}": 2010 + k for k in range(5)})
    said = fit_table(frame, "y", ["site"], **QUICK).summary["answer"]["expect"]
    assert said.endswith(" Rows of a class that did not come before are always predicted wrong there: new (in 2014).")
    few = fit_table(frame[frame["site"] > 2010], "y", ["site"], **QUICK).summary["new_environment"]
    assert few["left_out"] == "environments", "an interval from two predictions says nothing"


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
    assert summary["answer"]["expect"].endswith(
        " Rows of a class that no other environment has are always predicted wrong there: other (in s2)."
    )
    worst = {family["name"]: family["expected"]["worst"] for family in unseen["families"]}
    assert all(value <= 81 / 90 for value in worst.values())
