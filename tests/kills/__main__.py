"""`python -m kills` in the folder of tests: kills, flips and stops, with counts. See `make kills`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from kills import flips, stops, sweeps
from kills.attempts import attempt, modules_of, prepare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("kills", 1000), ("flips", 1000), ("stops", 300), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole, spec = folder / "whole", sweeps.write_spec(folder)
        undisturbed = sweeps.command(spec, whole, 1)
        prepare(*modules_of(undisturbed, folder))
        seconds = min(attempt([*undisturbed[:-3], f"{whole}{k}", "--jobs", "1"], folder).seconds for k in range(3))
        print(f"an undisturbed sweep takes {seconds:.1f} s", flush=True)
        if asked.flips:
            _show("single bits of a store flipped", flips.flip(asked.flips, asked.seed, whole, folder), asked.flips)
        if asked.stops:
            _show("commands stopped", stops.stop(asked.stops, asked.seed, spec, folder), asked.stops)
        if asked.kills:
            _show("SIGKILL", sweeps.kill(asked.kills, asked.seed, spec, whole, folder, seconds), asked.kills)


_BEGAN = time.perf_counter()


def _show(title: str, counts: Counter[str], asked: int) -> None:
    print(f"{title}: {asked} ({time.perf_counter() - _BEGAN:.0f} s since the start)")
    for what, count in counts.items():
        print(f"  {count:6d}  {what}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
