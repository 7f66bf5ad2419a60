"""What stands where in the tables of a setting, and what is said under them."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from irmtv.lab.tables import paired_tests, summarise, tables, to_latex, to_markdown
from lab.tables.results import PUBLISHED, frame, random_results, rows, small, terminal

# --- what stands where ------------------------------------------------------------------------------------


def test_cells_of_a_small_table():
    (table,) = tables(summarise(small(), PUBLISHED))
    assert [(c.group, c.name) for c in table.columns] == [
        ("published", "mean"),
        ("published", "worst"),
        ("fixed", "mean"),
        ("fixed", "worst"),
        ("invariance", "mean"),
        ("invariance", "worst"),
        ("invariance", "outcome"),
        ("oracle (chosen on test)", "mean"),
        ("oracle (chosen on test)", "worst"),
    ]
    oracle = ["90.0 ± 0.0", "80.0 ± 0.0"]
    erm, ours = "71.0 ± 1.4 (-4.3 sd)", "61.0 ± 1.4 (+1.1 sd)"
    assert {row.label: [str(c) for c in row.cells] for row in table.rows} == {
        "ERM": ["76.2 ± 1.2", "58.8 ± 2.0", erm, ours, erm, ours, "1 ERM kept, 1 found", "–", "–"],
        "IRM": ["–", "–", "82.0 ± 2.8", "72.0 ± 2.8", "80.0 (n=1)", "70.0 (n=1)", "2 none", *oracle],
        "hrm": ["76.5 ± 1.4", "59.8 ± 2.7", *["not run"] * 4, "", *["not run"] * 2],
    }
    assert table.notes == ("IRM under invariance: lost (1 of 2)",)


def test_the_caption_explains_what_occurs_and_nothing_else():
    (table,) = tables(summarise(small(), PUBLISHED))
    assert table.caption == (
        "accuracy, in %, higher is better; mean and worst are over the test environments; "
        "± is the standard deviation over 1 to 2 repetitions.",
        "published: as printed there; (-0.4 sd) is the difference from it, in published standard deviations.",
        "fixed: settings stated beforehand, last step.",
        "invariance: lowest extrapolated risk among what passes a test of invariance on held-out rows (found); "
        "ERM where ERM itself passes (ERM kept) or nothing does (none).",
        "oracle (chosen on test): best in the worst test environment, chosen by looking at the test rows: a bound on "
        "`worst`, not a result to be had in practice.",
        "not run: published, but no method that was run here is declared to be it.",
        "–: no value. A cell with n=... has fewer repetitions than others.",
    )
    (plain,) = tables(summarise(frame(rows("ERM", [0.5]))))
    assert [line.split(":")[0] for line in plain.caption[1:]] == ["fixed", "–"]
    assert "one repetition, so there is no standard deviation" in plain.caption[0]


@pytest.mark.parametrize(
    ("counts", "short"),
    [
        (["invariant-found"] * 10, "10 found"),
        (["invariant-found"] * 7 + ["erm-invariant"] * 3, "3 ERM kept, 7 found"),
        (["none-found"] * 2, "2 none"),
        (["something new"] * 2, "2 something new"),
        ([None, None], ""),
    ],
)
def test_outcomes_in_short(counts, short):
    data = frame(rows("IRM", [0.5] * len(counts), rule="invariance", outcome=counts))
    (table,) = tables(summarise(data))
    assert str(table.rows[0].cells[-1]) == short


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([0.4, 0.5], "0.4500 ± 0.0707"),
        ([12.0, 14.0], "13.00 ± 1.41"),
        ([12345.0, 12347.0], "12346 ± 1"),
        ([1e-7, 3e-7], "2.00e-07 ± 1.41e-07"),
        ([2e7], "2.00e+07"),
        ([0.0], "0.000"),
        ([1.0, math.inf], "inf"),
    ],
)
def test_errors_have_four_digits(values, text):
    (table,) = tables(summarise(frame(rows("ERM", values, metric="mse"))))
    assert str(table.rows[0].cells[0]) == text
    assert table.caption[0].startswith("mse, lower is better;")


def test_a_difference_that_rounds_to_zero_has_no_minus():
    data = frame(rows("ERM", [0.587, 0.5888], published_key="erm"))
    (table,) = tables(summarise(data, PUBLISHED))
    assert str(table.rows[0].cells[1]) == "58.8 ± 0.1 (+0.0 sd)"


def test_a_block_of_tables_for_each_metric():
    data = pd.concat([small(metric=m, setting=s) for s in ("toy", "new") for m in ("accuracy", "population accuracy")])
    made = tables(summarise(data, PUBLISHED))
    assert [(t.metric, t.setting) for t in made] == [
        ("accuracy", "toy"),
        ("accuracy", "new"),
        ("population accuracy", "toy"),
        ("population accuracy", "new"),
    ]
    assert [t.columns[0].group for t in made] == ["published", "fixed", "fixed", "fixed"]
    assert [len(t.rows) for t in made] == [3, 2, 2, 2]


def test_a_filtered_summary_gives_a_smaller_table():
    summary = summarise(small(), PUBLISHED)
    (table,) = tables(summary[summary["rule"] == "oracle"])
    assert [row.label for row in table.rows] == ["IRM"]


def test_a_table_without_any_value():
    data = frame(*(rows(m, [math.nan, math.nan], note="diverged") for m in "ab"))
    summary, tests = summarise(data), paired_tests(data)
    (table,) = tables(summary)
    assert [str(row.cells[0]) for row in table.rows] == ["–", "–"]
    assert table.notes == ("fixed: diverged",)
    assert "| a | – |" in to_markdown(summary, tests)
    assert r"a & -- \\" in to_latex(summary)


def test_nothing_is_bold():
    summary = summarise(small(), PUBLISHED)
    assert "**" not in to_markdown(summary)
    assert "textbf" not in to_latex(summary)


# --- paired tests -----------------------------------------------------------------------------------------


def said(data, **more):
    """What stands under the table about the differences."""
    text = to_markdown(summarise(data), paired_tests(data, **more))
    return [line for line in text.split("Paired differences")[1].splitlines() if line.startswith("- ")]


def test_the_better_method_comes_first():
    # 10 pairs, all of one sign: p = 2 / 2^10 = 0.00195, times 3 for Holm's first
    lines = said(random_results(["a", "b", "c"], scale=1e-5))
    assert lines == [
        "- fixed, worst: b > a by 10.0 points (p = 0.006); c > a by 20.0 points (p = 0.006); "
        "c > b by 10.0 points (p = 0.006)"
    ]


def test_less_is_better_for_errors():
    lines = said(random_results(["a", "b"], metric="mse", scale=1e-6))
    assert lines == ["- fixed, worst: a < b by 0.1 (p = 0.002)"]


def test_very_small_p():
    (line,) = said(random_results(["a", "b"], repetitions=20))
    assert line.endswith("(p < 0.001)")


def test_no_difference():
    a, b = [0.5 + 0.01 * i * (-1) ** i for i in range(1, 11)], [0.5] * 10
    lines = said(frame(*(rows(m, v, rule=r) for r in ("fixed", "oracle") for m, v in (("a", a), ("b", b)))))
    nothing = "no difference significant at 5 % (Holm, 1 comparison of 10 pairs)"
    assert lines[0] == f"- fixed, worst: {nothing}"
    assert lines[-1] == f"- oracle (chosen on test), worst: {nothing}"


def test_where_nothing_can_be_significant_it_is_said():
    """36 comparisons of 10 pairs: 36 * 2 / 2^10 = 0.07, however large the differences."""
    lines = said(random_results([f"m{i}" for i in range(9)]))
    assert lines == [
        "- fixed, worst: no difference significant at 5 % (Holm, 36 comparisons of 10 pairs; "
        "with so few repetitions none can be: the smallest possible p is 0.07)"
    ]


def test_that_nothing_can_be_significant_is_said_once():
    """Three pairs: 0.25 at best. Rule c compares three methods, rule d nothing, rule e has pairs enough."""
    data = frame(
        *(rows(m, [0.1, 0.2, 0.4], rule=r) for r in ("fixed", "oracle") for m in "ab"),
        *(rows(m, [0.1, 0.2, 0.4], rule="c") for m in "abc"),
        *(rows(m, [math.nan] * 3, rule="d") for m in "ab"),
        *(rows(m, [x + 0.01 * i for i in range(8)], rule="e") for m, x in (("a", 0.5), ("b", 0.4))),
    )
    assert said(data) == [
        "- d, worst: nothing to compare",
        "- e, worst: a > b by 10.0 points (p = 0.008)",
        "- fixed, oracle (chosen on test), c, worst: no difference significant at 5 % (Holm, 1 to 3 comparisons "
        "of 3 pairs; with so few repetitions none can be: the smallest possible p is 0.25)",
    ]
    lines = terminal(summarise(data), 300, paired_tests(data))
    assert sum("none can be" in line for line in lines) == 1


def test_many_repetitions():
    values = np.random.default_rng(0).normal(size=(2, 1500))
    (line,) = said(frame(rows("a", values[0]), rows("b", values[1])))
    assert line == "- fixed, worst: no difference significant at 5 % (Holm, 1 comparison of 1500 pairs)"


def test_a_difference_of_zero_in_the_median():
    data = frame(rows("a", [0.5] * 8 + [0.6, 0.61, 0.62, 0.63, 0.64, 0.65, 0.66]), rows("b", [0.5] * 15))
    assert said(data) == ["- fixed, worst: a and b differ, by 0 in the median (p = 0.016)"]


def test_nothing_to_compare():
    data = frame(rows("a", [0.5, 0.6]), rows("b", [math.nan, math.nan]))
    assert said(data) == ["- fixed, worst: nothing to compare"]


def test_terminal_shows_the_tests():
    data = random_results(["a", "b"])
    lines = terminal(summarise(data), 100, paired_tests(data))
    assert "  fixed, worst: b > a by 10.0 points (p = 0.002)" in lines
