"""Every code block of docs/guide runs, in the order of its page, and prints what the page shows.

A Python block runs in the namespace of those before it, a block of `irmtv` commands through the command's entry point.
A `text` block is what the block before it prints: words exactly, numbers to five percent or a point, since rounding on
another machine moves some rows; a line `...` stands for lines that are left out. A block that is not run has a comment
before it that says why, and its commands are in examples/docs_numbers.py.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
import torch

from contracts.test_docs_numbers import NOT_NUMBERS, listed_commands, named
from paths import REPOSITORY

GUIDE = REPOSITORY / "docs" / "guide"
PAGES = sorted(GUIDE.glob("*.md"))
BLOCK = re.compile(r"(<!-- not run: ([^>]+) -->\n)?^```(\w*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
SET_UP = ("pip ", "python3 -m venv ", "git ", "make ", ". ")  # of a shell: not run
HEART = "heart.csv"  # what pages call the real file that they read
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*\.?\d*(?![\w])")


@dataclass(frozen=True)
class Block:
    kind: str
    code: str
    why_not: str  # it is not run


def blocks(page: Path) -> list[Block]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [Block(kind, code, why) for _, why, kind, code in found]


def commands(block: Block) -> list[str]:
    """Lines of a block for the shell, without comments; a backslash continues a line."""
    lines = block.code.replace("\\\n", " ").splitlines()
    return [bare for line in lines if (bare := re.sub(r"(^|\s)#.*", "", line).strip())]


def cases() -> list[Any]:
    return [
        pytest.param(page, id=page.stem, marks=[pytest.mark.data] if HEART in page.read_text(encoding="utf-8") else [])
        for page in PAGES
        if any(block.kind in ("python", "bash") and not block.why_not for block in blocks(page))
    ]


def near(shown: float, printed: float) -> bool:
    """Within five percent; a point where it may be a percentage, 0.05 of smaller numbers."""
    return abs(shown - printed) <= max(0.05 * abs(shown), 1.0 if abs(shown) >= 10 else 0.05)


def same(shown: str, printed: str) -> bool:
    """Whether a part of a page is in what was printed, in order."""
    words, found = shown.split(), printed.split()
    pattern, text = [NUMBER.sub("#", w) for w in words], [NUMBER.sub("#", w) for w in found]
    numbers = [float(n.replace(",", "")) for w in words for n in NUMBER.findall(w)]
    for start in range(len(text) - len(pattern) + 1):
        if text[start : start + len(pattern)] == pattern:
            part = found[start : start + len(pattern)]
            there = [float(n.replace(",", "")) for w in part for n in NUMBER.findall(w)]
            if len(there) == len(numbers) and all(map(near, numbers, there)):
                return True
    return False


def run_commands(block: Block, command: Any) -> str:
    printed = ""
    for line in commands(block):
        if line.startswith(SET_UP):
            continue
        name, *arguments = shlex.split(line)
        assert name == "irmtv", line
        ended = command(*arguments)
        assert ended.code == 0, f"{line}\n{ended.err}"
        printed += ended.out
    return printed


@pytest.mark.parametrize("page", cases())
def test_a_page_runs_and_prints_what_it_shows(page, command, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # where it may write
    monkeypatch.setenv("COLUMNS", "80")
    if HEART in page.read_text(encoding="utf-8"):
        shutil.copyfile(Path(os.environ["IRMTV_DATA"]) / "heart_disease" / "heart_disease.csv", tmp_path / HEART)
    namespace: dict[str, Any] = {"__name__": page.stem}
    printed = ""
    with torch.random.fork_rng(), mpl.rc_context({"backend": "agg"}):
        torch.manual_seed(0)
        for place, block in enumerate(blocks(page)):
            if block.why_not:
                printed = ""
            elif block.kind == "python":
                capsys.readouterr()
                exec(compile(block.code, f"{page.name}, block {place}", "exec"), namespace)
                printed = capsys.readouterr().out
            elif block.kind == "bash":
                printed = run_commands(block, command)
            elif block.kind == "text" and printed:
                for part in re.split(r"^\.\.\.$", block.code, flags=re.MULTILINE):
                    assert same(part, printed), f"{page.name} shows\n{part}\nbut this was printed:\n{printed}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_blocks_that_are_not_run_are_in_the_list_of_commands(page):
    for block in blocks(page):
        assert block.kind in ("python", "bash", "text", "toml"), block
        if block.why_not or block.kind == "bash":
            for line in commands(block):
                if block.why_not and not line.startswith(SET_UP):
                    assert named(line) and named(line) - NOT_NUMBERS <= listed_commands(), line


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_of_a_page_lead_somewhere_and_pictures_have_words(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for picture, words, target in re.findall(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", text):
        if target.startswith(("https://", "http://", "#")):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve()
        assert path.exists(), f"{page.name}: {target}"
        if anchor:
            heads = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}, target
        if picture:
            assert len(words) > 40, f"{page.name}: {target} needs a text that says what it shows"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_a_page_can_be_read(page):
    """At most 1200 words outside of code, one title, no level of headings left out."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert len(text.split()) <= 1300
    levels = [len(marks) for marks in re.findall(r"^(#+) ", text, flags=re.MULTILINE)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_every_picture_is_drawn_by_the_script_and_shown():
    drawn = set(re.findall(r'^    "([\w-]+)": \w+,$', (GUIDE / "figures.py").read_text(encoding="utf-8"), re.MULTILINE))
    shown = {name for page in PAGES for name in re.findall(r"\]\(([\w-]+)\.svg\)", page.read_text(encoding="utf-8"))}
    assert drawn == shown == {path.stem for path in GUIDE.glob("*.svg")}


def test_the_chart_is_that_of_the_script():
    """Matplotlib writes each line of a text as a comment beside its outlines."""
    spec = importlib.util.spec_from_file_location("figures", GUIDE / "figures.py")
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    drawn = re.findall(r"<!-- (.*?) -->", (GUIDE / "methods.svg").read_text(encoding="utf-8"))
    lines = [line for pair in figures.LADDER for text in pair for line in text.replace("--", "- -").split("\n")]
    assert [text for text in drawn if text in lines] == lines


def test_a_wrong_number_or_word_on_a_page_is_noticed():
    printed = "expect 77.8 %, and\nbetween 74.2 % and 81.4 %\n"
    assert same("expect 77.9 %, and between", printed) and same("74.2 % and 81.4 %", printed)
    assert not same("expect 87.8 %, and between", printed) and not same("expects 77.8 %", printed)


def test_the_guide_names_all_of_its_pages():
    index = (GUIDE / "index.md").read_text(encoding="utf-8")
    assert {page.name for page in PAGES} - {"index.md"} <= set(re.findall(r"\]\(([\w-]+\.md)\)", index))
