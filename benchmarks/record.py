"""What benchmarks measured, a line of JSON per run in `benchmarks/results.jsonl`, and what changed since.

python -m benchmarks.record      the newest line beside the last one that is committed (make bench-compare)
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import irmtv

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results.jsonl"
NOISE = 0.05  # smaller changes are not shown as changes


class Ratio(NamedTuple):
    """A ratio of times or sizes, and what is wanted of it."""

    what: str
    value: float
    wanted: float
    more: bool = False  # at least so much is wanted, not at most

    @property
    def reached(self) -> bool:
        return self.value >= self.wanted if self.more else self.value <= self.wanted


def table_of(title: str, ratios: Sequence[Ratio]) -> Table:
    table = Table(title=title)
    for column in ("what", "ratio", "wanted"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for r in ratios:
        number = f"{r.value:.1f}" if r.more else f"{r.value:.2f}"
        missed = "" if r.reached else "  missed"
        table.add_row(r.what, number, f"{'>=' if r.more else '<='} {r.wanted:g}{missed}")
    return table


def record(name: str, ratios: Sequence[Ratio], **more: Any) -> None:
    """Append a line to the results: what was measured, when, of which commit, on what."""
    line = {
        "benchmark": name,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _git("describe", "--always", "--dirty", "--exclude=*").strip(),
        "versions": {
            "irmtv": irmtv.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "ratios": {
            r.what: [round(r.value, 3), ("at least " if r.more else "at most ") + f"{r.wanted:g}"] for r in ratios
        },
        **more,
    }
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _git(*words: str) -> str:
    """What git prints; nothing outside of a repository."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout


def last_of(text: str) -> dict[str, dict[str, Any]]:
    """The last line of every benchmark."""
    lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    return {line["benchmark"]: line for line in lines}


def changes(before: dict[str, Any], now: dict[str, Any]) -> Table:
    """The ratios of two lines beside each other."""
    title = f"{now['benchmark']}: {before['commit']} of {before['date']}, then {now['commit']} of {now['date']}"
    table = Table(title=title)
    for column in ("what", "before", "now", "change", "wanted"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for what, (value, wanted) in now["ratios"].items():
        old = before["ratios"].get(what, [None])[0]
        if old is None:
            table.add_row(what, "", f"{value:g}", "new", wanted)
            continue
        change = value / old - 1
        better = (change > 0) == wanted.startswith("at least")
        word = "" if abs(change) < NOISE else f"{change:+.0%} {'better' if better else 'worse'}"
        table.add_row(what, f"{old:g}", f"{value:g}", word, wanted)
    return table


def main() -> None:
    committed = last_of(_git("show", f"HEAD:{RESULTS.relative_to(ROOT)}"))
    present = last_of(RESULTS.read_text()) if RESULTS.exists() else {}
    console = Console()
    new = {name: line for name, line in present.items() if name in committed and line != committed[name]}
    if not new:
        sys.exit("nothing to compare: run make bench first; it adds a line to benchmarks/results.jsonl")
    for name, line in new.items():
        console.print(changes(committed[name], line))
        differ = [k for k in ("versions", "processor", "cores", "threads") if line[k] != committed[name][k]]
        if differ:
            console.print(f"not the same {', '.join(differ)}: ratios compare, but with care")


if __name__ == "__main__":
    main()
