"""`make fuzz`: thousands of mutated model files, tables and specs, each seen to end as it should.

    PYTHONPATH=tests python -m fuzz                                        # all of it, about an hour
    PYTHONPATH=tests python -m fuzz --kind models --first 5000 --count 100

Input number N is the same at every time, so a range can be repeated, and what is left be done later. An input fails
where it ends in a traceback, takes more than 5 seconds of processor time or 1 GB of memory, opens or writes what it may
not, or starts a process. It is then kept in the folder of --failures, with what was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COUNTS = {"models": 20_000, "tables": 14_000, "specs": 6_000}
ROUND = 1000  # inputs of one process: what a process keeps shall not count for the next
EVERY = 500  # inputs, a line of progress


@dataclass
class Tally:
    """What was seen so far."""

    done: int = 0
    failed: int = 0
    seconds: float = 0.0  # of processor time
    memory: int = 0
    slowest: tuple[float, int] = (0.0, -1)

    def add(self, line: dict[str, Any]) -> None:
        self.done += 1
        self.seconds += line["took"]
        self.memory = max(self.memory, line["memory"])
        self.slowest = max(self.slowest, (line["took"], line["seed"]))

    def __str__(self) -> str:
        took, seed = self.slowest
        return (
            f"{self.done:,} inputs, {self.failed} failed; {self.seconds:.0f} s of processor time, the slowest "
            f"{took:.1f} s (seed {seed}); {self.memory / 1e6:.0f} MB at most"
        )


def run(kind: str, first: int, count: int, folder: Path, failures: Path) -> Tally:
    """Every input of a range; a process that dies is followed by another from the next input on."""
    tally, seed, end = Tally(), first, first + count
    while seed < end:
        seed = _one_process(kind, seed, min(ROUND, end - seed), folder, failures, tally)
    return tally


def _one_process(kind: str, first: int, count: int, folder: Path, failures: Path, tally: Tally) -> int:
    """The seed to go on from."""
    environment = {**os.environ, **QUIET, "MPLCONFIGDIR": str(folder), "COLUMNS": "100", "NO_COLOR": "1"}
    words = [sys.executable, "-m", "fuzz.worker", kind, str(first), str(count), str(folder)]
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=said, text=True, env=environment) as process:
            assert process.stdout is not None
            now, own = first - 1, folder / f"{kind}-{process.pid}"
            for text in process.stdout:
                line = json.loads(text)
                now = line["seed"]
                if "what" not in line:
                    begun = now
                    continue
                begun = None
                tally.add(line)
                if line["problems"]:
                    _keep(kind, line["seed"], own, failures, f"{line['what']}\n" + "\n".join(line["problems"]), tally)
                if tally.done % EVERY == 0:
                    print(f"{kind} to {now}: {tally}", flush=True)
        if process.returncode:
            said.seek(0)
            why = f"the process ended with {process.returncode}\n{said.read()[-6000:].decode(errors='replace')}"
            if now < first or begun is None:
                raise SystemExit(f"{kind}: {why}")
            tally.done += 1
            _keep(kind, now, own, failures, why, tally)
    shutil.rmtree(own)
    return now + 1


# one thread everywhere, so that processor time is that of one input; Arrow's own allocator reserves addresses ahead
QUIET = {
    **dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "ARROW_IO_THREADS"], "1"),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "PYTHONHASHSEED": "0",
}


def _keep(kind: str, seed: int, own: Path, failures: Path, text: str, tally: Tally) -> None:
    tally.failed += 1
    kept = failures / f"{kind}-{seed}"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(own, kept)
    (kept / "why.txt").write_text(text, encoding="utf-8", errors="backslashreplace")
    last = text.strip().splitlines()[-1] if text.strip() else ""
    print(f"FAILED {kind} {seed}: {text.splitlines()[0][:80]}; {last[:160]!r}, kept in {kept}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__, formatter_class=Raw)
    parser.add_argument("--kind", choices=list(COUNTS), action="append", help="one of them alone (default: all)")
    parser.add_argument("--first", type=int, default=0, help="number of the first input (default: 0)")
    parser.add_argument("--count", type=int, help=f"how many of each kind (default: {COUNTS})")
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"), help="where failing inputs are kept")
    given = parser.parse_args()
    failed, started = 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="irmtv-fuzz-") as place:
        folder = Path(place)
        made = f"from fuzz.model_files import write_bases; write_bases(__import__('pathlib').Path({place!r}))"
        subprocess.run([sys.executable, "-W", "ignore", "-c", made], check=True, env={**os.environ, **QUIET})
        for kind in given.kind or COUNTS:
            tally = run(kind, given.first, given.count or COUNTS[kind], folder, given.failures)
            print(f"{kind} {given.first} to {given.first + (given.count or COUNTS[kind]) - 1}: {tally}", flush=True)
            failed += tally.failed
    print(f"{failed} failed, in {time.monotonic() - started:.0f} s", flush=True)
    return 1 if failed else 0


Raw = argparse.RawDescriptionHelpFormatter

if __name__ == "__main__":
    sys.exit(main())
