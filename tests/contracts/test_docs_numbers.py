"""Every command that stands in docs beside a table is in the list of `make docs-numbers`, and can be run."""

from __future__ import annotations

import re

import pytest
from examples.docs_numbers import NUMBERS

from irmtv.cli.experiments import OWN
from irmtv.lab.experiments.papers import paper_spec
from paths import REPOSITORY

DOCS = REPOSITORY / "docs"
COMMANDS = re.compile(r"irmtv reproduce ([\w-]+)|python ((?:examples|docs/guide)/\w+\.py|-m benchmarks\.\w+)")
# files that are not public; no numbers
NOT_NUMBERS = {"celeba", "landcover", "examples/rows_over_ranks.py", "examples/sales_tables.py"}


def named(text: str) -> set[str]:
    return {a or b for a, b in COMMANDS.findall(text)}


def listed_commands() -> set[str]:
    return {name for one in NUMBERS for name in named(one.command)}


@pytest.mark.parametrize("page", [*sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("guide/*.md"))], ids=lambda p: p.stem)
def test_every_command_of_a_page_is_listed(page):
    assert named(page.read_text(encoding="utf-8")) - NOT_NUMBERS <= listed_commands()


@pytest.mark.parametrize("one", NUMBERS, ids=lambda one: one.command)
def test_every_listed_command_exists(one):
    page = REPOSITORY / "README.md" if one.page == "README" else REPOSITORY / "docs" / f"{one.page}.md"
    assert page.exists()
    ((spec, script),) = COMMANDS.findall(one.command)
    if script:
        path = script.removeprefix("-m ").removesuffix(".py").replace(".", "/")
        assert (REPOSITORY / f"{path}.py").exists()
    elif spec not in OWN:
        assert paper_spec(spec).exists()
