"""Every statement, run once: what it must bring, and the page that holds them all."""

from __future__ import annotations

import os
import re
from pathlib import Path

import matplotlib
import pytest

from irmtv.html.page import page
from irmtv.lab.theory import CHAPTERS, STATEMENTS, run_statements
from paths import REPOSITORY

EXPECTED = {
    "dual-total-variation": "holds under its condition",
    "coarea-prefers-blocks": "does not hold as printed",
    "recovery-1d": "holds",
    "recovery-2d": "holds",
    "zero-slope-may-be-a-maximum": "holds under its condition",
    "induced-measure": "holds under its condition",
    "irmv1-is-tv-l2": "holds under its condition",
    "normalised-measure": "holds under its condition",
    "vrex-l2": "holds under its condition",
    "vrex-sum-is-no-expectation": "does not hold as printed",
    "risk-extrapolation": "holds under its condition",
    "zin-rewriting": "does not hold as printed",
    "tiva-is-minimax-tv-l2": "does not hold as printed",
    "l1-allows-more": "does not hold as printed",
    "minimax-penalties-coincide": "holds under its condition",
    "subgradient-scalar": "holds under its condition",
    "subgradient-vector": "holds under its condition",
    "coarea-1d": "holds under its condition",
    "coarea-2d": "holds",
    "coarea-trained": "holds",
    "coarea-piecewise-constant": "does not hold as printed",
    "coarea-needs-lipschitz": "does not hold as printed",
    "blockiness-in-w": "does not hold as printed",
    "blocky-over-time": "does not hold as printed",
    "ood-over-w": "holds under its condition",
    "lambda-phi-makes-worst-risk": "holds under its condition",
    "zero-penalty-without-constancy": "does not hold as printed",
    "fixed-weight-misses": "holds",
    "optima-agree": "does not hold as printed",
    "detached-weight-stops-short": "holds",
    "environment-span": "holds under its condition",
    "coarse-measure": "does not hold as printed",
    "sufficient-condition": "holds under its condition",
}


@pytest.fixture(scope="module")
def report():
    return run_statements(jobs=2)


def paper() -> str:
    folder = os.environ.get("IRMTV_DATA")
    source = Path(folder).parent / "paper" / "irm_is_a_tv_model.tex" if folder else None
    if source is None or not source.exists():
        pytest.skip("the paper's source is not beside the data (IRMTV_DATA)")
    return source.read_text(encoding="utf-8")


def test_every_statement_is_in_one_chapter():
    assert [name for names in CHAPTERS.values() for name in names] == list(STATEMENTS)
    assert set(STATEMENTS) == set(EXPECTED)


def test_all_were_run_and_what_we_say_about_them_agrees_with_the_numbers(report):
    assert report.failed == {}
    assert report.sound


@pytest.mark.parametrize("name", STATEMENTS)
def test_verdict(report, name):
    """What we tell readers about the paper does not change by accident."""
    assert report.found[name].verdict == EXPECTED[name], report.found[name].meaning


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_has_what_the_page_shows(report, name):
    told = report.found[name]
    assert told.name == name
    assert told.title and told.statement.endswith((".", "?", ")")) and told.meaning.endswith((".", ")"))
    assert re.search(r"\d", told.meaning), "the numbers stand in the text"
    assert not re.search(r"\b(nan|inf)\b", told.meaning)
    assert told.svg.count("<path") > 10, "the figure is not empty"
    assert all(c.left_name and c.right_name and c.what for c in told.comparisons)
    equalities = [c for c in told.comparisons if c.relation == "=" and c.role != "beyond"]
    # a tolerance of the size of what is compared would let every formula pass
    assert all(c.tolerance <= 0.25 * max(abs(c.left), abs(c.right), 1e-3) for c in equalities if c.left and c.right)


@pytest.mark.parametrize("name", STATEMENTS)
def test_its_label_is_in_the_paper(report, name):
    key = re.search(r"\(([\w:.-]+)\)$", report.found[name].label)
    assert key, report.found[name].label
    assert f"\\label{{{key.group(1)}}}" in paper()


def test_the_page(report):
    html = page(report.content())
    assert re.findall(r'<section id="([^"]+)">', html) == list(STATEMENTS)
    assert html.count("<figure>") == len(STATEMENTS)
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert len(html) < 12e6


def test_the_documentation_says_the_same(report):
    """docs/theory.md is what the command writes, with the command put in: titles, verdicts and texts."""
    text = (REPOSITORY / "docs" / "theory.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\*\*([a-z ]+)\*\* · .* · `([\w-]+)`$", text, flags=re.MULTILINE)
    assert {name: verdict for verdict, name in lines} == EXPECTED
    assert f"{len(EXPECTED)} statements: {report.counted()}." in text
    for told in report.found.values():
        assert f"### {told.title}\n" in text and told.statement in text, told.name


def test_drawing_touches_nothing_global():
    before = dict(matplotlib.rcParams)
    STATEMENTS["l1-allows-more"]().draw()
    assert dict(matplotlib.rcParams) == before


def test_a_name_that_is_not_there_is_answered_with_the_nearest():
    with pytest.raises(
        KeyError, match=r"a statement must be one of \['dual-total.*Got 'blokcy'. Did you mean 'blocky-o"
    ):
        STATEMENTS["blokcy"]
    with pytest.raises(ValueError, match=r"Did you mean 'recovery-1d'\?"):
        STATEMENTS["recovery_1d"]
    assert "blokcy" not in STATEMENTS
    assert STATEMENTS.get("blokcy") is None
