"""Arrays that nobody expects, as X, y and environment of the CV estimators: they work, or are one clear error."""

from __future__ import annotations

import datetime
import warnings

import numpy as np
import pytest

from irmtv import InvariantBoostingRegressorCV, InvariantClassifier, InvariantClassifierCV, InvariantRegressorCV

N = 40
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2))
Y, E = np.tile([0, 1], N // 2), np.repeat([0, 1], N // 2)


class NoArray:
    def __array__(self, *_, **__):
        raise RuntimeError("there is no array of me")

    def __len__(self):
        return N


class NoNumber:
    def __float__(self):
        raise KeyError("no number")


class NoText:
    def __repr__(self):
        raise RuntimeError("there is no text of me")

    __str__ = __repr__


def holding(value):
    made = X.astype(object)
    made[3, 1] = value
    return made


def not_to_be_written():
    made = X.copy()
    made.setflags(write=False)
    return made


REFUSED = {
    "an object": lambda: holding(NoText()),
    "no number": lambda: holding(NoNumber()),
    "a list": lambda: holding([1]),
    "a text": lambda: holding("a"),
    "a date": lambda: holding(datetime.date(2020, 1, 1)),
    "a complex number": lambda: holding(1j),
    "an integer beyond floats": lambda: holding(10**400),
    "infinite": lambda: holding(np.inf),
    "one dimension": lambda: X[:, 0],
    "no dimension": lambda: np.array(1.0),
    "four dimensions": lambda: X[None, None],
    "no rows": lambda: X[:0],
    "no columns": lambda: X[:, :0],
    "fields": lambda: np.zeros(N, dtype=[("a", float), ("b", int)]),
    "dates": lambda: np.full((N, 2), np.datetime64("2020-01-01")),
    "texts": lambda: np.full((N, 2), "a"),
    "bytes of no type": lambda: np.zeros((N, 2), "V8"),
    "complex numbers": lambda: X + 1j,
    "no array": NoArray,
    "ragged": lambda: [[1.0]] * (N // 2) + [[1.0, 2.0]] * (N // 2),
    "a dict": lambda: {"a": 1},
    "a set": lambda: {1},
    "a text alone": lambda: "abc",
}
SAME = {
    "objects": lambda: X.astype(object),
    "not to be written": not_to_be_written,
    "strided": lambda: np.repeat(np.repeat(X, 2, 0), 3, 1)[::2, ::3],
    "by columns": lambda: np.asfortranarray(X),
    "other byte order": lambda: X.astype(X.dtype.newbyteorder()),
    "not aligned": lambda: np.frombuffer(b"x" + X.tobytes(), "u1")[1:].view("f8").reshape(N, 2),
    "a mask that hides nothing": lambda: np.ma.array(X),
    "a list": X.tolist,
}
SMALL = {"hidden": (), "max_steps": 3, "cv": 2, "random_state": 0}
CV = {
    "classifier": lambda: InvariantClassifierCV(**SMALL),
    "regressor": lambda: InvariantRegressorCV(**SMALL),
    "trees": lambda: InvariantBoostingRegressorCV(n_estimators=2, cv=2, n_jobs=1, random_state=0),
}


@pytest.fixture(scope="module", params=list(CV))
def fitted(request):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few rows
        return CV[request.param](), CV[request.param]().fit(X, Y, environment=E)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # some are read with one
@pytest.mark.parametrize("name", REFUSED)
def test_hostile_x(fitted, name):
    new, good = fitted
    for what in (lambda: new.fit(REFUSED[name](), Y, environment=E), lambda: good.predict(REFUSED[name]())):
        with pytest.raises((ValueError, TypeError)) as found:
            what()
        assert len(str(found.value)) > 15


@pytest.mark.slow
@pytest.mark.parametrize("name", SAME)
def test_odd_memory(fitted, name):
    np.testing.assert_array_equal(fitted[1].predict(SAME[name]()), fitted[1].predict(X))


@pytest.mark.parametrize(("value", "said"), [(NoNumber(), "X cannot be read: KeyError"), (10**400, "OverflowError")])
def test_the_name_of_what_cannot_be_read(value, said):
    with pytest.raises(ValueError, match=said):
        InvariantClassifier("erm", hidden=()).fit(holding(value), Y)


def test_y_and_environment():
    model = InvariantClassifier("irm-tv-l1", hidden=(), max_steps=3)
    with pytest.raises(ValueError, match=r"y must have a class for every row of X\. Got 0 rows"):
        model.fit(X, Y[:0], environment=E)
    with pytest.raises(ValueError, match="y cannot be read: RuntimeError: there is no array of me"):
        model.fit(X, NoArray(), environment=E)
    with pytest.raises(ValueError, match="environment"):
        model.fit(X, Y, environment=np.array([NoText() for _ in range(N)], dtype=object))
