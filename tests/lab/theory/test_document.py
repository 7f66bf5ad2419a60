"""The page of all statements: what is written, and what happens where a statement fails."""

from __future__ import annotations

import json
import math
import re

import pytest

from irmtv import cli
from irmtv.html.page import page
from irmtv.lab.theory import document, run_statements
from irmtv.lab.theory.finding import Comparison, Finding

MEANING = "It is so, in one way.\n\nAnd in another."


def made(name, left=1.0, role="claim"):
    lines = (
        Comparison("x", "counted", 1.0, "=", "closed form", 1.0),
        Comparison("x", "counted", left, "=", "closed form", 1.0, 0.1, role),
    )
    return Finding(name, f"Title of {name}", "Theorem 1 (thm:x)", "So it is.", lines, MEANING, draw, r"$a^2 < b$")


def draw(figure):
    figure.subplots().plot([0, 1], [0, 1])


def failing():
    raise RuntimeError("no such level")


@pytest.fixture
def few(monkeypatch):
    """Five statements, one of each kind."""
    statements = {
        "right": lambda: made("right"),
        "wrong": lambda: made("wrong", 2.0),
        "conditional": lambda: made("conditional", math.inf, "beyond"),
        "ours": lambda: made("ours", math.nan, "ours"),
        "failing": failing,
    }
    monkeypatch.setattr(document, "STATEMENTS", statements)
    monkeypatch.setattr(document, "CHAPTERS", {"First": ("right", "wrong"), "Last": ("conditional", "ours", "failing")})
    return statements


def test_the_report_has_every_statement_with_its_verdict(few):
    told = []
    report = run_statements(progress=lambda share, name: told.append((round(share, 1), name)))
    assert {name: t.verdict for name, t in report.found.items()} == {
        "right": "holds",
        "wrong": "does not hold as printed",
        "conditional": "holds under its condition",
        "ours": "not verified",
    }
    assert report.failed == {"failing": "RuntimeError: no such level"}
    assert not report.sound
    assert report.counted() == ("holds: 1, holds under its condition: 1, does not hold as printed: 1, not verified: 1")
    assert told[0] == (0.0, "right") and told[-1] == (1.0, "failing")
    assert [share for share, _ in told] == sorted(share for share, _ in told)
    assert run_statements(["right", "wrong"]).sound


def test_the_files(few, tmp_path):
    report = run_statements()
    written = report.write(tmp_path / "new" / "folder")
    assert [p.name for p in written] == ["theory.html", "theory.md", "theory.json"]
    html = written[0].read_text(encoding="utf-8")
    for name in few:
        assert f'<section id="{name}">' in html
    assert html.count("<figure>") == html.count('class="formula"') == 4
    assert "RuntimeError: no such level" in html and "Title of conditional" in html
    badges = re.findall(r'<span class="badge (\w+)">([^<]+)</span>', html)
    assert badges == [
        ("good", "holds"),
        ("bad", "does not hold as printed"),
        ("partly", "holds under its condition"),
        ("unknown", "not verified"),
        ("unknown", "failed"),
    ]
    assert html.count("It is so, in one way.</p>") == html.count("And in another.</p>") == 4, "one paragraph each"
    rows = re.findall(r'<tr class="(\w+)">', html)
    assert rows == ["good", "good", "good", "bad", "good", "partly", "good", "unknown"]
    numbers = json.loads(written[2].read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert numbers["wrong"]["comparisons"][1]["error"] == 1.0
    assert numbers["conditional"]["comparisons"][1]["left"] == "inf"
    assert numbers["ours"]["comparisons"][1]["error"] == "nan"
    assert numbers["failing"] == {"failed": "RuntimeError: no such level"}
    text = written[1].read_text(encoding="utf-8")
    assert "### Title of wrong\n\n**does not hold as printed** · Theorem 1 (thm:x) · `wrong`\n\nSo it is.\n" in text
    assert "**failed**: RuntimeError: no such level" in text and text.index("## First") < text.index("## Last")
    figures = sorted((tmp_path / "new" / "folder" / "figures").iterdir())
    assert [p.stem for p in figures] == ["conditional", "ours", "right", "wrong"]
    assert figures[0].read_text().startswith("<svg")


def test_in_the_order_of_the_chapters_and_only_what_was_asked(few):
    content = run_statements(["conditional", "right"]).content()
    assert [(c["title"], [s["id"] for s in c["sections"]]) for c in content["chapters"]] == [
        ("First", ["right"]),
        ("Last", ["conditional"]),
    ]
    assert "Title of wrong" not in page(content)


def test_errors(few):
    with pytest.raises(ValueError, match=r"names must be statements\. Got 'rigth'\. Did you mean 'right'\?"):
        run_statements(["rigth"])
    with pytest.raises(ValueError, match="jobs must be a positive integer"):
        run_statements(jobs=0)


# ---- the command ----


def command(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["irmtv", "reproduce", "theory", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


def test_the_command_writes_prints_and_says_by_its_exit_code_whether_all_is_well(few, tmp_path, monkeypatch, capsys):
    assert command(monkeypatch, "--out", tmp_path) == 1
    out = capsys.readouterr().out
    assert re.search(r"First\n\s+right\s+holds\n\s+wrong\s+does not hold as printed\n", out)
    assert "failing                        failed: RuntimeError: no such level" in out
    monkeypatch.setattr(document, "STATEMENTS", {"right": few["right"], "wrong": few["wrong"]})
    assert command(monkeypatch, "--out", tmp_path) == 0
    captured = capsys.readouterr()
    assert "2 statements: holds: 1, does not hold as printed: 1." in captured.out
    assert str(tmp_path / "theory.html") in captured.err


def test_ctrl_c_leaves_nothing_behind(few, tmp_path, monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(document, "STATEMENTS", {**few, "wrong": interrupted})
    assert command(monkeypatch, "--out", tmp_path / "x") == 130
    assert "stopped; nothing was written" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("option", [("--repetitions", "3"), ("--methods", "erm"), ("--wait",)])
def test_options_of_tables_are_refused(few, tmp_path, monkeypatch, capsys, option):
    assert command(monkeypatch, "--out", tmp_path, *option) == 1
    assert f"irmtv: {option[0]} is for tables" in capsys.readouterr().err


def test_a_file_is_refused_before_the_work(few, tmp_path, monkeypatch, capsys):
    (tmp_path / "x").write_text("mine")
    monkeypatch.setattr(document, "STATEMENTS", dict.fromkeys(few, pytest.fail))
    assert command(monkeypatch, "--out", tmp_path / "x") == 1
    assert "--out must be a folder" in capsys.readouterr().err
