"""Landcover: both layouts on small files, the rows by hand, broken and hostile files."""

from __future__ import annotations

import doctest
import gzip
import io
import json
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch

from irmtv import Task, train
from irmtv.core.losses import Multiclass
from irmtv.datasets import landcover
from irmtv.datasets.fetch import VARIABLE
from irmtv.datasets.landcover import load_landcover, read_landcover
from irmtv.datasets.safe_pickle import RefusedPickleError
from irmtv.engine.named_networks import make_network

DOWNLOAD = "Take landcover.pkl, released with In-N-Out"
PLACE = "name the folder by data_home= or the environment variable IRMTV_DATA"
SIX = [0, 2, 5, 8, 9, 12]


@pytest.fixture(autouse=True)
def _no_folder_is_set(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


def published(n_bands=7, seed=0):
    """Five domains, two of them African, of 40 rows each: the published layout, all 17 classes."""
    rng = np.random.default_rng(seed)
    corners = [(40, -100), (-30, -60), (20, 100), (-10, 20), (5, 10)]
    content = {}
    for d, (lat, lon) in enumerate(corners):
        series = rng.uniform(0.1, 0.6, (40, n_bands, 46)) * (1 + np.arange(n_bands))[:, None]
        where = np.column_stack([lat + rng.uniform(-12, 12, 40), lon + rng.uniform(-4, 4, 40)])
        content[d] = (series, where, np.resize(np.arange(17), 40), d, rng.normal(size=(40, 6, 12)) + d)
    content[1][0][3, 2, 7] = np.nan
    return content


def arrays(content):
    """The same rows as long arrays."""
    columns = list(zip(*content.values(), strict=True))
    return {
        "series": np.concatenate(columns[0]),
        "latlon": np.concatenate(columns[1]),
        "label": np.concatenate(columns[2]),
        "climate": np.concatenate(columns[4]),
    }


def save(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content))
    return path


def saved(path, **named):
    np.savez(path, **named)
    return path


@pytest.fixture
def home(tmp_path):
    save(tmp_path / "landcover" / "landcover.pkl", published())
    return tmp_path


# ---- what is read


def test_shapes(home):
    task = load_landcover(0, data_home=home)
    assert isinstance(task, Task) and isinstance(task.loss, Multiclass) and task.n_outputs == 6
    assert task.train.x.shape[1:] == (8, 46) and task.train.x.dtype == torch.float32
    assert task.train.y.dtype == torch.int64 and task.train.aux.dtype == torch.float64
    assert task.train.environment is None and task.train.names == ()
    assert task.test.names == ("iid", "africa below 15S", "africa 15S to 0", "africa 0 to 15N", "africa above 15N")
    assert torch.unique(task.test.environment).tolist() == [0, 1, 2, 3, 4]


def test_rows_by_hand(home):
    """One loop over the published dict."""
    kept, missing, others = [], 0, 0
    for series, where, label, _, _ in published().values():
        for one, (lat, lon), k in zip(series, where, label, strict=True):
            if np.isnan(one).any():
                missing += 1
            elif k not in SIX:
                others += 1
            else:
                red, near = one[0], one[1]
                full = np.vstack([one, (near - red) / (near + red)])
                kept.append((full, lat, lon, SIX.index(k), -36.337048 <= lat <= 38.277609 and 0 < lon < 40))
    found = read_landcover(home / "landcover" / "landcover.pkl")
    assert len(found) == len(kept) and found.dropped == {"a measurement is missing": missing, "another class": others}
    assert missing == 1
    np.testing.assert_allclose(found.series, np.stack([row[0] for row in kept]))
    np.testing.assert_array_equal(found.where, [row[1:3] for row in kept])
    np.testing.assert_array_equal(found.label, [row[3] for row in kept])
    np.testing.assert_array_equal(found.african, [row[4] for row in kept])


def test_where_the_rows_go(home):
    task = load_landcover(0, data_home=home)
    found = read_landcover(home / "landcover" / "landcover.pkl")
    outside = int((~found.african).sum())
    n_iid = round(0.2 * outside)
    assert len(task.train) == outside - n_iid == task.card["n_train"]
    assert task.card["n_test"]["iid"] == n_iid == int((task.test.environment == 0).sum())
    assert len(task.test) == n_iid + int(found.african.sum()) == sum(task.card["n_test"].values())
    places = [{tuple(p) for p in rows.aux.tolist()} for rows in (task.train, task.test)]
    assert not places[0] & places[1] and len(places[0] | places[1]) == len(found)
    of_place = {tuple(p): (k, s) for p, k, s in zip(found.where.tolist(), found.label, found.series, strict=True)}
    scale = np.stack([of_place[tuple(p)][1] for p in task.train.aux.tolist()])
    mean, spread = scale.mean((0, 2))[:, None], scale.std((0, 2))[:, None]
    for rows in (task.train, task.test):
        for x, y, place in zip(rows.x.numpy(), rows.y.tolist(), rows.aux.tolist(), strict=True):
            k, series = of_place[tuple(place)]
            assert y == k
            np.testing.assert_allclose(x, (series - mean) / spread, atol=1e-5)
    lat = task.test.aux[:, 0]
    for e, (low, high) in enumerate([(-90, -15), (-15, 0), (0, 15), (15, 90)], 1):
        here = lat[task.test.environment == e]
        assert (low <= here).all() and (here < high).all()


def test_the_random_state_decides_who_is_held_apart(home):
    a, b, c = (load_landcover(seed, data_home=home) for seed in (0, 0, 1))
    assert torch.equal(a.train.aux, b.train.aux) and not torch.equal(a.train.aux, c.train.aux)
    assert a.train.x.shape == c.train.x.shape  # so that both train in one program
    africa = a.test.environment > 0
    assert torch.equal(a.test.aux[africa], c.test.aux[africa])
    half = load_landcover(0, data_home=home, iid_share=0.5)
    assert len(half.train) < len(a.train)


def test_plain_arrays_are_the_same_rows(home, tmp_path):
    expected = load_landcover(0, data_home=home)
    content = arrays(published())
    lat, lon = content["latlon"].T
    layouts = [
        content,
        {"x": content["series"].transpose(0, 2, 1), "lat": lat, "lon": lon, "y": content["label"].astype(float)},
        {**content, "domain": np.repeat(np.arange(5), 40)},  # numbers say nothing: the box does
        {**content, "domain": np.repeat([False, False, False, True, True], 40)},
        {**content, "domain": np.repeat(["usa", "Asia", "brazil", "Africa", " africa"], 40)},
    ]
    for i, layout in enumerate(layouts):
        folder = tmp_path / str(i)
        folder.mkdir()
        saved(folder / "landcover.npz", **layout)
        found = load_landcover(0, data_home=folder)
        for a, b in ((found.train, expected.train), (found.test, expected.test)):
            torch.testing.assert_close(a.x, b.x)
            assert torch.equal(a.y, b.y) and torch.equal(a.aux, b.aux)
            assert a.names == b.names


def test_the_box_of_africa(tmp_path):
    north, south, west, east = 38.277609, -36.337048, -18.170184, 55.037262
    inside = [(north, 10), (south, 10), (0, west), (0, east), (north, west), (south, east)]
    outside = [(north + 0.01, 10), (south - 0.01, 10), (0, west - 0.01), (0, east + 0.01)]
    named = {"series": np.zeros((10, 8, 46)), "latlon": np.array(inside + outside), "label": np.zeros(10)}
    found = read_landcover(saved(tmp_path / "a.npz", **named))
    assert found.african.tolist() == [True] * 6 + [False] * 4


def test_a_domain_that_says_where_goes_before_the_box(tmp_path):
    content = arrays(published())
    african = np.arange(200) % 2 == 0
    path = saved(tmp_path / "landcover.npz", **content, domain=african)
    found = read_landcover(path)
    use = np.isin(content["label"], SIX) & ~np.isnan(content["series"]).any((1, 2))
    np.testing.assert_array_equal(found.african, african[use])


def test_eight_bands_and_six_classes_stay_as_they_are(tmp_path):
    content = arrays(published(8))
    content["series"] = np.nan_to_num(content["series"])
    content["label"] = content["label"] % 6
    found = read_landcover(saved(tmp_path / "a.npz", **content))
    np.testing.assert_array_equal(found.series, content["series"])
    np.testing.assert_array_equal(found.label, content["label"])
    assert sum(found.dropped.values()) == 0


def test_packed_files(home, tmp_path):
    expected = load_landcover(0, data_home=home).train.x
    content = pickle.dumps(published(), 2)
    gz = save(tmp_path / "gz" / "landcover.pkl.gz", gzip.compress(content))
    with zipfile.ZipFile(tmp_path / "landcover.pkl.zip", "w") as archive:
        archive.writestr("landcover.pkl", content)
    plain = io.BytesIO()
    np.savez(plain, **arrays(published()))
    npz = save(tmp_path / "npz" / "landcover.npz.gz", gzip.compress(plain.getvalue()))
    for path in (gz, tmp_path / "landcover.pkl.zip", npz):
        assert torch.equal(load_landcover(0, path=path).train.x, expected)
    assert torch.equal(load_landcover(0, data_home=tmp_path / "gz").train.x, expected)
    assert torch.equal(load_landcover(0, data_home=tmp_path / "npz").train.x, expected)


def test_the_variable_names_the_folder(home, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(home))
    assert load_landcover(0).name == "landcover"


# ---- environments


def test_africa_by_climate(home, tmp_path):
    task = load_landcover(0, data_home=home, worst_by="climate")
    assert task.test.names == ("iid", "africa climate low", "africa climate middle", "africa climate high")
    first = {}
    for _, where, _, _, climate in published().values():
        first |= {tuple(p): c[0].mean() for p, c in zip(where.tolist(), climate, strict=True)}
    values = np.array([first[tuple(p)] for p in task.test.aux.tolist()])
    code = task.test.environment.numpy()
    assert values[code == 1].max() < values[code == 2].min() < values[code == 2].max() < values[code == 3].min()
    sizes = np.bincount(code)[1:]
    assert sizes.max() - sizes.min() <= 1
    content = arrays(published())
    kinds = np.resize(["dry", "wet"], 200)
    path = saved(tmp_path / "kinds.npz", **{**content, "climate": kinds})
    task = load_landcover(0, path=path, worst_by="climate")
    assert task.test.names == ("iid", "africa climate dry", "africa climate wet")


def test_africa_as_one(home):
    task = load_landcover(0, data_home=home, worst_by=None)
    assert task.test.names == ("iid", "africa") and task.card["worst_by"] is None


def test_training_environments_by_latitude(home):
    task = load_landcover(0, data_home=home, environments="latitude")
    assert task.train.names == ("south", "tropics", "north")
    lat = task.train.aux[:, 0].numpy()
    expected = np.where(lat < -23.44, 0, np.where(lat < 23.44, 1, 2))
    np.testing.assert_array_equal(task.train.environment.numpy(), expected)
    assert task.card["n_train"] == dict(zip(task.train.names, np.bincount(expected).tolist(), strict=True))


def test_it_trains_with_the_papers_network(home):
    for objective, given in (("minimax-tv-l1", None), ("irm-tv-l1", "latitude")):
        task = load_landcover(0, data_home=home, environments=given)
        net = make_network("landcover-cnn", task.train.x.shape[1:], task.n_outputs)
        fitted = train(task, objective, net=net, steps=3, warmup=1, batch_size=16)
        assert list(fitted.evaluate().names) == list(task.test.names)


def test_the_card(home):
    for arguments in ({}, {"worst_by": "climate", "environments": "latitude"}):
        card = load_landcover(0, data_home=home, **arguments).card
        needed = {
            "description", "source", "licence", "citation", "n_train", "n_test", "random_state", "shift",
            "looks_at_test", "differs_from_paper", "limits", "aux", "classes", "class_counts", "dropped",
        }  # fmt: skip
        assert needed <= set(card) and card["random_state"] == 0
        assert "worst" in card["differs_from_paper"]
        json.dumps(card)
    assert "African rows" in card["looks_at_test"]


# ---- what is wrong is said


def refusal(path=None, **arguments):
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        load_landcover(0, path=path, **arguments)
    text = str(caught.value)
    assert DOWNLOAD in text and PLACE in text
    assert path is None or str(path) in text
    return caught.value


def test_no_file(tmp_path, monkeypatch):
    error = refusal(data_home=tmp_path)
    assert isinstance(error, FileNotFoundError) and str(tmp_path / "landcover" / "landcover.pkl") in str(error)
    assert isinstance(refusal(), FileNotFoundError)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
    assert "does not exist" in str(refusal())
    assert "no such file" in str(refusal(tmp_path / "none.pkl"))
    assert "no such file" in str(refusal(tmp_path / "none.npz"))
    assert "no such file" in str(refusal(tmp_path / "none.npz.gz"))


def test_a_hostile_file(tmp_path):
    class Touch:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'touched'}",)

    content = published()
    content[2] = (*content[2][:3], Touch(), content[2][4])
    for path in (save(tmp_path / "a.pkl", content), save(tmp_path / "b.pkl.gz", gzip.compress(pickle.dumps(content)))):
        error = refusal(path)
        assert isinstance(error, RefusedPickleError)
        assert "refused, and nothing in it was run: it asks for posix.system" in str(error)
    many = np.empty(1, dtype=object)
    many[0] = Touch()
    named = {**arrays(published()), "label": many}
    np.savez(tmp_path / "c.npz", **named, allow_pickle=True)
    assert "not a whole .npz file" in str(refusal(tmp_path / "c.npz"))
    assert not (tmp_path / "touched").exists()


def test_truncated_files(tmp_path):
    content = pickle.dumps(published())
    plain = io.BytesIO()
    np.savez(plain, **arrays(published()))
    for name, whole in {
        "a.pkl": content,
        "a.pkl.gz": gzip.compress(content),
        "a.npz": plain.getvalue(),
        "a.npz.gz": gzip.compress(plain.getvalue()),
    }.items():
        for part in (whole[: len(whole) // 2], whole[:-40], b"", b"<html>404</html>"):
            path = save(tmp_path / name, part)
            assert "must be a file of Landcover: it " in str(refusal(path))


def test_one_array_is_no_npz(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    assert "one array, not several" in str(refusal(tmp_path / "a.npz"))


def test_a_name_that_says_nothing(tmp_path):
    assert "must end in .pkl or .npz" in str(refusal(save(tmp_path / "a.csv", b"")))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([1, 2], "expected a dict, domain -> .* Got list of length 2"),
        ({}, "expected a dict"),
        ({0: 5}, "domain 0 must have .* Got int"),
        ({0: (np.zeros(2), np.zeros(2))}, "domain 0 must have"),
        ({0: (np.zeros((2, 8, 46)), [[1, 2]], np.zeros(2), 0)}, "latlon of domain 0 must be an array. Got list"),
        ({0: (np.zeros((2, 8, 46)), np.zeros((3, 2)), np.zeros(2), 0)}, "one entry per row"),
        ({0: (np.zeros((2, 8, 46)), np.zeros((2, 2)), np.array(1), 0)}, "one entry per row"),
        ({0: (np.zeros((0, 8, 46)), np.zeros((0, 2)), np.zeros(0), 0)}, "must hold rows. Got none"),
        ({d: (np.zeros((2, 8, 46 - d)), np.zeros((2, 2)), np.zeros(2), 0) for d in range(2)}, "one shape"),
        ({0: (np.zeros((2, 5, 46)), np.zeros((2, 2)), np.zeros(2), 0)}, r"series must be \(N, 8.*Got \(2, 5, 46\)"),
        ({0: (np.zeros((2, 8, 46)), np.full((2, 2), 99.0), np.zeros(2), 0)}, "latlon must be a latitude"),
        ({0: (np.zeros((2, 8, 46)), np.zeros((2, 3)), np.zeros(2), 0)}, r"latlon must be \(N, 2\)"),
        ({0: (np.zeros((2, 8, 46)), np.zeros((2, 2)), np.array([1, 17]), 0)}, "label must be a whole .* Got 17.0"),
        ({0: (np.zeros((2, 8, 46)), np.zeros((2, 2)), np.array([1, 0.5]), 0)}, "label must be a whole number"),
        ({0: (np.zeros((2, 8, 46)), np.zeros((2, 2)), np.array(["a", "b"]), 0)}, "label must hold numbers"),
        ({0: (np.zeros((2, 8, 46)), np.zeros((2, 2)), np.array([7, 16]), 0)}, "rows of the six classes"),
        ({0: (np.full((2, 8, 46), np.nan), np.zeros((2, 2)), np.zeros(2), 0)}, "nothing missing"),
        ({0: (np.zeros((9, 8, 46)), np.zeros((9, 2)), np.zeros(9), 0)}, "must hold training rows, outside Africa"),
        ({0: (np.zeros((9, 8, 46)), np.full((9, 2), 80.0), np.zeros(9), 0)}, "must hold African rows"),
        ({0: (np.zeros((1, 8, 46)), np.full((1, 2), 80.0), np.zeros(1), 0)}, "must hold rows held apart"),
    ],
)  # fmt: skip
def test_pickles_of_something_else(tmp_path, content, says):
    with pytest.raises(ValueError, match=says):
        load_landcover(0, path=save(tmp_path / "a.pkl", content))
    refusal(tmp_path / "a.pkl")


@pytest.mark.parametrize("missing", ["series", "latlon", "label"])
def test_arrays_that_are_not_there(tmp_path, missing):
    content = arrays(published())
    del content[missing]
    assert f"without ['{missing}']" in str(refusal(saved(tmp_path / "a.npz", **content)))


def test_arrays_that_do_not_fit(tmp_path):
    content = arrays(published())
    lat, lon = content["latlon"].T
    for changed, says in (
        ({"latlon": content["latlon"][:, :1]}, r"latlon must be \(N, 2\)"),
        ({"label": content["label"][1:]}, "one entry per row"),
        ({"domain": np.zeros(3, bool)}, "one entry per row"),
        ({"climate": np.zeros(3)}, "one entry per row"),
        ({"label": content["label"].astype(str)}, "label must hold numbers"),
    ):
        with pytest.raises(ValueError, match=says):
            load_landcover(0, path=saved(tmp_path / "a.npz", **{**content, **changed}))
    named = {"series": content["series"], "label": content["label"], "lat": lat, "lon": lon[1:]}
    assert "lat and lon must be (N,)" in str(refusal(saved(tmp_path / "b.npz", **named)))


def test_no_climate(tmp_path):
    content = arrays(published())
    del content["climate"]
    with pytest.raises(ValueError, match=r"worst_by='climate' needs a climate\. .* Use worst_by='latitude'"):
        load_landcover(0, path=saved(tmp_path / "a.npz", **content), worst_by="climate")
    content["climate"] = np.full((200, 2), np.nan)
    with pytest.raises(ValueError, match="for every African row"):
        load_landcover(0, path=saved(tmp_path / "a.npz", **content), worst_by="climate")
    old = {d: entry[:4] for d, entry in published().items()}
    assert read_landcover(save(tmp_path / "a.pkl", old)).climate is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"iid_share": 1.0}, "iid_share must be a share"),
        ({"iid_share": "a"}, "iid_share must be a share"),
        ({"worst_by": "longitude"}, "worst_by must be one of"),
        ({"environments": "climate"}, "environments must be one of"),
        ({"random_state": "a"}, "random_state must be None"),
    ],
)
def test_arguments(home, arguments, says):
    with pytest.raises(ValueError, match=says):
        load_landcover(**{"random_state": 0, "data_home": home, **arguments})


def test_one_of_path_and_folder(home):
    with pytest.raises(ValueError, match="give one of them"):
        load_landcover(0, path=home / "landcover" / "landcover.pkl", data_home=home)


def test_docstring_examples():
    outcome = doctest.testmod(landcover)
    assert outcome.attempted == 5
    assert outcome.failed == 0
