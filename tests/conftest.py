"""What tests of several folders use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """`command("fit", path, ...)` runs it through its entry point, in this process: torch takes seconds to load."""
    from irmtv import cli

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["irmtv", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Ended(ended.value.code or 0, captured.out, captured.err)

    return call
