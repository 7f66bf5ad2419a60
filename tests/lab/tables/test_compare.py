"""Summaries against loops and enumeration, published tables of every shape."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pandas as pd
import pytest

from irmtv.lab.tables import paired_tests, summarise
from lab.tables.results import frame, only, rows
from paths import REPOSITORY

PAPER = json.loads((REPOSITORY / "papers/irm_tv/published.json").read_text())
PV = "ps=(0.999,0.7),pv=0.9"


# --- over repetitions -------------------------------------------------------------------------------------


def test_mean_and_deviation_over_repetitions():
    row = only(summarise(frame(rows("erm", [0.5, 0.6, 0.7]))))
    assert row["n"] == 3
    assert row["missing"] == 0
    assert row["mean"] == pytest.approx(0.6)
    assert row["sd"] == pytest.approx(0.1)  # ddof=1


def test_interval_is_that_of_a_loop_over_the_same_draws():
    values = np.random.default_rng(1).normal(size=7)
    row = only(summarise(frame(rows("erm", values)), n_bootstrap=400, random_state=5))
    seed = int(np.random.default_rng(5).integers(2**63))
    drawn = np.random.default_rng(seed).integers(7, size=(400, 7))
    means = sorted(sum(values[i] for i in draw) / 7 for draw in drawn)

    def percentile(share):
        below = math.floor(share * 399)
        return means[below] + (share * 399 - below) * (means[below + 1] - means[below])

    assert row["low"] == pytest.approx(percentile(0.025), rel=1e-12)
    assert row["high"] == pytest.approx(percentile(0.975), rel=1e-12)


def test_interval_nears_that_of_all_resamples():
    values = [0.0, 1.0, 3.0, 7.0]
    every = [np.mean(draw) for draw in itertools.product(values, repeat=4)]  # 256, equally likely
    row = only(summarise(frame(rows("erm", values)), n_bootstrap=50_000))
    assert row["low"] == pytest.approx(np.quantile(every, 0.025, method="inverted_cdf"), abs=0.26)
    assert row["high"] == pytest.approx(np.quantile(every, 0.975, method="inverted_cdf"), abs=0.26)


def test_a_cell_has_the_same_interval_alone_and_among_others():
    one = rows("erm", [0.1, 0.5, 0.2, 0.9])
    alone = only(summarise(frame(one)))
    among = summarise(frame(rows("vrex", [0.3, 0.4]), rows("irm", [0.3, 0.4, 0.6, 0.1]), one))
    assert tuple(among.loc[among["method"] == "erm", ["low", "high"]].iloc[0]) == (alone["low"], alone["high"])


def test_the_random_state_decides():
    data = frame(rows("erm", [0.1, 0.5, 0.2, 0.9]))
    pd.testing.assert_frame_equal(summarise(data, random_state=3), summarise(data, random_state=3))
    assert only(summarise(data, n_bootstrap=50, random_state=3))["low"] != only(summarise(data, n_bootstrap=50))["low"]


def test_one_repetition_has_neither_deviation_nor_interval():
    row = only(summarise(frame(rows("erm", [0.5]))))
    assert row["mean"] == 0.5
    assert np.isnan([row["sd"], row["low"], row["high"]]).all()


def test_missing_values_are_left_out_counted_and_explained():
    data = frame(
        rows("erm", [0.5, 0.7, 0.6, 0.8]),
        rows("irm", [0.5, math.nan, math.nan, 0.7], note=[None, "diverged at step 3", "diverged at step 3", None]),
        rows("vrex", [math.nan] * 4, note="cannot apply"),
        rows("short", [0.5, 0.6]),  # rows absent altogether
    )
    table = summarise(data).set_index("method")
    assert list(table["n"]) == [4, 2, 0, 2]
    assert list(table["missing"]) == [0, 2, 4, 2]
    assert list(table["note"]) == ["", "diverged at step 3 (2 of 4)", "cannot apply", ""]
    assert table.loc["irm", "mean"] == pytest.approx(0.6)
    assert math.isnan(table.loc["vrex", "mean"])


def test_an_infinite_value_is_not_hidden():
    row = only(summarise(frame(rows("erm", [0.5, math.inf], metric="mse"))))
    assert row["n"] == 2
    assert row["mean"] == math.inf
    assert math.isnan(row["sd"])


def test_outcomes_are_counted():
    outcome = ["erm-invariant", "invariant-found", "invariant-found", None]
    row = only(summarise(frame(rows("irm", [0.1, 0.2, 0.3, 0.4], rule="invariance", outcome=outcome))))
    assert row["outcomes"] == "erm-invariant=1; invariant-found=2"


def test_order_is_that_of_first_appearance():
    data = frame(
        rows("b", [0.1], setting="z", rule="oracle"),
        rows("a", [0.1], setting="y", rule="iid"),
        rows("a", [0.1], setting="z", rule="oracle"),
        rows("b", [0.1], setting="y", rule="oracle"),
    )
    table = summarise(data)
    cells = list(zip(table["setting"], table["method"], table["rule"], strict=True))
    assert cells == [("z", "b", "oracle"), ("z", "a", "oracle"), ("y", "b", "oracle"), ("y", "a", "iid")]


def test_rows_in_any_order_give_the_same_numbers():
    data = frame(rows("a", [0.1, 0.4, 0.3]), rows("b", [0.2, 0.5, 0.9]))
    shuffled = data.sort_values(["repetition", "method"], kind="stable")
    pd.testing.assert_frame_equal(summarise(data), summarise(shuffled))


# --- published --------------------------------------------------------------------------------------------


def test_difference_in_published_deviations_in_the_same_unit():
    published = {"metric": "accuracy_percent", "results": {"k": {"toy": {"worst": {"value": 60.0, "std": 2.0}}}}}
    row = only(summarise(frame(rows("ERM", [0.55, 0.57], published_key="k")), published))
    assert row["published_mean"] == pytest.approx(0.6)
    assert row["published_sd"] == pytest.approx(0.02)
    assert row["difference_in_sd"] == pytest.approx(-2.0)
    bare = only(summarise(frame(rows("ERM", [0.55, 0.57], published_key="k")), published["results"]))
    assert bare["difference_in_sd"] == pytest.approx(-2.0)


def test_only_the_published_metric_is_compared():
    names = ("population accuracy", "accuracy")
    data = frame(*(rows("ERM", [0.5, 0.6], metric=m, setting=PV, published_key="erm") for m in names))
    for published in (PAPER["simulation"], PAPER["simulation"]["results"]):
        table = summarise(data, published)
        run = table[table["method"] == "ERM"].set_index("metric")
        assert math.isnan(run.loc["population accuracy", "published_mean"])
        assert run.loc["accuracy", "published_mean"] == pytest.approx(0.5881)
        assert set(table.loc[table["rule"] == "not run", "metric"]) == {"accuracy"}


def test_published_but_not_run():
    table = summarise(frame(rows("ERM", [0.5, 0.6], setting=PV, published_key="erm")), PAPER["simulation"])
    rest = table[table["rule"] == "not run"]
    assert list(rest["method"]) == [k for k in PAPER["simulation"]["results"] if k != "erm"]
    assert (rest["n"] == 0).all()
    assert rest["mean"].isna().all()
    assert rest.set_index("method").loc["irm-tv-l1", "published_mean"] == pytest.approx(0.864)


def test_a_method_run_in_one_setting_only_is_not_run_in_the_other():
    published = {k: {s: {"worst": 50.0} for s in "ab"} for k in ("erm", "irm")}
    data = frame(
        rows("ERM", [0.5], setting="a", published_key="erm"),
        rows("IRM", [0.5], setting="a", published_key="irm"),
        rows("ERM", [0.5], setting="b", published_key="erm"),
    )
    table = summarise(data, published)
    assert list(zip(table["setting"], table["method"], table["rule"], strict=True)) == [
        ("a", "ERM", "fixed"),
        ("a", "IRM", "fixed"),
        ("b", "ERM", "fixed"),
        ("b", "IRM", "not run"),
    ]


def test_a_method_that_is_not_declared_to_be_the_published_one_is_not_compared():
    table = summarise(frame(rows("erm", [0.5], published_key=None)), {"erm": {"toy": {"worst": 50.0}}})
    assert list(table["method"]) == ["erm", "erm (published)"]
    assert math.isnan(table["published_mean"][0])


@pytest.mark.parametrize("key", ["nowhere", None])
def test_unknown_published_key(key):
    data = frame(rows("mine", [0.5, 0.6], setting=PV, published_key=key))
    row = summarise(data, PAPER["simulation"]).iloc[0]
    assert np.isnan([row["published_mean"], row["published_sd"], row["difference_in_sd"]]).all()


@pytest.mark.parametrize(
    ("table", "metric", "mean", "worst"),
    [
        ("house_prices", "mse", (0.4409, 0.0435), (0.6206, 0.0641)),
        ("celeba", "accuracy", (0.6399, 0.1416), (0.6205, 0.1416)),
        ("landcover", "accuracy", (0.6154, 0.0092), (0.6080, 0.0077)),
    ],
)
def test_tables_without_settings(table, metric, mean, worst):
    data = frame(*(rows("ERM", [0.5, 0.6], metric=metric, summary=s, published_key="erm") for s in ("mean", "worst")))
    run = summarise(data, PAPER[table]).query("method == 'ERM'").set_index("summary")
    assert tuple(run.loc["mean", ["published_mean", "published_sd"]]) == pytest.approx(mean)
    assert tuple(run.loc["worst", ["published_mean", "published_sd"]]) == pytest.approx(worst)


@pytest.mark.parametrize("table", sorted(PAPER))
def test_every_table_of_the_paper_can_be_read(table):
    data = frame(
        *(
            rows("l1", [0.5, 0.6], metric=m, summary=s, published_key="irm-tv-l1")
            for m in ("accuracy", "mse")
            for s in ("mean", "worst")
        )
    )
    compared = summarise(data, PAPER[table])["published_mean"].notna().any()
    assert compared == (table in ("house_prices", "celeba", "landcover", "adult"))  # those without settings


def test_a_table_without_settings_says_nothing_about_two():
    data = frame(*(rows("ERM", [0.5], setting=s, published_key="erm") for s in "ab"))
    assert summarise(data, PAPER["celeba"])["published_mean"].isna().all()


@pytest.mark.parametrize("entry", [70.0, {"value": 70.0}, {"value": 70.0, "std": None}, {"value": 70.0, "std": 0.0}])
def test_without_a_published_deviation_there_is_no_distance(entry):
    row = only(summarise(frame(rows("ERM", [0.5, 0.6], published_key="k")), {"k": {"toy": {"worst": entry}}}))
    assert row["published_mean"] == pytest.approx(0.7)
    assert math.isnan(row["difference_in_sd"])


# --- limits -----------------------------------------------------------------------------------------------


def limited(limits, metric="accuracy"):
    names = [(m, s) for m in ("accuracy", "mse") for s in ("mean", "worst")]
    data = frame(*(rows("ERM", [0.5, 0.6], setting=p, metric=m, summary=s) for p in "ab" for m, s in names))
    return summarise(data, limits=limits, limits_metric=metric)


def test_limits_belong_to_the_worst_value_of_one_metric():
    table = limited({"b": 0.9})
    known = table[table["limit"].notna()]
    assert known[["setting", "metric", "summary", "limit"]].to_numpy().tolist() == [["b", "accuracy", "worst", 0.9]]
    pd.testing.assert_frame_equal(table.drop(columns="limit"), limited(None, None).drop(columns="limit"))


@pytest.mark.parametrize(
    ("limits", "metric", "message"),
    [
        ({"a": 0.9}, None, "limits and limits_metric belong together. Got only limits."),
        (None, "accuracy", "limits and limits_metric belong together. Got only limits_metric."),
        ({"a": 0.9}, "acuracy", "limits_metric must be a metric .* Did you mean 'accuracy'"),
        ({"aa": 0.9}, "accuracy", "every label of limits must be a setting of the results: 'a', 'b'. Got 'aa'."),
        ({"a": math.nan}, "accuracy", "limits must be finite. Got nan for 'a'."),
    ],
)
def test_limits_that_do_not_fit_are_refused(limits, metric, message):
    with pytest.raises(ValueError, match=message):
        limited(limits, metric)


# --- errors -----------------------------------------------------------------------------------------------


def test_a_missing_column_is_named():
    with pytest.raises(ValueError, match=r"Got no 'method'\. Did you mean 'methods'\?"):
        summarise(frame(rows("erm", [0.5])).rename(columns={"method": "methods"}))


def test_duplicates_are_refused():
    data = frame(rows("erm", [0.5]), rows("erm", [0.6]))
    with pytest.raises(ValueError, match=r"Got 1 more, the first for .*'erm'.*Drop the duplicates"):
        summarise(data)


def test_empty_results_are_refused():
    with pytest.raises(ValueError, match="at least one row"):
        summarise(frame(rows("erm", [0.5])).iloc[:0])


def test_a_row_without_a_label_is_refused():
    data = frame(rows("erm", [0.5]), rows(None, [0.6]))
    with pytest.raises(ValueError, match=r"every row needs a method\. Got 1 without one"):
        paired_tests(data)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reference": "emr"}, r"reference must be a method of the results: 'erm'\. Got 'emr'\. Did you mean 'erm'\?"),
        ({"metric": "mse"}, r"metric must be a metric of the results: 'accuracy'\. Got 'mse'\."),
        ({"summary": "best"}, r"summary must be a summary of the results: 'worst'\. Got 'best'\."),
    ],
)
def test_unknown_names_are_answered(arguments, message):
    with pytest.raises(ValueError, match=message):
        paired_tests(frame(rows("erm", [0.5])), **arguments)


def test_no_bootstrap_is_refused():
    with pytest.raises(ValueError, match="n_bootstrap must be a positive integer"):
        summarise(frame(rows("erm", [0.5])), n_bootstrap=0)
