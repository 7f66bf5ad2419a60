"""How commands speak: results on standard output, everything else on standard error; JSON for programs."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import typer
from rich.console import Console

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def say(text: str) -> None:
    """A result: to standard output, as it is, in whole lines, so that a path or a label can be copied."""
    Console(highlight=False).print(text, markup=False, soft_wrap=True)


def note(text: str) -> None:
    """What is done, and what went wrong: to standard error."""
    Console(stderr=True, highlight=False).print(text, markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """JSON that every reader takes: numbers that are not finite are null."""
    print(json.dumps(plain_json(value), indent=2, ensure_ascii=False, allow_nan=False))


def plain_json(value: Any) -> Any:
    """The same with None for numbers that are not finite, lists for tuples and text for keys."""
    if isinstance(value, dict):
        return {str(key): plain_json(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
