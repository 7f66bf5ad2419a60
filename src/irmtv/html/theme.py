"""Drawings that follow the page's theme: their colours become variables, each with a partner for a dark ground.

A drawing is made once, for white paper. In the page `fill: #0072b2` reads `fill: var(--c0072b2)`, and the page defines
the variable twice: as it is, and lighter where the reader's screen is dark. White becomes the dark ground, black the
light ink, so that nothing has to be drawn again.
"""

from __future__ import annotations

import colorsys
import re
from collections.abc import Callable, Iterable

DARK_GROUND = "#14171a"
LIGHT_INK = 0.91  # lightness of what is black on paper
ENOUGH = 5.0  # contrast of a colour with the dark ground
GREY = 0.2  # saturation below which a colour is a grey
PALE = 0.85  # lightness above which a colour is a tint of the ground

_TAG = re.compile(r"<[^<>]*>")
_COLOUR = re.compile(r"\b(fill|stroke|stop-color):\s*#([0-9a-fA-F]{6})\b")
_COMMENT = re.compile(r"<!--.*?-->\s*", re.DOTALL)


def themed(svg: str, prefix: str) -> tuple[str, set[str]]:
    """A drawing to stand in a page: colours as variables, names of its own; and the colours that it uses.

    Only tags are changed, never the text between them: a label may read like anything.

    Examples
    --------
    >>> svg, colours = themed('<path id="a" style="fill: #FFFFFF"/><text>id="a"</text>', "d1")
    >>> svg
    '<path id="d1-a" style="fill: var(--cffffff)"/><text>id="a"</text>'
    >>> colours
    {'ffffff'}
    """
    used: set[str] = set()

    def variable(found: re.Match[str]) -> str:
        colour = found[2].lower()
        used.add(colour)
        return f"{found[1]}: var(--c{colour})"

    def tag(found: re.Match[str]) -> str:
        text = re.sub(r'\bid="', f'id="{prefix}-', found[0])
        text = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", text)
        return _COLOUR.sub(variable, text)

    return _TAG.sub(tag, _COMMENT.sub("", svg)), used


def definitions(colours: Iterable[str], of: Callable[[str], str] = lambda colour: f"#{colour}") -> str:
    """The variables in CSS; `of` says what each colour is: itself, or `on_dark` of it.

    >>> definitions({"ffffff", "000000"})
    '--c000000: #000000; --cffffff: #ffffff;'
    """
    return " ".join(f"--c{colour}: {of(colour)};" for colour in sorted(colours))


def on_dark(colour: str) -> str:
    """The partner of a colour (six hex digits) for a dark ground.

    Greys change places, from ink to ground; tints of white become tints of the dark ground; other colours keep their
    hue and become lighter until they can be told from the ground.

    >>> on_dark("ffffff"), on_dark("000000"), on_dark("0072b2")
    ('#14171a', '#e8e8e8', '#008fe0')
    """
    r, g, b = (int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4))
    hue, light, saturation = colorsys.rgb_to_hls(r, g, b)
    if colour.lower() == "ffffff":
        return DARK_GROUND
    if saturation < GREY:
        return _hex(hue, LIGHT_INK - 0.82 * light, saturation)
    if light > PALE:
        return _hex(hue, 1.08 - light, 0.6 * saturation)
    while light < 0.95 and contrast(_hex(hue, light, saturation), DARK_GROUND) < ENOUGH:
        light += 0.01
    return _hex(hue, light, saturation)


def contrast(first: str, second: str) -> float:
    """Of two colours, as WCAG 2 defines it: from 1 to 21.

    >>> round(contrast("#ffffff", "#000000"), 2)
    21.0
    """
    a, b = sorted((_luminance(first), _luminance(second)))
    return (b + 0.05) / (a + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _hex(hue: float, light: float, saturation: float) -> str:
    return "#" + "".join(f"{round(255 * p):02x}" for p in colorsys.hls_to_rgb(hue, light, saturation))
