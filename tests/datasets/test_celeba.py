"""CelebA features: the split counted by hand, the reader on small files of the published layout, damaged files."""

from __future__ import annotations

import csv
import doctest
import gzip
import json
import zipfile

import numpy as np
import pytest
import torch

from irmtv import train
from irmtv.core.losses import Binary
from irmtv.datasets import celeba, celeba_rows
from irmtv.datasets.celeba import load_celeba_features, read_celeba_features
from irmtv.datasets.celeba_rows import (
    AUX,
    SPURIOUS,
    TARGET,
    TEST_AGREEMENT,
    TRAIN_AGREEMENT,
    choices,
    draw_split,
    read_celeba_attributes,
)
from irmtv.datasets.fetch import VARIABLE

D = 6
N = 900
TEST_NAMES = ("agreement=0.01", "agreement=0.2", "agreement=0.8", "agreement=0.999")


@pytest.fixture(autouse=True)
def _no_folder_is_set(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


def table(n=N, low=0):
    """Header and lines of a file of the published layout, columns mixed and one more that nobody needs."""
    rng = np.random.default_rng(3)
    header = ["id", "sp_Male", *(f"x_{j}" for j in range(D)), "y_Smiling", *(f"z_{a}" for a in AUX), "g_group"]
    lines = []
    for i in range(n):
        y, male = rng.integers(2, size=2)
        x = [f"{v:.6g}" for v in rng.normal(male, 2.0, size=D)]
        z = rng.integers(2, size=len(AUX))
        code = {0: low, 1: 1}
        lines.append([f"{i:06d}.jpg", code[male], *x, code[y], *(code[v] for v in z), int(y == male)])
    return header, lines


def write(path, header, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *lines])
    return path


@pytest.fixture
def home(tmp_path):
    write(tmp_path / "celeba" / "celeba_features.csv", *table())
    return tmp_path


# ---- which rows


def kinds(n=8000, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(2, size=n), rng.integers(2, size=n)


@pytest.mark.parametrize("share", ["half", "natural"])
def test_agreement_in_every_part(share):
    y, male = kinds(12_000)
    split = draw_split(y, male, 0, choices("gender", share, 4000, 2000))
    drawn = np.concatenate([split.train, split.test])
    assert len(drawn) == len(set(drawn.tolist())) == 6000  # nobody twice, in one part or in both
    for rows, codes, agreements in (
        (split.train, split.train_code, TRAIN_AGREEMENT),
        (split.test, split.test_code, TEST_AGREEMENT),
    ):
        for code, agreement in enumerate(agreements):
            mine = rows[codes == code]
            assert len(mine) == len(rows) / len(agreements)
            assert (np.diff(mine) > 0).all()
            assert (y[mine] == male[mine]).sum() == round(agreement * len(mine))
            if share == "half":
                assert y[mine].sum() == len(mine) // 2


def test_natural_share_is_that_of_the_rows():
    rng = np.random.default_rng(1)
    male = rng.integers(2, size=20_000)
    y = np.where(rng.random(20_000) < 0.5, male, 1 - male)
    keep = (y == 0) | (male == 0) | (rng.random(20_000) < 0.25)  # few men who smile
    y, male = y[keep], male[keep]
    split = draw_split(y, male, 0, choices("gender", "natural", 4000, 2000))
    half = y[split.train[split.train_code == 0]].mean()
    assert half == pytest.approx(y[y == male].mean(), abs=0.03) and half < 0.25


def test_the_papers_sizes_where_there_are_enough():
    y, male = kinds(200_000)
    split = draw_split(y, male, 0, choices("gender", "half", None, None))
    assert np.bincount(split.train_code).tolist() == [20_000, 20_000]
    assert np.bincount(split.test_code).tolist() == [5000] * 4
    disagree = y != male
    assert disagree[split.train[split.train_code == 0]].sum() == 20
    assert disagree[split.test[split.test_code == 3]].sum() == 5


@pytest.mark.parametrize("share", ["half", "natural"])
def test_fewer_rows_of_a_smaller_file(share):
    y, male = kinds(3000)
    there = np.array([np.sum((y == a) & (male == b)) for a in (0, 1) for b in (0, 1)])
    split = draw_split(y, male, 0, choices("gender", share, None, None))
    n = len(split.train)
    assert len(split.test) == n // 2
    used = np.array([np.isin(np.concatenate([split.train, split.test]), np.flatnonzero((y == a) & (male == b))).sum()
                     for a in (0, 1) for b in (0, 1)])  # fmt: skip
    assert (used <= there).all()
    # 46,025 of 60,000 agree: those who agree run out first, and one kind of them to the last few
    agree = (there[0] + there[3]) if share == "natural" else 2 * min(there[0], there[3])
    assert n == pytest.approx(agree / 46_025 * 40_000, abs=8)


def test_one_size_given():
    y, male = kinds(3000)
    split = draw_split(y, male, 0, choices("gender", "half", 1000, None))
    assert len(split.train) == 1000 and 500 < len(split.test) < 2000
    split = draw_split(y, male, 0, choices("gender", "half", None, 100))
    assert 1000 < len(split.train) < 2000 and len(split.test) == 100


def test_training_rows_do_not_depend_on_the_test():
    y, male = kinds()
    one, other = (draw_split(y, male, 5, choices("gender", "half", 1000, n)) for n in (200, 800))
    np.testing.assert_array_equal(one.train, other.train)
    assert draw_split(y, male, 6, choices("gender", "half", 1000, 200)).train.tolist() != one.train.tolist()
    with pytest.raises(ValueError, match="random_state must be"):
        draw_split(y, male, "home", choices("gender", "half", 1000, 200))


def test_too_few_rows():
    y, male = kinds(200)
    with pytest.raises(ValueError) as caught:
        draw_split(y, male, 0, choices("gender", "half", 1000, 500))
    text = str(caught.value)
    assert text.startswith(
        "n_train and n_test must leave enough rows of each kind to draw from: 1,000 training and 500"
    )
    there = np.sum((y == 1) & (male == 1))
    assert f"men who smile ({there} are there)" in text
    assert text.endswith("Lower n_train and n_test, or take a file of more images.")
    with pytest.raises(ValueError, match=r"the images must leave enough.* rows where they do not \(0 are there\)"):
        draw_split(y, y, 0, choices("gender", "natural", None, None))


# ---- the loader


@pytest.mark.parametrize("low", [0, -1])
def test_values_by_hand(tmp_path, low):
    header, lines = table(low=low)
    write(tmp_path / "celeba_features.csv", header, lines)
    task = load_celeba_features(7, data_home=tmp_path, environment="agreement", n_train=200, n_test=100)
    column = {name: np.array([line[j] for line in lines]) for j, name in enumerate(header)}
    y, male = ((column[c].astype(int) == 1).astype(int) for c in ("y_Smiling", "sp_Male"))
    split = draw_split(y, male, 7, choices("agreement", "half", 200, 100))
    x = np.stack([column[f"x_{j}"].astype(float) for j in range(D)], axis=1)
    z = np.stack([(column[f"z_{a}"].astype(int) == 1) for a in AUX], axis=1)
    mean, std = x[split.train].mean(0), x[split.train].std(0)
    for rows, index, code in (
        (task.train, split.train, split.train_code),
        (task.test, split.test, split.test_code),
    ):
        np.testing.assert_allclose(rows.x.numpy(), (x[index] - mean) / std, atol=2e-6)
        np.testing.assert_array_equal(rows.y.numpy(), y[index])
        np.testing.assert_array_equal(rows.aux.numpy(), z[index])
        np.testing.assert_array_equal(rows.environment.numpy(), code)
    assert task.train.names == ("agreement=0.999", "agreement=0.8") and task.test.names == TEST_NAMES
    assert isinstance(task.loss, Binary) and task.n_outputs == 1 and task.name == "celeba-features"
    assert task.train.x.dtype == task.train.y.dtype == torch.float32 and task.train.aux.dtype == torch.float64


def test_gender_is_the_default_environment(home):
    task = load_celeba_features(0, data_home=home, n_train=200, n_test=100)
    halves = load_celeba_features(0, data_home=home, n_train=200, n_test=100, environment="agreement")
    assert task.train.names == ("Female", "Male") and task.test.names == TEST_NAMES
    assert torch.equal(task.train.x, halves.train.x) and torch.equal(task.test.environment, halves.test.environment)
    # of 200 rows 180 agree: the gender of these is the label
    assert (task.train.environment == task.train.y).sum() == 180
    assert task.card["n_train"] == {"Female": 100, "Male": 100}
    assert halves.card["n_train"] == {"agreement=0.999": 100, "agreement=0.8": 100}
    assert task.card["n_test"] == dict.fromkeys(TEST_NAMES, 25)


def test_card(home):
    card = load_celeba_features(3, data_home=home).card
    keys = {"description", "source", "licence", "citation", "n_train", "n_test", "random_state", "shift"}
    assert keys | {"looks_at_test", "differs_from_paper", "limits", "columns", "aux"} <= set(card)
    assert card["rows"] == N and card["random_state"] == 3
    assert card["columns"] == tuple(f"x_{j}" for j in range(D)) and card["aux"] == AUX
    assert (card["target_column"], card["spurious_column"]) == ("y_Smiling", "sp_Male")
    assert card["group_column"] == "It tells the agreement of y and sp."
    json.dumps(card)


def test_the_group_need_not_be_there_nor_tell_the_agreement(tmp_path):
    header, lines = table()
    path = write(tmp_path / "celeba_features.csv", header[:-1], [line[:-1] for line in lines])
    without = load_celeba_features(0, data_home=tmp_path)
    assert without.card["group_column"].startswith("There is none")
    write(path, header, [[*line[:-1], 2 * line[1] + line[-2]] for line in lines])
    other = load_celeba_features(0, data_home=tmp_path)
    assert other.card["group_column"].startswith("It has values 0.0, 1.0, 2.0, 3.0, which do not tell")
    assert torch.equal(without.train.x, other.train.x)


def test_pieces_of_the_file_make_no_difference(home, monkeypatch):
    whole = load_celeba_features(0, data_home=home)
    monkeypatch.setattr(celeba, "CHUNK", 7)
    assert len(read_celeba_features(home / "celeba" / "celeba_features.csv").chunks) == -(-N // 7)
    pieces = load_celeba_features(0, data_home=home)
    assert torch.equal(whole.train.x, pieces.train.x) and torch.equal(whole.test.x, pieces.test.x)


def test_a_feature_that_does_not_vary(tmp_path):
    header, lines = table()
    at = header.index("x_2")
    write(tmp_path / "celeba_features.csv", header, [[*line[:at], "0.1", *line[at + 1 :]] for line in lines])
    task = load_celeba_features(0, data_home=tmp_path)
    assert not task.train.x[:, 2].any() and not task.test.x[:, 2].any()


def test_packed_and_by_the_variable(home, monkeypatch):
    plain = load_celeba_features(0, data_home=home)
    path = home / "celeba" / "celeba_features.csv"
    content = path.read_bytes()
    path.unlink()
    (home / "celeba_features.csv.gz").write_bytes(gzip.compress(content))
    monkeypatch.setenv(VARIABLE, str(home))
    assert torch.equal(load_celeba_features(0).train.x, plain.train.x)
    (home / "celeba_features.csv.gz").unlink()
    with zipfile.ZipFile(home / "celeba_features.csv.zip", "w") as archive:
        archive.writestr("celeba_features.csv", content)
    assert torch.equal(load_celeba_features(0).train.x, plain.train.x)


def test_it_trains(home):
    task = load_celeba_features(0, data_home=home)
    fitted = train(task, "irm-tv-l1", hidden=(4,), steps=3)
    assert torch.isfinite(fitted.logits(task.test.x)).all()


# ---- what is wrong is said


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"environment": "sex"}, r"environment must be one of \['gender', 'agreement'\]"),
        ({"smiling_share": "hlaf"}, r"smiling_share must be one of .* Did you mean 'half'\?"),
        ({"n_train": 3}, r"n_train must be an integer of at least 4 \(two rows per environment\)"),
        ({"n_test": 100.0}, "n_test must be an integer of at least 8"),
    ],
)
def test_wrong_arguments(home, argument, said):
    with pytest.raises(ValueError, match=said):
        load_celeba_features(0, data_home=home, **argument)


def test_a_missing_file_says_how_to_make_it(tmp_path):
    for folder in (tmp_path, None):
        with pytest.raises(FileNotFoundError) as caught:
            load_celeba_features(0, data_home=folder)
        text = str(caught.value)
        assert "celeba_features.csv" in text and "`irmtv data celeba-features`" in text
        assert "img_align_celeba.zip" in text and "list_attr_celeba.txt" in text
        assert text.endswith("into the folder that data_home or IRMTV_DATA names.")


def no(prefix):
    def without(header, lines):
        keep = [j for j, name in enumerate(header) if not name.startswith(prefix)]
        return [header[j] for j in keep], [[line[j] for j in keep] for line in lines]

    return without


def put(name, value, row=4):
    def damaged(header, lines):
        lines[row][header.index(name)] = value
        return header, lines

    return damaged


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (no("x_"), r"columns x_\* \(features\) are needed\. Got 'id', 'sp_Male'"),
        (no("z_"), r"columns z_\* \(attributes for the inference of environments\) are needed"),
        (no("y_"), r"one column y_\* \(target Smiling\) is needed\. Got none among 'id'"),
        (no("sp_"), r"one column sp_\* \(spurious attribute Male\) is needed\. Got none"),
        (lambda h, r: ([*h, "y_two"], [[*line, 1] for line in r]), r"one column y_\* .*Got 'y_Smiling', 'y_two'\."),
        (lambda h, r: ([*h, "g_two"], [[*line, 1] for line in r]), r"at most one column g_\*"),
        (lambda h, r: (h, []), "Got no lines after the header"),
        (lambda h, r: (h, [[*line, 1] for line in r]), "as many values as the header has names"),
        (lambda h, r: (h, [*r[:-1], r[-1][:5]]), r"'x_3' must be a number in every row\. Got nan .*row 900, as a file"),
        (put("x_1", "inf"), r"'x_1' must be a number in every row\. Got inf or nothing in row 5,"),
        (put("x_1", "much"), r"'x_1' must be a number in every row, which it is not in row 5\. Got ValueError"),
        (put("y_Smiling", "2"), r"'y_Smiling' must be 0 or 1, or -1 or 1, throughout\. Got 2\.0, first in row 5\."),
        (put("z_Chubby", "-1", 0), r"'z_Chubby' must be 0 or 1, or -1 or 1, throughout\. Got 0\.0"),
    ],
)
def test_damaged_tables(tmp_path, damage, said):
    path = write(tmp_path / "celeba_features.csv", *damage(*table()))
    with pytest.raises(ValueError, match=said) as caught:
        load_celeba_features(0, data_home=tmp_path)
    text = str(caught.value)
    assert text.startswith(f"{path} must be a file of CelebA features") and text.endswith(celeba.CURE)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00\xff\xfe\x00"])
def test_something_else(tmp_path, content):
    (tmp_path / "celeba_features.csv").write_bytes(content)
    with pytest.raises(ValueError, match=r"must be a file of CelebA features.* Make the file by"):
        load_celeba_features(0, data_home=tmp_path)


@pytest.mark.parametrize("ending", [".gz", ".zip"])
def test_cut_off(home, ending):
    path = home / "celeba" / "celeba_features.csv"
    packed = path.with_name(path.name + ending)
    if ending == ".gz":
        packed.write_bytes(gzip.compress(path.read_bytes()))
    else:
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(path, path.name)
    path.unlink()
    packed.write_bytes(packed.read_bytes()[:-5000])
    with pytest.raises(
        ValueError, match=r"must be a file of CelebA features.*Got (EOFError|BadZipFile).*Make the file"
    ):
        load_celeba_features(0, data_home=home)


# ---- the table of attributes

NAMES = (TARGET, *AUX, SPURIOUS, "Bald")


def values(n=5):
    return np.random.default_rng(0).choice([-1, 1], size=(n, len(NAMES)))


def official(n=5, count=None, names=NAMES):
    lines = [f"{i + 1:06d}.jpg " + " ".join(f"{v:2d}" for v in row) for i, row in enumerate(values(n))]
    return "\n".join([str(n if count is None else count), " ".join(names) + " ", *lines]) + "\n"


def test_both_layouts(tmp_path):
    (tmp_path / "list_attr_celeba.txt").write_text(official())
    for low in (-1, 0):
        rows = [f"{i + 1:06d}.jpg," + ",".join(str(max(v, low)) for v in row) for i, row in enumerate(values())]
        (tmp_path / f"{low}.csv").write_text("\n".join(["filename," + ",".join(NAMES), *rows]) + "\n")
    for name in ("list_attr_celeba.txt", "-1.csv", "0.csv"):
        found = read_celeba_attributes(tmp_path / name, 5)
        assert found.index.tolist() == [f"{i:06d}.jpg" for i in range(1, 6)] and tuple(found.columns) == NAMES
        np.testing.assert_array_equal(found.to_numpy(), values() == 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (official(count=6), r"its first line says 6 images\. Got 5\."),
        (official(names=("Laughing", *NAMES[1:])), r"are needed\. Got none named \['Smiling'\]\."),
        (official()[:-9], r"'High_Cheekbones'|'Male'|'Bald'|'Chubby'"),
        (official().replace("000002.jpg", "000001.jpg"), r"one line per image\. Got several for '000001\.jpg'"),
        (official().replace("jpg -1", "jpg  x").replace("jpg  1", "jpg  x"), r"'Smiling' must be -1 or 1.*Got 'x'"),
        (official(0), "Got no images"),
        ("", "Got EmptyDataError"),
    ],
)
def test_damaged_attributes(tmp_path, text, said):
    path = tmp_path / "list_attr_celeba.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=said) as caught:
        read_celeba_attributes(path)
    assert str(caught.value).startswith(f"{path} must be CelebA's table of attributes")
    assert str(caught.value).endswith(
        "Take list_attr_celeba.txt again, from https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html (folder Anno)."
    )


def test_docstring_examples():
    outcome = doctest.testmod(celeba_rows)
    assert outcome.attempted > 0 and outcome.failed == 0
