"""Names of columns as they are given on a command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


def column_names(given: Sequence[str] | None, columns: Iterable[object]) -> list[str]:
    """Options such as `--aux year,lat` or `--aux year --aux lat`; a column whose own name has a comma is one name."""
    known = {str(c) for c in columns}
    names = [
        part.strip() if part not in known else part
        for text in given or ()
        for part in ([text] if text in known else text.split(","))
    ]
    return list(dict.fromkeys(name for name in names if name))


def check_out(path: Path, option: str = "--out") -> None:
    """Whether a file can be written there: before minutes of work rather than after."""
    if path.is_dir():
        raise ValueError(f"{option} must be a file. Got {str(path)!r}, which is a folder. Name a file in it.")
    if not path.absolute().parent.is_dir():
        raise ValueError(
            f"{option} must be in a folder that exists. Got {str(path)!r}: make {str(path.parent)!r} first."
        )
