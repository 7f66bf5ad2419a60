"""The tables over settings: exact texts of a small example, averages against numpy, gaps, limits, long captions."""

from __future__ import annotations

import math
import re

import numpy as np
import pandas as pd
import pytest

from irmtv.lab.tables import overview, paired_tests, summarise, to_latex, to_markdown, write_all
from lab.tables.results import ODD, frame, rows, terminal

PUBLISHED = {
    "erm": {"a": {"worst": {"value": 60.0, "std": 1.0}}, "b": {"worst": {"value": 50.0, "std": 2.0}}},
    "hrm": {"a": {"worst": 59.8}, "b": {"worst": 49.8}},
}
LIMITS = {"limits": {"a": 0.9, "b": 0.8}, "limits_metric": "accuracy"}


def small(**more):
    """One method, two settings, two rules."""
    return frame(
        rows("ERM", [0.5, 0.6], setting="a", published_key="erm", **more),
        rows("ERM", [0.7, 0.8], setting="a", rule="oracle", published_key="erm", **more),
        rows("ERM", [0.4, 0.6], setting="b", published_key="erm", **more),
        rows("ERM", [0.8, 0.8], setting="b", rule="oracle", published_key="erm", **more),
    )


def many(methods=6, settings=3, rules=("fixed", "iid", "oracle"), summaries=("mean", "worst"), holes=0.0, seed=0):
    """Results, and their values by summary: methods, settings, rules, repetitions."""
    rng = np.random.default_rng(seed)
    values = {s: rng.uniform(0.3, 0.9, (methods, settings, len(rules), 4)) for s in summaries}
    for of_summary in values.values():
        of_summary[rng.random((methods, settings, len(rules))) < holes] = np.nan
    cells = [
        rows(f"m{m}", of_summary[m, p, r], setting=f"p{p}", rule=rule, summary=s)
        for p in range(settings)
        for m in range(methods)
        for r, rule in enumerate(rules)
        for s, of_summary in values.items()
    ]
    return frame(*cells), values


def texts(table):
    return {row.label: [str(cell) for cell in row.cells] for row in table.rows}


def heads(table):
    return [column.name for column in table.columns]


# --- a small example --------------------------------------------------------------------------------------


def test_markdown_of_a_small_example():
    text = to_markdown(summarise(small(), PUBLISHED, **LIMITS))
    start = text.index("- average")
    assert text[start : text.index("### a\n")] == (
        "- average: unweighted mean over the settings that have a value under every rule that has one at all.\n"
        "- limit: best value that can be reached in the worst test environment.\n"
        "- –: no value. A cell with n=... has fewer repetitions than others.\n"
        "\n"
        "### all settings\n"
        "\n"
        "#### ERM by setting, worst\n"
        "\n"
        "| setting | published | fixed | oracle (chosen on test) | limit |\n"
        "| --- | ---: | ---: | ---: | ---: |\n"
        "| a | 60.0 ± 1.0 | 55.0 ± 7.1 | 75.0 ± 7.1 | 90.0 |\n"
        "| b | 50.0 ± 2.0 | 50.0 ± 14.1 | 80.0 ± 0.0 | 80.0 |\n"
        "| average (2 settings) | 55.0 | 52.5 | 77.5 | 85.0 |\n"
        "\n"
        "- average distance from the limit, in points: fixed 32.5, oracle 7.5\n"
        "\n"
    )


def test_terminal_of_a_small_example():
    summary = summarise(small(), PUBLISHED, **LIMITS)
    assert terminal(summary, 100)[:11] == [
        "ERM by setting, worst: accuracy",
        "                                                  oracle",
        "setting                published    fixed         (chosen on test)   limit",
        "──────────────────────────────────────────────────────────────────────────",
        "a                      60.0 ± 1.0   55.0 ± 7.1    75.0 ± 7.1         90.0",
        "b                      50.0 ± 2.0   50.0 ± 14.1   80.0 ± 0.0         80.0",
        "average (2 settings)   55.0         52.5          77.5               85.0",
        "",
        "  average distance from the limit, in points: fixed 32.5, oracle 7.5",
        "",
        "a: accuracy",
    ]
    plain = terminal(summary[summary["rule"] == "fixed"], 100)
    assert plain[1] == "setting                published    fixed         limit"  # one line where one is enough


def test_latex_of_a_small_example():
    parts = to_latex(summarise(small(), PUBLISHED, **LIMITS), "my name").split("\n\n")
    over, a, b = [part.splitlines() for part in parts[1:]]
    assert over[2].startswith(r"\caption{ERM by setting, worst. accuracy, in \%, higher is better;")
    assert over[2].endswith(r"average distance from the limit, in points: fixed 32.5, oracle 7.5}")
    assert over[3:] == [
        r"\label{tab:my-name-accuracy-1}",
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r"setting & published & fixed & oracle (chosen on test) & limit \\",
        r"\midrule",
        r"a & $60.0 \pm 1.0$ & $55.0 \pm 7.1$ & $75.0 \pm 7.1$ & $90.0$ \\",
        r"b & $50.0 \pm 2.0$ & $50.0 \pm 14.1$ & $80.0 \pm 0.0$ & $80.0$ \\",
        r"average (2 settings) & $55.0$ & $52.5$ & $77.5$ & $85.0$ \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    assert a[2:4] == [
        r"\caption{a: accuracy. As table \ref{tab:my-name-accuracy-1}.}",
        r"\label{tab:my-name-accuracy-2}",
    ]
    assert b[2:4] == [
        r"\caption{b: accuracy. As table \ref{tab:my-name-accuracy-1}.}",
        r"\label{tab:my-name-accuracy-3}",
    ]


def test_one_setting_has_no_overview():
    data = small()
    summary = summarise(data[data["setting"] == "a"], PUBLISHED)
    assert overview(summary) == []
    assert "average" not in to_markdown(summary)


def test_what_was_not_run_is_not_in_the_overview():
    summary = summarise(small(), PUBLISHED)
    assert "hrm" in set(summary["method"])
    assert [table.title for table in overview(summary)] == ["ERM by setting, worst"]


def test_worst_comes_first_in_each_metric():
    parts = [small(metric=m, summary=s) for m in ("accuracy", "population accuracy") for s in ("mean", "worst")]
    assert [(table.metric, table.title) for table in overview(summarise(pd.concat(parts)))] == [
        ("accuracy", "ERM by setting, worst"),
        ("accuracy", "ERM by setting, mean"),
        ("population accuracy", "ERM by setting, worst"),
        ("population accuracy", "ERM by setting, mean"),
    ]


# --- averages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("holes", [0.0, 0.2, 0.6])
@pytest.mark.parametrize("seed", range(5))
def test_averages_against_numpy(holes, seed):
    data, values = many(methods=3, settings=5, holes=holes, seed=seed)
    made = {table.title: texts(table) for table in overview(summarise(data))}
    for summary, of_summary in values.items():
        for m in range(3):
            means = of_summary[m].mean(-1)  # settings, rules; NaN where there is a hole
            compared = ~np.isnan(means).all(0)
            complete = ~np.isnan(means[:, compared]).any(1) if compared.any() else np.zeros(5, dtype=bool)
            n = complete.sum()
            table = made[f"m{m} by setting, {summary}"]
            label = f"average ({n} of 5 settings)" if n < 5 else "average (5 settings)"
            assert list(table) == [*(f"p{p}" for p in range(5)), label]
            expected = [f"{100 * means[complete, r].mean():.1f}" if c and n else "–" for r, c in enumerate(compared)]
            assert table[label] == expected


def test_a_setting_with_a_gap_counts_for_no_rule():
    data = frame(
        *(rows("m", [v], setting=p, rule="fixed") for p, v in zip("abc", (0.1, 0.2, 0.6), strict=True)),
        *(rows("m", [v], setting=p, rule="iid") for p, v in zip("abc", (0.3, math.nan, 0.5), strict=True)),
        *(rows("m", [math.nan], setting=p, rule="leave-one-env-out") for p in "abc"),  # never a value: not compared
    )
    (table,) = overview(summarise(data))
    assert texts(table) == {
        "a": ["10.0", "30.0", "–"],
        "b": ["20.0", "–", "–"],
        "c": ["60.0", "50.0", "–"],
        "average (2 of 3 settings)": ["35.0", "40.0", "–"],
    }


def test_rules_without_a_setting_in_common_have_no_average():
    data = frame(rows("m", [0.1], setting="a"), rows("m", [0.2], setting="b", rule="iid"))
    (table,) = overview(summarise(data))
    assert texts(table)["average (0 of 2 settings)"] == ["–", "–"]


def test_published_has_an_average_only_over_the_same_settings():
    published = {"erm": {"a": {"worst": 60.0}}}
    (table,) = overview(summarise(small(), published))
    assert [row.cells[0].number for row in table.rows] == ["60.0", "", ""]
    only_a = small()
    only_a.loc[only_a["setting"] == "b", "value"] = math.nan
    (table,) = overview(summarise(only_a, published))
    assert texts(table)["average (1 of 2 settings)"] == ["60.0", "55.0", "75.0"]


def test_a_method_that_was_run_in_one_setting_only():
    data = frame(
        rows("ERM", [0.5], setting="a", published_key="erm"),
        rows("HRM", [0.7], setting="a", published_key="hrm"),
        rows("ERM", [0.6], setting="b", published_key="erm"),
    )
    erm, hrm = overview(summarise(data, PUBLISHED))
    assert texts(erm)["average (2 settings)"] == ["55.0", "55.0"]
    assert texts(hrm) == {"a": ["59.8", "70.0"], "b": ["49.8", "–"], "average (1 of 2 settings)": ["59.8", "70.0"]}


def test_a_method_without_any_value_under_a_summary():
    data = frame(*(rows("m", [0.5], setting=p) for p in "ab"), rows("n", [0.5], setting="a", summary="mean"))
    made = {table.title: texts(table) for table in overview(summarise(data))}
    assert made["n by setting, worst"] == {"a": ["–"], "b": ["–"], "average (0 of 2 settings)": ["–"]}


def test_fewer_repetitions_are_marked():
    data = small()
    data.loc[0, "value"] = math.nan
    (table,) = overview(summarise(data))
    assert texts(table)["a"][0] == "60.0 (n=1)"


def test_errors_keep_their_digits_and_infinity_stays():
    data = frame(
        *(rows("m", [v], setting=p, metric="mse") for p, v in zip("ab", (0.4, 0.5), strict=True)),
        *(rows("m", [v], setting=p, metric="mse", rule="iid") for p, v in zip("ab", (math.inf, 0.5), strict=True)),
    )
    (table,) = overview(summarise(data))
    assert texts(table)["average (2 settings)"] == ["0.4500", "inf"]


# --- limits -----------------------------------------------------------------------------------------------


def test_distances_against_numpy():
    data, values = many(methods=1, settings=4, summaries=("worst", "mean"))
    limits = np.array([0.95, 0.9, 0.85, 0.8])
    named = {f"p{i}": float(limit) for i, limit in enumerate(limits)}
    worst, mean = overview(summarise(data, limits=named, limits_metric="accuracy"))
    distance = 100 * (limits[:, None] - values["worst"][0].mean(-1)).mean(0)
    said = ", ".join(f"{rule} {d:.1f}" for rule, d in zip(("fixed", "iid", "oracle"), distance, strict=True))
    assert worst.notes == (f"average distance from the limit, in points: {said}",)
    assert heads(worst)[-1] == "limit"
    assert "limit" not in heads(mean)
    assert mean.notes == ()


def test_a_limit_for_some_settings():
    (table,) = overview(summarise(small(), limits={"b": 0.8}, limits_metric="accuracy"))
    assert [str(row.cells[-1]) for row in table.rows] == ["–", "80.0", "–"]
    assert table.notes == ("average distance from the limit, in points (1 of 2 settings): fixed 30.0, oracle 0.0",)


def test_a_limit_of_an_error_lies_below():
    (table,) = overview(summarise(small(metric="mse"), limits={"a": 0.5, "b": 0.25}, limits_metric="mse"))
    assert table.notes == ("average distance from the limit: fixed 0.1500, oracle 0.4000",)


# --- many methods -----------------------------------------------------------------------------------------


def test_many_methods_have_a_compact_table_first():
    data, values = many(methods=5, settings=3)
    made = overview(summarise(data, limits={"p0": 0.95, "p1": 0.95, "p2": 0.95}, limits_metric="accuracy"))
    assert [table.title for table in made[:3]] == [
        "average over 3 settings, worst",
        "average distance from the limit, in points, worst",
        "average over 3 settings, mean",
    ]
    averages = {s: 100 * values[s].mean((1, 3)) for s in values}  # methods, rules
    worst, distance, mean = map(texts, made[:3])
    for m in range(5):
        assert worst[f"m{m}"] == [*(f"{x:.1f}" for x in averages["worst"][m]), "95.0"]
        assert [float(x) for x in distance[f"m{m}"]] == pytest.approx(95 - averages["worst"][m], abs=0.0501)
        assert mean[f"m{m}"] == [f"{x:.1f}" for x in averages["mean"][m]]
    assert [table.detail for table in made] == [False] * 3 + [True] * 10


def test_four_methods_are_not_many():
    made = overview(summarise(many(methods=4)[0]))
    assert len(made) == 8
    assert not any(table.detail for table in made)


def test_only_markdown_has_the_details():
    summary = summarise(many(methods=5)[0])
    detail = "m3 by setting, worst"
    assert f"#### {detail}" in to_markdown(summary)
    assert detail not in to_latex(summary)
    lines = terminal(summary, 100)
    assert not any(detail in line for line in lines)
    assert lines[0] == "average over 3 settings, worst: accuracy"


def test_a_method_averaged_over_fewer_settings_says_so():
    data, _ = many(methods=5, summaries=("worst",))
    data.loc[(data["method"] == "m1") & (data["setting"] == "p2") & (data["rule"] == "iid"), "value"] = math.nan
    compact, *_ = overview(summarise(data))
    assert [row.label for row in compact.rows] == ["m0", "m1 (2 of 3 settings)", "m2", "m3", "m4"]


def test_published_averages_in_the_compact_table():
    parts = [rows("ERM", [0.5], setting=p, published_key="erm") for p in "ab"]
    parts += [rows(f"m{i}", [0.5], setting=p) for i in range(4) for p in "ab"]
    compact, *_ = overview(summarise(frame(*parts), PUBLISHED))
    assert heads(compact) == ["published", "fixed"]
    assert texts(compact)["ERM"] == ["55.0", "50.0"]
    assert texts(compact)["m0"] == ["–", "50.0"]


# --- in all formats ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("methods", [2, 5])
def test_captions_stand_once_per_metric(methods, tmp_path):
    data = pd.concat([many(methods=methods)[0].assign(metric=m) for m in ("accuracy", "mse")])
    summary, tests = summarise(data), paired_tests(data)
    for text in (to_markdown(summary, tests), "\n".join(terminal(summary, 300, tests)), to_latex(summary)):
        for line in ("iid: best on held-out rows", "average: unweighted mean", "no value. A cell with n="):
            assert text.count(line) == 2
    write_all(tmp_path, "two", summary, tests)
    latex = (tmp_path / "two.tex").read_text()
    labels = re.findall(r"\\label\{(.*?)\}", latex)
    n = len(labels) // 2
    metrics = ["accuracy"] * n + ["mse"] * n
    assert labels == [f"tab:two-{metric}-{i}" for i, metric in enumerate(metrics, 1)]
    assert latex.count(r"\begin{table}") == 2 * n
    assert re.findall(r"\\ref\{(.*?)\}", latex) == [labels[0]] * (n - 1) + [labels[n]] * (n - 1)


@pytest.mark.parametrize("width", [60, 80, 110])
def test_terminal_keeps_to_the_width_and_loses_nothing(width):
    rules = ("fixed", "invariance", "iid", "worst-env", "leave-one-env-out", "oracle")
    data, _ = many(methods=2, rules=rules, summaries=("worst",))
    summary = summarise(data, limits={"p0": 0.9}, limits_metric="accuracy")
    lines = terminal(summary, width)
    assert max(map(len, lines)) <= width
    ours = lines[: next(i for i, line in enumerate(lines) if line == "p0: accuracy")]
    shown = re.findall(r"\d\d\.\d ± \d+\.\d", "\n".join(ours))
    assert len(shown) == len(summary)
    assert sorted(shown) == sorted(
        f"{100 * m:.1f} ± {100 * s:.1f}" for m, s in zip(summary["mean"], summary["sd"], strict=True)
    )


def test_odd_labels_are_text_everywhere():
    data = frame(*(rows(m, [0.5, 0.6], setting=p) for m in ODD[:4] for p in ODD[3:]))
    summary = summarise(data)
    lines = terminal(summary, 100)
    assert [line for line in lines if "by setting" in line] == [f"{m} by setting, worst: accuracy" for m in ODD[:4]]
    latex = to_latex(summary)
    unescaped = re.sub(r"\\[&%$#_{}\\]", "", latex)
    assert unescaped.count("{") == unescaped.count("}")
    body = [line for line in to_markdown(summary).splitlines() if line.startswith("|")]
    assert {len(re.split(r"(?<!\\)\|", line)) for line in body} == {4}
