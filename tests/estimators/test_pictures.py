"""The per-environment table and the pictures, by what they show."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest

from estimators.rows import arrays, table
from irmtv.estimators import InvariantClassifier, InvariantRegressor

mpl.use("Agg")
FAST = {"max_steps": 30, "hidden": (), "random_state": 0}


@pytest.fixture(autouse=True)
def _close_figures():
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


def test_evaluate_is_the_metric_in_every_environment():
    frame, y = table()
    site = frame["site"].to_numpy()
    clf = InvariantClassifier(environment="site", aux="year", **FAST).fit(frame, y)
    right = clf.predict(frame) == y
    found = clf.evaluate(frame, y)
    assert found.names == ("a", "b", "c")
    np.testing.assert_allclose(found.by_environment[0], [right[site == e].mean() for e in "abc"])
    assert found.overall[0] == clf.score(frame, y) == right.mean()
    assert found.worst[0] == found.by_environment.min()
    np.testing.assert_array_equal(found.counts, [np.sum(site == e) for e in "abc"])
    other = frame.drop(columns="site").assign(site=np.where(frame["year"] < 2010, "then", "now"))
    assert clf.evaluate(other, y).names == ("now", "then")  # not those of training
    alone = clf.evaluate(frame.drop(columns="site"), y)
    assert (len(alone.names), alone.overall[0]) == (1, right.mean())
    loss = clf.evaluate(frame, y, metric="log_loss")
    p = clf.predict_proba(frame)[np.arange(len(y)), y]
    assert loss.overall[0] == pytest.approx(-np.log(p).mean())


def test_evaluate_of_string_labels_and_several_targets():
    X, y, site, _ = arrays()
    labels = np.array(["no", "yes"])[y]
    clf = InvariantClassifier(**FAST).fit(X, labels, environment=site)
    assert clf.evaluate(X, labels, environment=site).overall[0] == np.mean(clf.predict(X) == labels)
    targets = np.c_[X[:, 0], 1e3 * X[:, 1]]
    reg = InvariantRegressor(**FAST).fit(X, targets, environment=site)
    errors = ((reg.predict(X) - targets) ** 2).mean(1)
    found = reg.evaluate(X, targets, environment=site, n_bootstrap=200)
    np.testing.assert_allclose(found.by_environment[0], [errors[site == e].mean() for e in "abc"])
    low, high = found.intervals["by_environment"]
    assert (low[0] <= found.by_environment[0]).all() and (found.by_environment[0] <= high[0]).all()


def test_history_has_a_line_per_environment():
    X, y, site, _ = arrays()
    clf = InvariantClassifier(solver="adam", **{**FAST, "max_steps": 100}).fit(X, y, environment=site)
    assert list(clf.history_.columns) == ["step", "environment", "on", "rows", "risk", "slope", "accuracy"]
    assert clf.history_["step"].max() == 100
    last = clf.history_[clf.history_["step"] == 100]
    p = np.clip(clf.predict_proba(X)[np.arange(len(y)), y], 1e-12, 1)
    np.testing.assert_allclose(last["risk"], [-np.log(p)[site == e].mean() for e in "abc"], rtol=1e-4)
    np.testing.assert_allclose(last["accuracy"], clf.evaluate(X, y, environment=site).by_environment[0], rtol=1e-6)
    for quantity in ("risk", "slope", "accuracy"):
        ax = clf.plot_history(quantity=quantity)
        assert [t.get_text() for t in ax.get_legend().get_texts()] == ["a", "b", "c"]
        line = ax.get_lines()[0]
        np.testing.assert_allclose(line.get_ydata(), clf.history_.query("environment == 'a'")[quantity])
    assert ax.get_xlabel() == "step"


def test_of_newtons_method_the_history_is_erm_and_the_solution():
    X, y, site, _ = arrays()
    clf = InvariantClassifier(**FAST).fit(X, y, environment=site)
    erm = InvariantClassifier("erm", **FAST).fit(X, y, environment=site)
    for step, model in ((0, erm), (1, clf)):
        p = model.predict_proba(X)[np.arange(len(y)), y]
        found = clf.history_[clf.history_["step"] == step]
        np.testing.assert_allclose(found["risk"], [-np.log(p)[site == e].mean() for e in "abc"], rtol=1e-6)
    assert [list(line.get_xdata()) for line in clf.plot_history().get_lines()] == [[0, 1]] * 3


def test_of_many_environments_the_worst_stands_out():
    X, y, _, _ = arrays()
    reg = InvariantRegressor(min_rows=1, solver="adam", **FAST).fit(X, y, environment=np.arange(len(y)) % 12)
    ax = reg.plot_history()
    last = reg.history_[reg.history_["step"] == 30]
    worst = last["environment"].iloc[int(last["risk"].argmax())]
    texts = {t.get_text() for t in ax.get_legend().get_texts()}
    assert texts == {f"{worst} (worst at the end)", "11 others"}
    assert len(ax.get_lines()) == 12


def test_environments_are_bars_with_the_worst_marked():
    X, y, site, _ = arrays()
    clf = InvariantClassifier(**FAST).fit(X, y, environment=site)
    ax = clf.plot_environments(X, y, environment=site, n_bootstrap=100)
    found = clf.evaluate(X, y, environment=site)
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], 100 * found.by_environment[0])
    colours = [bar.get_facecolor() for bar in ax.patches]
    odd = [k for k, c in enumerate(colours) if colours.count(c) == 1]
    assert odd == [int(found.by_environment[0].argmin())]
    import matplotlib.pyplot as plt

    own = plt.figure().add_subplot()
    assert clf.plot_environments(X, y, environment=site, ax=own) is own


def test_features_are_ordered_by_their_effect():
    frame, y = table()
    clf = InvariantClassifier("erm", **FAST).fit(frame[["fickle", "stable"]], y)
    ax = clf.plot_features()
    names = [t.get_text() for t in ax.get_yticklabels()]
    size = np.abs(clf.coef_[0]) * frame[["fickle", "stable"]].std(ddof=0).to_numpy()
    assert names == [["fickle", "stable"][i] for i in np.argsort(-size)]
    np.testing.assert_allclose(np.abs([bar.get_width() for bar in ax.patches]), np.sort(size)[::-1], rtol=1e-6)
    assert len(clf.plot_features(n_features=1).patches) == 1
    three = np.array(["low", "middle", "high"])[np.digitize(frame["stable"], [95, 105])]
    several = InvariantClassifier("erm", **FAST).fit(frame[["fickle", "stable"]].to_numpy(), three).plot_features()
    assert [t.get_text() for t in several.get_legend().get_texts()] == ["high", "low", "middle"]
    assert {t.get_text() for t in several.get_yticklabels()} == {"x0", "x1"}
