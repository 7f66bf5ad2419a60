"""A minute of `make fuzz`: the first inputs of each kind, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="limits and signals of Linux")]


def fuzz(tmp_path, *arguments):
    path = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", "fuzz", "--failures", str(tmp_path / "failures"), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )


def test_the_first_of_each_kind(tmp_path):
    ended = fuzz(tmp_path, "--count", 200)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("200 inputs, 0 failed") == 3
    assert not (tmp_path / "failures").exists()
