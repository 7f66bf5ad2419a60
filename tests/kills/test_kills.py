"""A few of what `make kills` does a thousand times, in a process of its own: it forks, and must have one thread."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.time_limit(600)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, process groups and /proc of Linux")
def test_a_few_kills_flips_and_stops():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "kills", "--kills", "8", "--flips", "60", "--stops", "6", "--seed", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counts = {what: int(n) for n, what in re.findall(r"^ +(\d+)  +(\S.*)$", ended.stdout, re.MULTILINE)}
    assert counts["kills"] >= 8 and counts["named"] + counts["without effect"] == 60, ended.stdout
    assert sum(n for what, n in counts.items() if ", SIG" in what) == 6, ended.stdout
