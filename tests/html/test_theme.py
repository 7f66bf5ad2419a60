"""Colours of drawings in light and dark: the letters of user texts stay as they are."""

from __future__ import annotations

import re

import pytest

from irmtv.html import drawing
from irmtv.html.theme import DARK_GROUND, contrast, definitions, on_dark, themed

PALETTE = [value[1:] for name, value in vars(drawing).items() if name.isupper() and str(value).startswith("#")]


@pytest.mark.parametrize(("first", "second", "expected"), [("#777777", "#ffffff", 4.48), ("#0000ff", "#ffffff", 8.59)])
def test_contrast_is_that_of_the_guidelines(first, second, expected):
    """Values of the W3C's examples and of public calculators."""
    assert contrast(first, second) == pytest.approx(expected, abs=0.01) == contrast(second, first)


@pytest.mark.parametrize("colour", [c for c in PALETTE if c not in ("d9dee3", "fdf3d0")])
def test_every_colour_of_the_figures_is_seen_on_a_dark_ground(colour):
    assert contrast(on_dark(colour), DARK_GROUND) >= 4.5


def test_text_colours_are_legible_on_both_grounds():
    for colour in (drawing.INK, drawing.SOFT):
        assert contrast(colour, "#ffffff") >= 4.5
        assert contrast(on_dark(colour[1:]), DARK_GROUND) >= 4.5


def test_lines_and_tints_stay_faint():
    for colour in ("d9dee3", "fdf3d0"):
        assert 1.1 < contrast(on_dark(colour), DARK_GROUND) < 3.5


def test_greys_change_places_in_order():
    greys = [on_dark(f"{g:02x}" * 3) for g in range(0, 256, 15)]
    seen = [contrast(g, DARK_GROUND) for g in greys]
    assert seen == sorted(seen, reverse=True)


def test_only_tags_are_changed():
    text = 'id="x" style="fill: #123456" url(#a) href="#b"'
    use = '<use xlink:href="#a" clip-path="url(#c)" style="stroke: #ABCDEF"/>'
    made, colours = themed(f"<svg><!-- {text} -->{use}<text>{text}</text></svg>", "d7")
    assert f"<text>{text}</text>" in made and "<!--" not in made
    assert 'xlink:href="#d7-a" clip-path="url(#d7-c)" style="stroke: var(--cabcdef)"' in made
    assert colours == {"abcdef"}


def test_every_colour_is_defined_once():
    assert re.findall(r"--c(\w+):", definitions({"a" * 6, "b" * 6}, on_dark)) == ["a" * 6, "b" * 6]
