"""`irmtv fit`: from a file to an answer and a model."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape

from irmtv.cli.options import AsJson, DataPath, Encoding, Environment, Target, TaskKind, read_columns
from irmtv.cli.output import notes, print_json, progress, say, text_table, written
from irmtv.core.numbers import Estimate, MetricFormat
from irmtv.core.outcomes import KEEP_ERM

if TYPE_CHECKING:
    from irmtv.app.fit.summary import EnvironmentRow, FitSummary

MOST_ENVIRONMENTS = 15  # lines of the table in a terminal, the worst first; the report has all

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
    rule: Annotated[
        str, typer.Option(help="Selection rule: invariance, iid, worst-env or leave-one-env-out.")
    ] = "invariance",
    penalty_weights: Annotated[
        str | None, typer.Option(help="Penalty weights to try, e.g. 10,100,1000 (0, which is ERM, is always tried).")
    ] = None,
    folds: Annotated[int, typer.Option(help="Number of cross-validation folds.")] = 3,
    steps: Annotated[
        int, typer.Option(help="Number of training steps (mlp; linear models are solved by Newton's method).")
    ] = 1000,
    rounds: Annotated[int, typer.Option(help="Number of boosting rounds (trees).")] = 100,
    metric: Annotated[str | None, typer.Option(help="accuracy or log_loss; rmse, mae or mse.")] = None,
    min_rows: Annotated[
        int, typer.Option(help="Minimum number of rows of an environment; smaller ones are pooled.")
    ] = 10,
    time_ordered: Annotated[
        bool, typer.Option("--time-ordered", help="Environments are times: also predict each from what came before.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Random seed of the folds and the models.")] = 0,
    encoding: Encoding = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Model file to write.")] = Path("model.irmtv"),
    report: Annotated[
        Path | None, typer.Option(help="HTML page to write (default: report.html beside the model).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit a model that keeps working in other environments, and say whether one was found.

    Prints the outcome (ERM is already invariant; an invariant model was found; or none was found), what to expect in
    an environment that nobody has seen, where three or more are given, and the held-out scores of ERM and of the chosen
    model in every environment.
    """
    weights = _weights(penalty_weights)
    from irmtv.app.io.write import check_writable

    check_writable(out, inputs=[data])
    page_path = report if report is not None else out.with_name("report.html")
    check_writable(page_path, "--report", inputs=[data])
    if page_path.absolute() == out.absolute():
        raise ValueError(f"--report must be another file than --out. Got {str(out)!r} for both.")
    from irmtv.app.fit import fit_table
    from irmtv.app.pages.model import model_content
    from irmtv.estimators.files import save
    from irmtv.html.page import write_page

    with progress("reading") as bar:
        table, places, aux_columns = read_columns(data, encoding, environment, aux)
        answer = fit_table(
            table,
            target,
            places,
            aux_columns,
            objective=objective,
            model=model,
            task=task,
            rule=rule,
            penalty_weights=weights,
            folds=folds,
            steps=steps,
            rounds=rounds,
            metric=metric,
            min_rows=min_rows,
            time_ordered=time_ordered,
            random_state=seed,
            command=shlex.join(["irmtv", *sys.argv[1:]]),
            bar=bar,
        )
    if not as_json:
        show(answer.summary)  # first: it was minutes of work, whatever happens to the files
    save(answer.pipeline, out, about=answer.summary)
    write_page(model_content(answer.summary), page_path)
    if as_json:
        print_json({**answer.summary, "model_file": str(out), "report_file": str(page_path)})
    written(out, page_path)


def show(summary: FitSummary) -> None:
    """The answer in a sentence, what to expect elsewhere, and the table of environments."""
    say(summary["headline"])
    unseen = summary.get("new_environment")
    if unseen is not None:
        say(unseen["message"])
    form = MetricFormat.in_words(summary["metric"])
    kept = summary["outcome"] in KEEP_ERM  # the same model twice
    columns = {"erm": "plain (ERM)"}
    if not kept:
        columns |= {"chosen": "chosen", "difference": "difference, points" if form.percent else "difference"}
    better = "higher" if summary["greater_is_better"] else "lower"
    say(f"{summary['metric']} on held-out rows ({better} is better), with 95 % intervals")
    shown = text_table(("environment", "rows", *columns.values()))
    rows = summary["environments"]
    few = rows if len(rows) <= MOST_ENVIRONMENTS else _worst_first(summary)[:MOST_ENVIRONMENTS]
    for row in few:
        shown.add_row(*_cells(row, columns, form))
    if len(rows) > len(few):
        shown.add_row(f"and {len(rows) - len(few)} better ones: see the report")
    shown.add_section()
    for row in (summary["overall"], summary["worst"]):
        shown.add_row(*_cells(row, columns, form))
    Console(highlight=False).print(shown)
    notes(summary["data"]["notes"])
    say(f"model: {chosen_model(summary)}")
    families = summary.get("families")
    if families is not None:
        say(f"({families['message']})")
    say(f"({summary['message']})")
    if unseen is not None and unseen["expected"] is not None:
        whole = summary["seconds"]["all"]
        say(f"(training without each environment took {unseen['seconds']:.1f} of {whole:.1f} s)")


def chosen_model(summary: FitSummary) -> str:
    """What was chosen, and of which kind ERM is, where that is another."""
    model, plain = summary["model"], summary.get("plain_model", summary["model"])
    from irmtv.app.fit.summary import variant

    point = next((point for point in summary["path"] if point["chosen"]), None)
    weight = "" if point is None else f", penalty weight {point['penalty_weight']:g}"
    if point is not None and variant(point):
        weight += f" (classifier {variant(point)})"
    elif point is not None and "objective" in point:
        weight += f" of {point['objective']}"
    return f"{model}{weight}" + ("" if plain == model else f"; plain (ERM): {plain}")


def _worst_first(summary: FitSummary) -> list[EnvironmentRow]:
    sign = 1 if summary["greater_is_better"] else -1
    return sorted(summary["environments"], key=lambda row: sign * (row["erm"]["value"] or 0.0))


def _cells(row: EnvironmentRow, columns: Iterable[str], form: MetricFormat) -> list[str]:
    cells = [_cell(cast(Any, row)[key], form, key == "difference") for key in columns]
    return [escape(row["name"]), f"{row['rows']:,}", *cells]


def _cell(estimate: Estimate, form: MetricFormat, sign: bool) -> str:
    value, low, high = (
        form.value(v, sign) if sign else form.with_unit(v)
        for v in (estimate["value"], estimate["low"], estimate["high"])
    )
    return f"{value} \\[{low}, {high}]"


def _weights(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(
            f"--penalty-weights must be numbers with commas between, such as 10,100,1000. Got {text!r}."
        ) from None
