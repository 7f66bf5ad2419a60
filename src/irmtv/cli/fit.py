"""`irmtv fit`: from a file to an answer and a model."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.markup import escape

from irmtv.cli.options import (
    AsJson,
    Categorical,
    DataPath,
    Drop,
    Encoding,
    Environment,
    Features,
    Memory,
    Metric,
    Quiet,
    Target,
    TaskKind,
    column_names,
    read_columns,
)
from irmtv.cli.output import VERDICTS, WIDE, notes, paragraph, print_json, progress, say, terminal, text_table, written
from irmtv.core.numbers import Estimate, MetricFormat

if TYPE_CHECKING:
    from irmtv.app.fit.summary import EnvironmentRow, FitSummary

MOST_ENVIRONMENTS = 15  # lines of the table in a terminal, the worst first or the last of times; the page has all

Aux = Annotated[
    list[str] | None,
    typer.Option(help="Columns (a,b) of numbers or dates from which to infer environments, if none are given."),
]


def fit(
    data: DataPath,
    target: Target,
    environment: Environment = None,
    aux: Aux = None,
    objective: Annotated[str, typer.Option(help="auto, or a name from irmtv list.")] = "auto",
    model: Annotated[
        str, typer.Option(help="linear, mlp (a network), trees (boosted), or auto: compare them.")
    ] = "auto",
    task: TaskKind = None,
    drop: Drop = None,
    features: Features = None,
    categorical: Categorical = None,
    test: Annotated[
        Path | None,
        typer.Option(help="Other rows with the target: the chosen model and ERM are scored on them, too."),
    ] = None,
    rule: Annotated[
        str, typer.Option(help="Selection rule: invariance, iid, worst-env or leave-one-env-out.")
    ] = "invariance",
    max_price: Annotated[
        float | None,
        typer.Option(
            help="Largest price of invariance: how much higher than that of ERM the held-out risk may be, as a share "
            "(0.05: 5 %; default: no limit)."
        ),
    ] = None,
    penalty_weights: Annotated[
        str | None, typer.Option(help="Penalty weights to try, e.g. 10,100,1000 (0, which is ERM, is always tried).")
    ] = None,
    folds: Annotated[int, typer.Option(help="Number of cross-validation folds.")] = 3,
    steps: Annotated[
        int, typer.Option(help="Number of training steps (mlp; linear models are solved by Newton's method).")
    ] = 1000,
    rounds: Annotated[int, typer.Option(help="Number of boosting rounds (trees).")] = 100,
    metric: Metric = None,
    min_rows: Annotated[
        int, typer.Option(help="Minimum number of rows of an environment; smaller ones are pooled.")
    ] = 10,
    time_ordered: Annotated[
        bool | None,
        typer.Option(
            "--time-ordered/--no-time-ordered",
            help="Environments are times: predict each from what came before (default: where they are dates or years).",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the folds and the models.")] = 0,
    encoding: Encoding = None,
    memory: Memory = None,
    distributed: Annotated[
        bool,
        typer.Option(
            "--distributed",
            help="One of several processes that torchrun has started: they share the rows of the Parquet files.",
        ),
    ] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="File to write while a table larger than memory is trained on; the same command goes on."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Model file to write.")] = Path("model.irmtv"),
    report: Annotated[
        Path | None, typer.Option(help="HTML page to write (default: that of the model, with .html).")
    ] = None,
    intervals: Annotated[bool, typer.Option("--intervals", help="Print 95 % intervals of all scores.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Fit a model, and say what to expect in other environments.

    Prints what to expect in a new environment (where three or more are given),
    what was chosen and where it is better or worse than a plain model, what to
    do next, and the scores of every environment on rows that were held out.
    """
    weights = _weights(penalty_weights)
    from irmtv.app.io.write import check_writable
    from irmtv.cli.ranks import is_first, process_group
    from irmtv.html.page import check_page, page_beside, write_page

    inputs = [data] if test is None else [data, test]
    check_writable(out, inputs=inputs)
    page_path = report if report is not None else page_beside(out)
    check_writable(page_path, "--report", inputs=inputs)
    check_page(page_path, "--report")
    if page_path.absolute() == out.absolute():
        raise ValueError(f"--report must be another file than --out. Got {str(out)!r} for both.")
    from irmtv.app.fit import fit_table
    from irmtv.app.fit.ranks import agreed
    from irmtv.app.io import names_of
    from irmtv.app.pages.model import model_content
    from irmtv.estimators.files import save

    first = not distributed or is_first()
    with process_group(distributed) as group, progress("reading", quiet=quiet or not first) as bar:
        read = partial(read_columns, data, encoding, environment, aux, memory, in_blocks=distributed)
        table, places, aux_columns = agreed(group, read)
        present = names_of(table)
        answer = fit_table(
            table,
            target,
            places,
            aux_columns,
            objective=objective,
            model=model,
            task=task,
            drop=column_names(drop, present),
            features=column_names(features, present),
            categorical=column_names(categorical, present),
            rule=rule,
            max_price=max_price,
            penalty_weights=weights,
            folds=folds,
            steps=steps,
            rounds=rounds,
            metric=metric,
            test=test,
            encoding=encoding,
            memory=memory,
            min_rows=min_rows,
            time_ordered=time_ordered,
            random_state=seed,
            checkpoint=checkpoint,
            process_group=group,
            command=shlex.join(["irmtv", *sys.argv[1:]]),
            bar=bar,
        )
    if not first:
        return
    try:  # it was minutes of work: a pipe that is closed must not lose the files, nor a full disk the answer
        save(answer.pipeline, out, about=answer.summary)
        write_page(model_content(answer.summary), page_path)
    finally:
        if not as_json:
            show_answer(answer.summary) if quiet else show(answer.summary, intervals)
    if as_json:
        print_json({**answer.summary, "model_file": str(out), "report_file": str(page_path)})
    if not quiet:
        written(out, page_path)
    if checkpoint is not None:  # the model is there
        for path in (checkpoint, checkpoint.with_name(checkpoint.name + ".before")):
            path.unlink(missing_ok=True)


def show(summary: FitSummary, intervals: bool = False) -> None:
    """The answer in three paragraphs, and the tables of environments."""
    show_answer(summary)
    _show_environments(summary, intervals)
    _show_other_rows(summary, intervals)
    look = summary.get("first_look")
    if look is not None:
        paragraph(look["overlap"])
    notes(summary["data"]["notes"])
    say(f"model: {chosen_model(summary)}")


def show_answer(summary: FitSummary) -> None:
    """What to expect, what was chosen, what to do next; and whether other rows are as expected."""
    from irmtv.app.fit.answer import answer

    said, other = answer(summary), summary.get("test")
    for text in (said["expect"], said["choice"], said["next"]):
        paragraph(text)
    if said["command"]:
        say(f"  {said['command']}\n")
    if other is not None:
        where = f"By {MetricFormat(summary['metric']).words} on the {other['rows']:,} rows of {other['file']}:"
        paragraph(" ".join([where, *other.get("verdict", [])]))


def _show_environments(summary: FitSummary, intervals: bool) -> None:
    """Held-out scores."""
    from irmtv.app.fit.comparing import in_order

    ordered, times = in_order(summary, summary["environments"])
    totals = [summary["overall"], summary["worst"]] if len(ordered) > 1 else [summary["overall"]]
    _show_scores(summary, "rows that were held out of training", (ordered, times), totals, intervals)


def _show_other_rows(summary: FitSummary, intervals: bool) -> None:
    """The scores on the rows of `--test`."""
    from irmtv.app.fit.comparing import in_order

    scores = summary.get("test")
    if scores is None:
        return
    ordered = in_order(summary, scores["environments"])
    totals = [row for row in (scores["overall"], scores["worst"] if len(ordered[0]) > 1 else None) if row is not None]
    _show_scores(summary, f"the {scores['rows']:,} rows of {scores['file']}", ordered, totals, intervals)
    notes(scores["notes"])


def _show_scores(
    summary: FitSummary,
    where: str,
    environments: tuple[list[EnvironmentRow], bool],
    totals: list[EnvironmentRow],
    intervals: bool,
) -> None:
    """Scores of one model where the plain one is kept, else of both; intervals where asked for, or where there is room.

    `environments` are in order, and whether that is of time.
    """
    from irmtv.app.fit.expectation import place

    form, console, (ordered, times) = MetricFormat.in_words(summary["metric"]), terminal(), environments
    intervals = intervals or console.width >= WIDE
    columns = _columns(summary, form)
    better = "higher" if summary["greater_is_better"] else "lower"
    paragraph(f"{form.words} on {where} ({better} is better){', with 95 % intervals' if intervals else ''}")
    with_rows = not intervals or console.width >= WIDE or len(columns) == 1
    verdicts = any("verdict" in row for row in ordered)
    heads = ("environment", *(["rows"] if with_rows else []), *columns.values(), *(["verdict"] if verdicts else []))
    shown = text_table(heads)
    lines = [*totals, *ordered]
    formats = {
        key: form.column([cast(Any, row)[key]["value"] for row in lines], key == "difference") for key in columns
    }

    def cells(row: EnvironmentRow) -> list[str]:
        scores = [_cell(cast(Any, row)[key], show, intervals) for key, show in formats.items()]
        said = [VERDICTS.get(row.get("verdict", ""), "")] if verdicts else []
        return [escape(place(row["name"], summary)), *([f"{row['rows']:,}"] if with_rows else []), *scores, *said]

    few = ordered[-MOST_ENVIRONMENTS:] if times else ordered[:MOST_ENVIRONMENTS]
    more = len(ordered) - len(few)
    if more and times:
        shown.add_row(f"({more} earlier ones: see the page)")
    for row in few:
        shown.add_row(*cells(row))
    if more and not times:
        shown.add_row(f"({more} better ones: see the page)")
    shown.add_section()
    for row in totals:
        shown.add_row(*cells(row))
    console.print(shown)


def _columns(summary: FitSummary, form: MetricFormat) -> dict[str, str]:
    """Of the scores: where they stand in a row, and their titles."""
    from irmtv.app.fit.comparing import erm_is_kept

    unit = ", %" if form.percent else ""
    columns = {"erm": f"plain{unit}"}
    if not erm_is_kept(summary):
        means = "better" if summary["greater_is_better"] else "worse"
        points = ", points" if form.percent else ""
        columns |= {"chosen": f"chosen{unit}", "difference": f"difference{points}\n(+ is {means})"}
    return columns


def chosen_model(summary: FitSummary) -> str:
    """What was chosen, and of which kind ERM is, where that is another."""
    model, plain = summary["model"], summary.get("plain_model", summary["model"])
    from irmtv.app.fit.summary import variant

    point = next((point for point in summary["path"] if point["chosen"]), None)
    weight = "" if point is None else f", penalty weight {point['penalty_weight']:g}"
    if point is not None and not point["penalty_weight"]:
        weight = ", without a penalty"
    elif point is not None and variant(point):
        weight += f" (classifier {variant(point)})"
    elif point is not None and "objective" in point:
        weight += f" of {point['objective']}"
    return f"{model}{weight}" + ("" if plain == model else f"; plain (ERM): {plain}")


def _cell(estimate: Estimate, show: Callable[[float | None], str], interval: bool) -> str:
    value, low, high = (show(estimate[end]) for end in ("value", "low", "high"))
    return f"{value} \\[{low}, {high}]" if interval else value


def _weights(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(
            f"--penalty-weights must be numbers with commas between, such as 10,100,1000. Got {text!r}."
        ) from None
