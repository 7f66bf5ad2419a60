"""Ctrl-C and SIGTERM: the first of several counts, and none is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from irmtv import cli


@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)])
def test_of_signals_that_come_together_the_first_counts(numbers, monkeypatch, capsys):
    first, second = numbers

    def command():
        try:
            signal.raise_signal(first)
        finally:
            signal.raise_signal(second)  # while the first one is cleaned up after
            print("cleaned up")

    before = [signal.signal(n, h) for n, h in ((signal.SIGINT, signal.default_int_handler), (first, signal.SIG_DFL))]
    monkeypatch.setattr(cli, "app", command)
    try:
        with pytest.raises(KeyboardInterrupt):
            cli.main()
        assert signal.getsignal(first) == signal.SIG_DFL
    finally:
        for number, handler in zip((signal.SIGINT, first), before, strict=True):
            signal.signal(number, handler)
    assert capsys.readouterr().out == "cleaned up\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system with fork")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_stop_that_python_drops_comes_again(name):
    script = f"""
import os, signal, time
import typer
from irmtv import cli
cli.app = typer.Typer()
os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.{name}))  # what it raises is dropped

@cli.app.command()
def forks():
    if os.fork() == 0:
        os._exit(0)
    for _ in range(600):
        time.sleep(0.1)
    print("went on")

cli.main()
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (130, ""), result.stderr
    assert result.stderr.startswith("irmtv: stopped; ") and "Exception ignored" not in result.stderr
