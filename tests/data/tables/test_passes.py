"""What passes over pieces of a table learn is what the table in memory teaches."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.pipeline import Pipeline

from irmtv.data.scaling import Scaler
from irmtv.data.tables.columns import roles_of, split_columns, task_of
from irmtv.data.tables.errors import TableError
from irmtv.data.tables.passes import FirstPass
from irmtv.data.tables.steps import table_steps
from irmtv.data.tables.target import task_of_target

ROLES = {"target": "sold", "environment": ["site", "year"], "aux": ["when"]}


def raw(n=600, seed=0):
    """Columns of every kind, with gaps that some pieces have and others have not."""
    rng = np.random.default_rng(seed)
    late = np.arange(n) >= n // 2
    days = pd.date_range("2020-01-01", periods=n, freq="h")
    frame = pd.DataFrame(
        {
            "size": np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)),
            "far": 1e9 + rng.normal(size=n),
            "count": pd.Series(rng.integers(0, 5, n)),
            "half": rng.normal(size=n).astype(np.float32),
            "code": rng.integers(10, 14, n),
            "colour": pd.Series(rng.choice(["red", "green", "blue"], n), dtype="str"),
            "word": pd.Series([f"w{i}" for i in rng.integers(0, 60, n)], dtype="str"),
            "day": pd.Series(days).where(rng.random(n) > 0.1),
            "flag": pd.Series(rng.random(n) < 0.5, dtype=object).where(~late | (rng.random(n) < 0.9), None),
            "true": rng.random(n) < 0.5,
            "empty": np.nan,
            "took": pd.to_timedelta(rng.integers(0, 1000, n), unit="s"),
            "when": pd.Series(days.strftime("%Y-%m-%d"), dtype="str"),
            "site": pd.Series(rng.choice(["north", "south"], n), dtype="str").where(rng.random(n) > 0.05),
            "year": np.where(late & (rng.random(n) < 0.05), np.nan, rng.integers(2019, 2021, n)),
            "sold": pd.Series(rng.integers(0, 2, n)).astype(float).where(rng.random(n) > 0.02),
        }
    )
    frame.loc[: n // 3, "colour"] = frame.loc[: n // 3, "colour"].where(frame["colour"] != "red", None)
    return frame


def pieces(frame, sizes=(100, 1, 250)):
    """With the types that the pieces have where no value is missing in them."""
    for part in np.split(np.arange(len(frame)), np.cumsum(sizes)):
        piece = frame.iloc[part]
        for name in ("flag",):
            if not piece[name].isna().any():
                piece = piece.assign(**{name: piece[name].astype(bool)})
        for name in ("year", "sold"):
            if piece[name].dtype == np.float64 and (piece[name] % 1 == 0).all():
                piece = piece.assign(**{name: piece[name].astype(np.int64)})
        yield piece


def learn(frame, **options):
    first = FirstPass(roles_of(list(frame.columns), **ROLES, **options), options.get("categorical", ()))
    for piece in pieces(frame):
        first.add(piece)
    return first.learned()


@pytest.mark.parametrize("for_trees", [False, True])
def test_the_preprocessing_is_that_of_the_table_in_memory(for_trees):
    frame = raw()
    columns, learned = split_columns(frame, **ROLES, categorical=["code"]), learn(frame, categorical=["code"])
    whole = Pipeline(table_steps(["code"], for_trees)).fit(columns.features)
    passed = table_steps(["code"], for_trees)
    for _, step in passed:
        step.fit_summaries(learned.columns)
    passed = Pipeline(passed)
    assert passed[0].kinds_ == whole[0].kinds_
    assert passed.get_feature_names_out().tolist() == whole.get_feature_names_out().tolist()
    for name in ("column_to_kind_", "recipes_", "indicated_", "input_to_outputs_"):
        assert getattr(passed[1], name) == getattr(whole[1], name)
    assert list(passed[1].units_) == list(whole[1].units_) and "far" in whole[1].units_
    for name in ("fill_", "units_"):
        for column, values in getattr(whole[1], name).items():
            np.testing.assert_allclose(getattr(passed[1], name)[column], values, rtol=1e-9, atol=1e-12)
    read = [learned.read(piece).features for piece in pieces(frame)]
    made = [passed.transform(part) for part in read]
    if for_trees:
        pd.testing.assert_frame_equal(pd.concat(made), whole.transform(columns.features), rtol=1e-9, atol=1e-6)
    else:
        np.testing.assert_allclose(np.concatenate(made), whole.transform(columns.features), rtol=1e-6, atol=1e-6)


def test_parts_that_are_added_up_apart_are_joined():
    """Whatever the parts: counts and orders are those of one pass, moments up to rounding."""
    frame = raw()
    whole, parts = learn(frame, categorical=["code"]), list(pieces(frame))
    first = FirstPass(roles_of(list(frame.columns), **ROLES), ["code"])
    apart = [FirstPass(first.roles, ["code"]) for _ in range(2)]
    for piece in parts:
        first.add_rows(piece)
    for piece in parts[:2]:
        apart[0].add(piece)
    for piece in parts[2:]:
        apart[1].add(piece)
    for one in apart:
        first.features.join(one.features)
    joined = first.learned(first.rows())
    assert joined.notes == whole.notes and joined.missing == whole.missing
    assert joined.few_values == whole.few_values and list(joined.columns) == list(whole.columns)
    for name, column in whole.columns.items():
        own = joined.columns[name]
        assert type(own) is type(column) and own.missing == column.missing
        if column.kind == "number":
            values = [
                [getattr(one, f) for f in ("n", "mean", "low", "high", "distance", "deviation")]
                for one in (own, column)
            ]
            np.testing.assert_allclose(*values, rtol=1e-12, atol=1e-13)
        else:
            assert list(own.values) == list(column.values) and own.counts.tolist() == column.counts.tolist()


def test_units_of_all_rows_follow_from_their_columns_in_short():
    frame = raw().assign(far=lambda f: f["far"].where(f["size"] < 1), constant=3.0)
    learned = learn(frame, categorical=["code"])
    steps = Pipeline(table_steps(["code"]))
    for _, step in steps.steps:
        step.fit_summaries(learned.columns)
    rows = split_columns(frame, **ROLES).features
    whole, short = Scaler.of(steps.transform(rows).astype(np.float64)), steps[-1].scaler(learned.columns)
    np.testing.assert_allclose(short.mean, whole.mean, rtol=1e-6, atol=1e-7)  # they are rounded to 32 bits in rows
    np.testing.assert_allclose(short.scale, whole.scale, rtol=1e-6)
    assert np.isinf(short.scale).sum() == np.isinf(whole.scale).sum() >= 1
    columns = steps[0].transform(rows)
    given = {name: columns[name] for name in columns}
    pieces = [piece.numpy().copy() for piece in steps[-1].scaled(given, len(columns), whole, 64)]
    assert [len(piece) for piece in pieces[:-1]] == [64] * (len(pieces) - 1) and len(pieces) > 1
    assert np.array_equal(np.concatenate(pieces).astype(np.float32), whole.array(steps.transform(rows), np.float32))


def test_roles_notes_and_labels_are_those_of_the_table_in_memory():
    frame = raw()
    columns, learned = split_columns(frame, **ROLES), learn(frame)
    assert (learned.rows.n_rows, learned.rows.n_kept) == (len(frame), len(columns.kept))
    assert learned.notes == columns.notes and learned.missing == pytest.approx(columns.missing)
    assert list(learned.missing) == list(columns.missing)
    assert learned.rows.labels.iloc[learned.rows.places].tolist() == columns.environment.tolist()
    assert learned.rows.aux_is_date == columns.aux_is_date
    parts = [learned.read(piece) for piece in pieces(frame)]
    pd.testing.assert_frame_equal(pd.concat([part.aux for part in parts]), columns.aux)
    assert pd.concat([part.y for part in parts]).tolist() == columns.y.tolist()
    assert task_of_target(learned.rows.target) == task_of(columns.y)
    assert learned.rows.target.values.tolist() == columns.y.unique().tolist()
    counts = columns.y.value_counts()
    assert dict(zip(learned.rows.target.values, learned.rows.target.counts, strict=True)) == counts.to_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": np.inf}, r"feature columns must hold finite numbers.*'size' \(600 of 600 rows\)"),
        ({"sold": 1.0}, "target 'sold' has one value only, 1"),
        ({"sold": pd.Timestamp("2020-01-01")}, "target 'sold' is a date"),
        ({"site": None}, "no row has all of 'sold', 'site', 'year', 'when'"),
        ({"when": "2020-01-01"}, "aux must vary. 'when' has one value"),
        ({"when": "yesterday"}, "aux 'when' must be numbers or dates"),
    ],
)
def test_mistakes_are_those_of_a_table_in_memory(change, message):
    frame = raw()
    if "site" not in change:
        frame = frame.assign(site="north", year=2020, sold=frame["sold"].fillna(0))
    frame = frame.assign(**change)
    with pytest.raises(TableError, match=message):
        split_columns(frame, **ROLES)
    with pytest.raises(TableError, match=message):
        learn(frame)


def test_targets_of_text_and_of_many_numbers():
    frame = raw().assign(sold=lambda f: f["size"].fillna(0.0))
    learned = learn(frame)
    assert task_of_target(learned.rows.target)[0] == "regression"
    np.testing.assert_allclose(learned.rows.moments.mean, split_columns(frame, **ROLES).y.mean(), rtol=1e-12)
    frame["sold"] = pd.Series(np.where(np.arange(600) % 3, "yes", "no"), dtype="str")
    assert task_of_target(learn(frame).rows.target) == task_of(split_columns(frame, **ROLES).y)
    frame["sold"] = pd.Series([f"name {i}" for i in range(600)], dtype="str")
    with pytest.raises(TableError, match="too many for classes"):
        task_of_target(learn(frame).rows.target)


def test_text_with_too_many_values_is_left_out_with_a_note():
    frame = raw()
    first = FirstPass(roles_of(list(frame.columns), **ROLES), (), most_levels=50)
    for piece in pieces(frame):
        first.add(piece)
    learned = first.learned()
    assert "word" not in learned.columns and "day" not in learned.columns and "colour" in learned.columns
    assert "more than 50 different values" in learned.notes[-2] and "'word', 'day'" in learned.notes[-2]
    assert "word" in learned.roles.unused and "word" not in learned.read(frame).features
    few = FirstPass(roles_of(["word", "sold"], target="sold"), (), most_levels=5)
    few.add(frame[["word", "sold"]])
    with pytest.raises(TableError, match="all features are text or dates with more than 5 different values: 'word'"):
        few.learned()
