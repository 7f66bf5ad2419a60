"""Fused steps of linear models are the ordinary ones; which steps are fused.

The kernels are run by Triton's interpreter, which needs no GPU. On a GPU `test_cuda.py` compares them with the CPU.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_take_the_steps_of_the_engine():
    script = Path(__file__).with_name("fused_in_interpreter.py")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(cases) == 13
    for case in cases:
        assert case["fused"] == (0 if case["case"].startswith("not fused") else 4), case
        # Adam makes steps of one size of gradients that are nearly 0, as they are at ERM
        assert case["difference"] < (1e-4 if "one column" in case["case"] else 1e-9), case
