"""A model file: numbers as safetensors, everything else as JSON, fitted preprocessing by skops; no pickle anywhere.

Layout of `model.irmtv`, a zip (see `archive`), format 1:

- `mimetype`: application/vnd.irmtv.model
- `irmtv.json`: {"format", "irmtv", "kind", "written_with", "meta", "labels", "parts"}; `labels` are the arrays
  that are no numbers, `parts` the names of the parts
- `arrays.safetensors`: the arrays that are numbers
- `parts.skops`: fitted preprocessing, only where there is any

Whatever format may come, a file keeps the zip, `mimetype`, the checksum and the first two keys of `irmtv.json`:
so an old irmtv can always say which irmtv a file needs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from irmtv._version import __version__
from irmtv.core.containers import is_tensor
from irmtv.core.messages import did_you_mean, shown
from irmtv.persistence.archive import read_sealed, seal, unpack, write_bytes
from irmtv.persistence.encoding import decode, decode_array, dump_json, encode, encode_array, parse_json
from irmtv.persistence.errors import ModelFileError, reading
from irmtv.persistence.parts import dump_parts, load_parts

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FORMAT", "ModelFile", "file_errors", "read_model", "write_model"]

FORMAT = 1
_HEADER, _ARRAYS, _PARTS = "irmtv.json", "arrays.safetensors", "parts.skops"
_NAMES = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)?")  # wider than format 1, so that the header of a newer one is read
_KIND = re.compile(r"[a-z][a-z0-9-]*")
_PACKAGES = ("numpy", "scikit-learn", "skops", "skrub")  # on which the parts depend
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class ModelFile:
    """The content of a model file."""

    kind: str  # what it holds, such as "classifier"
    version: str  # the irmtv that wrote it
    arrays: dict[str, NDArray[Any]]  # writable, of the shapes and types that were given
    meta: dict[str, Any]  # other values, with tuples, dates and NaN as they were
    parts: dict[str, Any]  # fitted preprocessing
    path: Path  # where it was read, for messages

    def about(self) -> dict[str, Any] | None:
        """What else was stored of the model when it was saved, such as a summary; None where nothing was."""
        found = self.meta.get("about")
        if found is not None and not isinstance(found, dict):
            raise ModelFileError(
                f"{str(self.path)!r} is not as irmtv writes it: its `about` must be a dict. Got {type(found).__name__}."
            )
        return found

    def check(self, arrays: Iterable[str] = (), meta: Iterable[str] = (), parts: Iterable[str] = ()) -> None:
        """Raise a ModelFileError unless the file has everything that its reader needs."""
        pairs = (("arrays", arrays, self.arrays), ("meta", meta, self.meta), ("parts", parts, self.parts))
        for what, wanted, present in pairs:
            missing = [name for name in wanted if name not in present]
            if missing:
                raise ModelFileError(
                    f"{str(self.path)!r} must have the {what} {shown(missing)} to be a {self.kind}. "
                    f"It has {shown(sorted(present)) or 'none'}; it was written by irmtv {self.version}."
                )


@contextmanager
def file_errors(file: ModelFile, what: str) -> Iterator[None]:
    """A file that is sealed as it should be and still holds something else is an error of the file, not of Python."""
    try:
        yield
    except (ModelFileError, ImportError):
        raise
    except Exception as error:  # of content that is wrong in any way
        said = str(error) if type(error) in (ValueError, AssertionError) else f"{type(error).__name__}: {error}"
        raise ModelFileError(
            f"{str(file.path)!r} does not hold a whole {what}: {said.removesuffix('.')}. It was written by irmtv "
            f"{file.version}."
        ) from error


# --- writing ----------------------------------------------------------------------------------------------


def write_model(
    path: str | os.PathLike[str],
    kind: str,
    arrays: Mapping[str, NDArray[Any] | Tensor],
    meta: Mapping[str, Any],
    parts: Mapping[str, object] = _NOTHING,
) -> Path:
    """Write a model file, whole or not at all; the same content gives the same bytes.

    Parameters
    ----------
    path : str or Path
        By custom it ends in .irmtv. An existing file is replaced once the new one is complete.
    kind : str
        What the file holds, such as "classifier": small letters, digits and hyphens.
    arrays : mapping of str to array or tensor
        Numbers of up to 64 bits, booleans, times, strings, or objects that `meta` could hold.
    meta : mapping of str to values
        None, bool, int, float, str, date, datetime, Timestamp, numpy scalars; lists, tuples and dicts of these.
    parts : mapping of str to object, default {}
        Fitted preprocessing of scikit-learn and skrub; see `irmtv.persistence.trusted` for the list of types.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = write_model(f"{folder.name}/a.irmtv", "demo", {"w": np.arange(3.0)}, {"classes": ("no", "yes")})
    >>> model = read_model(path)
    >>> model.kind, model.arrays["w"], model.meta
    ('demo', array([0., 1., 2.]), {'classes': ('no', 'yes')})
    >>> folder.cleanup()
    """
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise ModelFileError(f"kind must be small letters, digits and hyphens, such as 'classifier'. Got {kind!r}.")
    for what, given in (("arrays", arrays), ("meta", meta), ("parts", parts)):
        for name in given:
            _check_name(name, what)
    plain = {name: _as_array(arrays[name], f"arrays[{name!r}]") for name in sorted(arrays)}
    labels = {name: array for name, array in plain.items() if array.dtype.kind in "OUmM"}
    numbers = {name: array for name, array in plain.items() if name not in labels}
    header = {
        "format": FORMAT,
        "irmtv": __version__,
        "kind": kind,
        "written_with": _installed() if parts else {},
        "meta": {name: encode(value, f"meta[{name!r}]") for name, value in meta.items()},
        "labels": {name: encode_array(array, f"arrays[{name!r}]") for name, array in labels.items()},
        "parts": sorted(parts),
    }
    entries = {_HEADER: dump_json(header), _ARRAYS: safetensors.numpy.save(numbers)}
    if parts:
        entries[_PARTS] = dump_parts(parts)
    return write_bytes(Path(path), seal(entries))


def _check_name(name: object, what: str) -> None:
    usable = isinstance(name, str) and name and name != "__metadata__"  # which safetensors keeps for itself
    if not usable or not str(name).isprintable():
        raise ModelFileError(f"{what} must have names that are printable text. Got {name!r}; choose another name.")


def _as_array(value: Any, where: str) -> NDArray[Any]:
    """A contiguous numpy array of a type that can be stored."""
    if is_tensor(value):
        import torch

        if value.layout != torch.strided or value.dtype == torch.bfloat16 or value.is_quantized:
            got = f"{value.dtype}, {value.layout}"
            raise ModelFileError(f"{where} must be a dense tensor of a type that numpy has. Got {got}; convert it.")
        value = value.detach().cpu().resolve_conj().resolve_neg().numpy()
    if type(value) is not np.ndarray:
        raise ModelFileError(f"{where} must be a numpy array or a tensor. Got {type(value).__name__}; use meta for it.")
    dtype = value.dtype
    if dtype.kind not in "biufOUmM" or (dtype.itemsize > 8 and dtype.kind == "f"):
        raise ModelFileError(
            f"{where} must hold numbers of up to 64 bits, booleans, strings, times or plain objects. "
            f"Got {dtype}; convert it."
        )
    return value.astype(dtype.newbyteorder("="), order="C")


def _installed() -> dict[str, str]:
    """Versions of the packages that the parts depend on."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # skrub where only scikit-learn is used
            continue
    return versions


# --- reading ----------------------------------------------------------------------------------------------


def read_model(path: str | os.PathLike[str], kinds: Collection[str] | None = None) -> ModelFile:
    """Read a file of `write_model` and check all of it; nothing in it is executed.

    `kinds` are those that the caller can use, None: all; any other is refused before anything is built. A
    ModelFileError says what is wrong with the file.
    """
    path = Path(path)
    data = read_sealed(path)
    with reading(repr(str(path))):
        return _content(data, kinds, path)


def _content(data: bytes, kinds: Collection[str] | None, path: Path) -> ModelFile:
    where = repr(str(path))
    entries = unpack(data, _NAMES, where)
    header = _header(entries, where)
    if kinds is not None and header["kind"] not in kinds:
        raise ModelFileError(
            f"{where} holds a {header['kind']!r}, which this irmtv ({__version__}) cannot load here: it loads "
            f"{shown(sorted(kinds))}.{did_you_mean(header['kind'], kinds)} It was written by irmtv {header['irmtv']}."
        )
    expected = {"mimetype", _HEADER, _ARRAYS, *([_PARTS] if header["parts"] else [])}
    if set(entries) != expected:
        missing, more = sorted(expected - set(entries)), sorted(set(entries) - expected)
        raise ModelFileError(
            f"{where} must have the entries {shown(sorted(expected))}. Missing: {missing}; more: {more}."
        )
    arrays = _numbers(entries[_ARRAYS], f"{_ARRAYS} of {where}")
    for name, entry in header["labels"].items():
        if name in arrays:
            raise ModelFileError(f"{where} has the array {name!r} twice.")
        arrays[name] = decode_array(entry, f"array {name!r} of {where}")
    meta = {name: decode(value, f"meta[{name!r}] of {where}") for name, value in header["meta"].items()}
    parts: dict[str, Any] = {}
    if header["parts"]:
        versions = ", ".join(f"{package} {version}" for package, version in header["written_with"].items())
        parts = load_parts(entries[_PARTS], header["parts"], f"{_PARTS} of {where}", versions)
    return ModelFile(header["kind"], header["irmtv"], arrays, meta, parts, path)


_HEADER_TYPES = {"irmtv": str, "kind": str, "written_with": dict, "meta": dict, "labels": dict, "parts": list}


def _header(entries: Mapping[str, bytes], where: str) -> dict[str, Any]:
    if _HEADER not in entries:
        raise ModelFileError(f"{where} is not a model file as irmtv writes it: it lacks {_HEADER}.")
    header = parse_json(entries[_HEADER], f"{_HEADER} of {where}")
    number = header.get("format") if isinstance(header, dict) else None
    if type(number) is not int or number < 1:
        raise ModelFileError(f"{where} must say its format, an integer of at least 1. Got {number!r}.")
    if number > FORMAT:
        raise ModelFileError(
            f"{where} was written by irmtv {header.get('irmtv')}, format {number}; this is irmtv {__version__}, which "
            f"reads up to format {FORMAT}: upgrade with pip install --upgrade irmtv."
        )
    wrong = [key for key, kind in _HEADER_TYPES.items() if type(header.get(key)) is not kind]
    if wrong or not all(isinstance(name, str) for name in header["parts"]):
        raise ModelFileError(
            f"{where} is not as irmtv writes it: {_HEADER} has wrong or no {shown(wrong or ['parts'])}."
        )
    return dict(header)


def _numbers(data: bytes, where: str) -> dict[str, NDArray[Any]]:
    with reading(where):
        return safetensors.numpy.load(data)
