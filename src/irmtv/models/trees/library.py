"""Trees by LightGBM's own compiled library, without its Python package, which takes a second to import.

The functions are those of LightGBM's C API (https://lightgbm.readthedocs.io/en/latest/C-API.html), which it keeps
stable. Where the library does not stand where LightGBM's wheels put it, the package is imported.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from irmtv.core.messages import plain

_NAMES = ("lib_lightgbm.so", "lib_lightgbm.dylib", "lib_lightgbm.dll")
_FLOAT64, _RAW_SCORE, _ROW_MAJOR = 1, 1, 1  # constants of the C API


def lightgbm() -> Any:
    """The module; an ImportError that says what to install where there is none."""
    try:
        import lightgbm
    except ImportError as error:
        raise ImportError(
            "boosting needs LightGBM, which is not installed. Install it with pip install 'irmtv[boosting]'."
        ) from error
    return lightgbm


def booster_of(text: str) -> Any:
    """A booster that has `predict`, of trees that `check_trees` has found whole."""
    library = None if "lightgbm" in sys.modules else compiled()
    return lightgbm().Booster(model_str=text) if library is None else CompiledTrees(library, text)


def threads(value: Any) -> int:
    """`n_jobs` as LightGBM counts: 0 is all cores, or what OMP_NUM_THREADS says."""
    number = plain(value)
    if number is None or number == -1:
        return 0
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ValueError(f"n_jobs must be a number of threads, -1 or None for all. Got {number!r}. Use 1.")
    return number


class CompiledTrees:
    """Raw scores of trees: what `lightgbm.Booster.predict` gives with raw_score=True."""

    def __init__(self, library: Any, text: str) -> None:
        self._library, self._handle = library, ctypes.c_void_p()
        rounds = ctypes.c_int(0)
        code = library.LGBM_BoosterLoadModelFromString(
            text.encode("ascii"), ctypes.byref(rounds), ctypes.byref(self._handle)
        )
        self._check(code)
        classes = ctypes.c_int(0)
        self._check(library.LGBM_BoosterGetNumClasses(self._handle, ctypes.byref(classes)))
        self._n_outputs = classes.value

    def predict(
        self, features: npt.NDArray[np.float64], *, raw_score: bool, num_iteration: int, num_threads: int
    ) -> npt.NDArray[np.float64]:
        """(N, D) -> (N,), or (N, C) for several classes."""
        assert raw_score
        rows = np.ascontiguousarray(features, dtype=np.float64)
        scores = np.empty(len(rows) * self._n_outputs, dtype=np.float64)
        written = ctypes.c_int64(0)
        code = self._library.LGBM_BoosterPredictForMat(
            self._handle,
            rows.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int(_FLOAT64),
            ctypes.c_int32(rows.shape[0]),
            ctypes.c_int32(rows.shape[1]),
            ctypes.c_int(_ROW_MAJOR),
            ctypes.c_int(_RAW_SCORE),
            ctypes.c_int(0),
            ctypes.c_int(num_iteration),
            f"num_threads={num_threads} verbosity=-1".encode("ascii"),
            ctypes.byref(written),
            scores.ctypes.data_as(ctypes.POINTER(ctypes.c_double)),
        )
        self._check(code)
        assert written.value == len(scores)
        return scores if self._n_outputs == 1 else scores.reshape(len(rows), self._n_outputs)

    def __del__(self) -> None:
        if self._handle:
            self._library.LGBM_BoosterFree(self._handle)

    def _check(self, code: int) -> None:
        if code != 0:
            raise ValueError(self._library.LGBM_GetLastError().decode("utf-8", "replace"))


@cache
def compiled() -> Any:
    """LightGBM's library, None where it is not where its wheels have it."""
    found = find_spec("lightgbm")
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        for path in (Path(folder, "lib", name) for name in _NAMES):
            if path.is_file():
                library = ctypes.cdll.LoadLibrary(str(path))
                library.LGBM_GetLastError.restype = ctypes.c_char_p
                return library
    return None
