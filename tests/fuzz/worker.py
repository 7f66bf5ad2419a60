"""A range of mutated inputs through the commands, in one process: `python -m fuzz.worker KIND FIRST COUNT FOLDER`.

It prints a line of JSON for each: {"seed": 7} when it begins, and {"seed": 7, "what": ..., "problems": [...]} when it
has ended. Where the process dies in between, the one that started it knows which input that was.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import typer

from fuzz.fence import BYTES, Fence, memory, seconds
from irmtv import cli
from irmtv.core.messages import printable

MOST_SIGNS = 3000  # of a message: the whole of what a file holds is none
TOO_MUCH = ("MemoryError", "nable to allocate", "not enough memory", "bad_alloc", "Cannot allocate")


class Case(Protocol):
    """What is done with the inputs of one kind, in a folder of their own."""

    def write(self, seed: int) -> str:
        """Write the input of a seed; what was done, in words."""

    def steps(self, seed: int) -> Iterator[tuple[str, Callable[[], object]]]:
        """What it goes through, by name."""


def command(*arguments: object) -> Callable[[], object]:
    """A step that runs the command."""

    def run() -> object:
        sys.argv = ["irmtv", *map(str, arguments)]
        return cli.main()

    return run


def ended(step: Callable[[], object], many_lines: bool = False) -> str | None:
    """What is wrong with how a step ends, None where nothing is: it succeeds, or one line says why not."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            step()
        code: Any = 0
    except SystemExit as stopped:
        code = stopped.code or 0
    except MemoryError:
        return f"MemoryError\n{traceback.format_exc()}"
    except Exception:
        return traceback.format_exc()
    said = err.getvalue()
    if any(words in said for words in TOO_MUCH):
        return f"it needs more than {BYTES:,} bytes: {said[-1000:]}"
    if hidden := {sign for sign in out.getvalue() + said if printable(sign) != sign}:
        return f"prints {hidden}"
    if code == 0:
        return None
    lines = [line for line in said.strip().split("\n") if not line.startswith("note: ")]
    if code != 1 or not lines or not lines[0].startswith("irmtv: ") or (len(lines) > 1 and not many_lines):
        return f"exit code {code}: {said[:2000]!r}"
    return f"a message of {len(said):,} characters: {said[:300]!r}" if len(said) > MOST_SIGNS else None


def case(kind: str, folder: Path) -> Case:
    if kind == "models":
        from fuzz.through_models import Models as Chosen
    elif kind == "tables":
        from fuzz.through_tables import Tables as Chosen  # type: ignore[assignment]
    else:
        from fuzz.through_specs import Specs as Chosen  # type: ignore[assignment]
    return Chosen(folder)


def main(kind: str, first: int, count: int, bases: Path, report: io.TextIOBase) -> None:
    folder = bases / f"{kind}-{os.getpid()}"
    folder.mkdir()
    os.chdir(folder)
    cli.app = typer.main.get_command(cli.app)  # made once
    what = case(kind, folder)
    fence = Fence(folder)
    for seed in range(first, first + count):
        print(json.dumps({"seed": seed}), file=report, flush=True)
        problems = []
        done = what.write(seed)
        before = {p.name for p in folder.iterdir()}
        started = seconds()
        for name, step in what.steps(seed):
            fence.begin()
            wrong = ended(step, many_lines=kind == "specs")
            fence.end()
            problems += [f"{name}: {text}" for text in [wrong, *(f"reaches {c}" for c in fence.crossed)] if text]
        if memory() > BYTES:
            problems.append(f"{memory():,} bytes of memory")
        written = {p.name for p in folder.iterdir()} - before
        problems += [f"left behind {sorted(written)}"] if written else []
        result = {"seed": seed, "what": done, "problems": problems, "memory": memory(), "took": seconds() - started}
        print(json.dumps(result), file=report, flush=True)
        if memory() > BYTES:
            break


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.stdout)
    os._exit(0)  # as `irmtv.cli.run` ends: threads of Arrow may still be about to give back what they have read
