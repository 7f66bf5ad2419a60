"""Files and modules that README and docs name exist."""

from __future__ import annotations

import re

import pytest

from paths import REPOSITORY

PACKAGE = REPOSITORY / "src" / "irmtv"
DOCS = REPOSITORY / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("guide/*.md"))]
PAGES += [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_file_that_a_page_names_exists(page):
    named = set(re.findall(r"`([\w./-]+/[\w-]+\.py)\b", page.read_text(encoding="utf-8")))
    examples = {name for name in named if "/my_" in name}  # of "where to add"
    gone = [
        name for name in sorted(named - examples) if not (REPOSITORY / name).exists() and not (PACKAGE / name).exists()
    ]
    assert gone == []
