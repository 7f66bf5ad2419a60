"""Colored MNIST from small IDX files that the tests write; the real ones where they are."""

from __future__ import annotations

import doctest
import gzip
import json
import math
import os
import re
import struct

import numpy as np
import pooch
import pytest
import torch

from irmtv.core.losses import Binary
from irmtv.core.types import Task
from irmtv.datasets import DATASETS, colored_mnist, load_colored_mnist
from irmtv.datasets.colored_mnist import SOURCE, read_idx, read_mnist
from irmtv.datasets.fetch import VARIABLE
from irmtv.datasets.sources import check, look

TRAIN, SMALL = (
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)


def idx(array):
    """The bytes of an IDX file."""
    head = [0, 0, 8, array.ndim]
    for size in array.shape:
        head += [size >> 24 & 255, size >> 16 & 255, size >> 8 & 255, size & 255]
    return bytes(head) + array.astype(np.uint8).tobytes()


def numbered(n):
    """n images, each of which says its number (in the pixels that are kept), and digits in turn."""
    images = np.full((n, 28, 28), 99, dtype=np.uint8)  # 99: never kept
    images[:, ::2, ::2] = 1
    images[:, 0, 0], images[:, 0, 2] = np.arange(n) // 250, np.arange(n) % 250
    images[:, 26, 26] = 255
    return images, (np.arange(n) % 10).astype(np.uint8)


def write(folder, n, names=TRAIN, suffix=".gz"):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(names, numbered(n), strict=True):
        content = idx(array)
        (folder / (name + suffix)).write_bytes(gzip.compress(content, 1) if suffix == ".gz" else content)
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return write(tmp_path_factory.mktemp("mnist"), 6000)


def parts(rows):
    """Number of the image, digit, label, colour (None: no channel of its own) of every row."""
    x = (255 * rows.x.double()).round().int().reshape(len(rows), -1, 14, 14)
    image = x.sum(1)
    number = 250 * image[:, 0, 0] + image[:, 0, 1]
    colour = (x[:, 1].sum((1, 2)) > 0).int() if x.shape[1] == 2 else None
    return number, number % 10, rows.y.int(), colour


def near(values, share, n_sigma=4.5):
    return abs(float(values.double().mean()) - share) < n_sigma * math.sqrt(share * (1 - share) / len(values))


# ---- the rows


def test_shapes(home):
    task = load_colored_mnist(0, data_home=home)
    assert isinstance(task, Task) and isinstance(task.loss, Binary) and task.name == "colored mnist"
    assert task.train.x.shape == (5000, 392) and task.test.x.shape == (1000, 392)
    assert task.train.names == ("e=0.2", "e=0.1") and task.test.names == ("e=0.9",)
    assert torch.bincount(task.train.environment).tolist() == [2500, 2500]
    assert task.train.x.dtype == torch.float32 and task.train.environment.dtype == torch.int64
    assert set(task.train.y.tolist()) == {0.0, 1.0} and task.train.aux is None
    assert task.train.x.max() == 1 and task.train.x.min() == 0


def test_every_image_is_used_once(home):
    task = load_colored_mnist(1, data_home=home)
    numbers = torch.cat([parts(rows)[0] for rows in (task.train, task.test)])
    assert sorted(numbers.tolist()) == list(range(6000))


def test_labels_and_colours_follow_their_definition(home):
    task = load_colored_mnist(2, data_home=home)
    for rows in (task.train, task.test):
        _, digit, y, colour = parts(rows)
        for code, name in enumerate(rows.names):
            here = rows.environment == code
            flip = float(name.removeprefix("e="))
            wrong_label = (y != (digit > 4).int())[here]
            wrong_colour = (colour != y)[here]
            assert near(wrong_label, 0.25)
            assert near(wrong_colour, flip)
            assert near(wrong_colour[wrong_label], flip)  # the two kinds of noise do not know each other
            assert near(wrong_label[y[here] == 1], 0.25)


def test_one_channel_holds_the_image_and_the_other_is_empty(home):
    task = load_colored_mnist(3, data_home=home)
    x = task.train.x.reshape(-1, 2, 196)
    assert ((x[:, 0].abs().sum(1) > 0) ^ (x[:, 1].abs().sum(1) > 0)).all()
    image = x.sum(1).reshape(-1, 14, 14)
    assert (image[:, 13, 13] == 1).all()  # pixel (26, 26) of the file
    assert not (image[:, 1:] == np.float32(99 / 255)).any()  # odd rows and columns are dropped


def test_grey_has_the_same_rows_without_colour(home):
    colored, grey = (load_colored_mnist(4, data_home=home, grey=value) for value in (False, True))
    assert grey.name == "grey mnist" and grey.train.x.shape == (5000, 196)
    for a, b in ((colored.train, grey.train), (colored.test, grey.test)):
        assert torch.equal(a.y, b.y) and torch.equal(a.environment, b.environment)
        assert torch.equal(a.x.reshape(-1, 2, 196).sum(1), b.x)


def test_seeds(home):
    def make(seed, **more):
        return load_colored_mnist(seed, data_home=home, **more)

    a, b, c = make(0), make(0), make(1)
    assert torch.equal(a.train.x, b.train.x) and torch.equal(a.test.y, b.test.y)
    assert not torch.equal(a.train.x, c.train.x)
    rng = np.random.default_rng(0)
    assert torch.equal(make(rng).train.x, a.train.x) and not torch.equal(make(rng).train.x, a.train.x)
    assert not torch.equal(make(None).train.x, make(None).train.x)


def test_other_environments(home):
    task = load_colored_mnist(5, data_home=home, flips=(0.3, 0.2, 0.1), test_flips=(0.5, 0.9), label_noise=0.0)
    assert task.train.names == ("e=0.3", "e=0.2", "e=0.1") and task.test.names == ("e=0.5", "e=0.9")
    assert torch.bincount(task.train.environment).tolist() == [1667, 1667, 1666]
    _, digit, y, colour = parts(task.test)
    assert torch.equal(y, (digit > 4).int())
    for code, flip in enumerate((0.5, 0.9)):
        assert near((colour != y)[task.test.environment == code], flip)
    assert task.card["limits"] == (1.0, 1.0)


def test_card(home):
    card = load_colored_mnist(0, data_home=home).card
    assert card["n_train"] == {"e=0.2": 2500, "e=0.1": 2500} and card["n_test"] == {"e=0.9": 1000}
    assert card["files"] == tuple(f"{name}.gz" for name in TRAIN) and card["n_images"] == 6000
    assert card["limits"] == (0.75,) and card["random_state"] == 0 and card["licence"] == "CC BY-SA 3.0"
    json.dumps(card)
    grey = load_colored_mnist(0, data_home=home, grey=True).card
    assert grey["shift"].startswith("Nothing") and not card["shift"].startswith("Nothing")


def test_catalogue():
    entry = DATASETS["colored-mnist"]
    assert entry.make is load_colored_mnist
    assert entry.arguments({"grey": True})["grey"] is True and "data_home" not in entry.arguments({})


# ---- which files


@pytest.mark.parametrize("folder", ["", "mnist"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_files_plain_or_packed(tmp_path, folder, suffix):
    write(tmp_path / folder, 60, suffix=suffix)
    task = load_colored_mnist(0, data_home=tmp_path)
    assert len(task.train) == 50 and len(task.test) == 10
    found = look(SOURCE, tmp_path)
    assert found.here and [path.name for path in found.paths] == [name + suffix for name in TRAIN]


def test_the_smaller_copy_is_read_where_it_is_the_only_one(tmp_path, monkeypatch):
    write(tmp_path / "mnist_t10k", 30, SMALL)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert load_colored_mnist(0).card["n_images"] == 30
    assert load_colored_mnist(0, images="t10k").card["files"] == tuple(f"{name}.gz" for name in SMALL)
    with pytest.raises(FileNotFoundError, match=r"IRMTV_DATA must be a folder that holds train-images-idx3-ubyte\.gz"):
        load_colored_mnist(0, images="train")
    found = look(SOURCE)
    assert found.here and found.where == str(tmp_path / "mnist_t10k") and found.files == SOURCE.instead
    write(tmp_path / "mnist", 60)
    assert load_colored_mnist(0).card["n_images"] == 60
    assert load_colored_mnist(0, images="t10k").card["n_images"] == 30
    assert look(SOURCE).files == SOURCE.files


def test_no_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data_home must be .*train-images.*Put there https://ossci-datasets"):
        load_colored_mnist(0, data_home=tmp_path)
    found = look(SOURCE, tmp_path)
    assert not found.here and found.missing == SOURCE.files
    write(tmp_path, 30, SMALL)
    (tmp_path / f"{SMALL[1]}.gz").unlink()  # half a pair will not do
    assert not look(SOURCE, tmp_path).here
    with pytest.raises(FileNotFoundError, match="train-images"):
        load_colored_mnist(0, data_home=tmp_path)


def test_a_checksum_is_of_the_packed_file(tmp_path):
    write(tmp_path, 60)
    checked = check(SOURCE, tmp_path)
    assert checked.good and (checked.n_train, checked.n_test) == (50, 10)
    assert [file.original for file in checked.files] == [False, False]  # not MNIST
    for name in TRAIN:
        path = tmp_path / f"{name}.gz"
        (tmp_path / name).write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    notes = {(file.original, file.note) for file in check(SOURCE, tmp_path).files}
    assert notes == {(None, "unpacked; no checksum is known")}


def test_a_download_is_asked_for_by_address_and_checksum(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / project)
    asked = []

    def retrieve(url, known_hash, fname, path, downloader):
        asked.append((url.rpartition("/")[2], known_hash))
        write(path, 60, TRAIN if fname.startswith("train") else SMALL)
        return str(path / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    load_colored_mnist(0)
    load_colored_mnist(0, images="t10k")
    assert asked == [(file.name, f"sha256:{file.sha256}") for file in SOURCE.files + SOURCE.instead]
    assert look(SOURCE).here


# ---- IDX


def test_read_idx(tmp_path):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    path = tmp_path / "x"
    path.write_bytes(idx(array))
    np.testing.assert_array_equal(read_idx(path, 3), array)
    assert struct.unpack(">4I", path.read_bytes()[:16]) == (0x803, 2, 3, 4)  # as MNIST's page describes it


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b[:-1], "must hold 24 bytes behind its head, for shape (2, 3, 4). Got 23."),
        (lambda b: b + b"x", "Got 25."),
        (lambda b: b[:10], r"must be an IDX file of bytes with 3 dimensions, which begins with b'\x00\x00\x08\x03'"),
        (lambda b: b"\x00\x00\x0d\x03" + b[4:], r"Got b'\x00\x00\r\x03'. Take it again, from MNIST, https://ossci"),
        (lambda b: b"\x00\x00\x08\x01" + b[4:], "with 3 dimensions"),
        (lambda b: b"", "Got b''"),
    ],
)
def test_broken_idx_files(tmp_path, damage, message):
    path = tmp_path / "x"
    path.write_bytes(damage(idx(np.zeros((2, 3, 4), dtype=np.uint8))))
    with pytest.raises(ValueError, match=re.escape(message)):
        read_idx(path, 3)


def test_a_packed_file_that_is_cut(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(idx(np.zeros((2, 3, 4), dtype=np.uint8)))[:-9])
    with pytest.raises(ValueError, match=r"x\.gz must be a whole IDX file\. Got EOFError"):
        read_idx(path, 3)


@pytest.mark.parametrize(
    ("images", "digits", "message"),
    [
        (np.zeros((3, 28, 27)), np.zeros(3), "must hold images of 28 x 28. Got (28, 27)."),
        (np.zeros((3, 28, 28)), np.zeros(2), "must hold one label for each of the 3 images"),
        (np.zeros((3, 28, 28)), np.array([0, 1, 10]), "must hold digits, 0 to 9. Got 10."),
    ],
)
def test_files_that_do_not_go_together(tmp_path, images, digits, message):
    for name, array in (("i", images), ("d", digits)):
        (tmp_path / name).write_bytes(idx(array.astype(np.uint8)))
    with pytest.raises(ValueError, match=re.escape(message)):
        read_mnist(tmp_path / "i", tmp_path / "d")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"images": "test"}, "images must be one of ['auto', 'train', 't10k']. Got 'test'."),
        ({"flips": ()}, "flips must be one share of wrong colours per environment, all different. Got ()."),
        ({"flips": (0.1, 0.1)}, "all different. Got (0.1, 0.1). Use (0.2, 0.1), for example."),
        ({"test_flips": 0.9}, "test_flips must be one share of wrong colours per environment"),
        ({"flips": (0.2, 10)}, "flips[1] must be a probability"),
        ({"label_noise": -1}, "label_noise must be a probability"),
        ({"flips": tuple(i / 20 for i in range(20))}, "must hold at least 120 images, one per environment. Got 60."),
    ],
)
def test_errors_say_what_to_do(tmp_path, settings, message):
    write(tmp_path, 60)
    with pytest.raises(ValueError, match=re.escape(message)):
        load_colored_mnist(0, data_home=tmp_path, **settings)


# ---- the real files


@pytest.mark.data
def test_real_images(monkeypatch):
    if not os.environ.get(VARIABLE) or not look(SOURCE).here:
        pytest.skip(f"MNIST's files are needed: set {VARIABLE} to the folder that holds them")
    task = load_colored_mnist(0, images="t10k")
    assert len(task.train) + len(task.test) == 10_000
    ink = task.train.x.reshape(-1, 2, 14, 14).sum(1).mean(0)
    assert ink[5:9, 5:9].mean() > 10 * ink[[0, -1]].mean()  # digits stand in the middle
    outcome = doctest.testmod(colored_mnist)
    assert outcome.attempted > 0 and outcome.failed == 0
