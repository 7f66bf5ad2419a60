"""`irmtv list`: the objectives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from irmtv.cli.options import AsJson
from irmtv.cli.output import print_json, terminal

if TYPE_CHECKING:
    from irmtv.objectives import Objective


def list_objectives(
    name: Annotated[
        str | None, typer.Argument(help="Objective to describe: formula and hyper-parameters (default: list all).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the objectives: what each needs, its source, what it does."""
    from irmtv.objectives import OBJECTIVES  # here, so that --version and --help need not load torch

    if as_json:
        chosen = OBJECTIVES.values() if name is None else [OBJECTIVES[name]]
        print_json([_described(objective) for objective in chosen])
        return
    console = terminal()
    if name is not None:
        _show(console, OBJECTIVES[name])
        return
    for objective in OBJECTIVES.values():
        tasks = "every task" if len(objective.tasks) == 3 else ", ".join(objective.tasks)
        needs = f"needs {objective.needs}"
        console.print(f"[bold]{objective.name:18s}[/bold] {needs:18s} {tasks:12s} {escape(_source(objective))}")
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
        own = h.default is None and h.name in ("measure", "reduction")  # in a sum of penalties
        default = "each part's own" if own else str(h.default)
        console.print(f"  [bold]{h.name}[/bold]{star} = {escape(default)}    search: {escape(_search(h.search))}")
        console.print(Padding(escape(h.meaning), (0, 0, 0, 6)))


def _search(search: tuple[Any, ...]) -> str:
    if search and search[0] in ("log", "linear"):
        return f"{search[1]:g} to {search[2]:g} ({search[0]})"
    return " | ".join(map(str, search))


def _described(objective: Objective) -> dict[str, Any]:
    keys = ("name", "summary", "formula", "needs", "tasks", "source", "year")
    return {
        **{key: getattr(objective, key) for key in keys},
        "hyperparameters": [
            {"name": h.name, "default": str(h.default), "meaning": h.meaning, "per_run": h.per_run}
            for h in objective.hyperparameters
        ],
    }
