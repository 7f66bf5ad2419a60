"""Files that are written as a whole: a reader sees the old one or the new one, whatever happens meanwhile."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def _beside(path: Path) -> Path:
    """On the same file system, so that replacing is one step; no two writers share it; as short a name as any."""
    return path.with_name(f".irmtv.{os.getpid()}.{threading.get_ident()}.tmp")


def try_to_write(path: Path) -> None:
    """OSError where `replaced` could not write beside a path; some folders (/proc) promise it and do not keep it."""
    beside = _beside(path)
    beside.open("xb").close()
    beside.unlink()


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of `path` at the end; an error leaves `path` as it is."""
    beside = _beside(path)
    try:
        yield beside
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def read_regular(path: Path, most: int) -> bytes:
    """The content of an ordinary file of at most `most` bytes. OSError for others: pipes and devices may never end."""
    # not blocking: to open a pipe that nobody writes to would wait for ever
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        found = os.fstat(file.fileno())
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device, not an ordinary file", str(path))
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"it has {found.st_size:,} bytes, more than {most:,}", str(path))
        return file.read(most)


def write_text(path: Path, text: str) -> Path:
    """Write a text file as a whole, in UTF-8."""
    with replaced(path) as beside:
        beside.write_text(text, encoding="utf-8", newline="\n")
    return path
