"""The command line: reads arguments, calls the application or the laboratory, prints."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from irmtv._version import __version__
from irmtv.cli import data, diagnose, evaluate, experiments, fit, objectives, predict, report, verify
from irmtv.core.messages import printable

app = typer.Typer(
    help="Predictors that keep working when the environment changes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (fit.fit, predict.predict, evaluate.evaluate, diagnose.diagnose, report.report, verify.verify):
    app.command(command.__name__)(command)
app.command("list")(objectives.list_objectives)
app.command("run")(experiments.run_spec)
app.command("reproduce")(experiments.reproduce)
app.add_typer(data.app, name="data")


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


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 the data or the settings are wrong, 2 usage, 130 stopped by Ctrl-C.

    A mistake is one line on standard error, not a traceback.
    """
    try:
        app()
    except (ValueError, OSError, ImportError) as error:  # the last: packages that are not installed by default
        print(f"irmtv: {printable(str(error))}", file=sys.stderr)
        sys.exit(1)
    except MemoryError:
        print("irmtv: there is not enough memory for this. Use fewer rows or columns.", file=sys.stderr)
        sys.exit(1)
