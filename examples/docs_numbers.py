"""Which command makes which table of docs again, and how long it takes.

    python examples/docs_numbers.py               lists them
    python examples/docs_numbers.py --run         runs those of a few minutes (make docs-numbers)
    python examples/docs_numbers.py --run --all   runs all that this machine has the files for (make docs-numbers ALL=1)
    python examples/docs_numbers.py --page theory  of one page only
    python examples/docs_numbers.py --only adult   the commands that have this in them
    python examples/docs_numbers.py --run --with "--device cuda"  with this in place of the pages' `--jobs 2`

A run that ends well writes its date and duration to examples/docs_numbers.json, which a page of the site shows.
What is printed, or written to results/, is then compared with the page by eye: a change of numbers is a change of the
page in the same commit, with its reason. Minutes are those of two CPU cores, as the pages say; "?" was not measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LAST_RUNS = Path(__file__).with_suffix(".json")
QUICK = 6.0  # minutes
TWO_JOBS = "--jobs 2"
# linear models solved outright, of the specs on selection
SOLVED = '--methods "TV-l1, Newton" --methods "TV-l1, vector, Newton" --methods EILLS'
INFERRED = '--methods "Minimax-TV-l1, Newton" --methods "Minimax-TV-l1, vector, Newton"'


@dataclass(frozen=True)
class Numbers:
    """A table of a page and the command that makes it."""

    page: str
    table: str
    command: str
    minutes: float | None
    data: bool = False  # reads the files in IRMTV_DATA
    gpu: bool = False

    @property
    def quick(self) -> bool:
        return self.minutes is not None and self.minutes <= QUICK and not self.gpu

    @property
    def needs(self) -> str:
        return ", ".join(["IRMTV_DATA"] * self.data + ["a GPU"] * self.gpu)


def reproduce(name: str, more: str = TWO_JOBS) -> str:
    return f"irmtv reproduce {name} {more} --out results/{name}"


NUMBERS = (
    Numbers("guide/large-data", "rows over ranks", "python -m benchmarks.ranks", 3),
    Numbers("guide/large-data", "sizes", "python -m benchmarks.sizing", 0.1),
    Numbers("guide/index", "the pictures", "python docs/guide/figures.py", 0.5),
    Numbers(
        "guide/limits", "three environments", "python examples/choice.py three --first-seed 840 --repetitions 12", 3
    ),
    Numbers("paper", "the demo", "python examples/demo.py", 1),
    Numbers("performance", "ratios", "python -m benchmarks.speed", 2),
    Numbers("performance", "along one axis", "python -m benchmarks.axes", 3),
    Numbers("performance", "the roofline, sizes", "python -m benchmarks.roofline", 1.5),
    Numbers("performance", "more rows than memory", "python -m benchmarks.large results/large", 3),
    Numbers("performance", "a large text file", "python -m benchmarks.files", 1.5),
    Numbers("performance", "on a GPU", "python -m benchmarks.gpu", 2, gpu=True),
    Numbers("solving", "the picture", "python examples/solving_landscape.py docs/solving.svg", 0.5),
    Numbers("solving", "simulation", "python examples/solving.py simulation", 6),
    Numbers("solving", "inferred", "python examples/solving.py inferred", 6),
    Numbers("solving", "unit tests", "python examples/solving.py unit-tests", 8),
    Numbers("solving", "rotated", "python examples/solving.py rotated --repetitions 5", 2),
    Numbers("solving", "solvers", "python examples/solving.py solvers --repetitions 3", 4),
    Numbers("solving", "networks", "python examples/solving.py networks --repetitions 2", 8),
    Numbers("solving", "time", "python examples/solving.py time", 0.5),
    Numbers("selection", "linear models, simulation", "python examples/choice.py simulation", 1),
    Numbers("selection", "linear models, inferred", "python examples/choice.py inferred", 3),
    Numbers("selection", "linear models, controls", "python examples/choice.py controls --repetitions 15", 4),
    Numbers("selection", "linear models, controls, inferred", "python examples/choice.py controls --inferred", 6),
    Numbers("selection", "linear models, three environments", "python examples/choice.py three", 2),
    Numbers("selection", "linear models, unit tests", "python examples/choice.py unit-tests", 6),
    Numbers("selection", "a linear model or a network", "python examples/choice.py auto", 15),
    Numbers("selection", "the same, inferred", "python examples/choice.py auto --inferred", 15),
    Numbers("selection", "irmtv fit", "python examples/choice.py fit", 10),
    Numbers("selection", "real tables", reproduce("real", "--repetitions 5 --jobs 2"), None, data=True),
    Numbers("theory", "the whole page", reproduce("theory"), 2),
    Numbers("identifiability", "feature weights", reproduce("identifiability"), 5),
    Numbers("identifiability", "without the division", reproduce("identifiability-undivided"), 1),
    Numbers("identifiability", "running times", reproduce("running-times", "--repetitions 7"), 3, data=True),
    Numbers(
        "identifiability", "running times, GPU", reproduce("running-times", "--device cuda"), 2.5, data=True, gpu=True
    ),
    Numbers("estimators", "inferred environments", "python examples/inferred_environments.py", 2),
    Numbers("estimators", "Adult, baselines", "python examples/adult_baselines.py", 1, data=True),
    Numbers("estimators", "Adult, chosen", "python examples/adult_cv.py", 5, data=True),
    Numbers("estimators", "paths as one batch", "python -m benchmarks.paths", 3),
    Numbers("diagnose", "levels of the tests", "python examples/diagnose_levels.py", 4),
    Numbers("diagnose", "the same, X differs", "python examples/diagnose_levels.py shift regression 1000 60", None),
    Numbers("boosting", "what the step rule is worth", "python examples/boosting_step_rule.py", 0.3),
    Numbers("boosting", "simulation", "python examples/boosting_simulation.py", None),
    Numbers("boosting", "do no harm", "python examples/boosting_no_harm.py", 1.5, data=True),
    Numbers("boosting", "training time", "python -m benchmarks.boosting", None),
    Numbers("selection", "simulation", reproduce("selection"), None),
    Numbers("selection", "simulation, solved", reproduce("selection", f"{SOLVED} {INFERRED}"), 4.5),
    Numbers("selection", "three environments", reproduce("selection-three"), None),
    Numbers("selection", "three environments, solved", reproduce("selection-three", SOLVED), 1.5),
    Numbers("selection-tried", "among Adam's snapshots", "python examples/selection_ideas.py --out results/ideas", 10),
    Numbers("selection", "do no harm", reproduce("control"), None),
    Numbers("selection", "do no harm, regression", reproduce("control-regression"), None),
    Numbers("reproduction", "simulation", reproduce("simulation"), 43),
    Numbers("reproduction", "simulation, tables", "python examples/reproduction.py results/simulation", 0.5),
    Numbers("reproduction-tried", "simulation, explained", "python examples/reproduction.py --explain", None),
    Numbers("reproduction-tried", "simulation, what else", "python examples/published_gap.py", 1),
    Numbers("reproduction", "sums of penalties", reproduce("sums"), None),
    Numbers("reproduction", "Adult", reproduce("adult"), 28, data=True),
    Numbers("reproduction-tried", "Adult, other settings", "python examples/adult_gap.py", 10, data=True),
    Numbers("reproduction", "house prices", reproduce("house-prices"), 11, data=True),
    Numbers("reproduction", "house prices, scaling", reproduce("house-prices-scaling"), None, data=True),
    Numbers("reproduction", "CelebA, stand-in", reproduce("celeba-standin"), 40, data=True),
    Numbers("reproduction", "Landcover, stand-in", reproduce("landcover-standin"), 40),
    Numbers("reproduction", "the Cerrado", reproduce("cerrado"), 40, data=True),
    Numbers("reproduction", "Colored MNIST", reproduce("colored-mnist"), 10, data=True),
)


def ready(one: Numbers) -> bool:
    """Whether this machine has what a command needs: files, a device, the results of a command before it."""
    results = [Path(word) for word in shlex.split(one.command) if word.startswith("results/")]
    missing = "--out" not in one.command and any(not (ROOT / folder).exists() for folder in results)
    no_gpu = one.gpu and shutil.which("nvidia-smi") is None
    return not (no_gpu or missing or (one.data and not os.environ.get("IRMTV_DATA")))


def last_runs() -> dict[str, dict[str, Any]]:
    """The date, duration and processor time of every command's last run that was recorded, by command."""
    return json.loads(LAST_RUNS.read_text(encoding="utf-8")) if LAST_RUNS.exists() else {}


def record(command: str, seconds: float, processor: float, options: str = TWO_JOBS) -> None:
    """Keeps when a command ran, how long it took, and the processor time, which other work does not change.

    Processes that train are no children of the command: what they took is not known here.
    """
    runs = last_runs()
    runs[command] = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "seconds": round(seconds)}
    if TWO_JOBS not in command:
        runs[command]["processor_seconds"] = round(processor)
    elif options != TWO_JOBS:
        runs[command]["with"] = options
    LAST_RUNS.write_text(json.dumps(dict(sorted(runs.items())), indent=1) + "\n", encoding="utf-8")


def run(one: Numbers, options: str = TWO_JOBS) -> int:
    """Runs a command with this Python, in the repository; its exit code."""
    words = shlex.split(one.command.replace(TWO_JOBS, options))
    words[:1] = {"python": [sys.executable], "irmtv": [sys.executable, "-m", "irmtv"]}[words[0]]
    print(f"\n== docs/{one.page}.md, {one.table}: {one.command}", flush=True)
    start, before = time.perf_counter(), os.times()
    code = subprocess.run(words, cwd=ROOT, env={"OMP_NUM_THREADS": "1", **os.environ}, check=False).returncode
    if code == 0:
        after = os.times()
        processor = after.children_user + after.children_system - before.children_user - before.children_system
        record(one.command, time.perf_counter() - start, processor, options)
    return code


def main() -> None:
    parser = argparse.ArgumentParser(description="The commands that make the tables of docs again.")
    parser.add_argument("--run", action="store_true", help=f"run those of at most {QUICK:g} minutes")
    parser.add_argument("--all", action="store_true", help="with --run: the long ones too (hours)")
    parser.add_argument("--page", help="only those of one page, such as theory")
    parser.add_argument("--only", default="", metavar="TEXT", help="only commands with this in them")
    parser.add_argument("--with", dest="options", default=TWO_JOBS, help="of commands with %(default)s, in its place")
    asked = parser.parse_args()
    rows = [one for one in NUMBERS if asked.page in (None, one.page) and asked.only in one.command]
    for one in rows:
        minutes = "?" if one.minutes is None else f"{one.minutes:g}"
        print(f"{one.page:16} {one.table:31} {minutes:>4} min  {one.command}  {f'({one.needs})' if one.needs else ''}")
    if not asked.run:
        return
    chosen = [one for one in rows if (asked.all or one.quick) and ready(one)]
    print(f"\n{len(chosen)} of {len(rows)} are run" + ("" if asked.all else "; the long ones with --all"))
    failed = [one.command for one in chosen if run(one, asked.options) != 0]
    if failed:
        sys.exit("failed: " + "; ".join(failed))


if __name__ == "__main__":
    main()
