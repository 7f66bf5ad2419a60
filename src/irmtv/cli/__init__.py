"""The command line: reads arguments, calls the application or the laboratory, prints."""

from __future__ import annotations

import atexit
import gc
import math
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from irmtv._version import __version__
from irmtv.cli import data, diagnose, evaluate, experiments, fit, objectives, predict, report, verify
from irmtv.core.messages import printable

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

MOST_SIGNS = 2500  # of a message
NEW_OBJECTS = 10_000  # after which Python looks for garbage: at its own 700 it looks a tenth of a command's time

app = typer.Typer(
    help="Predictors that keep working when the environment changes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's panels cut long options in a terminal of 80 columns
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
    """Entry point. Exit codes: 0 done, 1 the data or the settings are wrong, 2 usage, 130 stopped by Ctrl-C or SIGTERM.

    A mistake is one line on standard error, not a traceback.
    """
    stop = _Stop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, stop)
    sys.unraisablehook = stop.lost
    collecting = gc.get_threshold()
    gc.set_threshold(max(NEW_OBJECTS, collecting[0]), *collecting[1:])
    try:
        app()
    except SystemExit as ended:
        if isinstance(getattr(ended.__context__, "__cause__", None), KeyboardInterrupt):  # no command said it
            print("irmtv: stopped; files are whole or not there. The same command starts again.", file=sys.stderr)
        raise
    except (ValueError, OSError, ImportError) as error:  # the last: packages that are not installed by default
        sys.exit(_refusal(str(error)))
    except MemoryError as error:
        what = f" ({error})" if str(error) else ""
        sys.exit(_refusal(f"there is not enough memory for this{what}. Use fewer rows or columns."))
    finally:
        gc.set_threshold(*collecting)
        sys.unraisablehook = stop.other_losses
        for number, handler in before.items():
            signal.signal(number, handler)


def run() -> None:
    """`main` as a process of its own, which then ends without Python's last steps.

    Threads of compiled libraries that still hold what they have read give it back when they come to it. One that needs
    Python's lock for that while Python ends takes the process with it: Arrow's did, once in some thousand commands, and
    the exit code was that of a crash.
    """
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads and ends pools, as Python would
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:  # the reader has gone
            pass
        except OSError as error:
            code = code or 1
            os.write(2, f"irmtv: the output could not be written: {error.strerror}\n".encode())
    os._exit(code)


class _Stop:
    """SIGTERM, as from a batch system, is Ctrl-C. Of signals within a second the first counts.

    `timeout` and impatient people send two, and the second would interrupt what the first one cleans up.
    """

    def __init__(self) -> None:
        self.last, self.number = -math.inf, signal.SIGINT
        self.other_losses = sys.unraisablehook

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() - self.last > 1:
            self.last, self.number = time.monotonic(), signal.Signals(number)
            raise KeyboardInterrupt

    def lost(self, unraisable: UnraisableHookArgs) -> None:
        """As `sys.unraisablehook`: Python drops what is raised in finalisers and around a fork; it comes again."""
        if unraisable.exc_type is KeyboardInterrupt:
            threading.Timer(0.01, self._again).start()
        else:
            self.other_losses(unraisable)

    def _again(self) -> None:
        handler: object = signal.getsignal(self.number)
        if handler is not self:  # the command has ended meanwhile
            return
        self.last = -math.inf
        if hasattr(signal, "pthread_kill"):  # also where the main thread waits for something
            signal.pthread_kill(threading.main_thread().ident or 0, self.number)
        else:
            signal.raise_signal(self.number)


def _refusal(text: str) -> int:
    """Print what is wrong; the exit code. What a file holds may be quoted in it, but not megabytes of it."""
    text = printable(text)
    if len(text) > MOST_SIGNS:
        text = f"{text[: MOST_SIGNS // 2]} ... {text[-MOST_SIGNS // 2 :]} ({len(text):,} characters)"
    print(f"irmtv: {text}", file=sys.stderr)
    return 1
