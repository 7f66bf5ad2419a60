"""`irmtv diagnose`: what a table says about shifts. Nothing that is trained is kept."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from irmtv.cli.options import (
    AsJson,
    Categorical,
    DataPath,
    Drop,
    Encoding,
    Environment,
    Features,
    Memory,
    Target,
    TaskKind,
    column_names,
    read_columns,
)
from irmtv.cli.output import add_rows, note, notes, print_json, progress, sentence, terminal, text_table, written
from irmtv.core.numbers import number, percent, within

if TYPE_CHECKING:
    from irmtv.app.diagnose import Diagnosis
    from irmtv.app.diagnose.features import FeatureChanges
    from irmtv.app.diagnose.losses import LossByEnvironment

FEWEST_ROWS = 100  # that a diagnosis needs
MOST_LINES = 12  # of a table in a terminal; the page has all


def diagnose(
    data: DataPath,
    target: Target,
    environment: Environment = None,
    aux: Annotated[
        list[str] | None, typer.Option(help="Columns (a,b) of numbers or dates in which to look for environments.")
    ] = None,
    model: Annotated[str, typer.Option(help="linear, mlp (a network), trees, or auto: the best of them.")] = "auto",
    task: TaskKind = None,
    drop: Drop = None,
    features: Features = None,
    categorical: Categorical = None,
    max_rows: Annotated[int, typer.Option(help="Maximum number of rows: a random sample (0: all).")] = 20_000,
    seed: Annotated[int, typer.Option(help="Random seed of the folds, the sample and the permutations.")] = 0,
    encoding: Encoding = None,
    memory: Memory = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="HTML page to write.")] = None,
    as_json: AsJson = False,
) -> None:
    """How do environments differ, and can invariance help?

    Compares the environments given by --environment, looks for others in --aux, or both. No model is kept.
    """
    if out is not None:
        from irmtv.app.io.write import check_writable
        from irmtv.html.page import check_page

        check_writable(out, inputs=[data])
        check_page(out)
    if max_rows != 0 and max_rows < FEWEST_ROWS:
        raise ValueError(f"--max-rows must be 0 (all rows) or at least {FEWEST_ROWS}. Got {max_rows}.")
    if not environment and not aux:
        from irmtv.app.diagnose.words import NOTHING_TO_COMPARE

        raise ValueError(NOTHING_TO_COMPARE)
    from irmtv.app.diagnose import diagnose_table
    from irmtv.app.io import names_of

    with progress("reading") as bar:
        table, places, aux_columns = read_columns(data, encoding, environment, aux, memory)
        present = names_of(table)
        diagnosis = diagnose_table(
            table,
            target,
            places,
            aux_columns,
            model=model,
            task=task,
            drop=column_names(drop, present),
            features=column_names(features, present),
            categorical=column_names(categorical, present),
            random_state=seed,
            max_rows=max_rows or None,
            memory=memory,
            command=shlex.join(["irmtv", *sys.argv[1:]]),
            progress=lambda share, what: bar.at(share, escape(what)),
        )
        if out is not None:
            from irmtv.app.pages.diagnosis import diagnosis_content
            from irmtv.html.page import write_page

            write_page(diagnosis_content(diagnosis.summary), out)
    if as_json:
        print_json(diagnosis.summary)
    else:
        show(diagnosis)
    if out is not None:
        written(out)


def show(diagnosis: Diagnosis) -> None:
    """The answer first, then every part: a sentence, and a table where there is one."""
    console = terminal()
    notes(diagnosis.notes)
    for said in diagnosis.headline:
        sentence(said)
    if diagnosis.model.asked == "auto":
        note(_chosen(diagnosis))

    def title(text: str) -> None:
        console.print(f"\n[bold]{escape(text)}[/bold]")

    if diagnosis.differ is not None:
        title("How different are the environments?")
        sentence(diagnosis.differ.sentence)
    if diagnosis.losses is not None:
        title("How does the loss of the plain model (ERM) differ across them?")
        sentence(diagnosis.losses.sentence)
        console.print(_environments(diagnosis.losses))
    if diagnosis.features is not None:
        title("Which features' relation to the target changes?")
        sentence(diagnosis.features.sentence)
        if diagnosis.features.model != "linear":
            sentence("Weights are how far the outputs move when a feature is shuffled.")
        console.print(_features(diagnosis.features))
    if diagnosis.found is not None:
        title("What environments are found in aux, and where?")
        sentence(diagnosis.found.sentence)
    if diagnosis.informative:
        title("Are the environments informative at all?")
        for part in diagnosis.informative:
            sentence(part.sentence)
    if diagnosis.splits is not None:
        title("How does the loss split into change in X and change in y given X?")
        splits = diagnosis.splits.splits
        for split in [diagnosis.splits.largest] if len(splits) == 2 else splits[:MOST_LINES]:  # one of two says it all
            sentence(split.sentence)
        if len(splits) > MOST_LINES:
            sentence(f"... and {len(splits) - MOST_LINES} more: see --out or --json")


def _chosen(diagnosis: Diagnosis) -> str:
    """Which model was chosen; the sentences name it, too."""
    model = diagnosis.model
    risks = ", ".join(f"{kind} {number(risk)}" for kind, risk in model.risks.items())
    return f"note: model {model.kind}, by the held-out loss ({risks}; the simplest within 1 % of the lowest)"


def _environments(losses: LossByEnvironment) -> Table:
    made = text_table(("environment", "rows", losses.loss_name, losses.metric))
    rows = zip(losses.environments, losses.rows, losses.loss, losses.metric_values, strict=True)
    add_rows(made, [(name, f"{n:,}", within(loss), within(metric)) for name, n, loss, metric in rows], MOST_LINES)
    return made


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else number(value, 2)


def _features(features: FeatureChanges) -> Table:
    made = text_table(("feature", "weight, ERM", "weight, invariant", "p (Holm)"))
    rows = [
        (f.name, f"{percent(f.erm, minus='-')} %", f"{percent(f.invariant, minus='-')} %", _p(f.p_holm))
        for f in features.features
    ]
    add_rows(made, rows, MOST_LINES)
    return made
