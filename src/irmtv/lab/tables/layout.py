"""A summary as tables of short texts, setting by setting: what stands where, in no particular format.

One table per metric and setting: a row per method, the published values first, then a group of columns per
selection rule. Nothing is set in bold: which differences count is what the paired tests say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from irmtv.core.numbers import NO_VALUE, is_accuracy, p_text, percent, value_and_sd
from irmtv.core.outcomes import OUTCOMES, short_outcome
from irmtv.lab.tables.compare import NOT_RUN

Record = Mapping[Any, Any]  # a row of the summary or of the tests, by column

INVARIANCE, ORACLE, PUBLISHED = "invariance", "oracle", "published"
_RULES = {
    "fixed": "settings stated beforehand, last step",
    INVARIANCE: "lowest extrapolated risk among what passes a test of invariance on held-out rows "
    "(found); ERM where ERM itself passes (ERM kept) or nothing does (none)",
    "iid": "best on held-out rows of the training environments",
    "worst-env": "best in the worst training environment, on held-out rows",
    "leave-one-env-out": "best on training environments that are left out of training in turn",
    ORACLE: "best in the worst test environment, chosen by looking at the test rows: a bound on `worst`, not a result "
    "to be had in practice",
}
_SUMMARIES = {
    "train": "train: over the training rows",
    "iid": "iid: over test rows that are drawn as the training rows are",
    "pooled": "pooled: over the rows of all test environments together",
}
_LEVEL = 0.05


@dataclass(frozen=True)
class Cell:
    """A number as text, with its remarks; or, where there is none, `text` alone."""

    number: str = ""
    sd: str = ""
    difference: str = ""  # from the published mean, in published standard deviations
    n: str = ""  # repetitions, where they are fewer than elsewhere in the table
    text: str = ""

    def __str__(self) -> str:
        if not self.number:
            return self.text
        spread = f" ± {self.sd}" if self.sd else ""
        remarks = [f"{self.difference} sd"] if self.difference else []
        remarks += [f"n={self.n}"] if self.n else []
        return f"{self.number}{spread}" + (f" ({', '.join(remarks)})" if remarks else "")


@dataclass(frozen=True)
class Column:
    """Its group (published, or a rule) and its name in the group (mean, worst, outcome).

    In an overview: no group, and the name is published, a rule or limit.
    """

    group: str
    name: str


@dataclass(frozen=True)
class Row:
    """A method (in an overview also a setting) and one cell per column."""

    label: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """One metric in one setting, or over settings. The caption is that of all tables of the metric."""

    metric: str
    setting: str  # "" over settings
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]  # why values are missing; distances from the limit
    caption: tuple[str, ...]  # one sentence each
    title: str
    stub: str = "method"  # what the rows are
    detail: bool = False  # for the long format only, which is Markdown


def tables(summary: pd.DataFrame) -> list[Table]:
    """The tables of a summary, metric by metric, each metric setting by setting.

    For some of the rules or methods only, filter the summary first.
    """
    made = []
    for metric in summary["metric"].unique():
        block = summary[summary["metric"] == metric]
        caption = tuple(caption_of(metric, block))
        settings = [block[block["setting"] == setting] for setting in block["setting"].unique()]
        made += [_table(metric, one, caption) for one in settings]
    return made


def rule_name(rule: str) -> str:
    """A rule as headings name it: the oracle must not be taken for a result."""
    return "oracle (chosen on test)" if rule == ORACLE else rule


def is_number(column: Column) -> bool:
    """Whether the column holds numbers: all but the outcomes."""
    return column.name != "outcome"


def findings(tests: pd.DataFrame, table: Table) -> list[tuple[str, str]]:
    """(what was compared, what differs) for each rule in the setting and metric of a table.

    Rules under which nothing can be significant, for want of repetitions, share one line: the last.
    """
    here = tests[(tests["setting"] == table.setting) & (tests["metric"] == table.metric)]
    found = []
    for summary, of_summary in here.groupby("summary", sort=False):
        hopeless = []  # rules
        for rule, family in of_summary.groupby("rule", sort=False):
            significant = family[family["p_holm"] < _LEVEL]
            lines = [_finding(test, table.metric) for test in significant.to_dict("records")]
            if _smallest_p(family) >= _LEVEL:
                hopeless.append(rule)
            else:
                found.append((f"{rule_name(str(rule))}, {summary}", "; ".join(lines) or _nothing([family])))
        if hopeless:
            families = [of_summary[of_summary["rule"] == rule] for rule in hopeless]
            found.append((", ".join([*(rule_name(str(r)) for r in hopeless), str(summary)]), _nothing(families)))
    return found


# --- cells ------------------------------------------------------------------------------------------------


def _table(metric: str, frame: pd.DataFrame, caption: tuple[str, ...]) -> Table:
    run = frame[frame["rule"] != NOT_RUN]
    summaries = list(frame["summary"].unique())
    most = int(frame["n"].max())
    records = {(r["method"], r["rule"], r["summary"]): r for r in frame.to_dict("records")}
    with_published = frame.dropna(subset="published_mean").drop_duplicates(["method", "summary"])
    published = {(r["method"], r["summary"]): r for r in with_published.to_dict("records")}
    methods = list(frame["method"].unique())
    not_run = set(methods) - set(run["method"])

    columns: dict[Column, list[Cell]] = {}  # under each heading the cells of all methods
    for summary in summaries if published else []:
        columns[Column(PUBLISHED, summary)] = [published_cell(published.get((m, summary)), metric) for m in methods]
    for rule in run["rule"].unique():
        for summary in summaries:
            cells = [value_cell(records.get((m, rule, summary)), metric, most) for m in methods]
            cells = [Cell(text=NOT_RUN) if m in not_run else c for m, c in zip(methods, cells, strict=True)]
            columns[Column(rule_name(rule), summary)] = cells
        if rule == INVARIANCE:
            firsts = [next((r for s in summaries if (r := records.get((m, rule, s)))), None) for m in methods]
            outcomes = [Cell(text=_outcomes(r["outcomes"]) if r else "") for r in firsts]
            columns[Column(rule_name(rule), "outcome")] = outcomes
    setting = frame["setting"].iloc[0]
    return Table(metric, setting, tuple(columns), rows_of(methods, columns), tuple(_notes(run)), caption, title=setting)


def rows_of(labels: Sequence[str], columns: Mapping[Any, Sequence[Cell]]) -> tuple[Row, ...]:
    """Columns of cells as rows with a label each."""
    return tuple(Row(label, cells) for label, cells in zip(labels, zip(*columns.values(), strict=True), strict=True))


def value_cell(record: Record | None, metric: str, most: int) -> Cell:
    """Ours, with all remarks; `most` repetitions need no remark."""
    if record is None or record["n"] == 0:
        return Cell(text=NO_VALUE)
    difference = float(record["difference_in_sd"])
    number, sd = value_and_sd(float(record["mean"]), float(record["sd"]), metric)
    return Cell(
        number,
        sd,
        "" if math.isnan(difference) else f"{round(difference, 1) + 0.0:+.1f}",  # + 0.0: no "-0.0"
        "" if record["n"] == most else str(record["n"]),
    )


def published_cell(record: Record | None, metric: str) -> Cell:
    """As published, for the method and summary of the record."""
    if record is None:
        return Cell(text=NO_VALUE)
    return Cell(*value_and_sd(float(record["published_mean"]), float(record["published_sd"]), metric))


def plain_cell(value: float, metric: str) -> Cell:
    """A number alone: of an average or a limit."""
    return Cell(text=NO_VALUE) if math.isnan(value) else Cell(value_and_sd(value, math.nan, metric)[0])


def _outcomes(counts: str) -> str:
    """'erm-invariant=3; invariant-found=7' in short: '3 ERM kept, 7 found'."""
    count = dict(pair.rsplit("=", 1) for pair in counts.split("; ") if pair)
    ordered = [*(o for o in OUTCOMES if o in count), *(o for o in count if o not in OUTCOMES)]
    return ", ".join(f"{count[o]} {short_outcome(o)}" for o in ordered)


def _notes(run: pd.DataFrame) -> list[str]:
    """One line per note: the rules under which it occurs, the methods that it concerns unless these are all."""
    noted = run[run["note"] != ""].drop_duplicates(["rule", "method", "note"])
    rules: dict[tuple[str, str], list[str]] = {}  # by whom it concerns, and the note
    for (rule, note), group in noted.groupby(["rule", "note"], sort=False):
        everyone = set(group["method"]) == set(run.loc[run["rule"] == rule, "method"])
        whom = "" if everyone else ", ".join(group["method"])
        rules.setdefault((whom, str(note)), []).append(rule_name(str(rule)))
    return [f"{f'{whom} under ' if whom else ''}{', '.join(names)}: {note}" for (whom, note), names in rules.items()]


# --- words ------------------------------------------------------------------------------------------------


def caption_of(metric: str, block: pd.DataFrame) -> Iterable[str]:
    """What the tables of a metric need explained, for all of them at once."""
    unit = "in %, higher is better" if is_accuracy(metric) else "lower is better"
    run = block[block["rule"] != NOT_RUN]
    counts = run.loc[run["n"] > 0, "n"]
    if counts.max() == 1:
        spread = "one repetition, so there is no standard deviation"
    else:
        spread = f"± is the standard deviation over {_range(counts)} repetitions"
    columns = [_SUMMARIES[s] for s in block["summary"].unique() if s in _SUMMARIES]
    yield f"{metric}, {unit}; {'; '.join(['mean and worst are over the test environments', *columns, spread])}."
    if block["published_mean"].notna().any():
        yield "published: as printed there; (-0.4 sd) is the difference from it, in published standard deviations."
    for rule in run["rule"].unique():
        if rule in _RULES:
            yield f"{rule_name(rule)}: {_RULES[rule]}."
    if (block["rule"] == NOT_RUN).any():
        yield f"{NOT_RUN}: published, but no method that was run here is declared to be it."
    if run["setting"].nunique() > 1:
        yield "average: unweighted mean over the settings that have a value under every rule that has one at all."
        if block["limit"].notna().any():
            yield "limit: best value that can be reached in the worst test environment."
    yield f"{NO_VALUE}: no value. A cell with n=... has fewer repetitions than others."


def _range(counts: pd.Series[int]) -> str:
    if counts.empty:
        return "0"
    low, high = int(counts.min()), int(counts.max())
    return str(low) if low == high else f"{low} to {high}"


def _finding(test: Record, metric: str) -> str:
    """The better of the two first: 'A > B by 2.3 points (p = 0.004)', with < where less is better."""
    difference = float(test["median_difference"])
    shown_p = p_text(float(test["p_holm"]), ".3f")
    if difference == 0 or math.isnan(difference):
        return f"{test['method']} and {test['other']} differ, by 0 in the median ({shown_p})"
    sign = ">" if is_accuracy(metric) else "<"
    first, second = test["method"], test["other"]
    if (difference > 0) != is_accuracy(metric):
        first, second = second, first
    size = f"{percent(abs(difference))} points" if is_accuracy(metric) else f"{abs(difference):.3g}"
    return f"{first} {sign} {second} by {size} ({shown_p})"


def _smallest_p(family: pd.DataFrame) -> float:
    """The smallest p_holm that the comparisons of a rule can have; 0 where there are none."""
    compared = family[family["p"].notna()]
    return 0.0 if compared.empty else min(1.0, len(compared) * 2.0 ** (1 - int(compared["n"].max())))


def _nothing(families: Sequence[pd.DataFrame]) -> str:
    """That nothing is significant under some rules; and where nothing could be, that too."""
    compared = [family[family["p"].notna()] for family in families]
    counts = pd.Series([len(family) for family in compared])
    if counts.max() == 0:
        return "nothing to compare"
    comparisons = f"{_range(counts)} comparison{'' if counts.max() == 1 else 's'}"
    text = f"no difference significant at 5 % (Holm, {comparisons} of {_range(pd.concat(compared)['n'])} pairs"
    smallest = min(_smallest_p(family) for family in families)
    few = f"; with so few repetitions none can be: the smallest possible p is {smallest:.2g}"
    return text + (f"{few})" if smallest >= _LEVEL else ")")
