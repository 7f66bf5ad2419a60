"""Every format of the tables: exact texts of small examples, and that labels and gaps do not break them."""

from __future__ import annotations

import doctest
import io
import math
import os
import re

import pandas as pd
import pytest

from irmtv.lab import tables as report
from irmtv.lab.tables import paired_tests, summarise, tables, to_csv, to_latex, to_markdown, write_all
from lab.tables.results import ODD, PUBLISHED, frame, random_results, rows, small, terminal

# --- Markdown ---------------------------------------------------------------------------------------------


def test_markdown_of_a_small_example():
    data = frame(rows("ERM", [0.5, 0.6], published_key="erm"), rows("IRM", [0.7, 0.9]))
    summary = summarise(data, {"erm": {"toy": {"worst": {"value": 57.0, "std": 1.0}}}})
    assert to_markdown(summary, paired_tests(data)) == (
        "## accuracy\n"
        "\n"
        "- accuracy, in %, higher is better; mean and worst are over the test environments; "
        "± is the standard deviation over 2 repetitions.\n"
        "- published: as printed there; (-0.4 sd) is the difference from it, in published standard deviations.\n"
        "- fixed: settings stated beforehand, last step.\n"
        "- –: no value. A cell with n=... has fewer repetitions than others.\n"
        "\n"
        "### toy\n"
        "\n"
        "| method | published: worst | fixed: worst |\n"
        "| --- | ---: | ---: |\n"
        "| ERM | 57.0 ± 1.0 | 55.0 ± 7.1 (-2.0 sd) |\n"
        "| IRM | – | 80.0 ± 14.1 |\n"
        "\n"
        "Paired differences (Wilcoxon signed-rank over repetitions, p corrected by Holm):\n"
        "\n"
        "- fixed, worst: no difference significant at 5 % (Holm, 1 comparison of 2 pairs; "
        "with so few repetitions none can be: the smallest possible p is 0.5)\n"
    )


def parsed(text):
    """The tables of a Markdown text, cell by cell; a bar with a backslash is no border."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_markdown_parses_back_to_the_numbers():
    summary = summarise(random_results(["a", "b", "c"], n_rules=5))
    header, dashes, *body = parsed(to_markdown(summary))
    assert len(header) == len(dashes) == 1 + 5 * 2 + 1
    found = {}
    for row in body:
        for name, cell in zip(header[1:], row[1:], strict=True):
            group, _, which = name.rpartition(": ")
            if which != "outcome":
                found[row[0], group.removesuffix(" (chosen on test)"), which] = [float(x) for x in cell.split(" ± ")]
    assert len(found) == len(summary)
    for r in summary.to_dict("records"):
        expected = [100 * r["mean"], 100 * r["sd"]]
        assert found[r["method"], r["rule"], r["summary"]] == pytest.approx(expected, abs=0.05 + 1e-9)


def test_markdown_with_odd_labels():
    data = frame(*(rows(m, [0.5, 0.6], setting="x|y_z", note="a|b") for m in ODD))
    text = to_markdown(summarise(data), paired_tests(data))
    table = parsed(text)
    assert {len(row) for row in table} == {2}
    assert [re.sub(r"\\(.)", r"\1", row[0]) for row in table[2:]] == ODD
    assert r"### x\|y\_z" in text.splitlines()


# --- LaTeX ------------------------------------------------------------------------------------------------


def test_latex_of_a_small_example():
    data = frame(rows("ERM", [0.5, 0.6], published_key="erm"), rows("I_M", [0.7, math.nan]))
    summary = summarise(data, {"erm": {"toy": {"worst": {"value": 57.0, "std": 1.0}}}})
    caption = (
        r"toy. accuracy, in \%, higher is better; mean and worst are over the test environments; "
        r"$\pm$ is the standard deviation over 1 to 2 repetitions. "
        r"published: as printed there; (-0.4 sd) is the difference from it, in published standard deviations. "
        r"fixed: settings stated beforehand, last step. "
        r"--: no value. A cell with n=... has fewer repetitions than others."
    )
    assert to_latex(summary).splitlines() == [
        r"% needs \usepackage{booktabs}",
        "",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption}}}",
        r"\label{tab:results-accuracy-1}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"& \multicolumn{1}{c}{published} & \multicolumn{1}{c}{fixed} \\",
        r"\cmidrule(lr){2-2} \cmidrule(lr){3-3}",
        r"method & worst & worst \\",
        r"\midrule",
        r"ERM & $57.0 \pm 1.0$ & $55.0 \pm 7.1$ ($-2.0$ sd) \\",
        r"I\_M & -- & $70.0$ ($n=1$) \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def span(cell):
    many = re.match(r"\s*\\multicolumn\{(\d+)\}", cell)
    return int(many.group(1)) if many else 1


@pytest.mark.parametrize(
    "data", [small(), random_results(ODD, n_rules=5), random_results(["a"], metric="mse", scale=1e-9)]
)
def test_latex_structure(data):
    text = to_latex(summarise(data, PUBLISHED))
    unescaped = re.sub(r"\\[&%$#_{}\\]", "", text)
    assert unescaped.count("{") == unescaped.count("}")
    assert unescaped.count("$") % 2 == 0
    depth = 0
    for sign in unescaped:
        depth += (sign == "{") - (sign == "}")
        assert depth >= 0
    assert [text.count(rf"\begin{{{e}}}") for e in ("table", "tabular")] == [
        text.count(rf"\end{{{e}}}") for e in ("table", "tabular")
    ]
    (layout,) = re.findall(r"\\begin\{tabular\}\{([lr]+)\}", text)
    lines = [line.removesuffix(r" \\") for line in text.splitlines() if line.endswith(r"\\")]
    assert len(lines) == 2 + text.split(r"\midrule")[1].count(r"\\" + "\n")
    for line in lines:
        assert sum(map(span, re.split(r"(?<!\\)&", line))) == len(layout)


def test_latex_labels_are_escaped():
    text = to_latex(summarise(frame(*(rows(m, [0.5, 0.6]) for m in ODD))))
    labels = [line.split(" & $")[0] for line in text.split(r"\midrule")[1].splitlines() if " & $" in line]
    assert labels == [
        r"a \& b",
        r"a\_b",
        r"a\textbar{}b",
        r"50 \%",
        r"\textbackslash{}x\{y\}\$z\$",
        r"{[}i{]}{*}",
        r"\textless{}b\textgreater{}\#\textasciitilde{}\textasciicircum{}",
    ]


def test_latex_of_powers_and_infinity():
    data = frame(rows("a", [1e-7, 3e-7], metric="mse"), rows("b", [math.inf, 1.0], metric="mse"))
    text = to_latex(summarise(data))
    assert r"a & $2.00 \cdot 10^{-7} \pm 1.41 \cdot 10^{-7}$ \\" in text
    assert r"b & $\infty$ \\" in text


# --- the terminal -----------------------------------------------------------------------------------------


def test_terminal_of_a_small_example():
    data = frame(rows("ERM", [0.5, 0.6], published_key="erm"), rows("[b]IRM", [0.7, 0.9]))
    summary = summarise(data, {"erm": {"toy": {"worst": {"value": 57.0, "std": 1.0}}}})
    assert terminal(summary, 100)[:6] == [
        "toy: accuracy",
        "         published    fixed",
        "method   worst        worst",
        "──────────────────────────────────────────",
        "ERM      57.0 ± 1.0   55.0 ± 7.1 (-2.0 sd)",
        "[b]IRM   –            80.0 ± 14.1",
    ]


@pytest.mark.parametrize("width", [60, 80, 97, 98, 99, 100, 101, 120, 200])
def test_terminal_keeps_to_the_width_and_loses_nothing(width):
    """Too wide a table is continued in others; no number is cut or broken."""
    summary = summarise(random_results(["erm", "irm-tv-l1", "minimax-tv-l1"], n_rules=5))
    lines = terminal(summary, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    shown = sorted(re.findall(r"\d\d\.\d ± \d\.\d", text))
    assert shown == sorted(
        f"{100 * m:.1f} ± {100 * s:.1f}" for m, s in zip(summary["mean"], summary["sd"], strict=True)
    )
    heads = [line.split() for line in lines if line.startswith("method")]
    if width >= 200:
        assert len(heads) == 1
    for head in heads:
        assert head.count("mean") == head.count("worst")  # a rule is never divided


def test_terminal_breaks_a_cell_before_its_remarks_where_one_rule_is_too_wide():
    lines = terminal(summarise(small(), PUBLISHED), 50)
    start = next(i for i, line in enumerate(lines) if "invariance" in line)
    assert lines[start + 3] == "ERM      71.0 ± 1.4   61.0 ± 1.4   1 ERM kept, 1"
    assert lines[start + 4] == "         (-4.3 sd)    (+1.1 sd)    found"


@pytest.mark.parametrize("width", [45, 80, 200])
def test_terminal_says_once_what_was_not_run(width):
    lines = terminal(summarise(small(), PUBLISHED), width)
    assert len([line for line in lines if line.startswith("hrm") and "not run" in line]) == 1


def test_terminal_ends_with_the_caption():
    lines = terminal(summarise(small(), PUBLISHED), 300)
    (table,) = tables(summarise(small(), PUBLISHED))
    assert lines[-1 - len(table.caption) : -1] == list(table.caption)
    assert "  IRM under invariance: lost (1 of 2)" in lines


# --- CSV and files ----------------------------------------------------------------------------------------


def read(text, like):
    table = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    for column in like.columns:
        if like[column].dtype.kind in "if":
            table[column] = [float(t) if t else math.nan for t in table[column]]
    return table.astype(like.dtypes.to_dict())


def test_csv_is_the_summary_to_the_last_digit():
    data = frame(*(rows(m, [1 / 3, 2 / 7, math.nan], note=["", "", 'a "b", c']) for m in [*ODD, "nan", "NA"]))
    for summary in (summarise(data), summarise(small(), PUBLISHED), paired_tests(data)):
        text = to_csv(summary)
        assert text.count("\n") == len(summary) + 1
        pd.testing.assert_frame_equal(read(text, summary), summary, check_exact=True)


def test_csv_of_a_small_example():
    assert to_csv(summarise(frame(rows("a,b", [0.25])))) == (
        "setting,method,rule,metric,summary,n,missing,mean,sd,low,high,published_mean,published_sd,"
        "difference_in_sd,limit,outcomes,note,published_key\n"
        'toy,"a,b",fixed,accuracy,worst,1,0,0.25,,,,,,,,,,\n'
    )


def test_files(tmp_path):
    data = small()
    summary, tests = summarise(data, PUBLISHED), paired_tests(data)
    folder = tmp_path / "new" / "folder"
    for _ in range(2):  # the second time over the first
        paths = write_all(folder, "toy", summary, tests)
        assert [p.name for p in paths] == ["toy.md", "toy.csv", "toy.tex", "toy-tests.csv"]
        expected = [to_markdown(summary, tests), to_csv(summary), to_latex(summary, "toy"), to_csv(tests)]
        assert [p.read_text(encoding="utf-8") for p in paths] == expected
        assert sorted(p.name for p in folder.iterdir()) == sorted(
            [".irmtv.json", *(p.name for p in paths)]
        )  # nothing temporary stays


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    summary, tests = summarise(small()), paired_tests(small())
    (tmp_path / "toy.md").write_text("before")

    def fail(source, target):
        assert os.path.dirname(source) == os.path.dirname(target)
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        write_all(tmp_path, "toy", summary, tests)
    assert [p.name for p in tmp_path.iterdir()] == ["toy.md"]
    assert (tmp_path / "toy.md").read_text() == "before"


@pytest.mark.parametrize("name", ["", "a/b", "/a", "."])
def test_a_name_is_not_a_path(tmp_path, name):
    with pytest.raises(ValueError, match="name must be a file name"):
        write_all(tmp_path, name, summarise(small()), paired_tests(small()))


def test_the_docstrings_are_true():
    assert doctest.testmod(report).failed == 0
    assert doctest.testmod(report.compare).failed == 0


def test_signs_that_hide_do_not_reach_written_tables():
    data = small().replace({"method": {small()["method"].iloc[0]: "a\x1b[31m\u202eb"}})
    summary = summarise(data)
    for text in (to_markdown(summary), to_latex(summary), to_csv(summary)):
        assert "\x1b" not in text and "\u202e" not in text and "\ufffd" in text
