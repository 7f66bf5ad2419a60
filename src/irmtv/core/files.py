"""Files that are written as a whole: a reader sees the old one or the new one, whatever happens meanwhile."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import stat
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))  # the disk, or what one may have of it


def _beside(path: Path) -> Path:
    """On the same file system, so that replacing is one step; no two writers share it; as short a name as any."""
    return path.with_name(f".irmtv.{os.getpid()}.{threading.get_ident()}.tmp")


def try_to_write(path: Path) -> None:
    """OSError where `replaced` could not write beside a path; some folders (/proc) promise it and do not keep it."""
    beside = _beside(path)
    try:
        beside.open("xb").close()
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of `path` at the end; an error leaves `path` as it is."""
    beside = _beside(path)
    try:
        yield beside
        os.replace(beside, path)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise OSError(
            f"{path} was not written, and is as it was: {error.strerror}. Make space, or name a folder on "
            "another disk, and repeat the command."
        ) from error
    finally:
        beside.unlink(missing_ok=True)


def write_synced(path: Path, data: bytes, aside: Path | None = None) -> None:
    """Write a file as a whole, once the disk has it: a crash could else leave the new name with old or no content.

    `aside` is where the file goes that was there.
    """
    with replaced(path) as beside:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if aside is not None:
            os.replace(path, aside)


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


WRITTEN = ".irmtv.json"  # in a folder: the sha256 of files that irmtv wrote there, by their names


def write_files(folder: str | os.PathLike[str], contents: Mapping[str, str | bytes]) -> list[Path]:
    """Write files into a folder, each as a whole, in place of those that irmtv wrote before.

    One that irmtv did not write, or that was changed since, is kept under another name, and a warning says so: results
    of hours need not be asked for again, and nothing is lost.
    """
    target, known = Path(folder), _written(Path(folder))
    data = {name: text.encode() if isinstance(text, str) else text for name, text in contents.items()}
    ours = {name: [hashlib.sha256(new).hexdigest()] for name, new in data.items()}
    there = {name: _digest(target / name) for name in data}
    kept = [name for name, found in there.items() if found and found not in (*known.get(name, ()), *ours[name])]
    for name in kept:
        aside = next(p for k in itertools.count(1) if not os.path.lexists(p := target / f"{name}.kept-{k}"))
        os.replace(target / name, aside)
        warnings.warn(
            f"{target / name} was not written by irmtv, or was changed since: it is now {aside.name}.", stacklevel=3
        )
    for name in data:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
    for name in set(ours) - set(kept):
        ours[name].append(there[name])  # a process may be killed between this list and the files
    write_text(target / WRITTEN, json.dumps({**known, **ours}, indent=1))
    for name, new in data.items():
        with replaced(target / name) as beside:
            beside.write_bytes(new)
    return [target / name for name in data]


def _written(folder: Path) -> dict[str, list[str]]:
    """The digests by name; none where the list is not there, or is not ours."""
    try:
        known = json.loads(read_regular(folder / WRITTEN, 10_000_000))
        return {str(name): [*map(str, digests)] for name, digests in known.items()}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}


def _digest(path: Path) -> str:
    """Of a file; empty where there is nothing, or an empty file."""
    if not path.is_file() or path.is_symlink():
        return "not a file" if os.path.lexists(path) else ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if path.stat().st_size else ""


def write_text(path: Path, text: str) -> Path:
    """Write a text file as a whole, in UTF-8."""
    with replaced(path) as beside:
        beside.write_text(text, encoding="utf-8", newline="\n")
    return path
