"""The container: a zip of plain entries, closed by a checksum of every byte before it.

A zip, because anybody can look inside with the tools at hand; nothing in it is compressed, so what it declares
can be checked against the size of the file. The first entry, `mimetype`, says what the file is, as in other
formats of this kind. The archive's comment ends with the SHA-256 of all bytes before it: one flipped bit
anywhere, also in what zip itself ignores, is noticed. The entries are read in memory, never extracted to disk.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

from irmtv.core.files import write_synced
from irmtv.core.messages import shown
from irmtv.persistence.errors import ModelFileError, ModelFileNotFoundError

__all__ = ["pack", "read_sealed", "seal", "unpack", "write_bytes"]

MIMETYPE = b"application/vnd.irmtv.model"
_COMMENT = b"irmtv sha256 "
_HEX = 64
MOST_BYTES = 2**32
_HEAD = b"mimetype" + MIMETYPE  # after the 30 bytes of the first entry's header
# the many ways in which a wrong zip fails inside the standard library
_BROKEN = (zipfile.BadZipFile, zipfile.LargeZipFile, ValueError, OSError, EOFError, RuntimeError, LookupError)
_OVERHEAD = 30 + 46  # bytes of zip's own per entry, at least: its header and its line in the directory


def pack(entries: Mapping[str, bytes], comment: bytes = b"") -> bytes:
    """A zip, uncompressed; the same entries give the same bytes, on any system and at any time."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in entries.items():
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o644 << 16
            archive.writestr(info, data)
        archive.comment = comment
    return buffer.getvalue()


def seal(entries: Mapping[str, bytes]) -> bytes:
    """A model file's bytes: `mimetype`, the entries, the checksum."""
    body = pack({"mimetype": MIMETYPE, **entries}, comment=_COMMENT + b"0" * _HEX)[:-_HEX]
    if len(body) + _HEX > MOST_BYTES:
        raise ModelFileError(f"a model file must have at most {MOST_BYTES:,} bytes. Got {len(body) + _HEX:,}.")
    return body + hashlib.sha256(body).hexdigest().encode("ascii")


def unpack(data: bytes, names: re.Pattern[str], where: str) -> dict[str, bytes]:
    """The entries of a zip whose names all match `names`, each once and uncompressed; else a ModelFileError."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            listed = [info.filename for info in infos]
            foreign = [name for name in listed if not names.fullmatch(name)]
            if foreign:
                raise ModelFileError(f"{where} contains entries that no model file has: {shown(foreign)}.")
            if len(set(listed)) < len(listed):
                twice = sorted({name for name in listed if listed.count(name) > 1})
                raise ModelFileError(f"{where} contains entries more than once: {shown(twice)}.")
            for info in infos:
                if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                    raise ModelFileError(
                        f"{where} contains a compressed entry ({info.filename!r}), which no model file has."
                    )
            declared = sum(info.file_size + _OVERHEAD for info in infos)
            if declared > len(data):
                raise ModelFileError(f"{where} declares {declared} bytes of content, but has only {len(data)}.")
            return {info.filename: archive.read(info) for info in infos}
    except ModelFileError:
        raise
    except (
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
        ValueError,
        OSError,
        EOFError,
        RuntimeError,
        LookupError,
    ) as error:
        raise ModelFileError(f"{where} is not a zip archive as irmtv writes it ({error}).") from error


def read_sealed(path: Path) -> bytes:
    """The bytes of a model file, after checking that it is complete and unchanged."""
    if not path.exists():
        raise ModelFileNotFoundError(f"path must be a model file. There is no file {str(path)!r}; check the spelling.")
    if not path.is_file():
        what = "a folder" if path.is_dir() else "neither a file nor a folder"
        raise ModelFileError(f"path must be a model file. {str(path)!r} is {what}; name the file in it.")
    try:
        with path.open("rb") as file:
            head = file.read(4096)
            _check_head(head, path)
            end = len(_COMMENT) + _HEX
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - end))
            if not file.read().startswith(_COMMENT):
                raise ModelFileError(
                    f"{str(path)!r} is incomplete: it does not end with its checksum. Copy it again, or save the model "
                    "again."
                )
            if size > MOST_BYTES:  # before it is read: a file may be said to have terabytes
                raise ModelFileError(
                    f"{str(path)!r} has {size:,} bytes, more than the {MOST_BYTES:,} of any model file."
                )
            file.seek(0)
            data = file.read()
    except MemoryError as error:
        size = path.stat().st_size
        raise ModelFileError(f"{str(path)!r} has {size:,} bytes, more than there is memory for.") from error
    except OSError as error:
        raise ModelFileError(f"{str(path)!r} cannot be read: {error}.") from error
    body, digest = data[:-_HEX], data[-_HEX:]
    if hashlib.sha256(body).hexdigest().encode("ascii") != digest:
        raise ModelFileError(
            f"{str(path)!r} is damaged: its content does not fit its checksum. Copy it again, or save the model again."
        )
    return data


def _check_head(head: bytes, path: Path) -> None:
    if not head:
        raise ModelFileError(f"{str(path)!r} is empty. Copy it again, or save the model again.")
    start = b"PK\x03\x04"
    if head.startswith(start) and head[30 : 30 + len(_HEAD)] == _HEAD:
        return
    if start.startswith(head[:4]) and _HEAD.startswith(head[30 : 30 + len(_HEAD)]):
        raise ModelFileError(f"{str(path)!r} is incomplete. Copy it again, or save the model again.")
    raise ModelFileError(
        f"{str(path)!r} is not a model file of irmtv: it is {_format_name(head)}. Give a file that save() wrote; "
        "nothing of this one was loaded or run."
    )


def _format_name(head: bytes) -> str:
    """What a file seems to be, by its first bytes."""
    if head.startswith(b"PK"):
        if b"data.pkl" in head[:256]:
            return "a file of torch.save (a pickle in a zip)"
        return "another zip archive"
    if len(head) > 1 and head[0] == 0x80 and head[1] <= 5:
        return "a pickle (pickle, joblib or an old torch.save)"
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return name
    if head[8:9] == b"{":
        return "a safetensors file"
    return "of another format"


_MAGIC = {
    b"\x1f\x8b": "compressed by gzip",
    b"\x89HDF": "an HDF5 file",
    b"PAR1": "a Parquet file",
    b"\x93NUMPY": "a numpy array",
    b"{": "JSON",
}


def write_bytes(path: Path, data: bytes) -> Path:
    """Write a file as a whole: at any time it is the old file or the complete new one.

    A link stays a link: the file that it leads to is written.
    """
    try:
        _write_whole(Path(os.path.realpath(path)), data)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise ModelFileError(
            f"path must be a file name that the file system takes (most take 255 bytes, 4096 with the folders). Got "
            f"one of {len(os.fsencode(path.name))} bytes, {path.name[:20]!r}...; use a shorter one."
        ) from error
    return path


def _write_whole(path: Path, data: bytes) -> None:
    if path.is_dir():
        raise ModelFileError(f"path must be a file to write. {str(path)!r} is a folder; add a file name.")
    if not path.parent.is_dir():
        raise ModelFileNotFoundError(
            f"path must be in a folder that exists. There is no folder {str(path.parent)!r}; make it first."
        )
    write_synced(path, data)
