"""Files that are written as a whole: a reader sees the old one or the new one, whatever happens meanwhile."""

from __future__ import annotations

import os
from pathlib import Path


def write_text(path: Path, text: str) -> Path:
    """Write a text file as a whole, in UTF-8."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # same file system, so that replacing is one step
    try:
        beside.write_text(text, encoding="utf-8", newline="\n")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    return path
