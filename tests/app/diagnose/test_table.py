"""From a table or arrays to a diagnosis: every task, every way of saying where rows come from, and mistakes."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest

import irmtv.app.diagnose
from irmtv.app.diagnose import inferred_environments
from irmtv.app.diagnose import informative as informative_module
from irmtv.app.diagnose.rows import read_rows
from irmtv.datasets import make_control, make_simulation

# test_models.py has the others
diagnose = partial(irmtv.app.diagnose.diagnose, model="linear")
diagnose_table = partial(irmtv.app.diagnose.diagnose_table, model="linear")
TASKS = ("binary", "multiclass", "regression")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(inferred_environments, "STEPS", 100)
    monkeypatch.setattr(informative_module, "OF_AUX", 9)


def table(n=600, seed=0) -> pd.DataFrame:
    """Text, dates, missing values; the slope of `size` changes with the site, and this in the middle of the time."""
    rng = np.random.default_rng(seed)
    later = np.arange(n) >= n // 2
    frame = pd.DataFrame({"size": rng.normal(size=n), "kind": rng.choice(["flat", "house", "farm"], n)})
    frame["built"] = 1900 + rng.integers(0, 100, n)
    score = np.where(later, -0.5, 2.0) * frame["size"] + (frame["kind"] == "farm") + 0.5 * rng.normal(size=n)
    frame["regression"] = 1000 * score
    frame["binary"] = np.where(score > 0.3, "sold", "kept")
    frame["multiclass"] = pd.cut(score, [-np.inf, -0.3, 0.9, np.inf], labels=["low", "mid", "high"]).astype(str)
    frame["site"] = np.where(later, "south", "north")
    frame["when"] = (pd.Timestamp("2014-01-01") + pd.to_timedelta(np.arange(n) * 730 // n, unit="D")).strftime(
        "%Y-%m-%d"
    )
    frame.loc[::10, "size"] = np.nan
    frame.loc[::17, "kind"] = None
    return frame


def columns_for(task):
    return table().drop(columns=[t for t in TASKS if t != task])


@pytest.mark.parametrize("task", TASKS)
def test_environments_aux_or_both(task, quick):
    frame = columns_for(task)
    both = diagnose_table(frame, task, ["site"], ["when"])
    assert both.task == task and both.environments == "given" and both.names == ("north", "south")
    assert [i.source for i in both.informative] == ["given", "found"] and both.informative[0].informative
    assert both.features.features[0].name == "size" and both.features.features[0].changes
    assert both.headline[-1].startswith("Invariance has something to work with")
    summary = both.summary
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summary["schema"] == 1 and summary["target"] == task and summary["environment"] == ["site"]

    given = diagnose_table(frame.drop(columns="when"), task, ["site"])
    assert given.found is None and [i.source for i in given.informative] == ["given"]

    found = diagnose_table(frame.drop(columns="site"), task, aux=["when"])
    assert found.environments == "found" and found.names == ("found 1", "found 2")
    assert found.found.is_date == (True,)
    assert any("2014-1" in b or "2015-0" in b for b in found.found.summary()["boundaries"])
    assert [i.source for i in found.informative] == ["found"]
    assert any("those that were found in aux" in note for note in found.notes)


def test_a_file_gives_what_its_frame_gives(tmp_path):
    frame = columns_for("binary").drop(columns="when")
    frame.to_csv(tmp_path / "data.csv", index=False)
    by_path = diagnose_table(tmp_path / "data.csv", "binary", "site").summary
    assert by_path["file"] == "data.csv" and by_path["rows_in_file"] == 600
    by_frame = diagnose_table(frame, "binary", ["site"]).summary
    for key in ("headline", "differ", "losses", "splits", "informative"):
        assert by_path[key] == by_frame[key]


def test_more_rows_than_asked_for_are_sampled_and_that_is_said():
    found = diagnose_table(columns_for("binary").drop(columns="when"), "binary", ["site"], max_rows=300)
    assert found.rows == 300 and found.losses.rows[0] + found.losses.rows[1] == 300
    assert "A random sample of 300 of the 600 rows was looked at." in found.notes
    assert found.summary["rows_in_file"] == 600


def test_the_headline_where_nothing_differs():
    rows = make_control(1000, "nothing", random_state=0).train
    found = diagnose(rows.x.numpy(), rows.y.numpy(), [rows.names[e] for e in rows.environment])
    assert found.headline[0].startswith("No shift that hurts is shown")
    assert found.headline[-1].startswith("Invariance has nothing to work with")
    assert not found.features.changing


def test_the_headline_of_noise_that_only_hurts():
    """One environment is harder for everyone: the loss differs, and there is nothing to be invariant to."""
    rows = make_control(3000, "outcome-noise", random_state=0).train
    found = diagnose(rows.x.numpy(), rows.y.numpy(), rows.environment.numpy())
    assert found.headline[0].startswith("There is a shift that hurts: in 1 ")
    assert found.headline[1] == "It comes mostly from a change in y given X."
    assert not found.features.changing


def test_the_headline_of_the_simulation():
    rows = make_simulation(3000, p_s=(0.999, 0.7), random_state=0).train
    frame = pd.DataFrame(rows.x.numpy(), columns=[f"v{j}" if j < 5 else f"s{j}" for j in range(15)])
    said = []
    found = diagnose(frame, rows.y.numpy(), rows.environment.numpy(), progress=lambda share, what: said.append(share))
    assert found.headline[0].startswith("There is a shift that hurts: in 1 ")
    assert any(f.name.startswith("s") for f in found.features.changing)
    assert not any(f.name.startswith("v") for f in found.features.changing)
    assert said == sorted(said) and said[0] == 0 and said[-1] == 1


def test_a_constant_aux_network_leaves_nothing_to_compare(monkeypatch):
    monkeypatch.setattr(inferred_environments, "FEWEST", 10_000)
    monkeypatch.setattr(inferred_environments, "STEPS", 5)
    monkeypatch.setattr(informative_module, "OF_AUX", 3)
    rows = make_control(200, "nothing", random_state=0).train
    found = diagnose(rows.x.numpy(), rows.y.numpy(), aux=rows.aux.numpy())
    assert found.environments == "none" and found.differ is None and found.splits is None
    assert found.headline[0].startswith("No environments to compare")
    assert "finds no division" in found.found.sentence


def test_small_environments_count_as_one():
    frame = columns_for("binary").drop(columns="when")
    frame.loc[:9, "site"] = "east"
    frame.loc[10:34, "site"] = "west"
    found = diagnose_table(frame, "binary", ["site"])
    assert found.names == ("north", "south", "others")
    note = "2 environments with fewer than 30 rows each count as one, 'others' ('east': 10, 'west': 25)."
    assert note in found.notes


def small_rows(sizes):
    labels = np.repeat([f"s{k:02d}" for k in range(len(sizes))], sizes)
    x = np.random.default_rng(0).normal(size=(len(labels), 2))
    return labels, read_rows(
        x, x[:, 0], "regression", features=["a", "b"], environment=labels, aux=np.arange(len(labels))
    )


def test_too_few_rows_for_an_environment_are_left_out():
    labels, rows = small_rows([60, 7, 80])
    assert rows.notes == ("7 rows were left out, since their environment has fewer than 30 rows ('s01': 7).",)
    assert rows.names == ("s00", "s02") and rows.sizes.tolist() == [60, 80]
    assert rows.aux[:, 0].tolist() == np.flatnonzero(labels != "s01").tolist() and len(rows) == 140
    np.testing.assert_allclose(rows.x.mean(0), 0, atol=1e-12)
    _, rows = small_rows([60, 7, 80, 1])
    assert "since their environments have, even together, fewer than 30 rows ('s01': 7, 's03': 1)" in rows.notes[0]
    assert small_rows([60, 30])[1].notes == ()


def test_the_smallest_of_many_environments_count_as_one():
    labels, rows = small_rows([40] * 35)
    assert rows.names == (*(f"s{k:02d}" for k in range(29)), "others") and len(rows) == len(labels)
    assert rows.sizes.tolist() == [40] * 29 + [240]
    assert rows.notes[0].startswith("the 6 smallest of 35 environments count as one, 'others'")


@pytest.mark.parametrize(
    ("change", "how", "message"),
    [
        ({}, {}, "give environment .* or aux .* Got neither"),
        ({}, {"environment": ["sit"]}, "Did you mean 'site'"),
        ({"site": "north"}, {"environment": ["site"]}, "at least two environments apart. All rows are in 'north'"),
        ({"site": range(600)}, {"environment": ["site"]}, "600 distinct values in 600 rows.*give it as aux"),
        ({"site": ["a"] * 599 + ["b"]}, {"environment": ["site"]}, "at least two environments with 30 rows or more"),
        ({"binary": ["x"] * 300 + ["y"] * 298 + ["z"] * 2}, {"environment": ["site"]}, "'z' has 2; leave its rows out"),
        ({}, {"environment": ["site"], "task": "regression"}, "regression needs numbers"),
        ({}, {"aux": ["kind"]}, "must be numbers or dates"),
    ],
)
def test_mistakes_say_what_to_do(change, how, message):
    frame = columns_for("binary").drop(columns="when").assign(**change)
    with pytest.raises(ValueError, match=message):
        diagnose_table(frame, "binary", **how)


def test_arrays_that_do_not_fit():
    x, y = np.random.default_rng(0).normal(size=(200, 2)), np.tile([0, 1], 100)
    with pytest.raises(ValueError, match="Got neither"):
        diagnose(x, y)
    with pytest.raises(ValueError, match=r"environment must have one entry per row of x: expected 200\. Got 3"):
        diagnose(x, y, [1, 2, 3])
    with pytest.raises(ValueError, match="at least 100 rows"):
        diagnose(x[:50], y[:50], y[:50])
    with pytest.raises(ValueError, match="every feature is constant"):
        diagnose(np.ones((200, 2)), y, y)
