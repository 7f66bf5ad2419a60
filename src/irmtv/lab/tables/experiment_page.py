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
from irmtv.core.numbers import MetricFormat, is_accuracy, several, short
from irmtv.html.page import Badge, Block, Chapter, Content, Headline, Number, Section, code, figure, table, text
from irmtv.html.text_table import TextTable
from irmtv.lab.experiments import Spec, SpecError, Store, papers, parse_spec
from irmtv.lab.tables.compare import NOT_RUN, WORST
from irmtv.lab.tables.experiment import ExperimentReport, report_experiment
from irmtv.lab.tables.experiment_figures import OUTCOMES, counted_outcomes, methods_figure, outcomes_figure
from irmtv.lab.tables.identifiability import TITLE as IDENTIFIABILITY_TITLE
from irmtv.lab.tables.identifiability import Identifiability, report_identifiability
from irmtv.lab.tables.layout import INVARIANCE, ORACLE, PUBLISHED, Table, findings, is_number, rule_name
from irmtv.lab.tables.overview import overview
from irmtv.lab.tables.running_times import TITLE as RUNNING_TIMES_TITLE
from irmtv.lab.tables.running_times import RunningTimesReport
from irmtv.lab.tables.tables import tables

NEAR = 2.0  # published standard deviations within which a value counts as reproduced
Versions = Sequence[Mapping[str, str]]


def experiment_content(
    made: ExperimentReport, spec: Spec, versions: Versions = (), notes: Sequence[str] = ()
) -> Content:
    """The page of an experiment with tables of scores.

    Parameters
    ----------
    made : ExperimentReport
        From `irmtv.lab.tables.report_experiment`.
    spec : Spec
        By which it was run.
    versions : sequence of mappings, default ()
        Of packages: each different set that the runs were computed with.
    notes : sequence of str, default ()
        What a reader of this page must know besides, in sentences.

    Returns
    -------
    Content
        For `irmtv.html.page.page`.
    """
    summary = made.summary
    chapters: list[Chapter] = []
    over = overview(summary)
    rule = main_rule(summary)
    for m, (metric, each) in enumerate(itertools.groupby(tables(summary), key=lambda t: t.metric)):
        sections = [_setting(made, t, rule, f"setting-{m}-{i}") for i, t in enumerate(each)]
        sections += [
            _section(f"over-{m}-{i}", t.title, metric, _table_blocks(t))
            for i, t in enumerate(t for t in over if t.metric == metric and not t.detail)
        ]
        chapters.append({"title": f"{metric[:1].upper()}{metric[1:]}", "sections": sections})
    counts = counted_outcomes(made.results, INVARIANCE)
    if len(counts):
        chapters.append({"title": "What the rule of invariance found", "sections": [_outcomes(counts)]})
    chapters.append({"title": "How it was run", "sections": _how(made, spec, versions)})
    return {
        "title": spec.name if not spec.description else f"{spec.name}: {_first_sentence(spec.description)}",
        "headline": _headline(summary, rule),
        "lead": list(notes),
        "facts": _facts(spec, made.results),
        "chapters": chapters,
        "foot": _foot(),
    }


def identifiability_content(made: Identifiability, versions: Versions = ()) -> Content:
    """The page of the paper's feature weights: the figure, and all tables."""
    chosen = made.table()
    data = {
        "columns": list(map(str, chosen.columns)),
        "rows": [[_plain(v) for v in row] for row in chosen.to_numpy(object)],
    }
    picture = figure(made.figure(), made.alt(), name=made.name, data=data)  # type: ignore[arg-type]  # untyped figure
    shown = made.tables()
    sections = [_section("figure", "Normalised weights of every feature", made.setting, [picture])]
    sections += [_section(f"table-{i}", t.title, "", _text_table(t)) for i, t in enumerate(shown)]
    ours = [
        (m, shares)
        for m, shares in (
            (m, made.numbers()["methods"][m]["fixed"]["share"]["mean"])
            for m in made.methods
            if "fixed" in made.spec.selection.rules
        )
        if shares is not None
    ]
    best = max(ours, key=lambda pair: pair[1], default=None)
    answer = f"Of {several(len(made.methods), 'method')} "
    answer += (
        f"{best[0]} puts most of its weight on the invariant features: {100 * best[1]:.1f} %."
        if best
        else "none has a weight."
    )
    numbers: list[Number] = []
    for method, share in ours:
        theirs = made.published_share(method)
        numbers.append(
            {
                "name": method,
                "value": f"{100 * share:.1f} %",
                "note": "" if theirs is None else f"paper {100 * theirs:.1f} %",
            }
        )
    return {
        "title": IDENTIFIABILITY_TITLE,
        "headline": {"badge": _badge(made.spec.name), "text": answer, "more": "", "numbers": numbers},
        "lead": [],
        "facts": [("setting", made.setting), ("repetitions", str(made.repetitions))],
        "chapters": [
            {"title": "Feature weights", "sections": sections},
            {"title": "How it was run", "sections": [_spec(made.spec), _versions(versions)]},
        ],
        "foot": _foot(),
    }


def running_times_content(made: RunningTimesReport) -> Content:
    """The page of running times."""
    sections = [_section(f"table-{i}", t.title, "", _text_table(t)) for i, t in enumerate(made.tables())]
    return {
        "title": RUNNING_TIMES_TITLE,
        "lead": ["Seconds are the machine's; ratios of l1 to l2 are not."],
        "facts": [("machine", made.measured.machine)],
        "chapters": [
            {"title": "Tables", "sections": sections},
            {"title": "How it was run", "sections": [_versions([made.measured.versions])]},
        ],
        "foot": _foot(),
    }


def folder_content(folder: str | os.PathLike[str]) -> Content:
    """The page of a folder that `irmtv run` or `irmtv reproduce` wrote, by the last spec that it was run by.

    Parameters
    ----------
    folder : path
        It has an experiment.sqlite.

    Returns
    -------
    Content
        A ValueError says where there is no result yet.
    """
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


def stored_spec(source: str, folder: Path) -> tuple[Spec, list[str]]:
    """A spec from the text in a store, and what is to be said of it.

    The file of published numbers stands beside the spec file, which is not in the store: it is looked for among the
    specs that come with the package and in the folder; where it is not found, the page goes without.
    """
    problem: SpecError | None = None
    for place in (papers.papers_folder(), folder, folder.parent, Path()):
        try:
            return parse_spec(source, place, str(folder)), []
        except SpecError as error:
            problem = problem or error
    import tomllib

    raw = tomllib.loads(source)
    if "published" not in raw:
        assert problem is not None
        raise problem
    spec = parse_spec(_without_published(source), folder, str(folder))
    file = raw["published"].get("file")
    return spec, [f"The published numbers ({file}) were not found beside {folder}; copy the file there to see them."]


def _without_published(source: str) -> str:
    """The text without its table [published] and without the keys that refer to it."""
    kept, inside = [], False
    for line in source.splitlines():
        bare = line.strip()
        if bare.startswith("["):
            inside = bare.startswith("[published")
        if not inside and not bare.replace(" ", "").startswith(("published=", "published.")):
            kept.append(line)
    return "\n".join(kept) + "\n"


def is_identifiability(spec: Spec) -> bool:
    """Whether it is a spec of the paper's feature weights: these have a report of their own."""
    return spec.name.startswith("identifiability") and spec.name in papers.paper_specs()


def stored_versions(folder: str | os.PathLike[str]) -> list[dict[str, str]]:
    """With what the runs of a folder were computed."""
    with Store.read(Path(folder)) as store:
        return store.versions()


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


def _headline(summary: pd.DataFrame, rule: str) -> Headline:
    rows = main_rows(summary)
    metric, where = str(rows["metric"].iloc[0]), str(rows["summary"].iloc[0])
    of = MetricFormat(metric)
    here = rows[(rows["rule"] == rule) & rows["mean"].notna()]
    place = "in the worst test environment" if where == WORST else f"({where})"
    best = {
        str(setting): group.sort_values("mean", ascending=not is_accuracy(metric), kind="stable").iloc[0]
        for setting, group in here.groupby("setting", sort=False)
    }
    if not best:
        answer = "No method has a value yet."
    elif len(best) == 1:
        (row,) = best.values()
        reached = of.with_unit(row["mean"])
        answer = f"Under the rule {rule_name(rule)}, {row['method']} has the best {metric} {place}: {reached}."
    else:
        wins = pd.Series([row["method"] for row in best.values()]).value_counts()
        often = ", ".join(f"{method} in {count}" for method, count in wins.items())
        answer = f"Under the rule {rule_name(rule)}, of {len(best)} settings the best {metric} {place} has {often}."
    numbers: list[Number] = [
        {"name": setting, "value": of.with_unit(row["mean"]), "note": str(row["method"])}
        for setting, row in list(best.items())[:6]
    ]
    compared = summary[(summary["rule"] != ORACLE) & (summary["rule"] != NOT_RUN)]
    compared = compared[compared["rule"] == ("fixed" if "fixed" in set(compared["rule"]) else rule)]
    distance = compared["difference_in_sd"].dropna().abs()
    more = ""
    if len(distance):
        which = "fixed" if "fixed" in set(summary["rule"]) else rule
        more = (
            f"{int((distance <= NEAR).sum())} of {len(distance)} published values are met within {NEAR:g} published "
            f"standard deviations (rule {rule_name(which)}); the largest difference is {short(float(distance.max()))}."
        )
    return {"badge": _badge(f"rule {rule_name(rule)}"), "text": answer, "more": more, "numbers": numbers}


def _badge(words: str) -> Badge:
    return {"text": words, "kind": "plain"}


# --- sections -------------------------------------------------------------------------------------------------


def _setting(made: ExperimentReport, shown: Table, rule: str, name: str) -> Section:
    rows = main_rows(made.summary, shown.metric)
    here = rows[rows["setting"] == shown.setting]
    blocks: list[Block] = []
    if (here["rule"] == rule).any():
        blocks.append(methods_figure(here, rule, f"{made.name}-{shown.setting}-{shown.metric}"))
    blocks += _table_blocks(shown)
    found = findings(made.tests, shown) if len(made.tests) else []
    if found:
        blocks.append(
            text("Paired differences between methods (Wilcoxon signed-rank over repetitions, p corrected by Holm):")
        )
        blocks.append(table(["rule and summary", "what differs"], [list(pair) for pair in found]))
    return _section(name, shown.title, shown.metric, blocks)


def _table_blocks(shown: Table) -> list[Block]:
    """The published numbers stand first, beside ours."""
    columns = [shown.stub, *(f"{c.group}: {c.name}" if c.group else c.name for c in shown.columns)]
    rows = [[row.label, *map(str, row.cells)] for row in shown.rows]
    return [
        table(columns, rows, [False, *map(is_number, shown.columns)]),
        *(text(note) for note in shown.notes),
    ]


def _outcomes(counts: pd.DataFrame) -> Section:
    columns = ["setting", "method", *(words for words, _, _ in OUTCOMES.values())]
    rows = [[str(r["setting"]), str(r["method"]), *(str(r[o]) for o in OUTCOMES)] for r in counts.to_dict("records")]
    blocks = [outcomes_figure(counts), table(columns, rows, [False, False, *[True] * len(OUTCOMES)])]
    return _section("outcomes", "Outcomes by method", "number of repetitions", blocks)


def _how(made: ExperimentReport, spec: Spec, versions: Versions) -> list[Section]:
    captions: dict[str, None] = {}
    for shown in tables(made.summary):
        captions |= dict.fromkeys(shown.caption)
    explained: list[Block] = [text(line) for line in captions]
    return [_section("reading", "How to read the tables", "", explained), _spec(spec), _versions(versions)]


def _spec(spec: Spec) -> Section:
    known = spec.name in papers.paper_specs()
    command = f"irmtv reproduce {spec.name} --out FOLDER" if known else "irmtv run spec.toml --out FOLDER"
    intro = "The settings, as the experiment was run. " + (
        "They come with irmtv:" if known else "Save them as spec.toml, then:"
    )
    return _section("spec", "To run it again", "", [text(intro), code(command), code(spec.text.strip())])


def _versions(versions: Versions) -> Section:
    names = list(dict.fromkeys(name for one in versions for name in one))
    columns = ["package", *(["version"] if len(versions) == 1 else [f"version {i + 1}" for i in range(len(versions))])]
    rows = [[name, *(one.get(name, "–") for one in versions)] for name in names]
    blocks = [table(columns, rows)] if rows else [text("They were not recorded.")]
    return _section("versions", "Versions", "that the runs were computed with", blocks)


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


def _text_table(shown: TextTable) -> list[Block]:
    numeric = [i >= shown.labels for i in range(len(shown.columns))]
    return [
        table(list(shown.columns), [list(row) for row in shown.rows], numeric),
        *(text(note) for note in shown.notes),
    ]


def _section(name: str, title: str, note: str, blocks: list[Block]) -> Section:
    return {"id": name, "title": title, "note": note, "badge": None, "blocks": blocks}


def _first_sentence(description: str) -> str:
    words = " ".join(description.split())
    return words.split(". ")[0].rstrip(".")


def _foot() -> str:
    return f"Made by irmtv {__version__}. Nothing in this page was loaded from elsewhere."


def _plain(value: object) -> str | float | int | None:
    if value is None or (isinstance(value, float) and value != value):
        return None
    return value.item() if hasattr(value, "item") else value  # type: ignore[return-value]  # a numpy scalar
