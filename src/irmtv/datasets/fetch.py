"""Where the files of a data set come from: a folder that the user names, else a download that is checked.

| given                                     | read from                                                            |
|-------------------------------------------|----------------------------------------------------------------------|
| ``data_home="folder"``                    | that folder, and nowhere else                                        |
| else environment variable ``IRMTV_DATA``  | that folder, and nowhere else                                        |
| else nothing                              | the user's cache, after one download whose sha256 is checked         |

A named folder is only read: nothing is downloaded where the user says where the data lies.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast
from zipfile import BadZipFile, ZipFile, is_zipfile

import numpy as np

VARIABLE = "IRMTV_DATA"
TIMEOUT = 30.0  # seconds without a byte, after which a download has failed
SUFFIXES = ("", ".gz", ".zip")  # pandas reads a file in each of these
MOST_TIMES, MOST_UNPACKED = 200, 100_000_000  # how far a packed file may unfold, beyond these bytes
# what reading a damaged file raises; pandas' own errors are ValueErrors
BROKEN = (OSError, EOFError, zlib.error, BadZipFile, ValueError)


@dataclass(frozen=True)
class DataFile:
    """One file of a data set."""

    data_set: str  # also the name of its folder
    name: str  # as its source names it
    url: str | None = None  # None: it cannot be downloaded
    sha256: str | None = None  # of what `url` gives; files in a user's folder may be packed or have a header added

    @property
    def unpacked_name(self) -> str:
        """Its name without .gz, where its source packs it."""
        return self.name.removesuffix(".gz")

    def places(self, home: Path) -> list[Path]:
        """Where the file may lie in a folder: in the data set's own or at the top, packed or not."""
        names = dict.fromkeys((self.name, *(self.unpacked_name + suffix for suffix in SUFFIXES)))
        return [base / name for base in (home / self.data_set, home) for name in names]

    def path_in(self, home: Path) -> Path | None:
        """Where the file lies in a folder; None where it does not."""
        return next((place for place in self.places(home) if place.is_file()), None)


def find_files(files: Sequence[DataFile], data_home: str | os.PathLike[str] | None = None) -> list[Path]:
    """The paths of a data set's files on this machine, in their order; downloaded where no folder was named.

    Raises FileNotFoundError, which names every place, where a file is not in the named folder or cannot be downloaded;
    ConnectionError where the download fails; ValueError where what was downloaded is not the file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "rows.csv.gz").write_bytes(b"")
    ...     [path.name for path in find_files([DataFile("sales", "rows.csv")], folder)]
    ['rows.csv.gz']
    """
    named = named_folder(data_home)
    return [_downloaded(file) for file in files] if named is None else _in_folder(files, *named)


def named_folder(data_home: str | os.PathLike[str] | None) -> tuple[Path, str] | None:
    """The folder that the user names, and where: data_home, else IRMTV_DATA (if not empty); None: the cache."""
    if data_home is not None:
        return Path(data_home).expanduser(), "data_home"
    variable = os.environ.get(VARIABLE)
    return (Path(variable).expanduser(), f"environment variable {VARIABLE}") if variable else None


def no_folder(path: Path) -> str:
    """What a path is that is not a folder, for messages."""
    return f"{str(path)!r}, which {'is a file' if path.is_file() else 'does not exist'}"


def find_any(alternatives: Sequence[DataFile], data_home: str | os.PathLike[str] | None, advice: str) -> Path:
    """The first of several files, each of which will do; `advice` is added to the error where there is none."""
    problem = ""
    for file in alternatives:
        try:
            return find_files([file], data_home)[0]
        except FileNotFoundError as error:
            problem = problem or str(error)
    raise FileNotFoundError(f"{problem} {advice}")


@contextmanager
def open_unpacked(path: Path) -> Iterator[IO[bytes]]:
    """The content of a file, unpacked where its name ends in .gz or .zip; ValueError where it unfolds without end."""
    if path.suffix == ".gz":
        with gzip.open(path, "rb") as unpacked:
            yield io.BufferedReader(_Unfolding(cast("IO[bytes]", unpacked), path.stat().st_size))
    elif path.suffix == ".zip":
        with ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            if len(names) != 1:
                raise ValueError(f"it must hold one file. Got {len(names)}")
            with archive.open(names[0]) as member:
                yield io.BufferedReader(_Unfolding(member, path.stat().st_size))
    else:
        with path.open("rb") as file:
            yield file


def _check_unfolded(unpacked: int, packed: int) -> None:
    if unpacked > max(MOST_UNPACKED, MOST_TIMES * packed):
        raise ValueError(
            f"it unfolds to more than {MOST_TIMES} times its {packed:,} bytes, as no data does: it may be made to fill "
            "the memory. Unpack it yourself if you know what it is"
        )


class _Unfolding(io.RawIOBase):
    """Counts what comes out of a packed file."""

    def __init__(self, stream: IO[bytes], packed: int) -> None:
        self._stream, self._packed, self._unpacked = stream, packed, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        self._unpacked += len(data)
        _check_unfolded(self._unpacked, self._packed)
        return len(data)


def read_npz(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an .npz file, plain or packed once more; never an array of objects, which would be a pickle."""
    try:
        with open_unpacked(path) as file:
            content = io.BytesIO(file.read())
        if is_zipfile(content):
            with ZipFile(content) as archive:  # the arrays in it may be compressed, too
                _check_unfolded(sum(member.file_size for member in archive.infolist()), content.getbuffer().nbytes)
        content.seek(0)
        arrays = np.load(content, allow_pickle=False)
        if not isinstance(arrays, Mapping):
            raise ValueError("it holds one array, not several with names")
        return {name: arrays[name] for name in arrays}
    except FileNotFoundError:
        raise
    # also a missing member, an unknown compression, an impossible size
    except (*BROKEN, KeyError, NotImplementedError, MemoryError) as error:
        raise ValueError(
            f"it is not a whole .npz file of numbers and texts ({type(error).__name__}: {error})"
        ) from error


def _in_folder(files: Sequence[DataFile], home: Path, parameter: str) -> list[Path]:
    if not home.is_dir():
        raise FileNotFoundError(
            f"{parameter} must be a folder that holds {_names(files)} of data set {files[0].data_set!r}. "
            f"Got {no_folder(home)}. {_advice(files, parameter)}"
        )
    found = [file.path_in(home) for file in files]
    missing = [file for file, path in zip(files, found, strict=True) if path is None]
    if missing:
        looked = "; ".join(", ".join(str(place) for place in file.places(home)) for file in missing)
        raise FileNotFoundError(
            f"{parameter} must be a folder that holds {_names(missing)} of data set {files[0].data_set!r}. "
            f"Got {str(home)!r}, where these were looked for and not found: {looked}. {_advice(missing, parameter)}"
        )
    return [path for path in found if path is not None]


def _downloaded(file: DataFile) -> Path:
    """The file in the user's cache. A file there is checked again by its sha256, and replaced if it does not fit."""
    import pooch  # takes time to import, and only a download needs it

    if file.url is None:
        raise FileNotFoundError(
            f"data set {file.data_set!r} needs {file.name}, which cannot be downloaded. "
            f"Give data_home=, or set {VARIABLE}: the folder that holds it."
        )
    folder = Path(pooch.os_cache("irmtv")) / file.data_set
    try:
        download = pooch.HTTPDownloader(timeout=TIMEOUT)
        return Path(pooch.retrieve(file.url, f"sha256:{file.sha256}", file.name, folder, downloader=download))
    except OSError as error:  # no network, no such page, nowhere to write: requests raises OSErrors too
        raise ConnectionError(
            f"{file.name} of data set {file.data_set!r} is not whole in {str(folder)!r} and could not be downloaded "
            f"from {file.url} ({type(error).__name__}: {error}). Try again with a network; or fetch the file elsewhere "
            f"and give data_home=, or set {VARIABLE}: the folder that holds it."
        ) from error
    except ValueError as error:  # pooch found another sha256, and kept nothing
        raise ValueError(
            f"{file.name} of data set {file.data_set!r}, downloaded from {file.url}, must have sha256 {file.sha256}. "
            f"Got other content, which was thrown away: {error} Try again; if it stays so, the source has changed: "
            f"fetch the file elsewhere and give data_home=, or set {VARIABLE}."
        ) from error


def _names(files: Sequence[DataFile]) -> str:
    return " and ".join(file.name for file in files)


def _advice(files: Sequence[DataFile], parameter: str) -> str:
    urls = [file.url for file in files if file.url is not None]
    if len(urls) < len(files):
        return f"Put {_names(files)} there, or name the folder that holds it."
    leave = f"leave data_home out and {VARIABLE} unset" if parameter == "data_home" else f"unset {VARIABLE}"
    return f"Put there {' and '.join(urls)}, name the folder that holds them, or {leave} to download."
