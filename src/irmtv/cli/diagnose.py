"""`irmtv diagnose`: what a table says about shifts. Nothing that is trained is kept."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Shown

from irmtv.cli.names import column_names
from irmtv.cli.options import DataPath, Encoding, Environment, Target, TaskKind
from irmtv.cli.output import AsJson, note, print_json, say

if TYPE_CHECKING:
    from irmtv.app.diagnose import Diagnosis

FEWEST_ROWS = 100  # that a diagnosis needs
MOST_LINES = 12  # of a table in a terminal; the page has all


def register(app: typer.Typer) -> None:
    app.command("diagnose")(diagnose)


def diagnose(
    data: DataPath,
    target: Target,
    environment: Environment = None,
    aux: Annotated[
        list[str] | None, typer.Option(help="Columns (a,b) of numbers or dates that environments are looked for in.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="linear, mlp (a network), trees, or auto: which predicts better.")
    ] = "auto",
    task: TaskKind = None,
    max_rows: Annotated[int, typer.Option(help="Look at a random sample of so many rows; 0 for all.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Of the folds, the sample and the permutations.")] = 0,
    encoding: Encoding = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A page (HTML) to write.")] = None,
    as_json: AsJson = False,
) -> None:
    """Is there a shift that hurts, what carries it, and would invariance have something to work with?

    Compares the given environments, looks for others in --aux, or both. Trains nothing that is kept.
    """
    if out is not None:
        from irmtv.app.io.write import check_writable

        check_writable(out, inputs=[data])
    if max_rows != 0 and max_rows < FEWEST_ROWS:
        raise ValueError(f"--max-rows must be 0 (all rows) or at least {FEWEST_ROWS}. Got {max_rows}.")
    if not environment and not aux:
        from irmtv.app.diagnose.words import NOTHING_TO_COMPARE

        raise ValueError(NOTHING_TO_COMPARE)
    from irmtv.app.diagnose import diagnose_table
    from irmtv.app.io import read_table
    from irmtv.engine.progress_bar import ProgressBar

    try:
        with ProgressBar("reading", console=Console(stderr=True, highlight=False)) as bar:
            table = read_table(data, encoding=encoding)
            columns = table.frame.columns
            found = diagnose_table(
                table,
                target,
                column_names(environment, columns),
                column_names(aux, columns),
                model=model,
                task=task,
                random_state=seed,
                max_rows=max_rows or None,
                command=shlex.join(["irmtv", *sys.argv[1:]]),
                progress=lambda share, what: bar.at(share, escape(what)),
            )
        if out is not None:
            _write(found, out)
    except KeyboardInterrupt:
        note("irmtv: stopped; nothing was written. The same command starts again.")
        raise typer.Exit(130) from None
    if as_json:
        print_json(found.summary)
    else:
        show(found)
    if out is not None:
        note(f"written: {out}")


def _write(found: Diagnosis, path: Path) -> None:
    from irmtv.app.pages.diagnosis import diagnosis_content
    from irmtv.core.files import write_text
    from irmtv.html.page import page

    write_text(path, page(diagnosis_content(found.summary)))


def show(found: Diagnosis) -> None:
    """The answer first, then every part: a sentence, and a table where there is one."""
    console = Console(highlight=False)
    for text in found.notes:
        note(f"note: {text}")
    for sentence in found.headline:
        say(sentence)
    if (chosen := _chosen(found)) is not None:
        note(chosen)

    def title(text: str) -> None:
        console.print(f"\n[bold]{escape(text)}[/bold]")

    if found.differ is not None:
        title("How different are the environments?")
        say(found.differ.sentence)
    if found.losses is not None:
        title("How does the loss of plain risk minimisation differ across them?")
        say(found.losses.sentence)
        console.print(_environments(found))
    if found.features is not None:
        title("Which features' relation to the target changes?")
        say(found.features.sentence)
        if found.features.model != "linear":
            say("Weights are how far the outputs move when a feature is shuffled.")
        console.print(_features(found))
    if found.found is not None:
        title("What environments are found in aux, and where?")
        say(found.found.sentence)
    if found.informative:
        title("Are the environments informative at all?")
        for part in found.informative:
            say(part.sentence)
    if found.splits is not None:
        title("How does the loss split into change in X and change in y given X?")
        two = len(found.splits.splits) == 2  # one says it all
        for split in [found.splits.largest] if two else found.splits.splits[:MOST_LINES]:
            say(split.sentence)
        if len(found.splits.splits) > MOST_LINES:
            say(f"... and {len(found.splits.splits) - MOST_LINES} more: see --out or --json")


def _chosen(found: Diagnosis) -> str | None:
    """Which model it was, where it was chosen; the sentences name it, too."""
    from irmtv.app.diagnose.words import number

    model = found.model
    if model.asked != "auto":
        return None
    risks = ", ".join(f"{kind} {number(risk)}" for kind, risk in model.risks.items())
    return f"note: model {model.kind}, by the held-out loss ({risks}; the simplest within 1 % of the lowest)"


def _environments(found: Diagnosis) -> Shown:
    from irmtv.app.diagnose.words import within

    losses = found.losses
    assert losses is not None
    shown = _table(("environment", "rows", losses.loss_name, losses.metric))
    rows = zip(losses.environments, losses.rows, losses.loss, losses.metric_values, strict=True)
    cells = [(name, f"{n:,}", within(loss), within(metric)) for name, n, loss, metric in rows]
    return _filled(shown, cells)


def _features(found: Diagnosis) -> Shown:
    from irmtv.app.diagnose.words import number

    features = found.features
    assert features is not None
    shown = _table(("feature", "weight, ERM", "weight, invariant", "p (Holm)"))
    cells = [(f.name, _share(f.erm), _share(f.invariant), number(f.p_holm, 2)) for f in features.features]
    return _filled(shown, cells)


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _table(columns: tuple[str, ...]) -> Shown:
    shown = Shown()
    for i, name in enumerate(columns):
        shown.add_column(name, justify="right" if i else "left", overflow="fold")
    return shown


def _filled(shown: Shown, cells: Sequence[tuple[str, ...]]) -> Shown:
    for row in cells[:MOST_LINES]:
        shown.add_row(*map(escape, row))
    if len(cells) > MOST_LINES:
        shown.add_row(f"... and {len(cells) - MOST_LINES} more", *[""] * (len(cells[0]) - 1))
    return shown
