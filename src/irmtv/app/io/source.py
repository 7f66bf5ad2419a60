"""A text file as UTF-8 bytes: decompressed, recoded and checked while it is read, so that one pass is enough.

A parser further on sees clean bytes only. What would make it stumble (a byte that is no UTF-8, a NUL, a gzip file
that ends too early) is an error here, with the line it stands in.
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from irmtv.core.messages import did_you_mean
from irmtv.data.tables.errors import TableError, TableNotFoundError

MOST_TIMES, MOST_UNPACKED = 200, 100_000_000  # of a gzip file: how far it unfolds, beyond these bytes; text about 10
BLOCK = 1 << 20  # bytes that are checked at a time
_ENCODINGS = ("utf-8", "latin-1", "cp1252", "utf-16", "cp1250", "cp1251", "shift_jis", "gbk", "big5", "euc-kr")
# files that are not text, by their first bytes, and what to do about each
_FOREIGN = {
    b"PAR1": "a Parquet file: rename it to end in .parquet",
    b"PK\x03\x04": "a zip archive (or a workbook of Excel): unpack it, or save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "a workbook of Excel: save the sheet as CSV",
    b"BZh": "compressed by bzip2: unpack it",
    b"\xfd7zXZ": "compressed by xz: unpack it",
    b"(\xb5/\xfd": "compressed by zstd: unpack it",
    b"\x89HDF": "an HDF5 file: write the table as CSV or Parquet",
    b"SQLite format 3": "a SQLite database: write the table as CSV or Parquet",
    b"ARROW1": "an Arrow file: write the table as CSV or Parquet",
    b"%PDF": "a PDF: write the table as CSV or Parquet",
}


def check_file(path: Path) -> None:
    """Raise unless there is a file that can be opened."""
    if not path.exists():
        if not path.parent.exists():
            raise TableNotFoundError(
                f"there is no file {str(path)!r}: the folder {str(path.parent)!r} does not exist. Check the path."
            )
        near = did_you_mean(path.name, _files_in(path.parent))
        raise TableNotFoundError(f"there is no file {str(path)!r}.{near} Check the spelling and the folder.")
    if not path.is_file():
        raise TableError(f"{str(path)!r} is neither a file nor a folder. Write the table to a file first.")
    if not os.access(path, os.R_OK):
        raise TableError(f"{str(path)!r} cannot be read: permission denied. Change its rights: chmod u+r FILE.")


def _files_in(folder: Path) -> list[str]:
    """Names of the files, none where the folder is none or cannot be read."""
    readable = folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)
    return sorted(p.name for p in folder.iterdir() if p.is_file()) if readable else []


def state_of(file: os.stat_result) -> tuple[int, int, int]:
    """What changes when somebody writes to a file, or puts another in its place."""
    return file.st_size, file.st_mtime_ns, file.st_ino


def changed(path: Path) -> TableError:
    """The error of a file that is another than a moment ago."""
    return TableError(f"{str(path)!r} changed while it was read. Wait until it is written, then repeat.")


class TextSource(io.RawIOBase):
    """The bytes of a text file in UTF-8, without a byte-order mark.

    Parameters
    ----------
    path : Path
        A text file, also compressed by gzip.
    encoding : str or None
        None is UTF-8.
    """

    _file: IO[bytes] = io.BytesIO()  # nothing to close where there is no file

    def __init__(self, path: Path, encoding: str | None) -> None:
        check_file(path)
        self.path, self._encoding = path, encoding
        self._decoder = codecs.getincrementaldecoder(_codec(encoding))("strict")
        self._plain = encoding is None or codecs.lookup(encoding).name == "utf-8"
        self._size = max(path.stat().st_size, 1)
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise TableError(f"{str(path)!r} cannot be opened: {error.strerror}. Check its rights.") from error
        self.at_first, self._unpacked = self._state(), 0
        head = self._file.read(16)
        self._file.seek(0)
        self._stream: IO[bytes] | gzip.GzipFile = self._file
        if head.startswith(b"\x1f\x8b"):
            self._stream = gzip.GzipFile(fileobj=self._file)
        elif path.suffix.lower() == ".gz":
            self.close()
            what = "empty" if not head else "not compressed by gzip, although its name ends in .gz"
            raise TableError(f"{str(path)!r} is {what}. Copy it again, or rename it to {path.stem!r} if it is text.")
        self._pending = b""
        self._begun = False
        self.line = 1  # that the next byte stands in
        self.quotes = 0  # seen so far
        self.problem: TableError | None = None  # kept, since a parser may put an error of its own in its place

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes (all for -1); up to one block may return fewer before the end, which saves copies."""
        if 0 <= size <= BLOCK:
            data = self.block()
            self._pending = data[size:]
            return data[:size] if self._pending else data
        parts, length = [self._pending], len(self._pending)
        self._pending = b""
        while (size < 0 or length < size) and (block := self._checked()):
            parts.append(block)
            length += len(block)
        data = b"".join(parts)
        if 0 <= size < length:
            data, self._pending = data[:size], data[size:]
        return data

    def block(self) -> bytes:
        """Some bytes, as many as are read at once; b"" at the end."""
        data, self._pending = self._pending, b""
        return data or self._checked()

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # io takes any buffer
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    @property
    def share(self) -> float:
        """How much of the file was read."""
        return 1.0 if self.closed else min(self._file.tell() / self._size, 1.0)

    def give_back(self, data: bytes) -> None:
        """Put bytes back: the next `read` returns them first."""
        self._pending = data + self._pending

    def lines(self) -> Iterator[str]:
        """The text line by line, with line ends, for Python's csv."""
        yield from io.TextIOWrapper(io.BufferedReader(self, BLOCK), encoding="utf-8", newline="")

    def _checked(self) -> bytes:
        """The next block, checked; b"" at the end."""
        try:
            return self._next_block()
        except TableError as problem:
            self.problem = problem
            raise

    def _next_block(self) -> bytes:
        while True:
            raw = self._raw()
            if not self._begun:
                self._check_start(raw)
            block = raw
            # letters of ASCII are UTF-8 as they stand, unless a character was cut by the end of the block before
            if not self._plain or not raw or not raw.isascii() or self._decoder.getstate()[0]:
                try:
                    text = self._decoder.decode(raw, final=not raw)
                except UnicodeDecodeError as error:
                    raise self._not_text(error) from error
                block = raw if self._plain else text.encode("utf-8", "surrogatepass")
            if not self._begun:
                block = block.removeprefix(codecs.BOM_UTF8)
                self._begun = bool(raw)
            if b"\0" in block:
                line = self.line + block[: block.index(b"\0")].count(b"\n")
                raise TableError(
                    f"{str(self.path)!r} has a NUL byte in line {line}: it is damaged, or no text. Write it again as "
                    "CSV or Parquet."
                )
            self.line += block.count(b"\n")
            self.quotes += block.count(b'"')
            if block or not raw:
                return block

    def _state(self) -> tuple[int, int, int]:
        """What changes when somebody writes to the file, or puts another in its place."""
        return state_of(os.fstat(self._file.fileno()))

    def _raw(self) -> bytes:
        if self._file.closed:
            return b""
        try:
            raw = self._stream.read(BLOCK)
            self._unpacked += len(raw)
            if self._unpacked > MOST_UNPACKED and self._unpacked > MOST_TIMES * max(self._file.tell(), 1):
                raise TableError(
                    f"{str(self.path)!r} unfolds to more than {MOST_TIMES} times its size, as no table does: it may be "
                    "made to fill the memory. Unpack it yourself if you know what it is."
                )
            if not raw and self._state() != self.at_first:
                raise changed(self.path)
            return raw
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TableError(
                f"{str(self.path)!r} is damaged or incomplete: gzip stopped about line {self.line}. Copy it again, or "
                "write it again."
            ) from error
        except OSError as error:
            raise TableError(f"{str(self.path)!r} cannot be read: {error.strerror}. Copy it again.") from error

    def _check_start(self, raw: bytes) -> None:
        for magic, what in _FOREIGN.items():
            if raw.startswith(magic):
                raise TableError(f"{str(self.path)!r} is {what}.")
        if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and self._plain:
            raise TableError(
                f"{str(self.path)!r} is utf-16 text, not UTF-8. Use --encoding utf-16 (in Python encoding='utf-16')."
            )

    def _not_text(self, error: UnicodeDecodeError) -> TableError:
        place = min(error.start, max(len(error.object) - 1, 0))
        line = self.line + error.object[:place].count(b"\n")
        byte = f"byte 0x{error.object[place]:02x}" if len(error.object) else "the end of the file"
        if self._encoding is None or self._plain:
            return TableError(
                f"{str(self.path)!r} is not UTF-8 text: {byte} in line {line} does not fit. Use --encoding latin-1 (in "
                "Python encoding='latin-1') or the encoding that it was written in, such as cp1252."
            )
        return TableError(
            f"{str(self.path)!r} is not {self._encoding} text: {byte} in line {line} does not fit. Use another "
            "--encoding, or none for UTF-8."
        )


def _codec(encoding: str | None) -> str:
    if encoding is None:
        return "utf-8"
    try:
        codec = codecs.lookup(encoding)
    except (LookupError, ValueError) as error:
        raise TableError(
            f"encoding must be a name that Python knows, such as utf-8, latin-1 or cp1252. Got {encoding!r}."
            f"{did_you_mean(encoding, _ENCODINGS)}"
        ) from error
    if not getattr(codec, "_is_text_encoding", True):
        raise TableError(f"encoding must be one of text, such as utf-8 or latin-1. Got {encoding!r}.")
    return codec.name
