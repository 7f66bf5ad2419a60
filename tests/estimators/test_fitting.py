"""What fit does: units, weights, warm starts, early stopping, own modules, interruptions, every objective."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression

from estimators.rows import arrays
from irmtv.datasets import make_simulation
from irmtv.engine.train import Progress
from irmtv.estimators import InvariantClassifier, InvariantRegressor
from irmtv.models.networks import fit as module
from irmtv.objectives import OBJECTIVES

FAST = {"max_steps": 30, "hidden": (), "random_state": 0}
EXACT = {"dtype": "float64", "max_steps": 1000, "learning_rate": 0.05, "l2": 0.0, "hidden": (), "random_state": 0}


def series(n: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two channels of eight moments; the first channel's mean says the class."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    x = rng.normal(size=(n, 2, 8))
    x[:, 0] += 2 * y[:, None]
    return x, y, np.arange(n) % 2


# ---- against scikit-learn ---------------------------------------------------------------------------------------


def test_coefficients_of_erm_are_those_of_logistic_regression_in_the_users_units():
    X, y, _, _ = arrays()
    weight = np.linspace(0, 3, len(y))
    ours = InvariantClassifier("erm", **EXACT).fit(X, y, sample_weight=weight)
    scale = X.std(0)  # scikit-learn's solver wants columns of one size
    theirs = LogisticRegression(C=1e10, tol=1e-10, max_iter=1000).fit(X / scale, y, sample_weight=weight)
    np.testing.assert_allclose(ours.coef_ * scale, theirs.coef_, rtol=1e-4)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-4)
    np.testing.assert_allclose(ours.decision_function(X), X @ ours.coef_[0] + ours.intercept_[0], rtol=1e-9)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X / scale), atol=1e-4)


def test_coefficients_of_erm_are_those_of_least_squares_for_several_targets():
    X, y, _, _ = arrays()
    targets = np.c_[1e5 + 40 * X[:, 0] + y, 1e3 * X[:, 1] - y]
    ours = InvariantRegressor("erm", **EXACT).fit(X, targets)
    theirs = LinearRegression().fit(X, targets)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-4)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-4)
    np.testing.assert_allclose(ours.predict(X), X @ ours.coef_.T + ours.intercept_, rtol=1e-9)
    one = InvariantRegressor("erm", **FAST).fit(X, targets[:, 0])
    assert (one.coef_.shape, np.ndim(one.intercept_), one.predict(X).shape) == ((2,), 0, (len(X),))
    column = InvariantRegressor("erm", **FAST).fit(X, targets[:, :1])
    assert (column.coef_.shape, column.predict(X).shape) == ((1, 2), (len(X), 1))
    np.testing.assert_array_equal(column.predict(X)[:, 0], one.predict(X))


# ---- units ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [(), (6,)])
@pytest.mark.parametrize("objective", ["irm-tv-l1", "minimax-tv-l1", "vrex"])
def test_units_of_x_do_not_matter(objective, hidden):
    X, y, site, year = arrays()
    given = {"aux": year} if OBJECTIVES[objective].needs == "aux" else {"environment": site}
    other = X * [1e7, 1e-6] + [-1e9, 1e-3]
    settings = {"hidden": hidden, "max_steps": 200, "penalty_weight": 100.0, "random_state": 0}
    one = InvariantClassifier(objective, **settings).fit(X, y, **given)
    two = InvariantClassifier(objective, **settings).fit(other, y, **given)
    np.testing.assert_allclose(two.predict_proba(other), one.predict_proba(X), rtol=1e-4)


def test_units_of_y_do_not_matter():
    X, y, site, _ = arrays()
    target = X[:, 0] + y
    settings = {"max_steps": 200, "penalty_weight": 100.0, "hidden": (6,), "random_state": 0}
    one = InvariantRegressor(**settings).fit(X, target, environment=site).predict(X)
    two = InvariantRegressor(**settings).fit(X, 1e6 - 1e4 * target, environment=site).predict(X)
    # the sign of y turns the last layer around, not the model; its random start has no such symmetry: scale alone
    three = InvariantRegressor(**settings).fit(X, 1e6 + 1e4 * target, environment=site).predict(X)
    np.testing.assert_allclose((three - 1e6) / 1e4, one, rtol=1e-4)
    assert np.corrcoef(two, one)[0, 1] < -0.9


# ---- weights ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["irm-tv-l1", "minimax-tv-l1"])
def test_a_weight_of_two_is_the_row_twice(objective):
    X, y, site, year = arrays(90)
    weight = np.arange(len(y)) % 3  # 0, 1 and 2
    rows = np.repeat(np.arange(len(y)), weight)
    settings = {**FAST, "dtype": "float64", "hidden": (3,), "min_rows": 1}
    which = {"aux": year} if objective == "minimax-tv-l1" else {"environment": site}
    weighted = InvariantClassifier(objective, **settings).fit(X, y, sample_weight=weight, **which)
    repeated = InvariantClassifier(objective, **settings).fit(
        X[rows], y[rows], **{k: v[rows] for k, v in which.items()}
    )
    np.testing.assert_allclose(weighted.decision_function(X), repeated.decision_function(X), rtol=1e-8)
    np.testing.assert_allclose(weighted.environment_weights_, repeated.environment_weights_, rtol=1e-8)


def test_class_weights_are_sample_weights():
    X, y, site, _ = arrays()
    of_class = InvariantClassifier(class_weight={0: 2.0, 1: 0.5}, **FAST).fit(
        X, y, environment=site, sample_weight=1 + y
    )
    by_hand = np.where(y == 1, 0.5, 2.0) * (1 + y)
    of_row = InvariantClassifier(**FAST).fit(X, y, environment=site, sample_weight=by_hand)
    np.testing.assert_allclose(of_class.decision_function(X), of_row.decision_function(X), rtol=1e-6)
    plain = InvariantClassifier(**FAST).fit(X, y, environment=site)
    assert not np.allclose(plain.decision_function(X), of_row.decision_function(X), rtol=1e-3)
    even, more = (
        InvariantClassifier("erm", class_weight=w, **{**FAST, "learning_rate": 0.1}).fit(X, y)
        for w in (None, {0: 1.0, 1: 5.0})
    )
    assert more.predict(X).sum() > 1.2 * even.predict(X).sum()


# ---- warm start -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [(), (4,)])
@pytest.mark.parametrize("objective", ["irm-tv-l1", "tiva"])
def test_a_warm_start_goes_on_from_the_same_function(objective, hidden):
    """Also where the new rows have other means and deviations: with almost no step the function stays."""
    X, y, site, year = arrays()
    target = 50 + 9 * X[:, 0] + y
    settings = {"hidden": hidden, "random_state": 0, "dtype": "float64", "warm_start": True}
    given = {"aux": year} if objective == "tiva" else {"environment": site}
    reads = {"aux": year} if objective == "tiva" else {}
    reg = InvariantRegressor(objective, max_steps=50, **settings).fit(X, target, **given)
    before = reg.predict(X, **reads)
    reg.set_params(max_steps=1, learning_rate=1e-12)
    moved = {"aux": 3 * year + 1} if objective == "tiva" else given
    reg.fit(X * [3, 1e2] + [7, 1], 1e3 * target - 5, **moved)
    np.testing.assert_allclose(reg.predict(X, **reads), before, rtol=1e-6)
    cold = InvariantRegressor(objective, max_steps=1, learning_rate=1e-12, hidden=hidden, random_state=0)
    assert not np.allclose(cold.fit(X, target, **given).predict(X, **reads), before, rtol=1e-2)


def test_two_warm_fits_of_a_module_keep_its_units():
    x, y, place = series()

    def net() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 1))

    clf = InvariantClassifier(module=net, max_steps=20, random_state=0, warm_start=True).fit(x, y, environment=place)
    before = clf.decision_function(x)
    clf.set_params(learning_rate=1e-9, max_steps=1).fit(10 * x + 3, y, environment=place)
    np.testing.assert_allclose(clf.decision_function(x), before, rtol=1e-4)


def test_warm_start_carries_on_training():
    X, y, _, _ = arrays()
    clf = InvariantClassifier("erm", warm_start=True, **FAST).fit(X, y)
    first = clf.history_["risk"].iloc[-1]
    clf.fit(X, y)
    assert clf.history_["risk"].iloc[0] == pytest.approx(first, rel=1e-5)
    assert clf.history_["risk"].iloc[-1] < first


# ---- early stopping ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "name"), [(True, "iid"), ("iid", "iid"), ("worst-env", "worst-env")])
def test_early_stopping_keeps_the_best_snapshot(rule, name):
    X, y, site, _ = arrays(120)
    clf = InvariantClassifier(
        "erm", hidden=(64,), learning_rate=0.05, max_steps=300, early_stopping=rule, random_state=0
    )
    clf.fit(X, y, environment=site)
    history = clf.history_
    assert set(history["on"]) == {"held-out"}
    assert history[history["step"] == 0]["rows"].sum() == 12
    by_step = history.groupby("step")
    if name == "iid":
        risk = by_step[["risk", "rows"]].apply(lambda part: np.average(part["risk"], weights=part["rows"]))
    else:
        risk = by_step["risk"].max()
    assert clf.n_iter_ == risk.idxmin() < 300
    assert clf.selected_ == {"rule": name, "step": clf.n_iter_, "objective": "erm"}


@pytest.mark.parametrize(("share", "held_out"), [(0.1, 12), (0.3, 36), (0.75, 90), (0.001, 1), (0.999, 119)])
def test_the_share_that_is_held_out(share, held_out):
    X, y, site, _ = arrays(120)
    clf = InvariantClassifier("erm", early_stopping=True, validation_fraction=share, **FAST)
    assert clf.fit(X, y).history_["rows"].iloc[0] == held_out
    if share == 0.3:
        by_site = clf.fit(X, y, environment=site).history_.head(3)["rows"]
        np.testing.assert_allclose(by_site, [0.3 * np.sum(site == e) for e in "abc"], atol=1)


# ---- modules ----------------------------------------------------------------------------------------------------


class Convolution(torch.nn.Module):
    """Two channels in, a mean over time; with batch norm and dropout, which have state and randomness."""

    def __init__(self, n_outputs: int = 1) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(2, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm1d(4)
        self.drop = torch.nn.Dropout(0.1)
        self.out = torch.nn.Linear(4, n_outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.drop(self.norm(self.conv(x)).relu()).mean(-1))


def three_classes() -> torch.nn.Module:
    return Convolution(3)


@pytest.mark.parametrize("factory", [Convolution, three_classes])
def test_own_modules_read_series(factory: Callable[[], torch.nn.Module]):
    import pickle

    x, y, place = series(90)
    labels = np.array(["no", "yes"])[y]
    if factory is three_classes:
        labels = np.where(np.arange(90) < 30, "maybe", labels)
        x[:30, 1] += 3
    clf = InvariantClassifier(module=factory, max_steps=150, learning_rate=0.02, penalty_weight=1.0, random_state=0)
    clf.fit(x, labels, environment=place)
    assert clf.score(x, labels) > 0.85
    assert clf.predict_proba(x).shape == (90, len(set(labels)))
    np.testing.assert_allclose(clf.predict_proba(x[:7]), clf.predict_proba(x)[:7], atol=1e-5)  # batch norm is at rest
    again = pickle.loads(pickle.dumps(clf))
    np.testing.assert_array_equal(again.predict_proba(x), clf.predict_proba(x))
    assert not hasattr(clf, "coef_")


# ---- the rest of the parameters ---------------------------------------------------------------------------------


def test_random_state():
    X, y, site, _ = arrays()
    settings = {"max_steps": 10, "hidden": (4,)}

    def outputs(random_state):
        clf = InvariantClassifier(random_state=random_state, **settings).fit(X, y, environment=site)
        return clf.decision_function(X)

    np.testing.assert_array_equal(outputs(3), outputs(np.int64(3)))
    np.testing.assert_array_equal(outputs(np.random.RandomState(3)), outputs(np.random.RandomState(3)))
    state = np.random.RandomState(3)
    assert not np.allclose(outputs(state), outputs(state))
    assert not np.allclose(outputs(None), outputs(None))


def test_fitting_leaves_torchs_and_numpys_random_numbers_alone():
    X, y, site, _ = arrays()
    torch.manual_seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    InvariantClassifier(max_steps=3, random_state=None).fit(X, y, environment=site)
    assert torch.equal(before[0], torch.get_rng_state())


def test_small_environments_are_pooled_with_a_warning():
    X, y, site, _ = arrays()
    site = np.where(np.arange(len(y)) < 3, "tiny", site)
    with pytest.warns(UserWarning, match="fewer than min_rows=10 rows"):
        pooled = InvariantClassifier(**FAST).fit(X, y, environment=site)
    assert len(pooled.environments_) == 3
    assert len(InvariantClassifier(min_rows=1, **FAST).fit(X, y, environment=site).environments_) == 4


def test_mini_batches():
    X, y, site, _ = arrays()
    whole = InvariantClassifier(solver="adam", **FAST).fit(X, y, environment=site)
    parts = InvariantClassifier(solver="adam", batch_size=32, **FAST).fit(X, y, environment=site)
    assert not np.allclose(whole.decision_function(X), parts.decision_function(X))
    assert parts.score(X, y) > 0.6


def test_measure_and_environment_weights():
    X, y, site, _ = arrays()
    for measure, expected in (("uniform", np.full(3, 1 / 3)), ((1, 1, 2), [0.25, 0.25, 0.5])):
        clf = InvariantClassifier(objective_params={"measure": measure}, **FAST).fit(X, y, environment=site)
        np.testing.assert_allclose(clf.environment_weights_, expected)
    robust = InvariantClassifier("groupdro", **FAST).fit(X, y, environment=site)
    assert robust.environment_weights_.sum() == pytest.approx(1)


def test_verbose_shows_a_bar(monkeypatch):
    from rich.console import Console

    out = io.StringIO()
    real = module.ProgressBar
    console = Console(file=out, force_terminal=True, width=100)
    monkeypatch.setattr(module, "ProgressBar", lambda title: real(title, console=console))
    X, y, site, _ = arrays()
    InvariantClassifier(verbose=1, **FAST).fit(X, y, environment=site)
    assert "InvariantClassifier, irm-tv-l1" in out.getvalue()


class _CtrlC(module.ProgressBar):
    """A progress bar during which somebody presses Ctrl-C."""

    def __call__(self, report: Progress) -> None:
        if report.step >= 20:
            raise KeyboardInterrupt


def test_ctrl_c_leaves_the_estimator_fitted_as_it_was(monkeypatch):
    X, y, site, _ = arrays()
    monkeypatch.setattr(module, "ProgressBar", _CtrlC)
    settings = {"hidden": (4,), "random_state": 0, "warmup": 10}
    with pytest.warns(UserWarning, match=r"interrupted at step 2\d: the estimator is fitted as it was then"):
        stopped = InvariantClassifier(verbose=1, max_steps=1000, **settings).fit(X, y, environment=site)
    assert 20 <= stopped.n_iter_ < 30
    assert stopped.selected_["step"] == stopped.n_iter_
    same = InvariantClassifier(max_steps=stopped.n_iter_, **settings).fit(X, y, environment=site)
    np.testing.assert_allclose(stopped.decision_function(X), same.decision_function(X), rtol=1e-5)
    assert stopped.history_["step"].max() <= stopped.n_iter_


# ---- every objective --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["auto", "adam"])
@pytest.mark.parametrize("objective", [*OBJECTIVES, "irm-tv-l1+vrex", "minimax-tv-l1+vrex"])
def test_every_objective_fits_every_task_that_it_is_for(objective, solver):
    X, y, site, year = arrays(60)
    method = OBJECTIVES[objective]
    given = {"environment": {"environment": site}, "aux": {"aux": year}, "nothing": {}}[method.needs]
    reads = {"aux": year} if method.reads_aux else {}
    three = np.array(["low", "middle", "high"])[np.digitize(X[:, 0], [95, 105])]
    settings = {"max_steps": 15, "hidden": (), "random_state": 0, "solver": solver}
    if objective == "hrm":  # its clusters take thousands of steps of their own
        settings["objective_params"] = {"cluster_steps": 10, "max_cluster_iterations": 2}
    for task, labels in (("binary", y), ("multiclass", three)):
        if task in method.tasks:
            clf = InvariantClassifier(objective, **settings).fit(X, labels, **given)
            assert set(clf.predict(X, **reads)) <= set(labels)
            np.testing.assert_allclose(clf.predict_proba(X, **reads).sum(1), 1)
            assert clf.objective_ == objective
            assert len(clf.environments_) == len(clf.environment_weights_)
            assert clf.environment_weights_.sum() == pytest.approx(1)
            by_adam = solver == "adam" and objective != "eills"  # which takes Newton's steps anyway
            if by_adam or clf.history_["step"].max() > 1:  # not every objective is for Newton's method
                assert clf.history_["step"].max() == clf.n_iter_ == 15
            else:
                assert list(clf.history_["step"].unique()) == [0, 1] and 1 <= clf.n_iter_ < 1000
    if "regression" in method.tasks:
        reg = InvariantRegressor(objective, **settings).fit(X, X @ [1, 1e3], **given)
        assert np.isfinite(reg.predict(X, **reads)).all()
        assert np.isfinite(reg.score(X, X @ [1, 1e3], **reads))


@pytest.mark.parametrize("weight", ["adaptive", "adaptive-exact", "learned", None, {"irm-tv-l1": 5.0, "vrex": 1.0}])
def test_penalty_weights_of_every_kind(weight):
    X, y, site, _ = arrays()
    objective = "irm-tv-l1+vrex" if isinstance(weight, dict) else "irm-tv-l1"
    clf = InvariantClassifier(objective, penalty_weight=weight, **FAST).fit(X, y, environment=site)
    assert clf.score(X, y) > 0.5


def test_none_takes_the_objectives_own_defaults():
    X, y, site, _ = arrays()
    own = InvariantClassifier("mm-rex", penalty_weight=None, warmup=None, **FAST).fit(X, y, environment=site)
    named = InvariantClassifier("mm-rex", penalty_weight=10.0, warmup=0.5, **FAST).fit(X, y, environment=site)
    np.testing.assert_array_equal(own.decision_function(X), named.decision_function(X))


def test_membership_of_new_rows():
    X, y, _, year = arrays()
    clf = InvariantClassifier("minimax-tv-l1", objective_params={"n_environments": 3}, **FAST).fit(X, y, aux=year)
    q = clf.membership(aux=year)
    assert q.shape == (len(y), 3)
    np.testing.assert_allclose(q.sum(1), 1)
    np.testing.assert_allclose(q.mean(0), clf.environment_weights_)
    np.testing.assert_allclose(clf.membership(aux=year[:5]), q[:5])
    tiva = InvariantClassifier("tiva", **FAST).fit(X, y, aux=year)
    both = tiva.membership(X, aux=year)
    assert not np.allclose(both, tiva.membership(X + 50, aux=year))
    np.testing.assert_allclose(both.mean(0), tiva.environment_weights_, rtol=1e-5)


def test_the_penalty_prefers_the_stable_features():
    """Five columns carry the label, ten follow it with a probability that differs between the environments."""
    task = make_simulation(2000, p_s=(0.999, 0.7), p_v=0.9, random_state=0)
    rows, test = task.train, task.test

    def share_and_worst(objective, **how):
        """Of the spurious columns in the coefficients; accuracy in the worst test environment."""
        clf = InvariantClassifier(objective, hidden=(), learning_rate=0.02, random_state=0, **how)
        clf.fit(rows.x.numpy(), rows.y.numpy(), environment=rows.environment)
        size = np.abs(clf.coef_[0] * clf.predictor_.x.scale)
        worst = clf.evaluate(test.x.numpy(), test.y.numpy(), environment=test.environment.numpy()).worst[0]
        return size[5:].sum() / size.sum(), float(worst)

    adam = {"solver": "adam", "max_steps": 400}
    assert share_and_worst("irm-tv-l1", **adam)[0] < 0.8 * share_and_worst("erm", **adam)[0]
    erm, scalar, vector = (
        share_and_worst("erm"), share_and_worst("irm-tv-l1"), share_and_worst("irm-tv-l1", classifier="vector"),
    )  # fmt: skip
    assert vector[0] < 0.05 < scalar[0] < erm[0]  # one slope for all columns leaves some of each in
    assert vector[1] > scalar[1] > erm[1] + 0.2


# ---- what training cannot know, and what it must not take for something else ------------------------------------


@pytest.mark.parametrize("hidden", [(), (4,)])
def test_a_column_that_is_constant_in_training_says_nothing(hidden):
    """Its weight has no gradient: a random start must not decide what new values of it do."""
    X, y, site, _ = arrays()
    with_constant = np.c_[X, np.full(len(X), 3.0)]
    clf = InvariantClassifier(**{**FAST, "hidden": hidden, "l2": 0}).fit(with_constant, y, environment=site)
    other = with_constant.copy()
    other[:, -1] = 13
    np.testing.assert_array_equal(clf.predict_proba(other), clf.predict_proba(with_constant))
    if hidden == ():
        assert clf.coef_[0, -1] == 0
        assert clf.plot_features().patches[-1].get_width() == 0


def test_a_warm_start_from_or_to_a_constant_column():
    X, y, site, _ = arrays()
    constant = np.c_[X[:, 0], np.full(len(X), 3.0)]
    settings = {"hidden": (4,), "dtype": "float64", "warm_start": True, "random_state": 0}
    for first, then in ((X, constant), (constant, X)):
        clf = InvariantClassifier(max_steps=30, **settings).fit(first, y, environment=site)
        before = clf.decision_function(then)
        clf.set_params(max_steps=1, learning_rate=1e-12).fit(then, y, environment=site)
        np.testing.assert_allclose(clf.decision_function(then), before, rtol=1e-6)


def test_sample_weight_is_not_taken_for_an_environment():
    X, y, _, _ = arrays()
    with pytest.raises(TypeError, match="positional"):
        InvariantClassifier("erm").fit(X, y, np.ones(len(X)))


def test_a_warm_up_without_end_is_told():
    X, y, site, _ = arrays()
    with pytest.warns(UserWarning, match="the penalty never acts"):
        InvariantClassifier(solver="adam", warmup=100, **FAST).fit(X, y, environment=site)
    plain = InvariantClassifier(**FAST).fit(X, y, environment=site)
    late = InvariantClassifier(warmup=100, **FAST).fit(X, y, environment=site)  # Newton's method has none: no warning
    np.testing.assert_array_equal(late.coef_, plain.coef_)


def test_a_warm_start_refuses_what_has_more_state_than_parameters():
    X, y, site, _ = arrays()

    def net() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.BatchNorm1d(X.shape[1]), torch.nn.Linear(X.shape[1], 1))

    clf = InvariantClassifier(module=net, max_steps=3, random_state=0, warm_start=True).fit(X, y, environment=site)
    with pytest.raises(ValueError, match="a module with state of its own"):
        clf.fit(X, y, environment=site)


def test_weights_of_rows_and_classes_are_checked_before_they_are_multiplied():
    X, y, _, _ = arrays()
    with pytest.raises(ValueError, match="sample_weight"):
        InvariantClassifier("erm", class_weight="balanced").fit(X, y, sample_weight=np.ones(3))
