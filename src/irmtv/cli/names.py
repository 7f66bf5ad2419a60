"""Names of columns as they are given on a command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def column_names(given: Sequence[str] | None, columns: Iterable[object]) -> list[str]:
    """Options such as `--aux year,lat` or `--aux year --aux lat`; a column whose own name has a comma is one name."""
    known = {str(c) for c in columns}
    names = [
        part.strip() if part not in known else part
        for text in given or ()
        for part in ([text] if text in known else text.split(","))
    ]
    return list(dict.fromkeys(name for name in names if name))
