"""Numbers far from 0, very small or very large, lose nothing on the way to models that compute in 32 bits."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.pipeline import Pipeline

from irmtv import InvariantClassifier
from irmtv.data.tables.steps import table_steps

N = 240
RNG = np.random.default_rng(0)
Y = RNG.integers(0, 2, N)
SITE = np.repeat(["north", "south"], N // 2)
SIZE = Y + 0.7 * RNG.normal(size=N)
FRAME = pd.DataFrame({"size": SIZE, "rooms": 0.3 * Y + RNG.normal(size=N)})


def predicted(values, hidden=(), for_trees=False):
    """Probabilities of a model that was trained on this column in place of `size`."""
    frame = FRAME.assign(size=values)
    steps = table_steps(for_trees=for_trees)
    model = InvariantClassifier(hidden=hidden, objective="erm", max_steps=60, random_state=0)
    pipeline = Pipeline([*steps, ("model", model)]).fit(frame, Y)
    return pipeline.predict_proba(frame)[:, 1]


LINEAR, NETWORK = predicted(SIZE), predicted(SIZE, hidden=(8,))


@settings(max_examples=12, deadline=None)
@given(st.floats(-1e9, 1e9), st.floats(-200, 200), st.booleans())
def test_a_constant_that_is_added_and_a_factor_change_no_prediction(constant, exponent, network):
    """Up to 1e9 times the spread, which leaves seven of float64's digits."""
    values = (SIZE + constant) * 10.0**exponent
    if np.abs(values).max() > 3e38:  # refused when a table is read
        values = values * 1e-200
    off = predicted(values, (8,)) - NETWORK if network else predicted(values) - LINEAR
    assert np.abs(off).max() < (1e-3 if network else 1e-4)


def test_the_smallest_numbers_count():
    assert np.abs(predicted(SIZE * 1e-310) - LINEAR).max() < 1e-4


@pytest.mark.parametrize("for_trees", [False, True])
def test_others_stay_as_they_are_and_gaps_are_the_middle(for_trees):
    frame = pd.DataFrame({"when": SIZE + 1.7e9, "size": SIZE, "same": 5e12})
    frame.loc[3, ["when", "size"]] = np.nan
    steps = Pipeline(table_steps(for_trees=for_trees))
    made = pd.DataFrame(np.asarray(steps.fit_transform(frame)), columns=steps.get_feature_names_out())
    rows = frame["size"].notna().to_numpy()
    np.testing.assert_allclose(made["size"][rows], frame["size"][rows], rtol=1e-6)
    np.testing.assert_allclose(made["same"], 5e12, rtol=1e-6)
    assert np.corrcoef(made["when"][rows], SIZE[rows])[0, 1] > 1 - 1e-9
    assert made["when"][rows].abs().max() < 10
    assert np.isnan(made["when"][3]) if for_trees else made["when"][3] == 0
    assert set(steps[-1].units_) == {"when"}
    again = np.asarray(steps.transform(frame.iloc[:5]))
    np.testing.assert_array_equal(again, made.iloc[:5].to_numpy(again.dtype))
