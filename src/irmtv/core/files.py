"""Files that are written as a whole: a reader sees the old one or the new one, whatever happens meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of `path` at the end; an error leaves `path` as it is."""
    # same file system, so that replacing is one step; no two writers share it; as short a name as any
    beside = path.with_name(f".irmtv.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        yield beside
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> Path:
    """Write a text file as a whole, in UTF-8."""
    with replaced(path) as beside:
        beside.write_text(text, encoding="utf-8", newline="\n")
    return path
