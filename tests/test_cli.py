"""The command line, through its real entry point."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from irmtv import OBJECTIVES, __version__


def irmtv(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-m", "irmtv.cli", *arguments], capture_output=True, text=True, env=environment, check=False
    )


def test_version():
    assert irmtv("--version").stdout == f"irmtv {__version__}\n"


def test_list_names_every_objective_with_needs_source_year_and_summary():
    text = irmtv("list").stdout
    for objective in OBJECTIVES.values():
        line = next(line for line in text.splitlines() if line.startswith(f"{objective.name} "))
        assert f"needs {objective.needs}" in line
        assert f"({objective.year})" in line
        assert objective.source in line
        assert objective.summary[:40] in text


@pytest.mark.parametrize("name", ["minimax-tv-l1", "irm-tv-l1+vrex"])
def test_list_one_shows_the_formula_and_every_hyper_parameter(name):
    result = irmtv("list", name)
    assert result.returncode == 0
    assert OBJECTIVES[name].formula in result.stdout
    for h in OBJECTIVES[name].hyperparameters:
        assert h.name in result.stdout
        assert h.meaning[:30] in result.stdout


def test_a_misspelt_name_is_one_line_and_exit_code_2():
    result = irmtv("list", "irm-tv-11")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("irmtv: objective must be one of")
    assert "Did you mean 'irm-tv-l1'?" in result.stderr
    assert "Traceback" not in result.stderr


def test_help_names_the_commands():
    assert "list" in irmtv("--help").stdout
