"""Summaries against loops and enumeration, published tables of every shape, paired tests against all signs."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from irmtv.report import holm, paired_tests, summarise

PAPER = json.loads((Path(__file__).parents[2] / "papers/irm_tv/published.json").read_text())
PV = "ps=(0.999,0.7),pv=0.9"


def rows(method, values, *, setting="toy", rule="fixed", metric="accuracy", summary="worst", **more):
    """One row per repetition."""
    cell = {"setting": setting, "method": method, "rule": rule, "metric": metric, "summary": summary}
    columns = {k: v if isinstance(v, list) else [v] * len(values) for k, v in more.items()}
    return [cell | {"repetition": i, "value": v} | {k: c[i] for k, c in columns.items()} for i, v in enumerate(values)]


def frame(*parts):
    return pd.DataFrame(list(itertools.chain(*parts)))


def only(table):
    assert len(table) == 1
    return table.iloc[0]


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


# --- paired tests -----------------------------------------------------------------------------------------


def p_by_enumeration(difference):
    """Two-sided p of the signed-rank test: all sign patterns of the non-zero differences."""
    d = np.array([x for x in difference if x != 0])
    ranks = stats.rankdata(np.abs(d))
    sums = np.array([np.dot(ranks, signs) for signs in itertools.product((0, 1), repeat=len(d))])
    observed = ranks[d > 0].sum()
    tail = min(np.mean(sums <= observed + 1e-9), np.mean(sums >= observed - 1e-9))
    return min(1.0, 2 * tail)


def compare(a, b, **more):
    return only(paired_tests(frame(rows("a", a), rows("b", b)), **more))


@pytest.mark.parametrize("n", [5, 6, 7, 8])
@pytest.mark.parametrize("seed", range(5))
def test_signed_rank_p_by_enumeration(n, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0.5, 1, n), rng.normal(size=n)
    row = compare(a, b)
    assert row["n"] == n
    assert row["p"] == pytest.approx(p_by_enumeration(a - b), rel=1e-12)
    assert row["median_difference"] == pytest.approx(np.median(a - b), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-3, 4), min_size=5, max_size=9).filter(any))
def test_signed_rank_p_with_ties_and_zeros_by_enumeration(steps):
    """Accuracies are counts over a test set, so their differences tie; 0.7 + k/100 does not do so exactly."""
    a = [0.7 + step / 100 for step in steps]
    assert compare(a, [0.7] * len(a))["p"] == pytest.approx(p_by_enumeration(steps), rel=1e-12)


def test_ties_are_seen_through_rounding():
    a, b = [0.9, 0.8, 0.7, 0.6, 0.5, 0.3], [0.8, 0.7, 0.6, 0.5, 0.4, 0.4]
    assert len({abs(x - y) for x, y in zip(a, b, strict=True)}) > 1  # as floats they differ
    assert compare(a, b)["p"] == pytest.approx(p_by_enumeration([1, 1, 1, 1, 1, -1]))


def test_many_pairs_as_scipy_has_it():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.3, 1, 60), rng.normal(size=60)
    assert compare(a, b)["p"] == pytest.approx(stats.wilcoxon(a, b).pvalue)


def test_equal_methods():
    row = compare([0.5] * 8, [0.5] * 8)
    assert (row["p"], row["p_holm"], row["median_difference"]) == (1.0, 1.0, 0.0)
    assert row["note"] == "all differences are zero"


@pytest.mark.parametrize(
    ("n", "note"),
    [
        (1, "the smallest possible two-sided p with 1 pair is 1"),
        (5, "the smallest possible two-sided p with 5 pairs is 0.0625"),
        (6, ""),
    ],
)
def test_few_pairs_are_said(n, note):
    row = compare([1.0 + 0.1 * i for i in range(n)], [0.0] * n)
    assert row["note"] == note
    assert row["p"] == pytest.approx(2 / 2**n)  # all of one sign: as small as it can be


def test_zero_differences_do_not_count_as_pairs_of_the_test():
    row = compare([1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0], [0.0] * 7)
    assert row["n"] == 7
    assert row["p"] == pytest.approx(0.25)
    assert row["note"] == "the smallest possible two-sided p with 3 pairs that differ is 0.25"


def test_incomplete_pairs_are_dropped_and_counted():
    a, b = [0.9, math.nan, 0.7, 0.8, 0.9, 0.5, 0.65, 0.4], [0.1, 0.2, math.nan, 0.3, 0.45, 0.35, 0.4, 0.1]
    row = compare(a, b)
    assert (row["n"], row["dropped"]) == (6, 2)
    whole = [i for i in range(8) if not math.isnan(a[i] + b[i])]
    assert row["p"] == compare([a[i] for i in whole], [b[i] for i in whole])["p"]


def test_pairs_are_matched_by_repetition_not_by_place():
    rng = np.random.default_rng(2)
    data = frame(rows("a", rng.normal(size=7)), rows("b", rng.normal(size=7)))
    pd.testing.assert_frame_equal(paired_tests(data), paired_tests(pd.concat([data[:7], data[7:][::-1]])))


def test_no_complete_pair():
    row = compare([0.5, math.nan], [math.nan, 0.5])
    assert row["n"] == 0
    assert math.isnan(row["p"]) and math.isnan(row["p_holm"])
    assert row["note"] == "no complete pairs"


def test_an_infinite_loss_is_ranked_last():
    row = compare([math.inf, 1.0, 2.0, 3.0, 4.0, math.inf], [0.0, 0.5, 0.4, 0.3, 0.2, math.inf])
    assert row["n"] == 6
    assert row["p"] == pytest.approx(2 / 2**5)  # inf against inf is no difference


def three_methods():
    rng = np.random.default_rng(3)
    parts = [
        rows(m, rng.normal(i, 1, 8), setting=s, rule=r, metric=q)
        for s in ("s", "t")
        for i, m in enumerate("abc")
        for r in ("fixed", "iid")
        for q in ("accuracy", "population accuracy")
    ]
    return frame(*parts)


def test_all_pairs_in_each_family_and_holm_inside_it():
    table = paired_tests(three_methods())
    assert len(table) == 2 * 2 * 2 * 3
    for _, family in table.groupby(["setting", "rule", "metric"]):
        assert list(zip(family["method"], family["other"], strict=True)) == [("a", "b"), ("a", "c"), ("b", "c")]
        np.testing.assert_array_equal(family["p_holm"], holm(family["p"]))
    assert (table["p_holm"] > table["p"]).any()


def test_against_a_reference():
    table = paired_tests(three_methods(), reference="b", metric="accuracy")
    assert set(table["metric"]) == {"accuracy"}
    assert list(zip(table["method"], table["other"], strict=True))[:2] == [("a", "b"), ("c", "b")]
    assert len(table) == 2 * 2 * 2


def test_a_single_method_has_no_tests_but_all_columns():
    table = paired_tests(frame(rows("a", [0.5, 0.6])))
    assert table.empty
    assert {"setting", "rule", "method", "other", "n", "median_difference", "p", "p_holm", "note"} <= set(table)


# --- Holm -------------------------------------------------------------------------------------------------


def holm_by_definition(p):
    """The smallest level at which the step-down procedure rejects each hypothesis."""
    m = len(p)
    ordered = sorted(p)
    result = []
    for own in p:
        place = ordered.index(own)
        result.append(min(1.0, max((m - j) * ordered[j] for j in range(place + 1))))
    return result


def test_holm_by_hand():
    # ordered 0.005, 0.01, 0.03, 0.04, times 4, 3, 2, 1: 0.02, 0.03, 0.06, 0.04 -> 0.06
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02], rtol=1e-12)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_by_definition(p):
    np.testing.assert_allclose(holm(p), holm_by_definition(p), rtol=1e-12)


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=8), st.floats(0.001, 0.999))
def test_holm_rejects_what_the_step_down_procedure_rejects(p, level):
    rejected = set()
    for step, i in enumerate(np.argsort(p, kind="stable")):
        if p[i] * (len(p) - step) > level:
            break
        rejected.add(int(i))
    assert rejected == set(np.flatnonzero(holm(p) <= level).tolist())


def test_holm_does_not_count_what_was_not_tested():
    np.testing.assert_array_equal(holm([0.01, math.nan, 0.2]), [0.02, math.nan, 0.2])
    assert holm([]).shape == (0,)


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
