"""Pickles of arrays, read without running anything that they say.

A pickle is a program: it names functions of any module and calls them. Here no name is ever looked up. The few names
that NumPy writes into a pickle of arrays stand for the objects below, which check what they are given and build the
array from its bytes; every other name is refused before anything else of the file is read. NumPy's own functions are
not called by the file either: what restores an array there trusts its input, down to raw pointers.

Admitted: None, bool, int, float, str, bytes, list, tuple, dict, and arrays or scalars of booleans, integers, floats
and texts. Not: arrays of objects, records, dates, sets, classes of any kind. All protocols, 0 to 5.
"""

from __future__ import annotations

import math
import os
import pickle
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from irmtv.datasets.fetch import open_unpacked

KINDS = "biufSU"  # booleans, integers, floats, texts


class RefusedPickleError(ValueError):
    """A pickle asks for something other than arrays and plain containers; nothing of what it asked was done."""


class _Name:
    """What one admitted name stands for: to be called, and nothing else."""

    __slots__ = ("_call", "_name")

    def __init__(self, name: str, call: Callable[..., Any]) -> None:
        self._name, self._call = name, call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __setstate__(self, state: Any) -> NoReturn:  # else a pickle could set its attributes
        raise RefusedPickleError(f"it sets attributes of {self._name}")


class _Dtype:
    """numpy.dtype(code, align, copy), and the state that gives its byte order."""

    def __init__(self, *args: Any) -> None:
        code = args[0] if args else None
        code = code.decode("latin1") if isinstance(code, bytes) else code
        if not isinstance(code, str) or code[:1] not in KINDS or not (code[1:].isascii() and code[1:].isdigit()):
            raise RefusedPickleError(f"it holds an array of type {code!r}")
        self.found = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        _, order, *parts = state
        if any(part is not None for part in parts[:3]):  # a part of another type, names, fields
            raise RefusedPickleError("it holds an array of records")
        if order not in ("<", ">", "=", "|", b"<", b">", b"=", b"|"):
            raise RefusedPickleError(f"it holds an array of byte order {order!r}")
        if order in ("<", ">", b"<", b">"):
            self.found = self.found.newbyteorder("<" if order in ("<", b"<") else ">")


class _Array:
    """An array: empty until its state, or its buffer, comes."""

    def __init__(self, found: np.ndarray[Any, Any] | None = None) -> None:
        self.found = found

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        self.found = _array(raw, dtype, shape, "F" if fortran else "C")


def _array(raw: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray[Any, Any]:
    """The array of these bytes: its own memory, this machine's byte order."""
    if isinstance(raw, str):  # written by Python 2
        raw = raw.encode("latin1")
    if not isinstance(dtype, _Dtype) or not isinstance(raw, (bytes, bytearray)) or not isinstance(shape, tuple):
        raise RefusedPickleError("it holds an array that is not made of bytes")
    if not all(type(n) is int and n >= 0 for n in shape) or order not in ("C", "F"):
        raise RefusedPickleError(f"it holds an array of shape {shape!r} and order {order!r}")
    if len(raw) != math.prod(shape) * dtype.found.itemsize:
        raise RefusedPickleError(
            f"it holds an array of shape {shape} and type {dtype.found} with {len(raw)} bytes of values"
        )
    values = np.frombuffer(bytes(raw), dtype.found).reshape(shape, order=order)
    return values.astype(dtype.found.newbyteorder("="))


def _reconstruct(*args: Any) -> _Array:
    return _Array()  # whatever the arguments: the state has all


def _from_buffer(raw: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    return _Array(_array(raw, dtype, shape, order))


def _scalar(dtype: Any, raw: Any) -> Any:
    return _array(raw, dtype, (), "C").item()


def _encode(text: Any, encoding: Any) -> bytes:
    """Bytes, as protocols below 3 write them."""
    if not isinstance(text, str) or encoding != "latin1":
        raise RefusedPickleError("it encodes something other than bytes")
    return text.encode("latin1")


def _no_bytes(*args: Any) -> bytes:
    if args:
        raise RefusedPickleError("it makes bytes of something")
    return b""


def _not_called(*args: Any) -> NoReturn:
    raise RefusedPickleError("it makes an array by itself")


def _admitted() -> Mapping[tuple[str, str], Any]:
    """Made anew for every file, so that no file leaves anything behind."""
    found: dict[tuple[str, str], Any] = {
        ("numpy", "ndarray"): _Name("numpy.ndarray", _not_called),  # an argument of _reconstruct
        ("numpy", "dtype"): _Name("numpy.dtype", _Dtype),
        ("_codecs", "encode"): _Name("_codecs.encode", _encode),
        ("__builtin__", "bytes"): _Name("bytes", _no_bytes),  # no bytes, in protocols below 3
    }
    for package in ("numpy.core", "numpy._core"):  # before and since NumPy 2
        found[(package + ".multiarray", "_reconstruct")] = _Name("_reconstruct", _reconstruct)
        found[(package + ".multiarray", "scalar")] = _Name("scalar", _scalar)
        found[(package + ".numeric", "_frombuffer")] = _Name("_frombuffer", _from_buffer)
    return found


class _Unpickler(pickle._Unpickler):
    """The Python version: the memo of the one in C is an array, which a file of ten bytes can ask for 2 GB of."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, encoding="latin1")  # of texts that Python 2 wrote
        self._names = _admitted()

    def find_class(self, module: str, name: str) -> Any:
        known = self._names.get((module, name))
        if known is None:
            raise RefusedPickleError(f"it asks for {module}.{name}")
        return known

    def persistent_load(self, pid: Any) -> NoReturn:
        raise RefusedPickleError("it refers to something outside of the file")


def load_pickle(file: IO[bytes]) -> Any:
    """What a pickle holds, where that is arrays and plain containers; nothing in it is run.

    Raises RefusedPickleError where it asks for anything else, and ValueError where it is not a whole pickle.

    >>> import io, os
    >>> load_pickle(io.BytesIO(pickle.dumps({"a": np.arange(3)})))
    {'a': array([0, 1, 2])}
    >>> load_pickle(io.BytesIO(pickle.dumps(os.getcwd)))
    Traceback (most recent call last):
    irmtv.datasets.safe_pickle.RefusedPickleError: it asks for posix.getcwd
    """
    try:
        return _plain(_Unpickler(file).load(), {})
    except RefusedPickleError:
        raise
    except RecursionError:
        raise RefusedPickleError("it nests containers too deeply, or in themselves") from None
    # a broken file can make the machine of pickle fail in any way: an index, a key, a type, no memory
    except (OSError, EOFError, zlib.error):  # of what it is packed in, or at its end
        raise
    except Exception as error:
        raise ValueError(f"it is not a whole pickle of arrays ({type(error).__name__}: {error})") from error


def _plain(value: Any, done: dict[int, tuple[Any, Any]]) -> Any:
    """The same with arrays in their places. `done`: by id, what was seen (kept alive) and what became of it."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if id(value) in done:  # a container that stands in many places is gone through once
        return done[id(value)][1]
    made: Any
    if type(value) is _Array and value.found is not None:
        made = value.found
    elif type(value) is dict:
        made = {_plain(k, done): _plain(v, done) for k, v in value.items()}
    elif type(value) in (list, tuple):
        made = type(value)(_plain(v, done) for v in value)
    else:
        what = value._name if type(value) is _Name else "an array without values" if type(value) is _Array else None
        raise RefusedPickleError(f"it holds {what or 'an object of type ' + type(value).__name__}")
    done[id(value)] = (value, made)
    return made


def read_pickle(path: str | os.PathLike[str]) -> Any:
    """:func:`load_pickle` of a file, plain or packed as .gz or .zip, by its ending."""
    try:
        with open_unpacked(Path(path)) as file:
            return load_pickle(file)
    except FileNotFoundError:
        raise
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise ValueError(f"it cannot be read to its end ({type(error).__name__}: {error})") from error
