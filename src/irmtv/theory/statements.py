"""Every statement that can be run, in the order in which the paper makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from irmtv.theory.finding import Finding
from irmtv.theory.integrability import l1_allows_more

_CHAPTERS: dict[str, tuple[Callable[[], Finding], ...]] = {
    "TV-l1 allows more functions": (l1_allows_more,),
}


def _name(function: Callable[[], Finding]) -> str:
    return function.__name__.replace("_", "-")


STATEMENTS: Mapping[str, Callable[[], Finding]] = {_name(f): f for chapter in _CHAPTERS.values() for f in chapter}
CHAPTERS: Mapping[str, tuple[str, ...]] = {title: tuple(map(_name, chapter)) for title, chapter in _CHAPTERS.items()}
