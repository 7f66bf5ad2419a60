"""The command line. Thin: it reads arguments, calls the library, prints."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from irmtv._version import __version__

if TYPE_CHECKING:
    from irmtv.objectives import Objective

app = typer.Typer(
    help="Predictors that keep working when the environment changes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"irmtv {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


@app.command("list")
def list_objectives(
    name: Annotated[str | None, typer.Argument(help="One objective: its formula and every hyper-parameter.")] = None,
) -> None:
    """The objectives: what each needs, where it comes from, what it does."""
    from irmtv.objectives import OBJECTIVES  # here, so that --version and --help need not load torch

    console = Console(highlight=False)
    if name is not None:
        _show(console, OBJECTIVES[name])
        return
    for objective in OBJECTIVES.values():
        tasks = "every task" if len(objective.tasks) == 3 else ", ".join(objective.tasks)
        needs = f"needs {objective.needs}"
        console.print(f"[bold]{objective.name:15s}[/bold] {needs:18s} {tasks:12s} {escape(_source(objective))}")
        console.print(Padding(escape(objective.summary), (0, 0, 0, 16)))
    console.print("\nirmtv list NAME: formula and hyper-parameters; a sum is named so: irmtv list irm-tv-l1+vrex")


def _source(objective: Objective) -> str:
    return f"{objective.source} ({objective.year})"


def _show(console: Console, objective: Objective) -> None:
    console.print(f"[bold]{objective.name}[/bold]: {escape(objective.summary)}\n")
    console.print(Padding(f"min over Phi   {escape(objective.formula)}", (0, 0, 0, 4)))
    console.print(f"\nneeds {objective.needs}; for {', '.join(objective.tasks)}; {escape(_source(objective))}")
    console.print("\nhyper-parameters (* may differ between the runs of one batch):")
    for h in objective.hyperparameters:
        star = "*" if h.per_run else " "
        default = "each part's own" if h.default is None else str(h.default)  # in a sum of penalties
        console.print(f"  [bold]{h.name}[/bold]{star} = {escape(default)}    search: {escape(_search(h.search))}")
        console.print(Padding(escape(h.meaning), (0, 0, 0, 6)))


def _search(search: tuple[Any, ...]) -> str:
    if search and search[0] in ("log", "linear"):
        return f"{search[1]:g} to {search[2]:g} ({search[0]})"
    return " | ".join(map(str, search))


def main() -> None:
    """Entry point: a user's mistake is one line on standard error and exit code 2, not a traceback."""
    try:
        app()
    except ValueError as error:
        print(f"irmtv: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
