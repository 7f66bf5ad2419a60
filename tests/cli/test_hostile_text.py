"""Text from files is text in a terminal: no command passes on an escape sequence or a mark that turns its direction."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from cli.models import fitted
from irmtv import load
from irmtv.cli.output import TerminalBytes, print_json, terminal
from irmtv.estimators.files import save

RED, TURNED, BELL = "\x1b[31mred", "a\u202eb", "c\x07\x9bd"
HIDDEN = ("\x1b", "\u202e", "\x07", "\x9b")
QUICK = ("--model", "linear", "--steps", "40")


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    n = 240
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=n),
            "kind": rng.choice([RED, TURNED, "plain"], n),
            "site": np.repeat([RED, TURNED, BELL], n // 3),
        }
    )
    frame["sold"] = np.where(frame["size"] + rng.normal(size=n) > 0, RED, TURNED)
    path = tmp_path / "sales.csv"
    frame.to_csv(path, index=False)
    return path


def clean(ended):
    assert not any(sign in ended.out + ended.err for sign in HIDDEN), repr(ended)
    assert "\ufffd" in ended.out + ended.err
    return ended


def test_no_command_passes_hidden_signs_on(command, table, tmp_path):
    model = tmp_path / "m.irmtv"
    how = ("--target", "sold", "--environment", "site")
    assert clean(command("fit", table, *how, *QUICK, "--out", model)).code == 0
    assert clean(command("evaluate", model, table, "--environment", "site")).code == 0
    assert clean(command("diagnose", table, *how)).code == 0
    assert clean(command("verify", model)).code == 0
    page = (tmp_path / "m.html").read_text(encoding="utf-8")
    assert not any(sign in page for sign in HIDDEN)
    ended = command("evaluate", model, table, "--environment", "site", "--json")
    assert not any(sign in ended.out for sign in HIDDEN)
    assert {row["environment"] for row in json.loads(ended.out)["environments"]} >= {RED, TURNED, BELL}


def test_what_a_model_file_says_of_itself_is_text(command, tmp_path):
    path = fitted(tmp_path)
    save(load(path), tmp_path / "other.irmtv", about={"headline": RED, "created": TURNED})
    for name in ("verify", "report"):
        ended = command(name, tmp_path / "other.irmtv")
        assert not any(sign in ended.out + ended.err for sign in HIDDEN)


def test_an_error_is_text(command, tmp_path):
    ended = command("evaluate", tmp_path / f"{RED}.irmtv", tmp_path / "no.csv")
    assert ended.code == 1 and not any(sign in ended.err for sign in HIDDEN)


def test_tables_styles_and_json(capsys):
    from rich.table import Table

    made = Table("head\x1b[1m", "other")
    made.add_row("x\u202ey", "fine")
    terminal().print(made)
    terminal(stderr=True).print("a\x1b]0;title\x07b\tc", markup=False)
    print_json({"name": "a\u202eb\x1b"})
    TerminalBytes().write("é\x1b[2J\n".encode())
    captured = capsys.readouterr()
    assert not any(sign in captured.out + captured.err for sign in HIDDEN)
    assert '{\n  "name": "a\\u202eb\\u001b"\n}' in captured.out and "é\ufffd[2J\n" in captured.out
