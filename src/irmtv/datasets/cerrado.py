"""Cerrado: real Landsat-8 series of Brazil's savanna with nine classes, learnt in the south and tested in the north.

Not the paper's Landcover set, but its nearest real relative that can be had: what covers the land from a year of
satellite measurements, where the places of the test are others than those of training.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from irmtv.core.messages import shown
from irmtv.core.types import Task
from irmtv.datasets.common import (
    Array,
    Floats,
    Home,
    Part,
    Seed,
    card_seed,
    check_share,
    held_out,
    series_task,
    streams,
)
from irmtv.datasets.fetch import find_any, read_npz
from irmtv.datasets.sources import SOURCES

FILES, CURE = SOURCES["cerrado"].files, SOURCES["cerrado"].cure
NEEDED = ("X", "y", "lat", "lon")


def load_cerrado(
    random_state: Seed = None,
    *,
    data_home: Home = None,
    cut: float = -15.0,
    train_cuts: Sequence[float] = (-20.0, -17.5),
    test_cuts: Sequence[float] = (-12.0, -9.0, -6.0),
    iid_share: float = 0.2,
) -> Task:
    """Load the Cerrado series: train in the south, test in the north, no series twice.

    Parameters
    ----------
    random_state : int, numpy Generator or None, default None
        Which rows of the south are held apart as test environment "iid". A Generator is advanced.
    data_home : path or None, default None
        Folder that holds samples_validation_cerrado.npz, at its top or in a folder "landcover_cerrado". None: the
        folder in the environment variable IRMTV_DATA. It cannot be downloaded: its source is a file of R.
    cut : float, default -15.0
        Latitude at which the north begins. -15 halves the rows (2,239 and 2,298) and leaves all nine classes on both
        sides, though three of them with one to four rows in the north.
    train_cuts : sequence of float, default (-20.0, -17.5)
        Latitudes that divide the south into bands, the environments of training: what changes from south to north
        between them goes on changing beyond the cut.
    test_cuts : sequence of float, default (-12.0, -9.0, -6.0)
        Latitudes that divide the north into bands, the test environments.
    iid_share : float, default 0.2
        Share of each southern band that is held apart.

    Returns
    -------
    Task
        ``train`` and ``test``: x (N, 9, 24), bands first, as networks over series read them, every band standardised
        on the training rows; y, codes into ``card["classes"]``; environment, the band of latitude, and "iid"; aux,
        latitude and longitude. ``card``: source, licence, classes by band, which of them cannot be learnt.

    Examples
    --------
    >>> task = load_cerrado(random_state=0)
    >>> task
    Task('cerrado', 1792 rows, features (9, 24), loss multiclass, 3 environments, 2 aux columns, 2745 test rows)
    >>> task.test.names
    ('iid', '15S to 12S', '12S to 9S', '9S to 6S', '6S and north')
    """
    share = check_share("iid_share", iid_share)
    cut = _cuts("cut", (cut,), -90.0, 90.0)[0]
    south_cuts = _cuts("train_cuts", train_cuts, -90.0, cut)
    north_cuts = _cuts("test_cuts", test_cuts, cut, 90.0)
    series, names, where, n_dropped, bands = read_cerrado(find_any(FILES, data_home, CURE))
    classes, label = np.unique(names, return_inverse=True)
    edges = [*south_cuts, cut, *north_cuts]
    band = np.digitize(where[:, 0], edges).astype(np.int64)  # (N,) codes into `called`
    called = _band_names(edges)
    n_south = len(south_cuts) + 1
    sizes = np.bincount(band, minlength=len(called))
    if (sizes < 2).any():
        raise ValueError(
            "cut, train_cuts and test_cuts must leave at least two rows in every band of latitude. Got "
            f"{dict(zip(called, sizes.tolist(), strict=True))}. Use fewer or other cuts."
        )
    south = np.flatnonzero(band < n_south)
    out = held_out(streams(random_state)[0], band[south], share)
    train, iid, north = south[~out], south[out], np.flatnonzero(band >= n_south)
    if len(iid) == 0:
        raise ValueError(f"iid_share must leave rows to hold apart. Got {iid_share!r} of {len(south)}. Use 0.2.")
    trained = Part(train, band[train], called[:n_south])
    codes = np.concatenate([np.zeros(len(iid), dtype=np.int64), band[north] - n_south + 1])
    tested = Part(np.concatenate([iid, north]), codes, ("iid", *called[n_south:]))
    by_band = {
        name: {str(c): int(((band == b) & (label == k)).sum()) for k, c in enumerate(classes)}
        for b, name in enumerate(called)
    }
    learnt = np.isin(np.arange(len(classes)), label[train])
    lost = {str(c): int((label[north] == k).sum()) for k, c in enumerate(classes) if not learnt[k]}
    card = {
        **SOURCES["cerrado"].card,
        "rows": len(series) + n_dropped,
        "n_train": trained.counts,
        "n_test": tested.counts,
        "random_state": card_seed(random_state),
        "columns": bands,
        "aux": ("latitude", "longitude"),
        "classes": tuple(str(c) for c in classes),
        "class_counts": by_band,
        "not_in_training": lost,
        "duplicates_dropped": n_dropped,
        "cut": cut,
        "iid_share": share,
        **_REMARKS,
        "limits": (
            f"{n_dropped} series that repeat an earlier one in every value were dropped before the division. Classes "
            "are far from equally frequent: most rows are Cerrado or Pasture, and some classes have few rows or none "
            f"in a band (class_counts). Rows north of the cut whose class no training row has: {sum(lost.values())}. "
            "'iid' rows are drawn between training rows, so that neighbours may be on both sides."
        ),
    }
    return series_task("cerrado", series, label.astype(np.int64), where, trained, tested, card)


_REMARKS = {
    "shift": (
        "Where: training rows lie south of the cut, test rows north of it. Seasons, rain and the shares of the "
        "classes change with latitude: crops, sugarcane and planted woods are mostly southern."
    ),
    "looks_at_test": "Nothing: bands are standardised on training rows only. The classes are those of all rows.",
    "differs_from_paper": "Another data set: the paper's Landcover has MODIS series, 46 x 8, of the whole world.",
}


def read_cerrado(path: Path) -> tuple[Floats, Array, Floats, int, tuple[str, ...]]:
    """Series (N, bands, times), names of classes (N,), places (N, 2), how many duplicates were dropped, bands."""
    try:
        found = read_npz(path)
        missing = [name for name in NEEDED if name not in found]
        if missing:
            raise ValueError(f"it must hold the arrays {list(NEEDED)}. Got {sorted(found)}, without {missing}")
        return _checked(found)
    except ValueError as error:
        raise ValueError(f"{path} must be the file of the Cerrado series: {error}. {CURE}") from error


def _checked(found: dict[str, Array]) -> tuple[Floats, Array, Floats, int, tuple[str, ...]]:
    x, y, lat, lon = (found[name] for name in NEEDED)
    n = len(y) if y.ndim == 1 else -1
    if x.ndim != 3 or not x.shape[0] == n or lat.shape != (n,) or lon.shape != (n,):
        raise ValueError(
            f"X must be (N, times, bands) and y, lat and lon (N,). Got { {name: found[name].shape for name in NEEDED} }"
        )
    if n == 0 or 0 in x.shape:
        raise ValueError(f"it must hold rows. Got X of shape {x.shape}")
    for name, value in (("X", x), ("lat", lat), ("lon", lon)):
        if value.dtype.kind not in "iuf":
            raise ValueError(f"{name} must hold numbers. Got an array of type {value.dtype}")
        if not np.isfinite(value).all():
            raise ValueError(f"{name} must hold no missing numbers. Got {int((~np.isfinite(value)).sum())}")
    if y.dtype.kind not in "US" or (np.char.str_len(y) == 0).any():
        raise ValueError(f"y must hold names of classes. Got an array of type {y.dtype}: {shown(np.unique(y))}")
    if (np.abs(lat) > 90).any():
        raise ValueError("lat must be latitudes, -90 to 90. Got others")
    bands = tuple(found["bands"].astype(str).tolist()) if "bands" in found else ()
    if len(bands) != x.shape[2]:
        bands = tuple(f"band {j + 1}" for j in range(x.shape[2]))
    # whole rows are compared, class and place too: one series with two classes would be two opinions
    same = np.column_stack([x.reshape(n, -1).astype(np.float64), lat, lon, np.unique(y, return_inverse=True)[1]])
    first = np.sort(np.unique(same, axis=0, return_index=True)[1])
    series = x[first].transpose(0, 2, 1).astype(np.float64)  # (N, bands, times)
    return series, y[first].astype(str), np.column_stack([lat, lon])[first], n - len(first), bands


def _cuts(name: str, values: Any, low: float, high: float) -> list[float]:
    """Latitudes that rise between two others."""
    wrong = f"{name} must be latitudes that rise, between {low:g} and {high:g}. Got {values!r}."
    try:
        found = [float(v) for v in values]
    except (TypeError, ValueError):
        raise ValueError(f"{wrong} Give a sequence of numbers; () makes one band.") from None
    if not all(a < b for a, b in pairwise([low, *found, high])):
        raise ValueError(f"{wrong} Sort them, and keep cut between train_cuts and test_cuts.")
    return found


def _band_names(edges: Sequence[float]) -> tuple[str, ...]:
    """("20S and south", "20S to 15S", ..., "6S and north")."""
    texts = [f"{abs(e):g}{'S' if e < 0 else 'N'}" for e in edges]
    return (f"{texts[0]} and south", *(f"{a} to {b}" for a, b in pairwise(texts)), f"{texts[-1]} and north")
