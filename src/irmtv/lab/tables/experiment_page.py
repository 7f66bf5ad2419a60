"""The report of an experiment: what each method reaches beside what is published, and how to run it again.

Nothing here trains: the store of the folder has every run, and the spec that it was run by.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from irmtv._version import __version__
from irmtv.core.numbers import MetricFormat, is_accuracy, percent, several, short
from irmtv.core.plain_json import plain_json
from irmtv.html import page
from irmtv.html.text_table import TextTable
from irmtv.html.texts import FigureData
from irmtv.lab.experiments import Spec, Store, papers
from irmtv.lab.real.summary import TITLE as REAL_TITLE
from irmtv.lab.real.summary import RealReport
from irmtv.lab.tables.compare import NOT_RUN, WORST
from irmtv.lab.tables.experiment import ExperimentReport, is_identifiability, report_experiment, stored_spec
from irmtv.lab.tables.experiment_figures import OUTCOMES, counted_outcomes, methods_figure, outcomes_figure
from irmtv.lab.tables.identifiability import TITLE as IDENTIFIABILITY_TITLE
from irmtv.lab.tables.identifiability import Identifiability, report_identifiability
from irmtv.lab.tables.layout import INVARIANCE, ORACLE, PUBLISHED, Table, findings, is_number, rule_name, tables
from irmtv.lab.tables.overview import overview
from irmtv.lab.tables.running_times import TITLE as RUNNING_TIMES_TITLE
from irmtv.lab.tables.running_times import RunningTimesReport

NEAR = 2.0  # published standard deviations within which a value counts as reproduced
Versions = Sequence[Mapping[str, str]]


def experiment_content(
    made: ExperimentReport, spec: Spec, versions: Versions = (), notes: Sequence[str] = ()
) -> page.Content:
    """The page of an experiment with tables of scores.

    `versions`: each different set of packages that the runs were computed with; `notes`: sentences before everything.
    """
    summary, rule = made.summary, main_rule(made.summary)
    over = overview(summary, detail=False)
    chapters: dict[str, list[page.Section]] = {}
    for m, (metric, each) in enumerate(itertools.groupby(tables(summary), key=lambda t: t.metric)):
        sections = [_setting(made, t, rule, f"setting-{m}-{i}") for i, t in enumerate(each)]
        sections += [
            page.section(f"over-{m}-{i}", t.title, metric, _table_blocks(t))
            for i, t in enumerate(t for t in over if t.metric == metric)
        ]
        chapters[f"{metric[:1].upper()}{metric[1:]}"] = sections
    counts = counted_outcomes(made.results, INVARIANCE)
    chapters["What the rule of invariance found"] = [_outcomes(counts)] if len(counts) else []
    captions = dict.fromkeys(line for table in tables(summary) for line in table.caption)
    reading = page.section("reading", "How to read the tables", "", [page.text(line) for line in captions])
    chapters["How it was run"] = [reading, _spec(spec), _versions(versions)]
    first_sentence = " ".join(spec.description.split()).split(". ")[0].rstrip(".")
    title = f"{spec.name}: {first_sentence}" if spec.description else spec.name
    return page.content(
        title, _headline(summary, rule), _facts(spec, made.results), chapters, __version__, lead=list(notes)
    )


def identifiability_content(made: Identifiability, versions: Versions = ()) -> page.Content:
    """The page of the paper's feature weights: the figure, and all tables."""
    chosen = made.table()
    data: FigureData = {
        "columns": list(map(str, chosen.columns)),
        "rows": [plain_json(row) for row in chosen.to_numpy(object)],
    }
    picture = page.figure(made.figure(), made.alt(), name=made.name, data=data)
    return page.content(
        IDENTIFIABILITY_TITLE,
        _weights_headline(made),
        [("setting", made.setting), ("repetitions", str(made.repetitions))],
        {
            "Feature weights": [
                page.section("figure", "Normalised weights of every feature", made.setting, [picture]),
                *_text_tables(made.tables()),
            ],
            "How it was run": [_spec(made.spec), _versions(versions)],
        },
        __version__,
    )


def _weights_headline(made: Identifiability) -> page.Headline:
    """Which method puts most of its weight on invariant features, and the share of each."""
    of_method = made.numbers()["methods"] if "fixed" in made.spec.selection.rules else {}
    means = {method: rules["fixed"]["share"]["mean"] for method, rules in of_method.items()}
    shares = {method: share for method, share in means.items() if share is not None}
    answer = f"Of {several(len(made.methods), 'method')} none has a weight."
    if shares:
        best = max(shares, key=lambda method: shares[method])
        answer = (
            f"Of {several(len(made.methods), 'method')} {best} puts most of its weight on the invariant features: "
            f"{percent(shares[best])} %."
        )
    numbers: list[page.Number] = []
    for method, share in shares.items():
        theirs = made.published_share(method)
        note = "" if theirs is None else f"paper {percent(theirs)} %"
        numbers.append({"name": method, "value": f"{percent(share)} %", "note": note})
    return {"badge": {"text": made.spec.name, "kind": "plain"}, "text": answer, "more": "", "numbers": numbers}


def running_times_content(made: RunningTimesReport) -> page.Content:
    """The page of running times."""
    return page.content(
        RUNNING_TIMES_TITLE,
        None,
        [("machine", made.measured.machine)],
        {"Tables": _text_tables(made.tables()), "How it was run": [_versions([made.measured.versions])]},
        __version__,
        lead=["Seconds are the machine's; ratios of l1 to l2 are not."],
    )


def real_content(made: RealReport) -> page.Content:
    """The page of real tables."""
    numbers = made.overall()
    c = numbers["coverage"]["expected"]
    facts = [
        ("splits", str(numbers["splits"])),
        ("worse by more than one standard error", str(numbers["harmed"])),
        ("unseen environments inside their interval", f"{c['covered']} of {c['of']}"),
    ]
    return page.content(REAL_TITLE, None, facts, {"Tables": _text_tables(made.tables())}, __version__)


def folder_content(folder: str | os.PathLike[str]) -> page.Content:
    """The page of a folder that `irmtv run` or `irmtv reproduce` wrote, by the last spec that it was run by."""
    target = Path(folder)
    with Store.read(target) as store:
        texts, versions = [text for _, text in store.specs()], store.versions()
    if not texts:
        raise ValueError(
            f"{target} holds an experiment in which nothing was begun. Run it: irmtv run SPEC --out {target}."
        )
    spec, notes = stored_spec(texts[-1], target)
    if is_identifiability(spec):
        weights = report_identifiability(spec, target)
        if weights is not None:
            return identifiability_content(weights, versions)
    made = report_experiment(spec, target)
    if made.results.empty:
        raise ValueError(f"{target} has no finished run yet. Go on with the command that made it, then report.")
    return experiment_content(made, spec, versions, notes)


# --- the answer -----------------------------------------------------------------------------------------------


def main_rule(summary: pd.DataFrame) -> str:
    """The rule that answers: that of invariance, else the first that does not look at test rows."""
    rules = [str(r) for r in summary["rule"].unique() if r != NOT_RUN]
    honest = [r for r in rules if r != ORACLE]
    return INVARIANCE if INVARIANCE in rules else (honest or rules)[0]


def main_rows(summary: pd.DataFrame, metric: str | None = None) -> pd.DataFrame:
    """The rows in the worst test environment, where that was measured; of the first metric unless another is named."""
    of = summary[summary["metric"] == (metric or summary["metric"].iloc[0])]
    names = list(of["summary"].unique())
    return of[of["summary"] == (WORST if WORST in names else names[0])]


def _headline(summary: pd.DataFrame, rule: str) -> page.Headline:
    rows = main_rows(summary)
    metric, of_summary = str(rows["metric"].iloc[0]), str(rows["summary"].iloc[0])
    of = MetricFormat(metric)
    here = rows[(rows["rule"] == rule) & rows["mean"].notna()]
    best = {
        str(setting): group.sort_values("mean", ascending=not is_accuracy(metric), kind="stable").iloc[0]
        for setting, group in here.groupby("setting", sort=False)
    }
    what = f"the best {metric} {'in the worst test environment' if of_summary == WORST else f'({of_summary})'}"
    if not best:
        answer = "No method has a value yet."
    elif len(best) == 1:
        (row,) = best.values()
        answer = f"Under the rule {rule_name(rule)}, {row['method']} has {what}: {of.with_unit(row['mean'])}."
    else:
        wins = pd.Series([row["method"] for row in best.values()]).value_counts()
        often = ", ".join(f"{method} in {count}" for method, count in wins.items())
        answer = f"Under the rule {rule_name(rule)}, of {len(best)} settings {what} has {often}."
    numbers: list[page.Number] = [
        {"name": setting, "value": of.with_unit(row["mean"]), "note": str(row["method"])}
        for setting, row in list(best.items())[:6]
    ]
    badge: page.Badge = {"text": f"rule {rule_name(rule)}", "kind": "plain"}
    return {"badge": badge, "text": answer, "more": _distance_from_published(summary, rule), "numbers": numbers}


def _distance_from_published(summary: pd.DataFrame, rule: str) -> str:
    """How many published values are met, under the stated settings where these were run."""
    compared = "fixed" if "fixed" in set(summary["rule"]) else rule
    distance = summary.loc[summary["rule"] == compared, "difference_in_sd"].dropna().abs()
    if compared == ORACLE or distance.empty:
        return ""
    return (
        f"{int((distance <= NEAR).sum())} of {len(distance)} published values are met within {NEAR:g} published "
        f"standard deviations (rule {rule_name(compared)}); the largest difference is {short(float(distance.max()))}."
    )


# --- sections -------------------------------------------------------------------------------------------------


def _setting(made: ExperimentReport, shown: Table, rule: str, name: str) -> page.Section:
    rows = main_rows(made.summary, shown.metric)
    here = rows[rows["setting"] == shown.setting]
    blocks: list[page.Block] = []
    if (here["rule"] == rule).any():
        blocks.append(methods_figure(here, rule, f"{made.name}-{shown.setting}-{shown.metric}"))
    blocks += _table_blocks(shown)
    differences = findings(made.tests, shown) if len(made.tests) else []
    if differences:
        blocks.append(
            page.text(
                "Paired differences between methods (Wilcoxon signed-rank over repetitions, p corrected by Holm):"
            )
        )
        blocks.append(page.table(["rule and summary", "what differs"], [list(pair) for pair in differences]))
    return page.section(name, shown.title, shown.metric, blocks)


def _table_blocks(shown: Table) -> list[page.Block]:
    """The published numbers stand first, beside ours."""
    columns = [shown.stub, *(f"{c.group}: {c.name}" if c.group else c.name for c in shown.columns)]
    rows = [[row.label, *map(str, row.cells)] for row in shown.rows]
    return [
        page.table(columns, rows, [False, *map(is_number, shown.columns)]),
        *(page.text(note) for note in shown.notes),
    ]


def _outcomes(counts: pd.DataFrame) -> page.Section:
    columns = ["setting", "method", *(words for words, _, _ in OUTCOMES.values())]
    rows = [[str(r["setting"]), str(r["method"]), *(str(r[o]) for o in OUTCOMES)] for r in counts.to_dict("records")]
    blocks = [outcomes_figure(counts), page.table(columns, rows, [False, False, *[True] * len(OUTCOMES)])]
    return page.section("outcomes", "Outcomes by method", "number of repetitions", blocks)


def _spec(spec: Spec) -> page.Section:
    known = spec.name in papers.paper_specs()
    command = f"irmtv reproduce {spec.name} --out FOLDER" if known else "irmtv run spec.toml --out FOLDER"
    intro = "The settings, as the experiment was run. " + (
        "They come with irmtv:" if known else "Save them as spec.toml, then:"
    )
    return page.section(
        "spec", "To run it again", "", [page.text(intro), page.code(command), page.code(spec.text.strip())]
    )


def _versions(versions: Versions) -> page.Section:
    blocks = [page.versions_table(*versions)] if any(versions) else [page.text("They were not recorded.")]
    return page.section("versions", "Versions", "that the runs were computed with", blocks)


def _facts(spec: Spec, results: pd.DataFrame) -> list[tuple[str, str]]:
    counts = results.groupby("setting")["repetition"].nunique()
    repetitions = f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
    return [
        ("data", spec.data.name),
        ("settings", several(results["setting"].nunique(), "setting")),
        ("methods", ", ".join(map(str, results["method"].unique()))),
        ("repetitions", repetitions),
        ("rules", ", ".join(rule_name(str(r)) for r in results["rule"].unique())),
        *([(PUBLISHED, spec.published.table)] if spec.published else []),
    ]


def _text_tables(shown: Sequence[TextTable]) -> list[page.Section]:
    sections = []
    for i, t in enumerate(shown):
        numeric = [column >= t.labels for column in range(len(t.columns))]
        blocks = [page.table(t.columns, t.rows, numeric), *(page.text(note) for note in t.notes)]
        sections.append(page.section(f"table-{i}", t.title, "", blocks))
    return sections
