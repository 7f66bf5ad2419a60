"""Landcover: what covers the land, from a year of satellite measurements, learnt outside Africa and tested in it.

The file is not public in a place that can be relied on; :mod:`irmtv.datasets.landcover_files` says what is read, and
:func:`irmtv.datasets.make_landcover_standin` draws series of its shape.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch

from irmtv.core.losses import Multiclass
from irmtv.core.types import Rows, Task
from irmtv.datasets.checks import one_of, streams
from irmtv.datasets.fetch import DataFile, find_files
from irmtv.datasets.landcover_files import CLASSES, CURE, Recordings, not_landcover, read_landcover
from irmtv.datasets.series import Array, Integers, check_share, held_apart, standardised
from irmtv.datasets.sources import SOURCES
from irmtv.datasets.tables import Home, Seed

WorstBy = Literal["latitude", "climate"]
Given = Literal["latitude"]

FILES = (DataFile("landcover", "landcover.pkl"), DataFile("landcover", "landcover.npz"))  # either
AFRICAN_BANDS = ("africa below 15S", "africa 15S to 0", "africa 0 to 15N", "africa above 15N")
AFRICAN_CUTS = (-15.0, 0.0, 15.0)
ZONES, ZONE_CUTS = ("south", "tropics", "north"), (-23.44, 23.44)


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
    file = _found(path, data_home)
    rows = read_landcover(file)
    stream = streams(random_state)[0]
    outside = np.flatnonzero(~rows.african)
    apart = held_apart(stream, np.zeros(len(outside), dtype=np.int64), share)
    train, iid, africa = outside[~apart], outside[apart], np.flatnonzero(rows.african)
    for what, index in (("training rows, outside Africa", train), ("rows held apart", iid), ("African rows", africa)):
        if len(index) == 0:
            raise ValueError(
                f"{not_landcover(file)}: it must hold {what}. Got {len(rows)} rows that can be used, {len(africa)} of "
                f"them in Africa. {CURE}"
            )
    x = standardised(rows.series, train)  # (N, 8, 46)
    aux = torch.from_numpy(rows.where)

    def part(index: Integers, codes: Integers | None, names: tuple[str, ...]) -> Rows:
        environment = None if codes is None else torch.from_numpy(codes)
        return Rows(x[index], torch.from_numpy(rows.label[index]), environment, aux[index], names)

    zones = None if given is None else np.digitize(rows.where[train, 0], ZONE_CUTS)
    codes, trained = (None, ()) if zones is None else _used(zones, ZONES)
    bands, tested = _african(rows.take(africa), divided, file)
    names = ("iid", *tested)
    test_codes = np.concatenate([np.zeros(len(iid), dtype=np.int64), 1 + bands])
    counts = np.bincount(test_codes, minlength=len(names)).tolist()
    card = {
        **SOURCES["landcover"].card,
        "rows": len(rows) + sum(rows.dropped.values()),
        "n_train": len(train) if codes is None else dict(zip(trained, np.bincount(codes).tolist(), strict=True)),
        "n_test": dict(zip(names, counts, strict=True)),
        "random_state": int(random_state) if isinstance(random_state, (int, np.integer)) else None,
        "classes": CLASSES,
        "class_counts": {c: int((rows.label == k).sum()) for k, c in enumerate(CLASSES)},
        "aux": ("latitude", "longitude"),
        "dropped": rows.dropped,
        "file": file.name,
        "iid_share": share,
        "environments": given,
        "worst_by": divided,
        "shift": "Where: training rows lie outside Africa, test rows in it; climate and seasons differ.",
        "looks_at_test": (
            "Bands are standardised on training rows only. Thirds of the climate, which only divide the test rows, are "
            "those of the African rows."
            if divided == "climate"
            else "Nothing: bands are standardised on training rows only."
        ),
        "differs_from_paper": (
            "The paper does not say how many rows are held apart for its IID test, how the series are scaled, nor of "
            "what its 'worst' is the worst: here of the African test environments, as worst_by divides them."
        ),
        "limits": (
            "Neighbouring places may be on both sides of the random division into training rows and 'iid', so that "
            "'iid' is easier than new places are."
        ),
    }
    return Task(
        part(train, codes, trained),
        Multiclass(),
        len(CLASSES),
        test=part(np.concatenate([iid, africa]), test_codes, names),
        name="landcover",
        card=card,
    )


def _found(path: str | os.PathLike[str] | None, data_home: Home) -> Path:
    if path is not None:
        if data_home is not None:
            raise ValueError(
                "path names the file and data_home a folder: give one of them. Got "
                f"path={str(path)!r} and data_home={str(data_home)!r}."
            )
        return Path(path).expanduser()
    missing = []
    for file in FILES:
        try:
            return find_files([file], data_home)[0]
        except FileNotFoundError as error:
            missing.append(str(error))
    raise FileNotFoundError(f"{missing[0]} A file landcover.npz was not found either. {CURE}")


def _african(rows: Recordings, worst_by: WorstBy | None, path: Path) -> tuple[Integers, tuple[str, ...]]:
    """Codes of the African rows and the names of their environments, those that have rows."""
    if worst_by is None:
        return np.zeros(len(rows), dtype=np.int64), ("africa",)
    if worst_by == "latitude":
        return _used(np.digitize(rows.where[:, 0], AFRICAN_CUTS), AFRICAN_BANDS)
    climate = rows.climate
    if climate is None:
        raise ValueError(f"worst_by='climate' needs a climate. Got {path}, which holds none. Use worst_by='latitude'.")
    if climate.ndim == 1 and climate.dtype.kind in "biuUS":
        kinds, codes = np.unique(climate.astype(str), return_inverse=True)
        return codes.astype(np.int64), tuple(f"africa climate {kind}" for kind in kinds)
    if climate.dtype.kind not in "iuf":
        raise ValueError(
            f"worst_by='climate' needs classes or numbers. Got an array of type {climate.dtype} in {path}."
        )
    values = climate.reshape(len(rows), climate.shape[1] if climate.ndim > 1 else 1, -1)[:, 0].mean(1)
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
