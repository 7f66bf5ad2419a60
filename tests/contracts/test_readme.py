"""The Python of README and docs/engine.md runs, and prints what they say."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from irmtv import OBJECTIVES
from paths import REPOSITORY

README = REPOSITORY / "README.md"
DOCS = README.parent / "docs"
PAGES = (README, DOCS / "engine.md")
BLOCKS = [
    block for page in PAGES for block in re.findall(r"```(python|text)\n(.*?)```", page.read_text(), flags=re.DOTALL)
]
PYTHON = [code for kind, code in BLOCKS if kind == "python"]


ENGINE = next(code for code in PYTHON if "Runs.grid" in code)
OTHERS = [code for code in PYTHON if code != ENGINE]
PRINTED = ("invariant-found", "torch.Size([3, 600])")


def numbers(text: str) -> list[float]:
    return [float(n) for n in re.findall(r"(?<![\w.])-?\d+\.?\d*", text)]


def test_the_engine_prints_what_its_page_shows(capsys):
    exec(compile(ENGINE, "engine.md", "exec"), {})
    printed = capsys.readouterr().out
    shown = next(text for kind, text in BLOCKS if kind == "text")
    assert [re.sub(r"[\d.\s]+", "", line) for line in printed.splitlines()] == [
        re.sub(r"[\d.\s]+", "", line) for line in shown.splitlines()
    ]
    # accuracies in percent on 1250 rows: rounding on another machine moves a few rows, not points
    assert numbers(printed) == pytest.approx(numbers(shown), abs=0.8)


@pytest.mark.parametrize(("code", "printed"), list(zip(OTHERS, PRINTED, strict=True)))
def test_other_blocks_run(code, printed, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # where they may write
    exec(compile(code, "a page", "exec"), {})
    assert printed in capsys.readouterr().out


def test_the_readme_is_two_screens_and_begins_with_what_it_is():
    """Of a reader: what it is, install, an own table, scikit-learn, does it help, the two commands, links."""
    text = README.read_text()
    heads = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    assert heads == ["Install", "Your own table", "With scikit-learn", "Does it help?", "Two commands", "More"]
    assert len(text.splitlines()) <= 90 and ".venv/bin" not in text
    for name in re.findall(r"\]\(([\w./-]+)\)", text):
        assert (README.parent / name).exists(), name


def test_the_engine_takes_twelve_lines():
    lines = [line for line in ENGINE.splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) <= 12


@pytest.mark.parametrize("page", ["simulation.md", "methods.md", "solving.md"])
def test_a_page_prints_what_it_says(page, capsys):
    blocks = re.findall(r"```(python|text)\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    exec(compile(blocks[0][1], page, "exec"), {})
    assert capsys.readouterr().out == blocks[1][1]


def test_the_page_of_estimators_runs_in_order_and_prints_what_it_says(capsys, monkeypatch, tmp_path):
    """Accuracies on 1250 rows: rounding on another machine moves a few rows, not points."""
    pytest.importorskip("onnx")
    pytest.importorskip("skrub")
    monkeypatch.chdir(tmp_path)  # where they may write
    blocks = re.findall(r"```(python|text)\n(.*?)```", (DOCS / "estimators.md").read_text(), flags=re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", "text", "python", "python", "python"]
    namespace: dict[str, Any] = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for place, (kind, code) in enumerate(blocks):
            if kind == "python":
                exec(compile(code, f"estimators.md, block {place}", "exec"), namespace)
            else:
                printed = capsys.readouterr().out
                assert printed.split()[:2] == code.split()[:2]
                assert numbers(printed) == pytest.approx(numbers(code), abs=0.8)
    assert namespace["inference"].strength(namespace["held_out"], namespace["y_held_out"]).ratio > 10
    assert {path.name for path in tmp_path.iterdir()} == {"model.irmtv", "pipeline.irmtv", "own.irmtv", "model.onnx"}


def test_the_page_of_methods_names_them_all():
    text = (DOCS / "methods.md").read_text()
    table = text[text.index("| name |") : text.index("A `+` adds")]
    for name in OBJECTIVES:
        assert f"`{name}`" in table or f"`{name.removeprefix(name[:-3])}`" in table, name
