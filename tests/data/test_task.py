"""Input -> Task: what comes out, and what every refusal says."""

from __future__ import annotations

import datetime
import re
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from irmtv.core.losses import Binary, Custom, Multiclass, Squared
from irmtv.core.messages import check_positive, did_you_mean, shown
from irmtv.core.types import Rows
from irmtv.data import make_task
from irmtv.data.environments import encode_labels, pool

N = 40
X = np.random.default_rng(0).normal(size=(N, 3))
BINARY = np.arange(N) % 2
TARGET = np.linspace(-1, 1, N)
SITES = np.repeat(["a", "b"], N // 2)


def frame(**columns):
    return pd.DataFrame({"age": X[:, 0], "income": X[:, 1], "site": SITES, "year": np.arange(N), **columns})


def says(*parts):
    """A pattern that asks for these texts in this order."""
    return "(?s)" + ".*".join(re.escape(p) for p in parts)


def refuse(*parts):
    return pytest.raises(ValueError, match=says(*parts))


# Messages


def test_did_you_mean():
    known = ["penalty_weight", "hidden"]
    assert did_you_mean("penalty_wieght", known) == " Did you mean 'penalty_weight'?"
    assert did_you_mean("HIDDEN", known) == " Did you mean 'hidden'?"
    assert did_you_mean("banana", known) == ""
    assert did_you_mean("x", []) == ""
    assert did_you_mean(10, [1, "a", 100]) == " Did you mean 100?"


def test_shown():
    assert shown([1, "a"]) == "1, 'a'"
    assert shown("abcdefg", limit=2, form=str) == "a, b, … 5 more"


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", None])
def test_check_positive(value):
    with refuse("width must be a positive integer. Got", repr(value)):
        check_positive(value, "width")
    check_positive(np.int64(1), "width")


# x


@pytest.mark.parametrize(
    "convert",
    [
        np.asarray,
        lambda x: x.tolist(),
        torch.tensor,
        lambda x: torch.tensor(x, requires_grad=True),
        pd.DataFrame,
        lambda x: pd.DataFrame(x).astype("Float64"),
        np.asfortranarray,
        lambda x: x[::-1][::-1],
        lambda x: x.astype(">f8"),
        np.ma.MaskedArray,
    ],
)
def test_x_of_any_container(convert):
    task = make_task(convert(X), TARGET)
    assert task.train.x.dtype == torch.float32
    assert task.train.x.device.type == "cpu"
    assert not task.train.x.requires_grad
    torch.testing.assert_close(task.train.x, torch.tensor(X, dtype=torch.float32))
    assert (task.train.environment, task.train.aux, task.train.names) == (None, None, ())


def test_x_low_precision_and_mixed_columns():
    half = make_task(torch.tensor(X).to(torch.bfloat16), TARGET).train.x
    torch.testing.assert_close(half, torch.tensor(X).to(torch.bfloat16).float())
    mixed = pd.DataFrame({"flag": [True, False], "count": pd.array([1, 2], dtype="Int64"), "v": [0.5, 1.5]})
    assert make_task(mixed, [0.5, 1.5]).train.x.tolist() == [[1, 1, 0.5], [0, 2, 1.5]]


def test_x_series_name_card_dtype():
    series = np.ones((N, 2, 7))
    task = make_task(series, TARGET, dtype=torch.float64, name="waves", card={"licence": "none"})
    assert task.train.x.shape == (N, 2, 7)
    assert task.train.x.dtype == task.train.y.dtype == torch.float64
    assert task.name == "waves"
    assert task.card == {"licence": "none"}


def test_the_task_does_not_share_memory_with_the_input():
    x, y = X.astype(np.float32), TARGET.astype(np.float32)
    task = make_task(x, y, aux=y)
    x[:], y[:] = 0, 0
    assert task.train.x.abs().min() > 0
    assert task.train.y.abs().max() == 1
    assert task.train.aux.abs().max() == 1


def test_x_shapes():
    with refuse("x must be (rows, columns) or", "Got shape (40,)", "x.reshape(-1, 1)"):
        make_task(TARGET, TARGET)
    with refuse("x must be", "Got shape (1, 1, 1, 1)"):
        make_task(np.ones((1, 1, 1, 1)), [1.0])
    for empty in (np.empty((0, 3)), np.empty((3, 0)), pd.DataFrame(), []):
        with refuse("x must be", "not empty. Got shape"):
            make_task(empty, [])
    with refuse("x must have rows of one length", "Pad or drop"):
        make_task([[1, 2], [3]], [0, 1])
    with refuse("x must be", "not empty. Got shape (40, 0)"):
        make_task(frame()[["site"]], BINARY, environment="site")


def test_x_that_is_not_numbers():
    with refuse("x must have numeric or bool columns. Got 'site' (", "'when' (datetime", "Encode these columns"):
        make_task(frame(when=pd.Timestamp("2020")), BINARY)
    with refuse("x must have numeric", "'site' (category)"):
        make_task(frame(site=pd.Categorical(SITES)), BINARY)
    with refuse("x must be numbers. Got list of dtype <U", "numpy.asarray(x, dtype=float)"):
        make_task([["a"], ["b"]], [0, 1])
    with refuse("x must be numbers. Got list of dtype object"):
        make_task([[1.0], [None]], [0, 1])
    with refuse("x must be numbers", "complex"):
        make_task(X + 1j, BINARY)
    with refuse("x must have every column name once. Got 'a' 2 times"):
        make_task(pd.DataFrame(np.ones((2, 3)), columns=["a", "b", "a"]), [0, 1])


def test_x_sparse():
    with refuse("x must be dense. Got a sparse csr", "x.toarray()"):
        make_task(scipy.sparse.csr_matrix(X), BINARY)
    with refuse("test.x must be dense. Got a sparse Tensor", "test.x.to_dense()"):
        make_task(X, BINARY, test={"x": torch.tensor(X).to_sparse(), "y": BINARY})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_x_not_finite(bad):
    x = X.copy()
    x[4, 2] = x[7, 0] = bad
    kind = "NaN" if np.isnan(bad) else "infinity"
    expected = f"x must be finite. Input x contains {kind} in 2 of {N} rows: the first is {kind} in row 4, column 2; "
    with refuse(expected, "2 columns have some.", "Impute", "drop"):
        make_task(x, BINARY)
    with refuse("x must be finite", "row 4, column 'c'"):
        make_task(pd.DataFrame(x, columns=["a", "b", "c"]), BINARY)
    with refuse("test.x must be finite", "row 4, column 2"):
        make_task(X, BINARY, test={"x": x, "y": BINARY})
    with refuse("held_out.x must be finite", "row 4, column 2"):
        make_task(X, BINARY, held_out={"x": x, "y": BINARY})
    with refuse("x must be finite", "in 1 of", "row 4, channel 0, position 2"):
        make_task(x[:6].reshape(6, 1, 3), BINARY[:6])


def test_missing_without_nan():
    with refuse("x must be finite", "NaN in 1 of", "row 1, column 'count'"):
        make_task(pd.DataFrame({"count": pd.array([1, None], dtype="Int64")}), [0, 1])
    with refuse("x must be finite", "NaN in 1 of", "row 1, column 0"):
        make_task(np.ma.MaskedArray([[1], [2]], mask=[[False], [True]]), [0, 1])


def test_overflow():
    x = X.copy()
    x[5, 1] = 1e300
    with refuse("x must fit into torch.float32. Got 1 ", "row 5, column 1", "dtype=torch.float64"):
        make_task(x, BINARY)
    assert make_task(x, BINARY, dtype=torch.float64).train.x[5, 1] == 1e300
    with refuse("y must fit into torch.float32", "row 39."):
        make_task(X, np.r_[TARGET[:-1], 1e300])


def test_dtype():
    for wrong in (torch.int64, torch.float16, np.float32, "float32"):
        with refuse("dtype must be torch.float32 or torch.float64. Got", repr(wrong)):
            make_task(X, BINARY, dtype=wrong)


# y


@pytest.mark.parametrize(
    ("y", "kind", "n_outputs"),
    [
        (BINARY == 1, "binary", 1),
        (BINARY, "binary", 1),
        (BINARY.astype(float), "binary", 1),
        (BINARY.astype(np.uint8)[:, None], "binary", 1),
        (torch.tensor(BINARY), "binary", 1),
        (BINARY.tolist(), "binary", 1),
        (pd.Series(BINARY == 1, dtype="boolean"), "binary", 1),
        (pd.Series((BINARY == 1).tolist(), dtype=object, index=range(100, 140)), "binary", 1),
        (pd.Categorical(BINARY), "binary", 1),
        (np.arange(N) % 3, "multiclass", 3),
        (pd.DataFrame({"y": np.arange(N) % 3}), "multiclass", 3),
        (pd.Series(np.arange(N) % 3, dtype="Int64"), "multiclass", 3),
        (np.arange(N), "multiclass", N),
        (TARGET, "squared", 1),
        (TARGET[:, None], "squared", 1),
        (np.full(N, 3.5), "squared", 1),
        (np.arange(N).astype(float), "squared", 1),
        (np.arange(N) % 9 * 1.0, "squared", 1),
        (np.arange(N) % 3 + 1.0, "squared", 1),
        (np.arange(N) % 3 + 1, "squared", 1),
        (np.arange(N) * 1000, "squared", 1),
        (np.arange(N) - 20, "squared", 1),
        (np.c_[TARGET, TARGET], "squared", 2),
        (pd.DataFrame({"a": TARGET, "b": BINARY}), "squared", 2),
    ],
)
def test_auto_loss(y, kind, n_outputs):
    task = make_task(X, y)
    assert (task.loss.name, task.n_outputs) == (kind, n_outputs)
    assert task.train.y.dtype == (torch.int64 if kind == "multiclass" else torch.float32)
    expected = torch.tensor(np.asarray(y).astype(float)).squeeze(-1)
    torch.testing.assert_close(task.train.y.double(), expected, atol=1e-6, rtol=0)
    if kind == "squared":
        assert task.loss.n_targets == n_outputs


def test_auto_loss_warns_of_floats_that_look_like_classes():
    y = (np.arange(N) % 3).astype(float)
    with pytest.warns(UserWarning, match=r"(?s)whole numbers 0\.0, 1\.0, 2\.0, as floats.*loss='multiclass'") as caught:
        task = make_task(X, y)
    assert task.loss.name == "squared"
    assert len(caught) == 1 and caught[0].filename == __file__
    assert make_task(X, y, loss="squared").loss.name == "squared"
    assert make_task(X, y, loss="multiclass").n_outputs == 3


def test_auto_loss_takes_more_than_100_integers_for_numbers():
    x = np.ones((202, 1))
    assert make_task(x[:200], np.arange(200) % 100).loss.name == "multiclass"
    assert make_task(x, np.arange(202) % 101).loss.name == "squared"


def test_auto_loss_refuses_to_guess_two_integers():
    with refuse("y must be 0 and 1", "loss='auto' cannot tell", "Got only -1, 1.", "y = (y == 1)", "loss='squared'"):
        make_task(X, BINARY * 2 - 1)
    assert make_task(X, BINARY + 1, loss="squared").loss.name == "squared"


@pytest.mark.parametrize(
    ("y", "found", "advice"),
    [
        (BINARY * 2 - 1, "-1, 1", "y = (y == 1)"),
        (BINARY + 1, "1, 2", "y = (y == 2)"),
        (np.where(BINARY, "yes", "no"), "'no', 'yes'", "y = (y == 'yes')"),
        (pd.Series(np.where(BINARY, "yes", "no")), "'no', 'yes'", "y = (y == 'yes')"),
        (np.arange(N) % 3, "0, 1, 2", "numpy.unique(y, return_inverse=True) with loss='multiclass'"),
        (TARGET, "-1.0, ", "loss='squared' for numbers"),
        (np.arange(N), "0, 1, 2, 3, 4, … 35 more", "loss='multiclass'"),
    ],
)
def test_binary_labels(y, found, advice):
    with refuse("y must be 0 and 1 for loss 'binary'. Got the labels", found, advice):
        make_task(X, y, loss="binary")


def test_text_labels_with_auto_loss():
    with refuse("y must be 0 and 1", "'no', 'yes'", "y = (y == 'yes')"):
        make_task(X, np.where(BINARY, "yes", "no"))
    with refuse("y must be the integers 0..2 for loss 'multiclass'", "'a', 'b', 'c'", "numpy.unique"):
        make_task(X[:3], ["a", "b", "c"])


def test_multiclass_labels():
    assert make_task(X, BINARY, loss="multiclass").n_outputs == 2
    floats = make_task(X, (np.arange(N) % 4).astype(float), loss="multiclass")
    assert (floats.n_outputs, floats.train.y.dtype) == (4, torch.int64)
    for y in (np.arange(N) % 3 * 2, np.arange(N) % 3 - 1, np.arange(N) % 3 + 0.5):
        with refuse("y must be the integers 0..2 for loss 'multiclass'", "numpy.unique(y, return_inverse=True)."):
            make_task(X, y, loss="multiclass")
    with refuse("y must be ('rows',) for loss 'multiclass'. Got shape (40, 2)", "y.argmax(axis=1)"):
        make_task(X, np.eye(2)[BINARY], loss="multiclass")


def test_one_class_only():
    for y, loss in ((np.zeros(N, int), "auto"), (np.ones(N, bool), "auto"), (np.ones(N), "binary")):
        with refuse("y must have at least two classes for loss 'binary'. Got only", "in 40 rows"):
            make_task(X, y, loss=loss)
    with refuse("y must have at least two classes for loss 'multiclass'. Got only 0"):
        make_task(X, np.zeros(N), loss="multiclass")


def test_y_refusals():
    with refuse("y must have one entry per row of x: expected 40. Got 39."):
        make_task(X, TARGET[1:])
    with refuse("y must be (rows,) or (rows, targets). Got str of shape ()"):
        make_task(X, "income")
    with refuse("y must be (rows,) or", "(40, 0)"):
        make_task(X, np.empty((N, 0)))
    with refuse("y must be numbers. Got ndarray of dtype"):
        make_task(X, SITES, loss="squared")
    with refuse("y must be numbers"):
        make_task(X, SITES, loss=lambda f, y: f - y)
    with refuse("y must have numeric or bool columns. Got 'site'"):
        make_task(X, frame()[["age", "site"]])
    for missing in (np.nan, None, pd.NA):
        with refuse("y must be finite. Input y contains NaN in 1 of 3 rows", "row 1. Leave these rows out"):
            make_task(X[:3], pd.Series([True, missing, False], dtype=object))
    with refuse("y must be finite. Input y contains infinity in 1 of 40 rows", "row 39."):
        make_task(X, np.r_[TARGET[:-1], np.inf])
    with refuse("y must be finite", "in 40 of 40 rows", "row 0, column 1."):
        make_task(X, np.c_[TARGET, np.full(N, np.nan)])


def test_unknown_loss():
    with refuse("loss must be one of 'auto', 'binary'", "Got 'binnary'. Did you mean 'binary'?"):
        make_task(X, BINARY, loss="binnary")
    with refuse("loss must be one of", "Got 3."):
        make_task(X, BINARY, loss=3)


def test_own_loss():
    def absolute(f, y):
        return (f - y).abs()

    task = make_task(X, np.arange(N) % 3, loss=absolute)
    assert isinstance(task.loss, Custom)
    assert (task.loss.name, task.n_outputs, task.train.y.dtype) == ("absolute", 1, torch.float32)
    assert make_task(X, np.c_[TARGET, TARGET], loss=absolute).n_outputs == 2
    assert make_task(X, BINARY, loss=absolute, n_outputs=5).n_outputs == 5
    made = Custom(absolute, "mine")
    assert make_task(X, BINARY, loss=made).loss is made


def test_loss_objects_are_checked_like_their_names():
    assert isinstance(make_task(X, BINARY, loss=Binary()).loss, Binary)
    assert make_task(X, np.c_[TARGET, TARGET], loss=Squared()).loss.n_targets == 2
    with refuse("y must be 0 and 1 for loss 'binary'"):
        make_task(X, TARGET, loss=Binary())
    with refuse("y must be the integers"):
        make_task(X, TARGET, loss=Multiclass())


def test_n_outputs():
    assert make_task(X, np.arange(N) % 3, n_outputs=3).n_outputs == 3
    with refuse("n_outputs must be 1 for this y and loss 'binary'. Got 2"):
        make_task(X, BINARY, n_outputs=2)
    with refuse("n_outputs must be a positive integer. Got 0"):
        make_task(X, BINARY, loss=lambda f, y: f - y, n_outputs=0)


# Environments


def encode(values, min_rows=1, parameter="environment"):
    """Codes and names as tasks have them."""
    return pool(*encode_labels(values, parameter), min_rows)[:2]


@pytest.mark.parametrize(
    ("values", "codes", "names"),
    [
        (["b", "a", "b"], [1, 0, 1], ("a", "b")),
        (np.array(["b", "a", "b"]), [1, 0, 1], ("a", "b")),
        (np.array(["b", "a", "b"], dtype=object), [1, 0, 1], ("a", "b")),
        (pd.Series(["b", "a", "b"], index=[7, 8, 9]), [1, 0, 1], ("a", "b")),
        (pd.Categorical(["b", "a", "b"], categories=["c", "b", "a"]), [1, 0, 1], ("a", "b")),
        (pd.Index([30, 10, 20]), [2, 0, 1], (10, 20, 30)),
        (pd.DataFrame({"e": [3, 1, 1]}), [1, 0, 0], (1, 3)),
        (np.array([[3], [1], [1]]), [1, 0, 0], (1, 3)),
        (torch.tensor([3, 1, 1]), [1, 0, 0], (1, 3)),
        ([torch.tensor(3), np.int64(1), 1], [1, 0, 0], (1, 3)),
        (torch.tensor([0.5, -0.5]).to(torch.bfloat16), [1, 0], (-0.5, 0.5)),
        (pd.array([3, 1, 1], dtype="Int64"), [1, 0, 0], (1, 3)),
        ([True, False], [1, 0], (False, True)),
        ((2, 1), [1, 0], (1, 2)),
        (range(3), [0, 1, 2], (0, 1, 2)),
        ([("x", 2), ("x", 1), ("x", 2)], [1, 0, 1], (("x", 1), ("x", 2))),
        (pd.MultiIndex.from_tuples([("x", 2), ("x", 1)]), [1, 0], (("x", 1), ("x", 2))),
        (["z", 1, None.__class__, "z"], [1, 0, 2, 1], (1, "z", type(None))),
        ([(1, "a"), (1, 2)], [0, 1], ((1, "a"), (1, 2))),
        ([b"b", b"a"], [1, 0], (b"a", b"b")),
        ([datetime.date(2021, 1, 1), datetime.date(2020, 1, 1)], [1, 0], None),
        (pd.to_datetime(["2021", "2020"]), [1, 0], (pd.Timestamp("2020"), pd.Timestamp("2021"))),
        (np.array(["2021", "2020"], dtype="M8[ns]"), [1, 0], (pd.Timestamp("2020"), pd.Timestamp("2021"))),
        ([np.datetime64("2021", "ns"), datetime.datetime(2021, 1, 1)], [0, 0], (pd.Timestamp("2021"),)),
        (pd.cut(pd.Series([5, 1, 6]), [0, 3, 9]), [1, 0, 1], (pd.Interval(0, 3), pd.Interval(3, 9))),
    ],
)
def test_labels_as_codes_and_names(values, codes, names):
    got, got_names = encode(values)
    assert got.dtype == torch.int64
    assert got.tolist() == codes
    if names is not None:
        assert got_names == names
        assert [type(a) for a in got_names] == [type(b) for b in names]


LABELS = st.one_of(
    st.text(max_size=3),
    st.integers(-3, 3),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False, width=16),
    st.tuples(st.integers(0, 2), st.text(max_size=1)),
    st.binary(max_size=2),
    st.frozensets(st.integers(0, 3)),
    st.dates(),
    st.datetimes(min_value=datetime.datetime(1970, 1, 1), max_value=datetime.datetime(2200, 1, 1)),
    st.fractions(max_denominator=3),
    st.decimals(allow_nan=False, allow_infinity=False, places=1, min_value=-2, max_value=2),
)


@settings(max_examples=150, deadline=None)
@given(labels=st.lists(LABELS, min_size=1, max_size=30), random=st.randoms(use_true_random=False))
def test_any_labels_give_their_partition(labels, random):
    codes, names = encode(labels)
    assert [names[c] for c in codes.tolist()] == labels  # every row has its own label back
    assert len(set(names)) == len(names) == len(set(labels))

    order = list(range(len(labels)))
    random.shuffle(order)
    shuffled, shuffled_names = encode([labels[i] for i in order])
    assert set(shuffled_names) == set(names)
    assert [shuffled_names[c] for c in shuffled.tolist()] == [names[codes[i]] for i in order]

    renamed, _ = encode([("new", c) for c in codes.tolist()])  # relabelled: the same partition
    assert renamed.tolist() == codes.tolist()


@settings(max_examples=100, deadline=None)
@given(labels=st.lists(st.integers(0, 6), min_size=1, max_size=60), min_rows=st.integers(1, 12))
def test_pooling_only_merges(labels, min_rows):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        codes, names = encode(labels, min_rows=min_rows)
    sizes = torch.bincount(codes, minlength=len(names))
    assert len(sizes) == len(names)
    assert len(names) == 1 or sizes.min() >= min_rows
    home = dict(zip(labels, codes.tolist(), strict=True))
    assert [home[v] for v in labels] == codes.tolist()  # no label is split
    large = {v for v in labels if labels.count(v) >= min_rows}
    assert len(large) - 1 <= len(names) <= len(large) + 1
    assert sum(str(n).startswith("pooled(") for n in names) == (len(names) < len(set(labels)))


@pytest.mark.parametrize(
    ("bad", "shown_as"),
    [
        (None, "None"),
        (float("nan"), "nan"),
        (pd.NaT, "NaT"),
        (pd.NA, "<NA>"),
        (np.datetime64("NaT"), "NaT"),
        (float("inf"), "inf"),
        (np.float32("-inf"), "-inf"),
        (Decimal("Infinity"), "Decimal('Infinity')"),
        (Decimal("NaN"), "Decimal('NaN')"),
        (("a", float("nan")), "('a', nan)"),
    ],
)
def test_environment_missing(bad, shown_as):
    message = (
        "must be known for every row. Got 2 missing or infinite labels, the first is",
        shown_as,
        "at row 1.",
    )
    with refuse("environment", *message, "label of their own or drop"):
        encode(["a", bad, "b", bad])
    with refuse("test.environment", *message):
        make_task(X, BINARY, test={"x": X[:4], "y": BINARY[:4], "environment": [0, bad, 1, bad]})


@pytest.mark.parametrize(
    "values",
    [
        np.array([0, np.nan, np.inf]),
        torch.tensor([0, float("nan"), float("inf")]),
        pd.Series(["a", None, None]),
        pd.Categorical(["a", None, None]),
        pd.array([1, None, None], dtype="Int64"),
        pd.to_datetime(["2020", None, None]),
    ],
)
def test_environment_missing_in_arrays(values):
    with refuse("env must be known for every row. Got 2 missing", "at row 1."):
        encode(values, parameter="env")


def test_environment_refusals():
    with refuse("environment must have one entry per row of x: expected 40. Got 39."):
        make_task(X, BINARY, environment=SITES[1:])
    with refuse("environment must be one label per row. Got shape (40, 2)", "list(zip(a, b))"):
        make_task(X, BINARY, environment=X[:, :2])
    with refuse("environment must be one label per row. Got shape (0,)"):
        encode([])
    with refuse("environment must be one label per row. Got shape ()"):
        encode(torch.tensor(1))
    with refuse("environment must be hashable labels. Got unhashable type: 'list'", "Use tuples"):
        encode([[1], [2]])
    for wrong in ("site", b"site", {"a": 1}, {"a"}, 3):
        with refuse("environment must be labels, one per row. Got", repr(wrong)):
            encode(wrong)
    for wrong in (0, 1.5, True):
        with refuse("min_rows must be a positive integer. Got"):
            make_task(X, BINARY, min_rows=wrong)


def test_small_environments_are_pooled():
    labels = ["big"] * 20 + ["a"] * 6 + ["b"] * 5 + ["mid"] * 12
    message = says(
        "environment: environments with fewer than min_rows=10 rows ('a': 6, 'b': 5) are pooled into "
        "'pooled(a, b)': a mean slope over so few rows is noise. Environments left: 3. Use min_rows=1"
    )
    with pytest.warns(UserWarning, match=message) as record:
        task = make_task(np.ones((43, 1)), np.arange(43) % 2, environment=labels)
    assert record[0].filename == __file__  # points at the caller
    assert task.train.names == ("big", "mid", "pooled(a, b)")
    assert torch.bincount(task.train.environment).tolist() == [20, 12, 11]
    kept = make_task(np.ones((43, 1)), np.arange(43) % 2, environment=labels, min_rows=1)
    assert kept.train.names == ("a", "b", "big", "mid")


def test_a_pool_that_is_still_small_joins_the_smallest_other():
    labels = ["big"] * 20 + ["a"] * 2 + ["b"] * 3 + ["mid"] * 12
    message = says("'a': 2, 'b': 3) are pooled with the smallest other, 'mid' (12 rows) into 'pooled(mid, a, b)'")
    with pytest.warns(UserWarning, match=message) as record:
        codes, names = encode(labels, min_rows=10)
    assert record[0].filename == __file__
    assert names == ("big", "pooled(mid, a, b)")
    assert codes.tolist() == [0] * 20 + [1] * 17


def test_nothing_to_pool_with():
    assert encode(["a"] * 3, min_rows=10)[1] == ("a",)
    with pytest.warns(UserWarning, match="Environments left: 1"):
        codes, names = encode(["a", "b", "b"], min_rows=10)
    assert names == ("pooled(a, b)",)
    assert codes.tolist() == [0, 0, 0]


def test_long_pooled_names_are_cut():
    with pytest.warns(UserWarning, match="0: 1, 1: 1, 2: 1, 3: 1, 4: 1, … 15 more"):
        _, names = encode(range(20), min_rows=2)
    assert names == ("pooled(0, 1, 2, 3, 4, … 15 more)",)


def test_continuous_environment():
    looks = says("environment has 60 distinct values in 60 rows, which looks continuous", "aux=", "qcut")
    floats = np.linspace(0, 1, 60)
    for values in (floats, floats.tolist(), pd.date_range("2020", periods=60)):
        with pytest.warns(UserWarning, match=looks):
            encode(values)
    with pytest.warns(UserWarning, match="environment") as record:  # then pooling applies
        make_task(floats[:, None], floats, environment=floats)
    assert [str(w.message)[:27] for w in record] == [
        "environment has 60 distinct",
        "environment: environments w",
    ]
    encode(np.arange(60))  # numbers of sites, not a quantity
    encode(floats[:50])
    encode(np.tile(floats, 2))


# aux


def test_aux():
    assert make_task(X, BINARY, aux=TARGET).train.aux.shape == (N, 1)
    assert make_task(X, BINARY, aux=pd.Series(TARGET, name="t")).train.aux.shape == (N, 1)
    assert make_task(X, BINARY, aux=pd.DataFrame(X)).train.aux.shape == (N, 3)
    assert make_task(X, BINARY, aux=torch.tensor(X), dtype=torch.float64).train.aux.dtype == torch.float64


def test_aux_refusals():
    with refuse("aux must have one entry per row of x: expected 40. Got 39."):
        make_task(X, BINARY, aux=TARGET[1:])
    with refuse("aux must be finite", "in 1 of", "row 1."):
        make_task(X[:3], [0, 1, 1], aux=[0, np.nan, 1])
    with refuse("aux must be finite", "row 1, column 't'"):
        make_task(X[:3], [0, 1, 1], aux=pd.Series([0, np.nan, 1], name="t"))
    with refuse("aux must have numeric or bool columns. Got 'site'"):
        make_task(X, BINARY, aux=frame()["site"])
    with refuse("aux must be (rows,) or (rows, columns) and not empty. Got shape (40, 1, 3)"):
        make_task(X, BINARY, aux=X[:, None])
    with refuse("aux must be", "Got shape (0,)"):
        make_task(X, BINARY, aux=[])


# Columns of a DataFrame


def test_named_columns_are_taken_out_of_x():
    task = make_task(frame(), BINARY, environment="site", aux="year")
    assert task.train.x.shape == (N, 2)
    assert task.train.names == ("a", "b")
    assert task.train.aux.flatten().tolist() == list(range(N))
    both = make_task(frame(), BINARY, environment="site", aux=["year", "age"])
    assert (both.train.x.shape, both.train.aux.shape) == ((N, 1), (N, 2))
    torch.testing.assert_close(both.train.aux[:, 1], torch.tensor(X[:, 0]).double())
    years = frame(year=np.arange(N) // 20).drop(columns="site")
    shared = make_task(years, BINARY, environment="year", aux=("year",), min_rows=1)
    assert shared.train.names == (0, 1)
    assert shared.train.aux.unique().tolist() == [0, 1]


def test_named_columns_leave_the_callers_frame_alone():
    data = frame()
    make_task(data, BINARY, environment="site", test={"x": data, "y": BINARY})
    pd.testing.assert_frame_equal(data, frame())


def test_named_columns_that_are_not_there():
    with refuse("x must be a DataFrame with the column 'sites', which environment names", "Did you mean 'site'?"):
        make_task(frame(), BINARY, environment="sites")
    with refuse("x must be a DataFrame with the column 'yaer', which aux names", "Did you mean 'year'?"):
        make_task(frame(), BINARY, environment="site", aux=["age", "yaer"])
    with refuse("x must be a DataFrame with the column 'site'", "Got ndarray", "pass environment as values"):
        make_task(X, BINARY, environment="site")
    with refuse("x must be a DataFrame with the column 'a', which aux names. Got ndarray"):
        make_task(X, BINARY, aux=["a"])
    with refuse("test.x must be a DataFrame with the column 'place', which environment names"):
        make_task(frame(), BINARY, environment="site", test={"x": frame(), "y": BINARY, "environment": "place"})


def test_named_columns_in_test_and_held_out():
    data = frame()
    parts = {"x": data, "y": BINARY}
    task = make_task(data, BINARY, environment="site", aux=["year"], test=parts, held_out=parts)
    for rows in (task.test, task.held_out):
        assert rows.x.shape == (N, 2)
        assert rows.aux.shape == (N, 1)
        assert rows.names == ("a", "b")
        assert torch.equal(rows.environment, task.train.environment)

    bare = {"x": data[["age", "income"]], "y": BINARY}
    task = make_task(data, BINARY, environment="site", aux=["year"], test=bare, held_out={**bare, "environment": SITES})
    assert (task.test.environment, task.test.aux, task.held_out.aux) == (None, None, None)
    assert torch.equal(task.held_out.environment, task.train.environment)

    given = {"x": data, "y": BINARY, "environment": ["new"] * N, "aux": TARGET}  # values win over the columns
    task = make_task(data, BINARY, environment="site", aux="year", test=given)
    assert (task.test.x.shape, task.test.names) == ((N, 2), ("new",))
    assert task.test.aux.abs().max() == 1

    own = {"x": data.rename(columns={"site": "place"}), "y": BINARY, "environment": "place"}
    assert make_task(data, BINARY, environment="site", test=own).test.names == ("a", "b")

    some = {"x": data.drop(columns="age"), "y": BINARY}
    with refuse("test.x must be a DataFrame with the column 'age', which aux names"):
        make_task(data, BINARY, environment="site", aux=["year", "age"], test=some)


def test_columns_are_matched_by_name():
    data = frame().drop(columns="site")
    turned = data[["year", "income", "age"]]
    task = make_task(data, BINARY, test={"x": turned, "y": BINARY})
    assert torch.equal(task.test.x, task.train.x)
    other = data.rename(columns={"income": "wage"})
    with refuse("test.x must have the columns of training, ", "Got missing: 'income'; extra: 'wage'"):
        make_task(data, BINARY, test={"x": other, "y": BINARY})
    with refuse("held_out.x must have the columns of training, ", "Got missing: none; extra: 'more'"):
        make_task(data, BINARY, held_out={"x": data.assign(more=1), "y": BINARY})
    assert make_task(data, BINARY, test={"x": data.to_numpy(), "y": BINARY}).test.x.shape == (N, 3)
    assert make_task(X, BINARY, test={"x": data, "y": BINARY}).test.x.shape == (N, 3)


# Test and held-out rows


def test_other_rows():
    part = {"x": X[:5], "y": BINARY[:5], "environment": ["a"] * 4 + ["new"], "aux": TARGET[:5]}
    task = make_task(X, BINARY, environment=SITES, aux=TARGET, test=part)
    assert task.held_out is None
    assert task.test.names == ("a", "new")  # small, not pooled
    assert task.test.environment.tolist() == [0, 0, 0, 0, 1]
    assert task.test.aux.shape == (5, 1)
    assert task.test.y.tolist() == [0, 1, 0, 1, 0]
    optional = {"x": X, "y": np.zeros(N), "environment": None, "aux": None}  # one class is fine in a test set
    assert make_task(X, BINARY, test=optional).test.environment is None


def test_rows_are_taken_as_they_are():
    first = make_task(X, np.arange(N) % 3, environment=SITES, aux=TARGET)
    again = make_task(X, np.arange(N) % 3, environment=SITES, aux=TARGET, test=first.train, held_out=first.train)
    for rows in (again.test, again.held_out):
        assert rows.names == first.train.names
        for field in ("x", "y", "environment", "aux"):
            assert torch.equal(getattr(rows, field), getattr(first.train, field))
    codes = Rows(first.train.x, first.train.y, first.train.environment)
    assert make_task(X, np.arange(N) % 3, test=codes).test.names == (0, 1)


def test_parts_of_the_wrong_kind():
    with refuse("test must be Rows or a mapping", "Got tuple", "test={'x': ..., 'y': ...}"):
        make_task(X, BINARY, test=(X, BINARY))
    with refuse("held_out must be Rows", "Got the keys 'x'"):
        make_task(X, BINARY, held_out={"x": X})
    with refuse("test must be Rows", "'enviroment'", "Did you mean 'environment'?"):
        make_task(X, BINARY, test={"x": X, "y": BINARY, "enviroment": SITES})


def test_parts_that_differ_from_the_training_rows():
    def test(**parts):
        return make_task(X, BINARY, environment=SITES, aux=TARGET, test={"x": X, "y": BINARY, **parts})

    with refuse("test.x must have the columns of the training rows: expected (3,) per row. Got (2,)"):
        test(x=X[:, :2])
    with refuse("test.aux must have the columns of the training rows: expected (1,) per row. Got (3,)"):
        test(aux=X)
    with refuse("test.x must be", "test.x.reshape(-1, 1)"):
        test(x=TARGET)
    with refuse("test.y must have one entry per row of x: expected 40. Got 1"):
        test(y=[1])
    with refuse("test.environment must have one entry per row of x: expected 40. Got 1"):
        test(environment=["a"])
    with refuse("test.aux must have one entry per row of x: expected 40. Got 1"):
        test(aux=[1.0])
    with refuse("test.y must be 0 and 1", "-1, 1", "Recode the labels like those of the training y"):
        test(y=BINARY * 2 - 1)
    with refuse("test.y must be ('rows',) for loss 'binary'. Got shape (40, 2)"):
        test(y=np.eye(2)[BINARY])
    with refuse("held_out.y must be the integers 0..2", "Got the labels 3", "drop the rows of unknown classes"):
        make_task(X, np.arange(N) % 3, held_out={"x": X[:1], "y": [3]})
    with refuse("test.y must be ('rows', 2) for loss 'squared'. Got shape (40,)"):
        make_task(X, np.c_[TARGET, TARGET], test={"x": X, "y": TARGET})


def test_held_out_environments_have_the_training_codes():
    labels = ["big"] * 20 + ["a"] * 6 + ["b"] * 5 + ["mid"] * 9
    held = {"x": X[:5], "y": BINARY[:5], "environment": ["b", "mid", "pooled(a, b, mid)", "big", "a"]}
    with pytest.warns(UserWarning, match="pooled"):
        task = make_task(X, BINARY, environment=labels, held_out=held)
    assert task.held_out.names == task.train.names == ("big", "pooled(a, b, mid)")
    assert task.held_out.environment.tolist() == [1, 1, 1, 0, 1]


def test_held_out_environments_must_be_known():
    held = {"x": X[:2], "y": BINARY[:2], "environment": ["north", "south"]}
    names = np.repeat(["nort", "south"], N // 2)
    expected = "held_out.environment must be environments of the training rows"
    with refuse(expected, "('nort', 'south'). Got 'north'.", "Did you mean 'nort'?", "belong in test"):
        make_task(X, BINARY, environment=names, held_out=held)
    with refuse(expected, "(none: pass environment= for them too)"):
        make_task(X, BINARY, held_out=held)


def test_the_same_rows_in_another_order_are_refused():
    """By position they would be paired with other rows, without a word."""
    x = pd.DataFrame(X)
    y = pd.Series(BINARY)
    with pytest.raises(ValueError, match=r"y must have its rows in the order of x.*use y\.loc\[x\.index\]"):
        make_task(x, y[::-1])
    with pytest.raises(ValueError, match="environment must have its rows in the order of x"):
        make_task(x, y, environment=pd.Series(np.arange(N) % 2)[::-1])
    with pytest.raises(ValueError, match=r"test\.y must have its rows in the order of test\.x"):
        make_task(x, y, test={"x": x, "y": y[::-1]})
    other = make_task(x, y.set_axis(range(100, 100 + N)))  # another index, the same order: by position
    assert torch.equal(other.train.y, make_task(x, y).train.y)


# Weights


@pytest.mark.parametrize(
    "convert",
    [list, np.array, torch.tensor, pd.Series, lambda v: np.array(v)[:, None], lambda v: pd.DataFrame({"w": v})],
)
def test_weights_of_any_container_and_scale(convert):
    weight = [0, *range(1, N)]
    for scale in (1, 7):
        task = make_task(X, BINARY, sample_weight=convert([scale * w for w in weight]))
        assert task.train.weight.dtype == torch.float64
        assert task.train.weight[0] == 0
        assert task.train.weight[1:].mean().item() == pytest.approx(1)
        np.testing.assert_allclose(task.train.weight / task.train.weight[1], weight, rtol=1e-12)
    assert "weighted rows" in repr(task)


def test_weights_of_extreme_scales():
    for scale in (1e-300, 1e306):
        weight = make_task(X, BINARY, sample_weight=scale * np.arange(N)).train.weight
        np.testing.assert_allclose(weight / weight[1], np.arange(N), rtol=1e-9)


def test_equal_weights_are_none():
    assert make_task(X, BINARY, sample_weight=np.full(N, 3.7)).train.weight is None
    assert make_task(X, BINARY).train.weight is None


def test_weights_that_cannot_be():
    for weight, parts in [
        (np.ones(N - 1), ("sample_weight must have one entry per row", f"expected {N}. Got {N - 1}")),
        (np.r_[np.nan, np.ones(N - 1)], ("sample_weight must be finite", "the first is NaN in row 0")),
        (np.r_[np.ones(N - 1), -2], ("sample_weight must not be negative. Got -2 at row 39", "Use 0")),
        (np.zeros(N), ("sample_weight must be above 0", "zeros only")),
        (np.ones((N, 2)), ("sample_weight must be (rows,)", "Got shape (40, 2)")),
        (["a"] * N, ("sample_weight must be numbers",)),
    ]:
        with refuse(*parts):
            make_task(X, BINARY, sample_weight=weight)
    with refuse("sample_weight must have its rows in the order of x", "sample_weight.loc[x.index]"):
        make_task(pd.DataFrame(X), BINARY, sample_weight=pd.Series(np.arange(N), index=np.arange(N)[::-1]))


def test_held_out_rows_have_weights_and_test_rows_have_none():
    held = {"x": X[:6], "y": BINARY[:6], "sample_weight": [0, 1, 2, 3, 4, 5]}
    task = make_task(X, BINARY, sample_weight=np.arange(N), held_out=held)
    np.testing.assert_allclose(task.held_out.weight, np.arange(6) / 3)
    again = make_task(X, BINARY, held_out=task.held_out, test=task.held_out)
    torch.testing.assert_close(again.held_out.weight, task.held_out.weight)
    assert again.test.weight is None and again.train.weight is None
    for environment in (None, BINARY[:6]):
        some = make_task(X, BINARY, environment=BINARY, held_out={**held, "environment": environment})
        np.testing.assert_allclose(some.held_out.weight, np.arange(6) / 3)
    with refuse("test must be Rows or a mapping with the keys x, y and optionally environment, aux. Got the keys"):
        make_task(X, BINARY, test=held)
    with refuse("held_out.sample_weight must have one entry per row", "expected 6. Got 2"):
        make_task(X, BINARY, held_out={**held, "sample_weight": [1, 2]})
