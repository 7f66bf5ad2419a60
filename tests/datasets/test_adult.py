"""Adult: the reader on both layouts, the split by hand, the columns by another route; real files and tiny ones."""

from __future__ import annotations

import csv
import doctest
import gzip
import hashlib
import json
import os
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from irmtv import Task, train
from irmtv.core.losses import Binary
from irmtv.datasets import DATASETS, Tables, adult, load_adult
from irmtv.datasets.adult import CATEGORIES, COLUMNS, FILES, INTEGERS, SUBGROUPS, adult_task, read_adult
from irmtv.datasets.fetch import VARIABLE, find_files
from irmtv.lab.experiments.spec import Data
from irmtv.lab.experiments.spec_file import data_problems

HEADER = ", ".join(COLUMNS[:-1]) + ", Y"
TINY = (90, 60)  # rows of the tiny adult.data and adult.test
CHOICES = {
    "workclass": ["Private", "State-gov", "?"],
    "education": ["HS-grad", "Bachelors"],
    "marital-status": ["Never-married", "Divorced"],
    "occupation": ["Sales", "Tech-support", "?"],
    "relationship": ["Husband", "Wife", "Unmarried"],
    "race": ["White", "Black", "Other"],
    "sex": ["Male", "Female"],
    "native-country": ["United-States", "Cuba"],
    "income": ["<=50K", ">50K"],
}


# ---- the real files


@pytest.fixture(scope="session")
def real():
    """adult.data and adult.test."""
    if not os.environ.get(VARIABLE):
        pytest.skip(f"adult.data and adult.test are needed: set {VARIABLE} to the folder that holds them")
    try:
        return find_files(FILES)
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def by_hand(real):
    """Every person as a dict of the file's words, without pandas."""
    people = []
    for path in real:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as lines:
            words = [w for w in csv.reader(lines, skipinitialspace=True) if len(w) == 15 and w[0] != "age"]
        people += [dict(zip(COLUMNS, w, strict=True)) for w in words]
    return people


@pytest.fixture(scope="session")
def task(real):
    return load_adult(0)


@pytest.fixture(scope="session")
def tables(real):
    return load_adult(0, as_frame=True)


def subgroup(person):
    return f"{'Black' if person['race'] == 'Black' else 'Non-Black'} {person['sex']}"


def test_the_checksums_are_those_of_the_original_files(real):
    """The copies may have a header line instead of the comment line, and lack the empty last line."""
    for file, path, first in zip(FILES, real, (b"", b"|1x3 Cross validator\n"), strict=True):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if content.startswith(b"age"):
            content = first + content.split(b"\n", 1)[1] + b"\n"
        assert hashlib.sha256(content).hexdigest() == file.sha256


def test_shapes(task):
    assert isinstance(task, Task) and isinstance(task.loss, Binary) and task.n_outputs == 1
    assert task.train.x.shape == (10_840, 59) and task.test.x.shape == (38_002, 59)
    assert task.train.aux.shape == (10_840, 6) and task.test.aux.shape == (38_002, 6)
    assert task.train.x.dtype == task.train.y.dtype == torch.float32
    assert task.train.aux.dtype == torch.float64
    assert task.train.names == ("Black Male", "Non-Black Female")
    assert task.test.names == ("Black Male", "Black Female", "Non-Black Male", "Non-Black Female")


def test_subgroups_counted_by_hand(task, by_hand):
    assert len(by_hand) == 48_842
    total = Counter(subgroup(p) for p in by_hand)
    trained = {name: total[name] * 2 // 3 for name in task.train.names}
    assert sum(trained.values()) == 10_840
    found = torch.bincount(task.train.environment).tolist()
    assert dict(zip(task.train.names, found, strict=True)) == trained == task.card["n_samples"]
    left = {name: total[name] - trained.get(name, 0) for name in task.test.names}
    found = torch.bincount(task.test.environment).tolist()
    assert dict(zip(task.test.names, found, strict=True)) == left == task.card["n_test"]
    rich = Counter(subgroup(p) for p in by_hand if p["income"].startswith(">"))
    assert task.train.y.sum() + task.test.y.sum() == rich.total()
    for name, share in task.card["positive_share"].items():
        assert share == pytest.approx(rich[name] / total[name], abs=1e-4)


def test_tables_are_the_files(tables, by_hand):
    assert isinstance(tables, Tables)
    everybody = pd.concat([tables.X_train, tables.X_test]).sort_index()
    assert everybody.index.tolist() == list(range(48_842))  # everybody once: no row is in both parts
    assert list(everybody.columns) == [c for c in COLUMNS if c not in ("race", "sex", "income")]
    for column in everybody:
        words = [p[column] for p in by_hand]
        assert everybody[column].astype(str).tolist() == words
        assert pd.api.types.is_integer_dtype(everybody[column]) == (column in INTEGERS)
    y = pd.concat([tables.y_train, tables.y_test]).sort_index()
    assert y.tolist() == [int(p["income"].startswith(">")) for p in by_hand]
    environment = pd.concat([tables.environment_train, tables.environment_test]).sort_index()
    assert environment.tolist() == [subgroup(p) for p in by_hand]
    assert set(tables.environment_train) == {"Black Male", "Non-Black Female"}


def test_tables_and_task_have_the_same_split(tables, task):
    for x, y, environment, rows in (
        (tables.X_train, tables.y_train, tables.environment_train, task.train),
        (tables.X_test, tables.y_test, tables.environment_test, task.test),
    ):
        np.testing.assert_array_equal(x[list(INTEGERS)].to_numpy(), rows.aux.numpy())
        np.testing.assert_array_equal(y.to_numpy(), rows.y.numpy())
        assert environment.tolist() == [rows.names[e] for e in rows.environment.tolist()]
        assert x.index.equals(y.index) and x.index.equals(environment.index)


def test_columns_by_another_route(task, tables):
    """One-hot by hand, components from the covariance of all rows, standardised; signs by the largest loading."""
    x = pd.concat([tables.X_train, tables.X_test])
    one_hot = np.column_stack([x[c] == level for c in CATEGORIES for level in sorted(set(x[c]))]).astype(float)
    assert one_hot.shape == (48_842, 95)
    values, vectors = np.linalg.eigh(np.cov(one_hot.T))
    values, vectors = values[::-1], vectors[:, ::-1]
    share = values.cumsum() / values.sum()
    n = int(np.argmax(share > 0.99)) + 1
    assert n == 53
    vectors = vectors[:, :n] * np.sign(vectors[np.abs(vectors).argmax(0), np.arange(95)][:n])
    columns = np.column_stack([one_hot @ vectors, x[list(INTEGERS)].to_numpy(float)])
    expected = (columns - columns.mean(0)) / columns.std(0)
    np.testing.assert_allclose(torch.cat([task.train.x, task.test.x]).numpy(), expected, atol=2e-4)


def test_the_card_says_what_the_columns_have_seen(task, tables, real):
    card = task.card
    assert {"source", "licence", "citation", "rows", "shift", "differs_from_paper", "description"} <= set(card)
    assert card["licence"] == "CC BY 4.0" and card["rows"] == 48_842 and card["random_state"] == 0
    assert len(card["columns"]) == 59 and card["columns"][-6:] == INTEGERS == card["aux"]
    assert "fitted on all rows" in card["looks_at_test"] and "inputs of the test rows" in card["looks_at_test"]
    honest = load_adult(0, fit_on="train")
    assert "training rows only" in honest.card["looks_at_test"] and honest.card["fit_on"] == "train"
    assert tables.card["licence"] == "CC BY 4.0" and tables.card["looks_at_test"].startswith("Nothing")
    json.dumps([card, honest.card, tables.card])


def test_fitted_on_the_training_rows(task, real):
    honest = load_adult(0, fit_on="train")
    assert honest.train.x.shape[1] in (58, 59, 60)
    np.testing.assert_allclose(honest.train.x.double().mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(honest.train.x.double().std(0, correction=0), 1, atol=1e-5)
    whole = torch.cat([task.train.x, task.test.x]).double()
    np.testing.assert_allclose(whole.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(whole.std(0, correction=0), 1, atol=1e-5)
    assert torch.equal(honest.train.y, task.train.y) and torch.equal(honest.test.aux, task.test.aux)
    assert {load_adult(s, fit_on="train", n_components=53).train.x.shape[1] for s in (1, 6)} == {59}


def test_it_trains_with_given_and_with_inferred_environments(task):
    for objective in ("irm-tv-l1", "minimax-tv-l1"):
        fitted = train(task, objective, steps=3, warmup=1, hidden=(16,), snapshot_every=None)
        table = fitted.evaluate()
        assert table.names == SUBGROUPS and table.counts.tolist() == [793, 2308, 30_273, 4628]


def test_docstring_examples(real):
    outcome = doctest.testmod(adult)
    assert outcome.attempted == 4
    assert outcome.failed == 0


# ---- tiny files of both layouts


def tiny_people():
    rng, n = np.random.default_rng(0), sum(TINY)
    return pd.DataFrame({c: rng.integers(0, 90, n) if c in INTEGERS else rng.choice(CHOICES[c], n) for c in COLUMNS})


def write(folder, people, layout):
    """adult.data and adult.test, as UCI has them or with a header line."""
    folder.mkdir(exist_ok=True)
    people = people.astype(str)
    for name, part in (("adult.data", people.iloc[: TINY[0]]), ("adult.test", people.iloc[TINY[0] :])):
        dot = "." if name == "adult.test" else ""
        lines = [", ".join(row) + dot for row in part.to_numpy()]
        if layout == "header":
            (folder / f"{name}.gz").write_bytes(gzip.compress(("\n".join([HEADER, *lines]) + "\n").encode()))
        else:
            comment = ["|1x3 Cross validator"] if name == "adult.test" else []
            (folder / name).write_text("\n".join([*comment, *lines, "", ""]))
    return folder


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.setattr(adult, "ROWS", {"adult.data": TINY[0], "adult.test": TINY[1]})
    return write(tmp_path / "tiny", tiny_people(), "header")


@pytest.mark.parametrize("layout", ["header", "original"])
def test_both_layouts_are_read(tmp_path, tiny, layout):
    people = tiny_people()
    folder = write(tmp_path / layout, people, layout)
    suffix = ".gz" if layout == "header" else ""
    parts = [read_adult(folder / f"adult.{kind}{suffix}") for kind in ("data", "test")]
    assert [len(p) for p in parts] == list(TINY)
    found = pd.concat(parts, ignore_index=True)
    assert found["income"].tolist() == [int(label == ">50K") for label in people["income"]]
    for column in COLUMNS[:-1]:
        assert found[column].tolist() == people[column].tolist()
    a, b = load_adult(5, data_home=folder), load_adult(5, data_home=tiny)
    assert torch.equal(a.train.x, b.train.x) and torch.equal(a.test.y, b.test.y)


def test_the_variable_says_where_the_files_are(tiny, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tiny))
    assert torch.equal(load_adult(1).train.x, load_adult(1, data_home=tiny).train.x)


def test_names_of_another_spelling_are_a_header(tmp_path):
    path = tmp_path / "adult.data"
    line = "39, ?, 77516, Bachelors, 13, Never-married, ?, Unmarried, White, Male, 2174, 0, 40, ?, <=50K"
    path.write_text(HEADER.replace("-", "_").replace("age", "Age", 1) + "\n" + line + "\n")
    table = read_adult(path)
    assert [str(value) for value in table.iloc[0]] == [*line.split(", ")[:-1], "0"]


GOOD = "39, Private, 77516, Bachelors, 13, Divorced, Sales, Wife, White, Male, 2174, 0, 40, Cuba, <=50K\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD * 3 + GOOD[:40], "'capital-gain' must be a whole number. Got '', first for person 4. Take the file"),
        (GOOD + GOOD.replace("39", "old"), "'age' must be a whole number. Got 'old', first for person 2."),
        (GOOD + GOOD.replace("39", "-1"), "'age' must be a whole number. Got '-1'"),
        (GOOD + GOOD.replace("<=50K", "50000"), "'income' must be <=50K or >50K. Got '50000'"),
        (GOOD.replace("Male", "male"), "'sex' must be Male or Female. Got 'male', first for person 1."),
        (GOOD.replace("White", "?"), "'race' must be a word. Got '?'"),
        (GOOD + GOOD.replace("\n", ", more\n"), "15 values on each line with commas between them. Got ParserError"),
        ("<html>\n<p>Moved</p>\n", "15 values on each line with commas between them. Got 1 on the first."),
        ("", "Got EmptyDataError"),
        (GOOD, "one line for each of 3 people. Got 1. Take the file from UCI again."),
        (HEADER + "\n" + GOOD * 2, "one line for each of 3 people. Got 2."),
    ],
)
def test_a_file_of_something_else(tmp_path, content, message):
    path = tmp_path / "adult.data"
    path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_adult(path, 3)
    assert str(caught.value).startswith(f"{path} must be a file of UCI Adult")


@pytest.mark.parametrize("damage", [lambda b: b[:-20], lambda b: b"no gzip", lambda b: b[:30] + b"\0" * 30 + b[60:]])
def test_a_damaged_packed_file(tmp_path, damage):
    path = tmp_path / "adult.data.gz"
    path.write_bytes(damage(gzip.compress((GOOD * 3).encode() + bytes(np.random.default_rng(0).integers(65, 90, 500)))))
    with pytest.raises(ValueError, match="must be a file of UCI Adult"):
        read_adult(path)


def test_exchanged_files_are_noticed(tiny):
    (tiny / "adult.data.gz").rename(tiny / "other")
    (tiny / "adult.test.gz").rename(tiny / "adult.data.gz")
    (tiny / "other").rename(tiny / "adult.test.gz")
    with pytest.raises(ValueError, match=r"adult\.data\.gz must be .* one line for each of 90 people\. Got 60\."):
        load_adult(0, data_home=tiny)


def test_without_files_the_places_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds adult\.data and adult\.test of data set 'adult'") as caught:
        load_adult(0, data_home=tmp_path)
    assert str(tmp_path / "adult" / "adult.data.gz") in str(caught.value)


def test_the_split_depends_on_random_state_only(tiny):
    def index(random_state):
        return load_adult(random_state, data_home=tiny, as_frame=True).X_train.index.tolist()

    assert index(3) == index(3) == index(np.int64(3)) == index(np.random.default_rng(3))
    assert index(3) != index(4)
    assert index(None) != index(None)
    generator = np.random.default_rng(3)
    assert index(generator) != index(generator)
    a, b = load_adult(3, data_home=tiny), load_adult(3, data_home=tiny)
    for one, other in ((a.train, b.train), (a.test, b.test)):
        assert torch.equal(one.x, other.x) and torch.equal(one.environment, other.environment)
    with pytest.raises(ValueError, match="random_state must be None, an integer"):
        load_adult("3", data_home=tiny)


def test_every_member_of_a_trained_subgroup_is_drawn_alike(tiny):
    people = tiny_people()
    members = [i for i, p in people.iterrows() if subgroup(p) in ("Black Male", "Non-Black Female")]
    drawn = Counter()
    for seed in range(60):
        drawn.update(load_adult(seed, data_home=tiny, as_frame=True).X_train.index)
    assert set(drawn) == set(members)
    share = np.array([drawn[i] / 60 for i in members])
    assert np.abs(share - 2 / 3).max() < 4.5 * np.sqrt(2 / 9 / 60)


def test_what_is_fitted_on_the_training_rows_does_not_see_the_others(tmp_path, tiny):
    people = tiny_people()
    other = load_adult(2, data_home=tiny, as_frame=True).X_test.index[7]
    people.loc[other, ["age", "education", "native-country"]] = [99, "Doctorate", "Atlantis"]  # levels never seen
    changed = write(tmp_path / "changed", people, "header")
    for fit_on, same in (("train", True), ("all", False)):
        a, b = (load_adult(2, data_home=home, fit_on=fit_on) for home in (tiny, changed))
        assert (a.train.x.shape == b.train.x.shape and torch.equal(a.train.x, b.train.x)) == same
        assert torch.isfinite(b.test.x).all()
        assert not torch.equal(a.test.aux, b.test.aux)


def test_missing_values(tiny):
    kept = load_adult(0, data_home=tiny, as_frame=True)
    gone = load_adult(0, data_home=tiny, as_frame=True, missing="nan")
    for a, b in ((kept.X_train, gone.X_train), (kept.X_test, gone.X_test)):
        unknown = a == "?"
        assert unknown["workclass"].any() and unknown["occupation"].any() and not a.isna().any(axis=None)
        pd.testing.assert_frame_equal(b.isna(), unknown)
        pd.testing.assert_frame_equal(b.fillna({"workclass": "?", "occupation": "?"}), a)
        assert (b.dtypes == a.dtypes).all()


def test_number_of_components(tiny):
    load = lambda n: load_adult(0, data_home=tiny, n_components=n)  # noqa: E731
    assert [load(n).train.x.shape[1] for n in (1, 3, 9)] == [7, 9, 15]
    assert load(0.3).train.x.shape[1] < load(0.9).train.x.shape[1]
    assert load(3).card["columns"][:3] == ("component 1", "component 2", "component 3")
    # 3 + 2 + 2 + 3 + 3 + 2 levels, of which each variable's last follows from its others
    with pytest.raises(ValueError, match=r"n_components must be at most 9: .* Got 10\."):
        load(10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fit_on": "tain"}, "fit_on must be one of ['all', 'train']. Got 'tain'. Did you mean 'train'?"),
        ({"missing": None}, "missing must be one of ['level', 'nan']. Got None. Use 'level'."),
        ({"missing": "nan"}, "missing must be 'level' for a task, whose columns can hold no NaN."),
        ({"n_components": 1.0}, "n_components must be a share of the variance between 0 and 1, or an integer"),
        ({"n_components": 0}, "n_components must be an integer of at least 1. Got 0."),
        ({"n_components": True}, "n_components must be an integer of at least 1. Got True."),
        ({"as_frame": True, "fit_on": "train"}, "fit_on and n_components must be left out with as_frame=True"),
        ({"as_frame": True, "n_components": 5}, "Got fit_on='all' and n_components=5. Leave them out, or as_frame."),
    ],
)
def test_errors_say_what_to_do(tiny, settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        load_adult(0, data_home=tiny, **settings)


def test_specs_may_ask_for_it(tiny):
    entry = DATASETS["adult"]
    assert entry.make is adult_task
    assert entry.arguments({}) == {"fit_on": "all", "n_components": 0.99}  # where the files lie decides nothing
    assert list(data_problems(Data(name="adult", arguments={"fit_on": "train", "n_components": 53}))) == []
    (problem,) = data_problems(Data(name="adult", arguments={"as_frame": True}))
    assert "as_frame is not an argument of data set 'adult'" in problem
    a = entry.make(**entry.arguments({"data_home": str(tiny)}), random_state=4)
    assert torch.equal(a.train.x, load_adult(4, data_home=tiny).train.x)


def test_tables_print_their_sizes(tiny):
    tables = load_adult(0, data_home=tiny, as_frame=True)
    n = len(tables.y_train)
    assert repr(tables) == f"Tables('adult', {n} training rows, {150 - n} test rows, 12 columns)"
    assert repr(replace(tables, name="mine")).startswith("Tables('mine'")


def test_a_damaged_archive_is_told_as_any_damaged_file(tmp_path):
    (tmp_path / "adult.data.zip").write_bytes(b"PK no archive")
    with pytest.raises(ValueError, match=r"adult.data.zip must be a file of UCI Adult.*Take the file from UCI again"):
        read_adult(tmp_path / "adult.data.zip")
