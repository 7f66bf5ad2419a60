"""Cerrado: the real series counted by hand, small files of the same layout, broken files."""

from __future__ import annotations

import doctest
import json
import os
from collections import Counter

import numpy as np
import pytest
import torch

from irmtv import Task, train
from irmtv.core.losses import Multiclass
from irmtv.datasets import cerrado
from irmtv.datasets.cerrado import FILES, load_cerrado
from irmtv.datasets.fetch import VARIABLE, find_files
from irmtv.engine.named_networks import make_network

NAME = "samples_validation_cerrado.npz"


# ---- the real series


@pytest.fixture(scope="session")
def real():
    if not os.environ.get(VARIABLE):
        pytest.skip(f"{NAME} is needed: set {VARIABLE} to the folder that holds it")
    try:
        return find_files(FILES)[0]
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def task(real):
    return load_cerrado(0)


@pytest.fixture(scope="session")
def by_hand(real):
    """Every series once: bytes of its values -> (class, latitude, longitude, values)."""
    with np.load(real) as found:
        x, y, lat, lon = (found[name] for name in ("X", "y", "lat", "lon"))
    seen = {}
    for series, *rest in zip(x, y.tolist(), lat.tolist(), lon.tolist(), strict=True):
        seen.setdefault(series.tobytes(), (*rest, series))
    assert len(x) == 5286
    return list(seen.values())


def test_shapes(task):
    assert isinstance(task, Task) and isinstance(task.loss, Multiclass) and task.n_outputs == 9
    assert task.train.x.shape == (1792, 9, 24) and task.test.x.shape == (2745, 9, 24)
    assert task.train.x.dtype == torch.float32 and task.train.y.dtype == torch.int64
    assert task.train.aux.dtype == torch.float64 and task.train.aux.shape == (1792, 2)
    assert task.train.names == ("20S and south", "20S to 17.5S", "17.5S to 15S")


def test_no_series_is_there_twice(task, by_hand):
    assert len(by_hand) == 5286 - 749 == len(task.train) + len(task.test)
    assert task.card["duplicates_dropped"] == 749
    places = [tuple(p) for rows in (task.train, task.test) for p in rows.aux.tolist()]
    assert len(set(places)) == len(places) and set(places) == {row[1:3] for row in by_hand}


def test_rows_by_hand(task, by_hand):
    of_place = {row[1:3]: row for row in by_hand}
    classes = task.card["classes"]
    trained = np.stack([of_place[tuple(p)][3] for p in task.train.aux.tolist()]).astype(float)  # (N, 24, 9)
    mean, spread = trained.mean((0, 1)), trained.std((0, 1))
    for rows in (task.train, task.test):
        for i in range(0, len(rows), 7):
            name, lat, _, series = of_place[tuple(rows.aux[i].tolist())]
            assert classes[rows.y[i]] == name
            np.testing.assert_allclose(rows.x[i].T, (series - mean) / spread, atol=2e-5)
            band = rows.names[rows.environment[i]]
            assert (lat < -15) == (band in (*task.train.names, "iid"))


def test_bands_by_hand(task, by_hand):
    def band(lat):
        edges = [-20, -17.5, -15, -12, -9, -6]
        names = [*task.train.names, *task.test.names[1:]]
        return names[sum(lat >= e for e in edges)]

    counted = {name: Counter() for name in task.card["class_counts"]}
    for name, lat, _, _ in by_hand:
        counted[band(lat)][name] += 1
    assert counted == {b: Counter(c) for b, c in task.card["class_counts"].items()}
    sizes = {b: sum(c.values()) for b, c in counted.items()}
    assert sizes == {
        "20S and south": 491, "20S to 17.5S": 767, "17.5S to 15S": 981,
        "15S to 12S": 994, "12S to 9S": 593, "9S to 6S": 447, "6S and north": 264,
    }  # fmt: skip
    apart = {b: round(0.2 * n) for b, n in sizes.items() if b in task.train.names}
    assert task.card["n_train"] == {b: sizes[b] - n for b, n in apart.items()}
    assert task.card["n_test"] == {"iid": sum(apart.values()), **{b: sizes[b] for b in task.test.names[1:]}}
    found = torch.bincount(task.test.environment).tolist()
    assert dict(zip(task.test.names, found, strict=True)) == task.card["n_test"]


def test_every_class_of_the_north_can_be_learnt(real):
    for seed in range(5):
        task = load_cerrado(seed)
        assert torch.unique(task.train.y).tolist() == list(range(9))
        assert task.card["not_in_training"] == {}
        assert set(torch.unique(task.test.y[task.test.environment > 0]).tolist()) == set(range(9))


def test_classes_that_cannot_be_learnt_are_counted(real):
    task = load_cerrado(0, cut=-22.0, train_cuts=(), test_cuts=())
    lost = task.card["not_in_training"]
    known = {task.card["classes"][k] for k in task.train.y.tolist()}
    assert all(name not in known for name in lost)
    north = Counter(task.card["classes"][k] for k in task.test.y[task.test.environment > 0].tolist())
    assert lost == {name: north[name] for name in task.card["classes"] if name not in known}
    assert f"whose class no training row has: {sum(lost.values())}." in task.card["limits"]


def test_the_random_state_decides_who_is_held_apart(task, real):
    other = load_cerrado(1)
    assert torch.equal(load_cerrado(0).train.x, task.train.x)
    assert other.train.x.shape == task.train.x.shape and not torch.equal(other.train.aux, task.train.aux)


def test_it_trains(task):
    net = make_network("series-cnn", task.train.x.shape[1:], task.n_outputs)
    for objective in ("irm-tv-l1", "minimax-tv-l1"):
        fitted = train(task, objective, net=net, steps=2, warmup=1, batch_size=64)
        assert list(fitted.evaluate().names) == list(task.test.names)


def test_the_card(task):
    needed = {
        "description", "source", "licence", "citation", "n_train", "n_test", "random_state", "shift", "looks_at_test",
        "differs_from_paper", "limits", "columns", "aux", "classes", "class_counts", "not_in_training",
    }  # fmt: skip
    assert needed <= set(task.card)
    assert task.card["columns"] == ("B1", "B2", "B3", "B4", "B5", "B6", "B7", "EVI", "NDVI")
    assert task.card["licence"] == "GPL-2" and task.card["random_state"] == 0
    json.dumps(task.card)


def test_docstring_examples(real):
    outcome = doctest.testmod(cerrado)
    assert outcome.attempted == 3
    assert outcome.failed == 0


# ---- small files


def small(n=120, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 24, 9)).astype(np.float32)
    y = np.resize(["wood", "field", "lake"], n)
    return {"X": x, "y": y, "lat": rng.uniform(-25, -2, n), "lon": rng.uniform(-60, -40, n)}


@pytest.fixture
def home(tmp_path):
    np.savez(tmp_path / NAME, **small())
    return tmp_path


def test_a_small_file(home):
    task = load_cerrado(0, data_home=home)
    assert len(task.train) + len(task.test) == 120 and task.n_outputs == 3
    assert task.card["classes"] == ("field", "lake", "wood") and task.card["columns"][0] == "band 1"


def test_the_first_of_two_equal_rows_stays_and_two_opinions_stay(tmp_path):
    content = small()
    twice = {k: np.concatenate([v, v[:30]]) for k, v in content.items()}
    twice["y"][125] = "rock"  # the series of row 5, seen by somebody else
    np.savez(tmp_path / NAME, **twice)
    task = load_cerrado(0, data_home=tmp_path)
    assert task.card["duplicates_dropped"] == 29
    assert len(task.train) + len(task.test) == 121


def test_one_band_each(home):
    task = load_cerrado(0, data_home=home, train_cuts=(), test_cuts=[])
    assert task.train.names == ("15S and south",) and task.test.names == ("iid", "15S and north")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"cut": "a"}, "cut must be latitudes"),
        ({"cut": -100.0}, "cut must be latitudes"),
        ({"train_cuts": (-17.5, -20.0)}, "train_cuts must be latitudes that rise, between -90 and -15"),
        ({"train_cuts": (-10.0,)}, "train_cuts must be"),
        ({"test_cuts": 3}, r"test_cuts must be .* \(\) makes one band"),
        ({"test_cuts": (-16.0,)}, "test_cuts must be .* between -15 and 90"),
        ({"test_cuts": (50.0,)}, "at least two rows in every band"),
        ({"iid_share": 0}, "iid_share must be a share"),
        ({"iid_share": 1e-6}, "iid_share must leave rows"),
        ({"random_state": 1.5}, "random_state must be None"),
    ],
)
def test_arguments(home, arguments, says):
    with pytest.raises(ValueError, match=says):
        load_cerrado(**{"random_state": 0, "data_home": home, **arguments})


def refusal(home):
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        load_cerrado(0, data_home=home)
    text = str(caught.value)
    assert "samples_validation_cerrado.rda of the R package sitsdata" in text
    assert "name the folder by data_home= or the environment variable IRMTV_DATA" in text
    return text


def test_no_file(tmp_path, monkeypatch):
    assert str(tmp_path / "landcover_cerrado" / NAME) in refusal(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert "cannot be downloaded" in refusal(None)


def test_broken_files(home):
    whole = (home / NAME).read_bytes()
    for part in (whole[: len(whole) // 2], whole[:-30], b"", b"<html>"):
        (home / NAME).write_bytes(part)
        assert "not a whole .npz file" in refusal(home)


@pytest.mark.parametrize("missing", ["X", "y", "lat", "lon"])
def test_arrays_that_are_not_there(tmp_path, missing):
    content = small()
    del content[missing]
    np.savez(tmp_path / NAME, **content)
    assert f"without ['{missing}']" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"X": np.zeros((120, 24))}, "X must be (N, times, bands)"),
        ({"lat": np.zeros(3)}, "X must be (N, times, bands)"),
        ({"y": np.zeros((120, 1))}, "X must be (N, times, bands)"),
        ({"X": np.full((120, 24, 9), "a")}, "X must hold numbers"),
        ({"lat": np.full(120, np.nan)}, "lat must hold no missing numbers. Got 120"),
        ({"lat": np.full(120, 200.0)}, "lat must be latitudes"),
        ({"y": np.arange(120)}, "y must hold names of classes"),
        ({"y": np.resize(["a", ""], 120)}, "y must hold names of classes"),
        ({k: v[:0] for k, v in small().items()}, "must hold rows"),
        ({"y": np.array([{}] * 120, dtype=object)}, "not a whole .npz file"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, changed, says):
    np.savez(tmp_path / NAME, **{**small(), **changed}, allow_pickle=True)
    assert says in refusal(tmp_path)
