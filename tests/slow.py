"""Writes tests/slow.txt, the tests that `make check` leaves out, from measured processor seconds.

    python -m pytest --times times.txt     on any machine: processor time does not depend on what else runs there
    python tests/slow.py times.txt         (make slow-list does both)

A line is a test function, or a whole file where the first test pays for a fixture that the others use. Lines for tests
that no longer exist do no harm; the next list is without them.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ALWAYS = "tests/contracts/test_layers.py"  # checked before each commit, whatever it costs
CASE, FUNCTION = 0.35, 0.8  # seconds: of one case, of all cases of a function together


def slow(lines: Iterable[str]) -> list[str]:
    """Functions, and files with a fixture, that cost too much, from lines of `--times`."""
    cases: dict[str, list[float]] = defaultdict(list)
    files = set()
    for line in lines:
        seconds, setup, test = line.rstrip("\n").split("\t", 2)
        name = test.partition("[")[0]
        if name.startswith(ALWAYS):
            continue
        cases[name].append(float(seconds))
        if float(setup) >= CASE:
            files.add(name.partition("::")[0])
    functions = {name for name, costs in cases.items() if max(costs) >= CASE or sum(costs) >= FUNCTION}
    return sorted(files | {name for name in functions if name.partition("::")[0] not in files})


def main() -> None:
    (times,) = sys.argv[1:]
    listed = slow(Path(times).read_text(encoding="utf-8").splitlines())
    Path(__file__).with_name("slow.txt").write_text("\n".join(listed) + "\n", encoding="utf-8")
    print(f"{len(listed)} tests and files are slow")


if __name__ == "__main__":
    main()
