"""The stand-in for CelebA: features by another route, the limit against counts, real attributes and a tiny table."""

from __future__ import annotations

import csv
import doctest
import io
import json
import math
import os
import zipfile

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from irmtv import train
from irmtv.datasets import celeba_standin
from irmtv.datasets.celeba_rows import AUX, choices, draw_split
from irmtv.datasets.celeba_standin import FILES, make_celeba_standin
from irmtv.datasets.fetch import VARIABLE, find_files

N = 4000
NAMES = ["Smiling", "Male", *AUX, *(f"Other_{j}" for j in range(31))]  # forty


@pytest.fixture(scope="session")
def real():
    """CelebA's table of attributes, as words, without pandas."""
    if not os.environ.get(VARIABLE):
        pytest.skip(f"celeba.csv is needed: set {VARIABLE} to the folder that holds it")
    try:
        (path,) = find_files(FILES)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    content = path.read_bytes()
    if path.suffix == ".zip":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            content = archive.read(archive.namelist()[0])
    lines = csv.reader(io.StringIO(content.decode()))
    header = next(lines)
    at = [header.index(name) for name in ("Smiling", "Male", *AUX)]
    values = np.array([[line[j] == "1" for j in at] for line in lines])
    return dict(zip(("Smiling", "Male", *AUX), values.T, strict=True))


@pytest.fixture(scope="session")
def task(real):
    return make_celeba_standin(0, n_train=20_000, n_test=10_000, environment="agreement", n_features=64)


def test_the_real_attributes(real, task):
    y, male = real["Smiling"], real["Male"]
    assert len(y) == 202_599
    split = draw_split(y, male, 0, choices("agreement", "half", 20_000, 10_000))
    for rows, index in ((task.train, split.train), (task.test, split.test)):
        np.testing.assert_array_equal(rows.y.numpy(), y[index])
        np.testing.assert_array_equal(rows.aux.numpy(), np.stack([real[a][index] for a in AUX], axis=1))
    agree = (y == male)[split.test]
    shares = [agree[split.test_code == e].mean() for e in range(4)]
    np.testing.assert_allclose(shares, (0.01, 0.2, 0.8, 0.999), atol=3e-4)  # of 2,500


def test_the_papers_sizes(real):
    full = make_celeba_standin(1, n_features=40)
    assert full.train.x.shape == (40_000, 40) and full.test.x.shape == (20_000, 40)
    assert full.card["rows"] == 202_599 and full.card["n_train"] == {"Female": 20_000, "Male": 20_000}


def test_gender_is_easy_and_smiling_harder(real):
    """Linear probes on rows in which the two say nothing about each other."""
    male = real["Male"]
    one = make_celeba_standin(0, n_train=4, n_test=30_000, n_features=64)
    split = draw_split(real["Smiling"], male, 0, choices("gender", "half", 4, 30_000))
    agree = one.test.y.numpy() == male[split.test]
    rng = np.random.default_rng(0)
    few = min(agree.sum(), (~agree).sum())
    even = rng.permutation(np.concatenate([rng.permutation(np.flatnonzero(a))[:few] for a in (agree, ~agree)]))
    fitted, kept = even[::2], even[1::2]
    x = one.test.x.numpy()
    accuracy = [
        LogisticRegression(max_iter=300).fit(x[fitted], target[fitted]).score(x[kept], target[kept])
        for target in (male[split.test], one.test.y.numpy() == 1)
    ]
    assert accuracy[0] == pytest.approx(0.98, abs=0.006)
    assert accuracy[1] == pytest.approx(0.87, abs=0.012)


# ---- a tiny table: no real file needed


def rows_of(n=N):
    return np.random.default_rng(2).choice([-1, 1], size=(n, 40))


def write(home, values, names=NAMES, name="celeba.csv"):
    folder = home / "celeba_attributes"
    folder.mkdir(exist_ok=True)
    path = folder / name
    if name.endswith(".txt"):
        lines = [str(len(values)), " ".join(names)]
        lines += [f"{i:06d}.jpg " + " ".join(map(str, row)) for i, row in enumerate(values)]
    else:
        lines = ["filename," + ",".join(names)]
        lines += [f"{i:06d}.jpg," + ",".join(map(str, row)) for i, row in enumerate(values)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(celeba_standin, "ROWS", N)
    write(tmp_path, rows_of())
    return tmp_path


def raw(home, monkeypatch, index, **arguments):
    """Features of some rows before they are standardised, by row number."""
    seen = {}

    def keep(features, *rest):
        seen["x"] = features(np.asarray(index))

    with monkeypatch.context() as patch:
        patch.setattr(celeba_standin, "celeba_rows_task", keep)
        make_celeba_standin(0, data_home=home, **arguments)
    return seen["x"].astype(float)


def test_features_are_signal_and_noise(home, monkeypatch):
    """In 40 directions s a + N(0, 1); in the others N(0, background^2); by least squares, not by knowing W."""
    strengths = {"smiling_strength": 1.5, "male_strength": 2.5, "other_strength": 0.5}
    x = raw(home, monkeypatch, range(N), n_features=60, background=0.2, **strengths)
    a = rows_of()
    coef, *_ = np.linalg.lstsq(a, x, rcond=None)  # (40, 60): s_k times direction k, roughly
    np.testing.assert_allclose(np.linalg.norm(coef[:2], axis=1), (1.5, 2.5), rtol=0.03)
    np.testing.assert_allclose(np.linalg.norm(coef[2:], axis=1), 0.5, rtol=0.12)
    cosine = coef @ coef.T / np.outer(*[np.linalg.norm(coef, axis=1)] * 2)
    assert np.abs(cosine - np.eye(40)).max() < 0.15
    spread = np.sqrt(np.linalg.eigvalsh(np.cov((x - a @ coef).T)))
    np.testing.assert_allclose(spread[:20], 0.2, rtol=0.15)
    np.testing.assert_allclose(spread[20:], 1.0, rtol=0.15)


def test_the_limit_is_what_the_direction_of_smiling_reaches(home, monkeypatch):
    x = raw(home, monkeypatch, range(N), n_features=60, background=0.0, smiling_strength=0.8)
    a = rows_of()
    direction = np.linalg.lstsq(a, x, rcond=None)[0][0]
    right = (x @ direction > 0) == (a[:, 0] == 1)
    card = make_celeba_standin(0, data_home=home, smiling_strength=0.8).card
    assert card["limit"] == pytest.approx(0.5 * (1 + math.erf(0.8 / math.sqrt(2))))
    assert right.mean() == pytest.approx(card["limit"], abs=0.02)


def test_an_image_has_the_same_features_in_every_draw(home, monkeypatch):
    one, other = (raw(home, monkeypatch, index, n_features=48) for index in ([5, 3999, 17], [17, 5]))
    np.testing.assert_allclose(one[2], other[0], atol=1e-5)
    np.testing.assert_allclose(one[0], other[1], atol=1e-5)
    noise = celeba_standin.row_noise(np.arange(300), 40)
    assert noise.mean() == pytest.approx(0, abs=0.03) and noise.std() == pytest.approx(1, abs=0.02)
    assert np.abs(np.corrcoef(noise[:, :5].T) - np.eye(5)).max() < 0.25  # streams of neighbours are not alike


def test_the_order_of_the_columns_changes_nothing(home):
    first = make_celeba_standin(0, data_home=home, n_features=40)
    order = np.random.default_rng(0).permutation(40)
    write(home, rows_of()[:, order], [NAMES[j] for j in order])
    assert torch.equal(make_celeba_standin(0, data_home=home, n_features=40).train.x, first.train.x)


def test_the_original_file_serves_as_well(home):
    first = make_celeba_standin(0, data_home=home, n_features=40)
    (home / "celeba_attributes" / "celeba.csv").unlink()
    write(home, rows_of(), name="list_attr_celeba.txt")
    assert torch.equal(make_celeba_standin(0, data_home=home, n_features=40).train.x, first.train.x)


def test_card(home):
    task = make_celeba_standin(4, data_home=home)
    assert task.name == "celeba-standin" and task.train.x.shape[1] == 512
    card = task.card
    keys = {"description", "source", "licence", "citation", "n_train", "n_test", "random_state", "shift"}
    assert keys | {"looks_at_test", "differs_from_paper", "limits", "columns", "aux", "limit"} <= set(card)
    assert "stand-in" in card["description"] and card["aux"] == AUX and card["random_state"] == 4
    assert card["background"] == 0.1 and card["smiling_strength"] == 1.1
    json.dumps(card)


def test_standardised_on_training_rows(home):
    task = make_celeba_standin(0, data_home=home, n_features=40)
    torch.testing.assert_close(task.train.x.mean(0), torch.zeros(40), atol=1e-5, rtol=0)
    torch.testing.assert_close(task.train.x.std(0, correction=0), torch.ones(40), atol=1e-4, rtol=0)


def test_risk_minimisation_is_hurt_and_an_invariant_model_less(real):
    task = make_celeba_standin(0, n_train=20_000, n_test=8000, environment="agreement", n_features=40)
    y, environment = task.test.y > 0.5, task.test.environment

    def accuracy(objective, **arguments):
        fitted = train(task, objective, steps=300, learning_rate=2e-2, **arguments)
        right = (fitted.logits(task.test.x).flatten() > 0) == y
        return [float(right[environment == e].float().mean()) for e in range(4)]

    plain = accuracy("erm")
    invariant = accuracy("irm-tv-l1", warmup=100, penalty_weight=1e4)
    assert plain[0] < 0.7 and plain[3] > 0.95
    assert min(invariant) > 0.75 > plain[0]


# ---- what is wrong is said


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"n_features": 39}, r"n_features must be an integer of at least 40 \(a direction for every attribute\)"),
        ({"male_strength": -1.0}, r"male_strength must be a finite number of at least 0\. Got -1\.0"),
        ({"background": math.nan}, "background must be a finite number"),
        ({"other_strength": "0.3"}, "other_strength must be a finite number"),
        ({"environment": "men"}, "environment must be one of"),
    ],
)
def test_wrong_arguments(home, argument, said):
    with pytest.raises(ValueError, match=said):
        make_celeba_standin(0, data_home=home, **argument)


def test_a_missing_file(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    for folder in (tmp_path, None):
        with pytest.raises(FileNotFoundError, match=r"celeba\.csv.* Take list_attr_celeba\.txt from https.*IRMTV_DATA"):
            make_celeba_standin(0, data_home=folder)


def test_too_few_images_or_attributes(home):
    write(home, rows_of()[:-1])
    with pytest.raises(ValueError, match=r"CelebA has 4,000 images\. Got 3,999\. Take list_attr"):
        make_celeba_standin(0, data_home=home)
    write(home, rows_of()[:, :30], NAMES[:30])
    with pytest.raises(ValueError, match=r"must have CelebA's 40 attributes for each image\. Got 30\. Take list_attr"):
        make_celeba_standin(0, data_home=home)


def test_docstring_examples(real):
    outcome = doctest.testmod(celeba_standin)
    assert outcome.attempted > 0 and outcome.failed == 0
