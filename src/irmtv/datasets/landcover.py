"""Landcover: what covers the land, from a year of satellite measurements, learnt outside Africa and tested in it.

The file is not public in a place that can be relied on; :func:`irmtv.datasets.make_landcover_standin` draws series of
its shape. Two layouts are read:

| file            | what it holds                                                                                    |
|-----------------|--------------------------------------------------------------------------------------------------|
| landcover.pkl   | as published: a dict, domain -> (series (n, bands, 46), latitude and longitude (n, 2),           |
|                 | label (n,), domain, climate (n, variables, 12)); the climate may be missing                      |
| landcover.npz   | plain NumPy arrays: ``series`` or ``x`` (N, bands, 46) or (N, 46, bands); ``latlon`` (N, 2), or  |
|                 | ``lat`` and ``lon`` (N,); ``label`` or ``y`` (N,); where there are, ``domain`` (N,), True or     |
|                 | "africa" for African rows, and ``climate``, (N,) classes or (N, variables, ...) numbers          |

Seven bands are those of MODIS, red and near infrared first: the vegetation index (near infrared - red) / (near infrared
+ red) becomes the eighth. Labels are the 17 classes of the published file, 0 to 16, of which the paper's six are kept,
or 0 to 5 where no other occurs. Rows with a missing measurement are left out. Without a domain that says so, African
rows are those in the published box of latitudes and longitudes.

The pickle is read by :mod:`irmtv.datasets.safe_pickle`: nothing in it is run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from irmtv.core.messages import shown
from irmtv.core.types import Task
from irmtv.datasets.common import (
    Array,
    Floats,
    Home,
    Integers,
    Part,
    Seed,
    card_seed,
    check_share,
    held_out,
    one_of,
    series_task,
    streams,
)
from irmtv.datasets.fetch import find_any, read_npz
from irmtv.datasets.safe_pickle import RefusedPickleError, read_pickle
from irmtv.datasets.sources import SOURCES

WorstBy = Literal["latitude", "climate"]
Given = Literal["latitude"]

FILES, CURE = SOURCES["landcover"].files, SOURCES["landcover"].cure
AFRICAN_BANDS = ("africa below 15S", "africa 15S to 0", "africa 0 to 15N", "africa above 15N")
AFRICAN_CUTS = (-15.0, 0.0, 15.0)
ZONES, ZONE_CUTS = ("south", "tropics", "north"), (-23.44, 23.44)
N_TIMES, N_BANDS = 46, 8
CLASSES = (
    "savannas", "woody savannas", "croplands", "open shrublands", "evergreen broadleaf forests", "grasslands",
)  # fmt: skip
KEPT = (0, 2, 5, 8, 9, 12)  # their codes among the 17 of the published file
N_CODES = 17
AFRICA_LATITUDES, AFRICA_LONGITUDES = (-36.337048, 38.277609), (-18.170184, 55.037262)  # the published box


def load_landcover(
    random_state: Seed = None,
    *,
    path: str | os.PathLike[str] | None = None,
    data_home: Home = None,
    iid_share: float = 0.2,
    environments: Given | None = None,
    worst_by: WorstBy | None = "latitude",
) -> Task:
    """Load Landcover from its published pickle, which is not run, or from plain NumPy arrays.

    Training rows are those outside Africa, but for a share that is held apart as test environment "iid"; the other
    test environments are African.

    Parameters
    ----------
    random_state : int, numpy Generator or None, default None
        Which rows outside Africa are held apart. A Generator is advanced.
    path : path or None, default None
        The file, .pkl or .npz, plain or as .gz or .zip; in place of ``data_home``.
    data_home : path or None, default None
        Folder that holds landcover.pkl or landcover.npz, at its top or in a folder "landcover", plain or as .gz or
        .zip. None: the folder in the environment variable IRMTV_DATA. It cannot be downloaded.
    iid_share : float, default 0.2
        Share of the rows outside Africa that is held apart.
    environments : {"latitude"} or None, default None
        Environments of the training rows. None, as in the paper: they are not known, and latitude and longitude are
        there to infer them from. "latitude": north, tropics, south, for methods that need them.
    worst_by : {"latitude", "climate"} or None, default "latitude"
        How African rows are divided into test environments, of which the worst can be taken: four bands of latitude;
        the classes of the climate, or thirds of the mean of its first variable; None: not at all.

    Returns
    -------
    Task
        ``train`` and ``test``: x (N, 8, 46), bands first, as networks over series read them, every band standardised
        on the training rows; y 0 to 5; aux, latitude and longitude in degrees. ``card``: source, which rows are where,
        what is known to differ from the paper.

    Notes
    -----
    The paper does not say of what its column "worst" is the worst. Here it is the worst of the African test
    environments, as ``worst_by`` divides them.

    Examples
    --------
    >>> import tempfile
    >>> rng = np.random.default_rng(0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(
    ...         f"{folder}/landcover.npz",
    ...         series=rng.normal(size=(60, 8, 46)),
    ...         latlon=np.repeat([[50.0, 10.0], [-40.0, 80.0], [5.0, 20.0]], 20, axis=0),
    ...         label=np.arange(60) % 6,
    ...     )
    ...     task = load_landcover(0, data_home=folder)
    >>> task
    Task('landcover', 32 rows, features (8, 46), loss multiclass, 2 aux columns, 28 test rows)
    >>> task.test.names
    ('iid', 'africa 0 to 15N')
    """
    share = check_share("iid_share", iid_share)
    given = None if environments is None else one_of("environments", environments, get_args(Given))
    divided = None if worst_by is None else one_of("worst_by", worst_by, get_args(WorstBy))
    file = _find(path, data_home)
    rows = read_landcover(file)
    outside = np.flatnonzero(~rows.african)
    out = held_out(streams(random_state)[0], np.zeros(len(outside), dtype=np.int64), share)
    train, iid, africa = outside[~out], outside[out], np.flatnonzero(rows.african)
    for what, index in (("training rows, outside Africa", train), ("rows held apart", iid), ("African rows", africa)):
        if len(index) == 0:
            raise ValueError(
                f"{not_landcover(file)}: it must hold {what}. Got {len(rows)} rows that can be used, {len(africa)} of "
                f"them in Africa. {CURE}"
            )
    zones = None if given is None else _used(np.digitize(rows.where[train, 0], ZONE_CUTS), ZONES)
    trained = Part(train, *(zones or (None, ())))
    climate = None if rows.climate is None else rows.climate[africa]
    bands, names = _african(rows.where[africa, 0], climate, divided, file)
    iid_codes = np.zeros(len(iid), dtype=np.int64)
    tested = Part(np.concatenate([iid, africa]), np.concatenate([iid_codes, 1 + bands]), ("iid", *names))
    card = {
        **SOURCES["landcover"].card,
        "rows": len(rows) + sum(rows.dropped.values()),
        "n_train": trained.counts,
        "n_test": tested.counts,
        "random_state": card_seed(random_state),
        "classes": CLASSES,
        "class_counts": {c: int((rows.label == k).sum()) for k, c in enumerate(CLASSES)},
        "aux": ("latitude", "longitude"),
        "dropped": rows.dropped,
        "file": file.name,
        "iid_share": share,
        "environments": given,
        "worst_by": divided,
        "looks_at_test": _LOOKS_BY_CLIMATE if divided == "climate" else _LOOKS,
        **_REMARKS,
    }
    return series_task("landcover", rows.series, rows.label, rows.where, trained, tested, card)


_LOOKS = "Nothing: bands are standardised on training rows only."
_LOOKS_BY_CLIMATE = (
    "Bands are standardised on training rows only. Thirds of the climate, which only divide the test rows, are those "
    "of the African rows."
)
_REMARKS = {
    "shift": "Where: training rows lie outside Africa, test rows in it; climate and seasons differ.",
    "differs_from_paper": (
        "The paper does not say how many rows are held apart for its IID test, how the series are scaled, nor of "
        "what its 'worst' is the worst: here of the African test environments, as worst_by divides them."
    ),
    "limits": (
        "Neighbouring places may be on both sides of the random division into training rows and 'iid', so that "
        "'iid' is easier than new places are."
    ),
}


def _find(path: str | os.PathLike[str] | None, data_home: Home) -> Path:
    if path is not None:
        if data_home is not None:
            raise ValueError(
                "path names the file and data_home a folder: give one of them. Got "
                f"path={str(path)!r} and data_home={str(data_home)!r}."
            )
        return Path(path).expanduser()
    return find_any(FILES, data_home, f"A file landcover.npz was not found either. {CURE}")


def _african(
    latitude: Floats, climate: Array | None, worst_by: WorstBy | None, path: Path
) -> tuple[Integers, tuple[str, ...]]:
    """Codes of the African rows and the names of their environments, those that have rows."""
    if worst_by is None:
        return np.zeros(len(latitude), dtype=np.int64), ("africa",)
    if worst_by == "latitude":
        return _used(np.digitize(latitude, AFRICAN_CUTS), AFRICAN_BANDS)
    if climate is None:
        raise ValueError(f"worst_by='climate' needs a climate. Got {path}, which holds none. Use worst_by='latitude'.")
    if climate.ndim == 1 and climate.dtype.kind in "biuUS":
        kinds, codes = np.unique(climate.astype(str), return_inverse=True)
        return codes.astype(np.int64), tuple(f"africa climate {kind}" for kind in kinds)
    if climate.dtype.kind not in "iuf":
        raise ValueError(
            f"worst_by='climate' needs classes or numbers. Got an array of type {climate.dtype} in {path}."
        )
    values = climate.reshape(len(climate), climate.shape[1] if climate.ndim > 1 else 1, -1)[:, 0].mean(1)
    if not np.isfinite(values).all():
        raise ValueError(
            f"worst_by='climate' needs a climate for every African row. Got {int((~np.isfinite(values)).sum())} rows "
            f"without one in {path}. Use worst_by='latitude'."
        )
    thirds = np.digitize(values, np.quantile(values, [1 / 3, 2 / 3]))
    return _used(thirds, ("africa climate low", "africa climate middle", "africa climate high"))


def _used(codes: Array, names: tuple[str, ...]) -> tuple[Integers, tuple[str, ...]]:
    """Codes into the names that occur."""
    present, again = np.unique(codes, return_inverse=True)
    return again.astype(np.int64), tuple(names[i] for i in present)


@dataclass(frozen=True)
class Recordings:
    """The rows of a file, checked."""

    series: Floats  # (N, bands, times)
    where: Floats  # (N, 2) latitude, longitude
    label: Integers  # (N,) 0 to 5
    african: NDArray[np.bool_]  # (N,)
    climate: Array | None  # (N, ...) or None
    dropped: dict[str, int]  # rows of the file that are not here, and why

    def __len__(self) -> int:
        return len(self.label)


def read_landcover(path: str | os.PathLike[str]) -> Recordings:
    """The rows of a file of either layout that can be used: six classes, nothing missing, eight bands."""
    path = Path(path)
    kind = path.with_suffix("").suffix if path.suffix in (".gz", ".zip") else path.suffix
    if kind not in (".pkl", ".pickle", ".npz"):
        raise ValueError(f"{not_landcover(path)}: its name must end in .pkl or .npz (and .gz or .zip). {CURE}")
    try:
        parts = _of_arrays(read_npz(path)) if kind == ".npz" else _of_published(read_pickle(path))
        return _checked(**parts)
    except RefusedPickleError as error:
        raise RefusedPickleError(
            f"{not_landcover(path)}, arrays in plain containers. Got a pickle that was refused, and nothing in it was "
            f"run: {error}. Do not open it by other means. {CURE}"
        ) from None
    except FileNotFoundError:
        raise FileNotFoundError(f"path must be a file of Landcover. Got {str(path)!r}: no such file. {CURE}") from None
    except ValueError as error:
        raise ValueError(f"{not_landcover(path)}: {error}. {CURE}") from error


def not_landcover(path: Path) -> str:
    return f"{path} must be a file of Landcover"


def _of_published(content: Any) -> dict[str, Any]:
    """The published dict, domain by domain, as long arrays."""
    if not isinstance(content, dict) or not content:
        raise ValueError(f"expected a dict, domain -> (series, latlon, label, domain, climate). Got {_kind(content)}")
    domains = []
    for domain, entry in content.items():
        if not isinstance(entry, (tuple, list)) or len(entry) < 3:
            raise ValueError(
                f"domain {domain!r} must have (series, latlon, label, domain, climate). Got {_kind(entry)}"
            )
        climate = entry[4] if len(entry) > 4 else None
        arrays: dict[str, Any] = dict(zip(("series", "latlon", "label"), entry, strict=False))
        arrays |= {} if climate is None else {"climate": climate}
        for name, value in arrays.items():
            if not isinstance(value, np.ndarray):
                raise ValueError(f"{name} of domain {domain!r} must be an array. Got {_kind(value)}")
        lengths = {value.shape[:1] for value in arrays.values()}
        if len(lengths) != 1 or () in lengths:
            raise ValueError(
                f"the arrays of domain {domain!r} must have one entry per row. Got shapes "
                f"{[*(value.shape for value in arrays.values()), *([None] if climate is None else [])]}"
            )
        if len(arrays["label"]):  # a domain without rows may be an array of any shape
            domains.append(arrays)
    if not domains:
        raise ValueError("it must hold rows. Got none")
    joined: dict[str, Any] = {"climate": None, "domain": None}
    for name in domains[0]:
        parts = [arrays[name] for arrays in domains if name in arrays]
        if len(parts) < len(domains):  # a climate that is not everywhere
            continue
        if len({part.shape[1:] for part in parts}) > 1:
            raise ValueError(f"{name} must have one shape in all domains. Got {shown({p.shape[1:] for p in parts})}")
        joined[name] = np.concatenate(parts)
    return joined


def _of_arrays(found: dict[str, Array]) -> dict[str, Any]:
    def one(*names: str) -> Array | None:
        return next((found[n] for n in names if n in found), None)

    latlon = one("latlon")
    if latlon is None and "lat" in found and "lon" in found:
        if found["lat"].shape != found["lon"].shape or found["lat"].ndim != 1:
            raise ValueError(f"lat and lon must be (N,). Got {found['lat'].shape} and {found['lon'].shape}")
        latlon = np.stack([found["lat"], found["lon"]], 1)
    parts = {"series": one("series", "x"), "latlon": latlon, "label": one("label", "y")}
    missing = [name for name, value in parts.items() if value is None]
    if missing:
        raise ValueError(f"it must hold the arrays series, latlon and label. Got {sorted(found)}, without {missing}")
    return {**parts, "climate": one("climate"), "domain": one("domain")}


def _checked(series: Array, latlon: Array, label: Array, climate: Array | None, domain: Array | None) -> Recordings:
    for name, value in (("series", series), ("latlon", latlon), ("label", label)):
        if value.dtype.kind not in "biuf":
            raise ValueError(f"{name} must hold numbers. Got an array of type {value.dtype}")
    n = len(label) if label.ndim == 1 else -1
    if n == 0:
        raise ValueError("it must hold rows. Got none")
    if series.ndim == 3 and series.shape[2] != N_TIMES and series.shape[1] == N_TIMES:
        series = series.transpose(0, 2, 1)
    if series.ndim != 3 or series.shape[2] != N_TIMES or series.shape[1] not in (N_BANDS - 1, N_BANDS):
        raise ValueError(f"series must be (N, 8, 46), or (N, 7, 46) without the vegetation index. Got {series.shape}")
    shapes = {"series": series.shape[:1], "latlon": latlon.shape, "label": label.shape}
    others = {"domain": domain, "climate": climate}
    shapes |= {name: v.shape[:1] for name, v in others.items() if v is not None}
    if (
        latlon.shape != (n, 2)
        or any(s[:1] != (n,) for s in shapes.values())
        or (domain is not None and domain.ndim > 1)
    ):
        raise ValueError(f"latlon must be (N, 2), label (N,), and all must have one entry per row. Got {shapes}")
    african = _in_africa(latlon, domain)  # before rows are dropped, so that the shapes fit
    whole = np.isfinite(series).all((1, 2)) & np.isfinite(latlon).all(1)
    if (np.abs(latlon[whole]) > (90, 180)).any():
        raise ValueError("latlon must be a latitude (-90 to 90) and a longitude (-180 to 180). Got others, or swapped")
    codes = label.astype(np.float64)
    if not np.isin(codes, np.arange(N_CODES)).all():
        strange = codes[~np.isin(codes, np.arange(N_CODES))]
        raise ValueError(f"label must be a whole number from 0 to {N_CODES - 1}. Got {shown(np.unique(strange))}")
    names = KEPT if codes.max() >= len(CLASSES) else tuple(range(len(CLASSES)))
    known = np.isin(codes, names)
    use = np.flatnonzero(whole & known)
    if len(use) == 0:
        raise ValueError(f"it must hold rows of the six classes, nothing missing. Got {n} rows and none of these")
    values = series[use].astype(np.float64)
    if values.shape[1] == N_BANDS - 1:
        red, near = values[:, 0], values[:, 1]
        index = (near - red) / np.maximum(near + red, 1e-8)  # at least 1e-8, as published
        values = np.concatenate([values, index[:, None]], 1)
    return Recordings(
        values,
        latlon[use].astype(np.float64),
        np.searchsorted(names, codes[use]).astype(np.int64),
        african[use],
        None if climate is None else climate[use],
        {"a measurement is missing": int((~whole).sum()), "another class": int((whole & ~known).sum())},
    )


def _in_africa(latlon: Array, domain: Array | None) -> NDArray[np.bool_]:
    if domain is not None and domain.dtype.kind == "b":
        return np.asarray(domain)
    if domain is not None and domain.dtype.kind in "US":
        return np.asarray(np.char.lower(np.char.strip(domain.astype(str))) == "africa")
    (south, north), (west, east) = AFRICA_LATITUDES, AFRICA_LONGITUDES
    lat, lon = latlon.T
    return np.asarray((lat >= south) & (lat <= north) & (lon >= west) & (lon <= east))


def _kind(value: Any) -> str:
    return f"{type(value).__name__} of length {len(value)}" if hasattr(value, "__len__") else type(value).__name__
