"""Inferred environments: what each method finds, for training rows and new ones, and what the messages say."""

from __future__ import annotations

import copy
import doctest
import itertools
import pickle
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import torch
from scipy.special import expit, softmax
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import irmtv
from irmtv.core.losses import Binary
from irmtv.core.types import Rows, Task
from irmtv.datasets import make_control, make_simulation
from irmtv.estimators import InvariantClassifier, environment_inference
from irmtv.estimators.environment_inference import EnvironmentInference
from irmtv.estimators.strength import split_strength
from irmtv.models.inference import infer_environments
from older import STRICT

FAST = {"max_steps": 250, "learning_rate": 2e-2, "random_state": 0}


def simulation(n=1000, seed=0):
    rows = make_simulation(n, p_s=(0.999, 0.7), p_v=0.8, random_state=seed, n_test=40).train
    return rows.x.double().numpy(), rows.y.numpy().astype(int), rows.aux.double().numpy(), rows.environment.numpy()


@pytest.fixture(scope="module")
def data():
    return simulation()


@pytest.fixture(scope="module")
def minimax(data):
    X, y, time, _ = data
    return EnvironmentInference(**FAST).fit(X, y, aux=time)


@pytest.fixture(scope="module")
def eiil(data):
    X, y, *_ = data
    return EnvironmentInference("eiil", **FAST).fit(X, y)


@pytest.fixture(scope="module")
def clusters(data):
    X, y, time, _ = data
    return EnvironmentInference("clusters", **FAST).fit(X, y, aux=time)


# ---- what is found --------------------------------------------------------------------------------------------------


def test_minimax_finds_the_segments_of_time_in_their_order(data, minimax):
    _, _, _, truth = data
    assert adjusted_rand_score(truth, minimax.labels_) > 0.7
    assert np.mean(minimax.labels_ == truth) > 0.9  # not only up to their names: the early one is first
    assert list(minimax.environments_) == ["inferred 1", "inferred 2"]
    assert minimax.membership_.shape == (1000, 2)
    np.testing.assert_allclose(minimax.membership_.sum(1), 1)
    np.testing.assert_array_equal(minimax.membership_.argmax(1), minimax.labels_)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_numbering_does_not_depend_on_the_seed(data, minimax, seed):
    X, y, time, _ = data
    other = EnvironmentInference(**{**FAST, "random_state": seed}).fit_predict(X, y, aux=time)
    assert np.mean(other == minimax.labels_) > 0.95


def test_minimax_is_what_the_engine_infers(data, minimax):
    """The same labels as `infer_environments` gives for the standardised rows, whichever is called first."""
    X, y, time, _ = data
    z = (X - X.mean(0)) / X.std(0)
    task = Task(Rows(torch.as_tensor(z), torch.as_tensor(y).float(), aux=torch.as_tensor(time)), Binary())
    how = {"steps": 250, "learning_rate": 2e-2, "solver": "newton", "dtype": torch.float64}
    (made,) = infer_environments([task], [0], [task.train.aux], [0], **how)
    codes = made.train.environment.numpy()
    assert adjusted_rand_score(codes, minimax.labels_) == 1


def test_one_column_is_cut_where_the_environments_change():
    """Of a linear model by Newton's method: as many stretches as environments, in the order of time."""
    rows = make_simulation(600, p_s=(0.999, 0.8, 0.5), random_state=0, n_test=40).train
    found = EnvironmentInference(n_environments=3, n_shuffles=0, random_state=0).fit(rows.x, rows.y, aux=rows.aux)
    time = rows.aux.double().numpy()[:, 0]
    assert (np.bincount(found.labels_, minlength=3) > 100).all()
    assert (np.diff(found.labels_[np.argsort(time)]) >= 0).all() and (found.membership_.max(1) > 0.999).mean() > 0.99
    assert adjusted_rand_score(rows.environment, found.labels_) > 0.75
    other = EnvironmentInference(n_environments=3, n_shuffles=0, random_state=1).fit(rows.x, rows.y, aux=-7 * rows.aux)
    np.testing.assert_array_equal(2 - other.labels_, found.labels_)  # whatever the seed and the units of time
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*the most probable of no row")
        few = EnvironmentInference(n_environments=3, environment_hidden=2, **FAST)  # room for one cut: rho climbs
        assert len(set(few.fit(rows.x, rows.y, aux=rows.aux).labels_)) > 1


def test_two_reach_all_that_three_could():
    """(sum_e |m_e S_e|)^2 does not change where environments with slopes of one sign are merged."""
    rows = make_simulation(600, p_s=(0.999, 0.8, 0.5), random_state=0, n_test=40).train
    settings = {**FAST, "n_shuffles": 10, "hidden": (4,)}
    two = EnvironmentInference(**settings).fit(rows.x, rows.y, aux=rows.aux)
    with pytest.warns(UserWarning, match=r"'inferred 2' of 3 environments is the most probable.*use n_environments=2"):
        three = EnvironmentInference(n_environments=3, **settings).fit(rows.x, rows.y, aux=rows.aux)
    assert three.membership_.shape == (600, 3) and len(three.environments_) == 3
    assert three.strength_.penalty == pytest.approx(two.strength_.penalty, rel=0.05)
    assert adjusted_rand_score(two.labels_, three.labels_) > 0.8
    mean_time = three.membership_.T @ rows.aux.double().numpy()[:, 0] / three.membership_.sum(0)
    assert (np.diff(mean_time) > 0).all()  # in the order of time, the empty one too


def binary_slopes(model, X, y):
    f = X @ model.coef_[0] + model.intercept_[0]
    return (expit(f) - y) * f


def test_eiil_is_the_split_by_the_sign_of_the_slopes(data, eiil):
    X, y, _, _ = data
    slope = binary_slopes(eiil.reference_, X, y)
    np.testing.assert_array_equal(eiil.labels_, np.where(slope > 0, 0, 1))
    np.testing.assert_array_equal(eiil.membership_[:, 0], slope > 0)
    # for two classes: what the reference model gets wrong, and what it gets right
    np.testing.assert_array_equal(eiil.labels_ == 0, eiil.reference_.predict(X) != y)
    # no other split of a kind that one might try has a larger penalty
    s = slope / len(slope)
    reached = abs(s[slope > 0].sum()) + abs(s[slope <= 0].sum())
    for cut in np.quantile(slope, np.linspace(0.05, 0.95, 19)):
        assert abs(s[slope > cut].sum()) + abs(s[slope <= cut].sum()) <= reached + 1e-12
    assert eiil.strength_.penalty == pytest.approx(penalty(slope, eiil.labels_))
    assert eiil.strength_.penalty == pytest.approx(reached**2, rel=0.02)  # the mean slope of a minimiser is about 0


def test_the_reference_model_is_a_plain_one(data, eiil, minimax):
    """The same rows are wrong for scikit-learn's logistic regression, without regularisation."""
    X, y, _, _ = data
    plain = LogisticRegression(C=np.inf, max_iter=1000).fit(X, y)
    for found in (eiil, minimax):
        assert np.mean(found.reference_.predict(X) == plain.predict(X)) > 0.985


def test_eiil_for_several_classes_named_by_text():
    rng = np.random.default_rng(0)
    y = rng.choice(["a", "b", "c"], 300)
    X = np.stack([y == "a", y == "b", y == "c"], 1) + 0.8 * rng.normal(size=(300, 3))
    found = EnvironmentInference("eiil", **FAST).fit(X, y)
    assert found.task_ == "classification"
    f = X @ found.reference_.coef_.T + found.reference_.intercept_
    slope = ((softmax(f, axis=1) - (y[:, None] == ["a", "b", "c"])) * f).sum(1)
    np.testing.assert_array_equal(found.labels_, np.where(slope > 0, 0, 1))
    np.testing.assert_array_equal(found.predict(X[:50], y[:50]), found.labels_[:50])
    with pytest.raises(ValueError, match=r"y must hold classes of the training rows, .*'a'.*Got .*'z'"):
        found.predict(X[:2], ["a", "z"])


@pytest.mark.parametrize("several", [False, True])
def test_eiil_for_regression(several):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3)) * [1, 20, 300]
    y = 5 * X[:, 0] + 100 + rng.normal(size=300)
    y = np.c_[y, -X[:, 1] + 5 * rng.normal(size=300)] if several else y
    found = EnvironmentInference("eiil", **FAST).fit(X, y)
    assert found.task_ == "regression"
    scaled = (y - y.mean(0)) / y.std(0)
    f = (found.reference_.predict(X) - y.mean(0)) / y.std(0)
    slope = (f - scaled) * f
    slope = slope.sum(1) if several else slope
    np.testing.assert_array_equal(found.labels_, np.where(slope > 0, 0, 1))
    # rescaling x or y changes nothing
    again = EnvironmentInference("eiil", **FAST).fit(X * 7 - 3, 1000 * y + 5)
    assert np.mean(again.labels_ == found.labels_) > 0.99
    with pytest.raises(ValueError, match=r"y must have the targets of fit, .*Select the same"):
        found.predict(X, np.c_[y, y])


@pytest.mark.parametrize(
    ("y", "task"),
    [
        (np.arange(60) % 2, "classification"),
        (np.arange(60) % 2 == 1, "classification"),
        (np.arange(60) % 5 * 1.0, "classification"),
        (np.arange(60), "regression"),
        (np.arange(60) / 7, "regression"),
        ([f"class {i % 25}" for i in range(60)], "classification"),
        (np.arange(120).reshape(60, 2) % 4, "regression"),
    ],
)
def test_what_auto_takes_y_for(y, task):
    X = np.random.default_rng(0).normal(size=(60, 2))
    found = EnvironmentInference("clusters", max_steps=2, random_state=0).fit(X, y)
    assert found.task_ == task
    assert type(found.reference_).__name__ == {"classification": "InvariantClassifier"}.get(task, "InvariantRegressor")


def test_task_says_what_integers_are():
    X, y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 3
    assert EnvironmentInference("eiil", task="regression", max_steps=2, random_state=0).fit(X, y).task_ == "regression"


# ---- clusters -------------------------------------------------------------------------------------------------------


def groups(n=90, seed=0):
    rng = np.random.default_rng(seed)
    code = np.repeat([2, 0, 1], n // 3)
    return rng.normal(size=(n, 2)), code, np.c_[50 * code, 1e-3 * (code == 1)] + rng.normal(size=(n, 2)) * [1, 1e-4]


def test_clusters_are_those_of_kmeans_on_standardised_aux():
    X, code, aux = groups()
    found = EnvironmentInference("clusters", n_environments=3, random_state=0).fit(X, aux=aux)
    assert found.divided_by_ == "aux" and found.strength_ is None and found.reference_ is None and found.task_ is None
    np.testing.assert_array_equal(found.labels_, code)  # in the order of the first column
    z = (aux - aux.mean(0)) / aux.std(0)
    assert adjusted_rand_score(KMeans(3, n_init=10, random_state=1).fit_predict(z), found.labels_) == 1
    np.testing.assert_array_equal(found.predict(None, aux=aux[::-1]), code[::-1])


def test_soft_clusters_are_a_mixture_of_round_normals():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2)) + 2 * (np.arange(200) % 2)[:, None]
    found = EnvironmentInference("clusters", random_state=0).fit(X)
    assert found.divided_by_ == "features"
    z = (X - X.mean(0)) / X.std(0)
    centres = np.stack([z[found.labels_ == e].mean(0) for e in (0, 1)])
    variance = np.mean([(z[i] - centres[e]) ** 2 for i, e in enumerate(found.labels_)])
    mixture = GaussianMixture(2, covariance_type="spherical")
    mixture.weights_, mixture.means_ = np.full(2, 0.5), centres
    mixture.covariances_ = np.full(2, variance)
    mixture.precisions_cholesky_ = 1 / np.sqrt(mixture.covariances_)
    np.testing.assert_allclose(found.membership_, mixture.predict_proba(z), atol=1e-3)
    assert 0.01 < found.membership_.min(1).max() < 0.5


def test_clusters_without_any_width_stay_finite():
    X = np.repeat([[0.0], [1.0]], 20, axis=0)
    found = EnvironmentInference("clusters", random_state=0).fit(X)
    np.testing.assert_array_equal(found.membership_, np.repeat([[1.0, 0.0], [0.0, 1.0]], 20, axis=0))


def test_what_clusters_are_made_of(data, clusters):
    X, y, time, truth = data
    assert clusters.divided_by_ == "aux" and np.mean(clusters.labels_ == truth) > 0.95
    found = EnvironmentInference("clusters", cluster_on="features", **FAST).fit(X, y, aux=time)
    assert found.divided_by_ == "features"
    np.testing.assert_array_equal(found.predict(X), found.labels_)
    assert found.strength_.p_value is not None and clusters.strength_.p_value == 1 / 101


def test_residuals_of_classes_are_clustered_by_their_size_and_need_y(data):
    X, y, _, _ = data
    found = EnvironmentInference("clusters", cluster_on="residuals", **FAST).fit(X, y)
    f = X @ found.reference_.coef_[0] + found.reference_.intercept_[0]
    size = abs(expit(f) - y)
    first, second = size[found.labels_ == 0], size[found.labels_ == 1]
    assert first.max() < second.min()  # a cut: the easy rows, then the hard ones
    assert (first.max() + second.min()) / 2 == pytest.approx((first.mean() + second.mean()) / 2, abs=0.02)  # k-means'
    assert abs(np.corrcoef(y, found.labels_)[0, 1]) < 0.1  # and not the classes again
    np.testing.assert_array_equal(found.predict(X, y), found.labels_)
    assert found.strength_.p_value is None
    with pytest.raises(ValueError, match=r"y must be given: .*cluster_on='residuals'.* by the residuals"):
        found.predict(X)
    with pytest.raises(ValueError, match="requires y to be passed"):
        EnvironmentInference("clusters", cluster_on="residuals").fit(X)


def test_residuals_of_regression_keep_their_sign():
    rng = np.random.default_rng(0)
    X, group = rng.normal(size=(300, 2)), rng.integers(0, 2, 300)
    y = X[:, 0] + 4 * group + 0.3 * rng.normal(size=300)  # two groups, one offset each: no column shows them
    found = EnvironmentInference("clusters", cluster_on="residuals", **FAST).fit(X, y)
    assert adjusted_rand_score(group, found.labels_) > 0.95
    assert np.mean(found.labels_ == 1 - group) > 0.95  # the residual f - y of the raised group is the smaller


# ---- strength -------------------------------------------------------------------------------------------------------


def penalty(slope, labels):
    slope = slope - slope.mean()
    return sum(np.mean(labels == e) * abs(slope[labels == e].mean()) for e in np.unique(labels)) ** 2


def test_strength_against_all_permutations():
    rng = np.random.default_rng(0)
    slope, labels = rng.normal(size=7), np.array([0, 0, 0, 1, 1, 2, 2])
    every = np.array([penalty(slope, labels[list(p)]) for p in itertools.permutations(range(7))])
    for chosen in (labels, labels[np.argsort(np.argsort(slope))]):
        found = split_strength(slope, chosen, 4000, 0)
        assert found.penalty == pytest.approx(penalty(slope, chosen))
        assert found.shuffled == pytest.approx(every.mean(), rel=0.05)
        assert found.p_value == pytest.approx(np.mean(every >= found.penalty - 1e-12), abs=0.03)
        assert found.ratio == found.penalty / found.shuffled
    assert split_strength(slope, labels, 10, 0, honest=False).p_value is None


@pytest.mark.parametrize("offset", [0.0, -5.0, 100.0])
def test_strength_is_about_differences_alone(offset):
    """Slopes of one sign: sum_e m_e |S_e| would be |mean slope| for every split."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)
    slope = 0.5 * labels + 0.3 * rng.normal(size=400)
    there = split_strength(slope + offset, labels, 50, 0)
    assert there.ratio > 50 and there.p_value == 1 / 51
    m, gap = labels.mean(), slope[labels == 1].mean() - slope[labels == 0].mean()
    assert there.penalty == pytest.approx((2 * m * (1 - m) * gap) ** 2, rel=1e-6)  # two environments, in closed form
    nothing = split_strength(slope + offset, rng.permutation(labels), 50, 0)
    assert nothing.ratio < 5 and nothing.p_value > 0.02


@pytest.mark.parametrize(("settings", "one_sign"), [({"l2": 0.3}, True), ({"max_steps": 40}, False)])
def test_a_shrunk_or_unfinished_reference_still_shows_the_environments(data, settings, one_sign):
    X, y, time, _ = data
    found = EnvironmentInference("clusters", **{**FAST, **settings}).fit(X, y, aux=time)
    slope = binary_slopes(found.reference_, X, y)
    means = [slope[found.labels_ == e].mean() for e in (0, 1)]
    assert (max(means) < 0) == one_sign
    assert found.strength_.ratio > 30 and found.strength_.p_value == 1 / 101


def test_strength_in_parts_is_the_same(monkeypatch):
    rng = np.random.default_rng(1)
    slope, labels = rng.normal(size=50), rng.integers(0, 3, 50)
    whole = split_strength(slope, labels, 20, 5)
    monkeypatch.setattr("irmtv.estimators.strength.AT_ONCE", 150)
    assert split_strength(slope, labels, 20, 5) == whole


def test_strength_tells_something_from_nothing_on_held_out_rows():
    X, y, time, _ = simulation(2000)
    fit, held = np.arange(2000) % 2 == 0, np.arange(2000) % 2 == 1
    found = EnvironmentInference(**FAST).fit(X[fit], y[fit], aux=time[fit])
    slope = binary_slopes(found.reference_, X[fit], y[fit])
    assert found.strength_.penalty == pytest.approx(penalty(slope, found.labels_))
    assert found.strength_.p_value is None  # found on these very rows
    there = found.strength(X[held], y[held], aux=time[held])
    slope = binary_slopes(found.reference_, X[held], y[held])
    assert there.penalty == pytest.approx(penalty(slope, found.predict(X[held], aux=time[held])))
    assert there.ratio > 10 and there.p_value == 1 / 101

    rows = make_control(2000, random_state=0, n_test=40).train
    X, y, time = rows.x.numpy(), rows.y.numpy(), rows.aux.numpy()
    found = EnvironmentInference(**FAST).fit(X[fit], y[fit], aux=time[fit])
    nothing = found.strength(X[held], y[held], aux=time[held])
    assert nothing.ratio < 2 and nothing.p_value > 0.05


# ---- new rows, other forms of data ----------------------------------------------------------------------------------


def test_training_rows_are_predicted_as_their_labels(data, minimax, eiil):
    X, y, time, _ = data
    np.testing.assert_array_equal(minimax.predict(X, aux=time), minimax.labels_)
    np.testing.assert_array_equal(minimax.predict(None, aux=time[:, 0].tolist()), minimax.labels_)
    np.testing.assert_allclose(minimax.predict_proba(X, aux=time), minimax.membership_)
    np.testing.assert_array_equal(eiil.predict(X, y), eiil.labels_)
    np.testing.assert_array_equal(eiil.predict_proba(X, y), eiil.membership_)
    flipped = eiil.predict(X, 1 - y)
    np.testing.assert_array_equal(flipped, 1 - eiil.labels_)  # what was wrong is right


@pytest.mark.parametrize("method", ["minimax", "eiil", "clusters"])
def test_parameters_set_after_fit_are_for_the_next_fit(data, method, request):
    X, y, time, _ = data
    found = copy.deepcopy(request.getfixturevalue(method))
    for other in {"minimax", "eiil", "clusters"} - {method}:
        found.set_params(method=other, aux="time", cluster_on="features", n_environments=5)
        assert found.method_ == method
        np.testing.assert_array_equal(found.predict(X, y, aux=time), found.labels_)
        assert found.strength(X, y, aux=time).penalty == pytest.approx(found.strength_.penalty)
        missing = {"eiil": {"y": None, "aux": time}}.get(method, {"y": y, "aux": None})
        with pytest.raises(ValueError, match=rf"must be given: EnvironmentInference\(method='{method}'"):
            found.predict(X, **missing)


def test_aux_columns_set_after_fit_are_for_the_next_fit():
    X, _, time, _ = simulation(100)
    table = pd.DataFrame(X, columns=[f"x{i}" for i in range(15)]).assign(time=time)
    found = EnvironmentInference("clusters", aux="time", n_shuffles=0, random_state=0).fit(table)
    found.set_params(aux=None)
    np.testing.assert_array_equal(found.predict(table), found.labels_)


@pytest.mark.parametrize("aux", [3.0, np.array(3.0), np.float64(3)])
def test_aux_of_one_number(minimax, aux):
    with pytest.raises(ValueError, match=r"aux must be numbers of shape \(rows,\) or .*Got .*3.*pass a list"):
        minimax.predict(None, aux=aux)


@pytest.mark.parametrize("method", ["minimax", "eiil", "clusters"])
def test_the_order_of_rows_does_not_matter(data, method, request):
    X, y, time, _ = data
    order = np.random.default_rng(0).permutation(len(y))
    a = request.getfixturevalue(method)
    b = EnvironmentInference(method, **FAST).fit(X[order], y[order], aux=time[order])
    assert np.mean(a.labels_[order] == b.labels_) > 0.995
    assert b.strength_.penalty == pytest.approx(a.strength_.penalty, rel=0.02)


@pytest.mark.filterwarnings("ignore:.* the most probable of no row:UserWarning")
@pytest.mark.parametrize("method", ["minimax", "eiil", "clusters"])
def test_a_seed_decides_everything(method):
    X, y, time, _ = simulation(200)
    settings = {"max_steps": 30, "random_state": 3}
    a, b = (EnvironmentInference(method, **settings).fit(X, y, aux=time) for _ in range(2))
    np.testing.assert_array_equal(a.membership_, b.membership_)
    assert a.strength_ == b.strength_
    again = pickle.loads(pickle.dumps(a))
    np.testing.assert_array_equal(again.predict_proba(X, y, aux=time), a.membership_)
    np.testing.assert_array_equal(clone(a).fit_predict(X, y, aux=time), a.labels_)
    state = np.random.RandomState(0)
    c, d = (EnvironmentInference(method, max_steps=30, random_state=state).fit(X, y, aux=time) for _ in range(2))
    assert c.strength_.shuffled != d.strength_.shuffled  # a generator goes on


@pytest.mark.parametrize("method", ["minimax", "eiil", "clusters"])
@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames(method, frame):
    X, y, time, _ = simulation(200)
    names = [f"x{i}" for i in range(15)]
    table = frame({**dict(zip(names, X.T, strict=True)), "time": time[:, 0]})
    settings = {"max_steps": 30, "random_state": 0}
    plain = EnvironmentInference(method, **settings).fit(X, y, aux=time)
    found = EnvironmentInference(method, aux="time", **settings)
    series = {pd.DataFrame: pd.Series, pl.DataFrame: pl.Series}[frame]
    words = series(np.where(y == 1, "yes", "no"))
    np.testing.assert_array_equal(found.fit_predict(table, words), plain.labels_)
    assert found.n_features_in_ == 15 and list(found.feature_names_in_) == names and found.n_aux_ == 1
    np.testing.assert_array_equal(found.predict(table, words), plain.labels_)
    without = table.drop(columns="time") if frame is pd.DataFrame else table.drop("time")
    if method == "eiil":  # its aux column may be missing
        np.testing.assert_array_equal(found.predict(without, words), plain.labels_)
    else:
        np.testing.assert_array_equal(found.predict(None, aux=table["time"]), plain.labels_)
        with pytest.raises(ValueError, match=r"aux must be given: .*keep 'time' in X"):
            found.predict(without)


def test_sparse_features_are_made_dense():
    X, y, _, _ = simulation(200)
    dense = EnvironmentInference("eiil", max_steps=30, random_state=0).fit(X, y)
    with pytest.warns(UserWarning, match="X is sparse and was made dense"):
        found = EnvironmentInference("eiil", max_steps=30, random_state=0).fit(scipy.sparse.csr_array(X), y)
    np.testing.assert_array_equal(found.labels_, dense.labels_)


def test_labels_serve_other_estimators(data, minimax):
    X, y, _, _ = data
    model = InvariantClassifier("irm-tv-l1", hidden=(), max_steps=20).fit(X, y, environment=minimax.labels_)
    assert list(model.environments_) == [0, 1]
    scores = cross_val_score(LogisticRegression(), X, y, groups=minimax.labels_, cv=GroupKFold(2))
    assert len(scores) == 2


def test_hidden_layers_and_options_reach_the_reference_model():
    X, y, time, _ = simulation(200)
    options = {"hidden": (4,), "max_steps": 40, "l2": 0.1, "learning_rate": 0.02, "batch_size": 50}
    found = EnvironmentInference(environment_hidden=5, random_state=0, **options).fit(X, y, aux=time)
    for name, value in options.items():
        assert getattr(found.reference_, name) == value
    assert found.reference_.predictor_.rho.net.hidden == 5 and not hasattr(found.reference_, "coef_")


def test_no_shuffles_no_strength():
    X, y, time, _ = simulation(100)
    found = EnvironmentInference("clusters", n_shuffles=0, random_state=0).fit(X, y, aux=time)
    assert found.strength_ is None and found.reference_ is None
    with pytest.raises(ValueError, match=r"strength needs a reference model.*n_shuffles=0"):
        found.strength(X, y, aux=time)
    found = EnvironmentInference(n_shuffles=0, max_steps=60, learning_rate=0.02, random_state=0).fit(X, y, aux=time)
    assert found.strength_ is None and found.reference_ is not None


# ---- messages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "minmax"}, r"method must be one of \['minimax', .*Got 'minmax'. Did you mean 'minimax'\?"),
        ({"method": "clusters", "cluster_on": "feature"}, "cluster_on must be one of .*Did you mean 'features'"),
        ({"task": "regresion"}, "task must be one of .*Did you mean 'regression'"),
        ({"n_environments": 1}, "n_environments must be a whole number of at least 2. Got 1"),
        ({"n_environments": 2.0}, "n_environments must be a whole number of at least 2. Got 2.0"),
        ({"n_shuffles": -1}, "n_shuffles must be a whole number of at least 0. Got -1"),
        (
            {"method": "eiil", "n_environments": 3},
            r"n_environments must be 2 for method='eiil'.*Got 3. Use method='min",
        ),
        ({"max_steps": 0}, "max_steps must be a positive integer"),
        ({"aux": 3}, "aux must be a column name or a list"),
        ({"aux": "time"}, "X must be a DataFrame with the column 'time'"),
    ],
)
def test_parameters(settings, message):
    X, y, time, _ = simulation(40)
    with pytest.raises(ValueError, match=message):
        EnvironmentInference(**settings).fit(X, y, aux=None if "aux" in settings else time)


def with_hole(values):
    values = values.copy()
    values[3] = np.nan
    return values


@pytest.mark.parametrize(
    ("settings", "change", "message"),
    [
        (
            {},
            {"aux": None},
            r"aux must be given for .*method='minimax'.*fit\(X, y, aux=...\); method='eiil' needs none",
        ),
        ({"method": "clusters", "cluster_on": "aux"}, {"aux": None}, "aux must be given for .*cluster_on='aux'"),
        ({}, {"y": None}, r"requires y to be passed, but the target y is None.*method='clusters' can do without"),
        ({"method": "eiil"}, {"y": None}, "requires y to be passed, but the target y is None"),
        ({}, {"aux": with_hole}, "aux must be finite. Input aux contains NaN in 1 of .* the first is NaN in row 3"),
        ({"method": "clusters"}, {"aux": with_hole}, "aux must be finite. Input aux contains NaN in 1 of"),
        ({"method": "eiil"}, {"X": with_hole}, "Input X contains NaN"),
        ({}, {"y": np.zeros_like}, "y must have two or more classes. Got 1 class"),
        ({"method": "eiil"}, {"y": np.zeros_like}, "y must have two or more classes. Got 1 class"),
        ({}, {"aux": lambda v: v[:-1]}, "aux must have one entry per row of x: expected 40. Got 39"),
        ({}, {"y": lambda v: v[:-1]}, "y must have one entry per row of x: expected 40. Got 39"),
        ({"method": "clusters", "n_environments": 50}, {}, "n_samples=40"),
    ],
)
def test_bad_rows_at_fit(settings, change, message):
    X, y, time, _ = simulation(40)
    given = {"X": X, "y": y, "aux": time}
    for name, how in change.items():
        given[name] = None if how is None else how(given[name])
    with pytest.raises(ValueError, match=message):
        EnvironmentInference(**{"max_steps": 2, **settings}).fit(**given)


def test_bad_rows_at_predict(data, minimax, eiil):
    X, y, time, _ = data
    on_features = EnvironmentInference("clusters", random_state=0).fit(X)
    for found, call, message in (
        (minimax, {"X": X}, r"aux must be given: .*method='minimax'\) divides rows by aux. Got None.*aux=...\)"),
        (minimax, {"X": None}, "aux must be given"),
        (minimax, {"X": X, "aux": np.c_[time, time]}, "aux must have the columns of fit, 1. Got 2"),
        (minimax, {"X": X, "aux": time[:5]}, "aux must have one entry per row of x: expected 1000. Got 5"),
        (minimax, {"X": X[:, :3], "aux": time}, "X has 3 features, but EnvironmentInference is expecting 15"),
        (eiil, {"X": X}, r"y must be given: .*method='eiil'\) divides rows by the slopes.*Use predict\(X, y\)"),
        (eiil, {"X": X, "y": y[:5]}, "y must have one entry per row of x: expected 1000. Got 5"),
        (eiil, {"X": None, "y": y}, "X must be given: .*by their slopes"),
        (on_features, {"X": None, "aux": time}, "X must be given: .*by their features"),
    ):
        with pytest.raises(ValueError, match=message):
            found.predict(**call)
    with pytest.raises(ValueError, match="y must be given: the slopes of the reference model"):
        minimax.strength(X, None, aux=time)
    with pytest.raises(ValueError, match="X must be given: the slopes of the reference model"):
        minimax.strength(None, y, aux=time)
    for name in ("predict", "predict_proba", "strength"):
        with pytest.raises(NotFittedError):
            getattr(EnvironmentInference(), name)(X, y, aux=time)


def test_an_environment_without_rows_is_told():
    X, y, time, _ = simulation(100)
    with pytest.warns(
        UserWarning, match=r"'inferred \d' of 2 environments is the most probable of no row. aux may have nothing"
    ):
        found = EnvironmentInference(max_steps=20, random_state=0).fit(X, y, aux=np.ones_like(time))
    assert len(np.unique(found.labels_)) == 1 and found.strength_.ratio == pytest.approx(1)
    separable = np.c_[10.0 * (y - 0.5), time]
    with pytest.warns(UserWarning, match=r"'inferred 1' of 2 environments .*one sign .*set l2 > 0"):
        EnvironmentInference("eiil", **FAST).fit(separable, y)


# ---- scikit-learn, documentation ------------------------------------------------------------------------------------

NEEDS_Y = "predict is called without y, and the split is by the slopes of the loss at each row's label"
NEEDS_Y_TO_FIT = "fit is called without y, and there is no slope without a label"
AS_A_CLASSIFIER = "takes predict_proba for that of a classifier, one column per class of y, and asks for its tags"


def expected_failures(estimator) -> dict[str, str]:
    expected = dict.fromkeys(("check_estimator_sparse_array", "check_estimator_sparse_matrix"), AS_A_CLASSIFIER)
    if estimator.method == "eiil":
        without_y = (
            "check_estimators_dtypes",
            "check_dtype_object",
            "check_estimators_pickle",
            "check_f_contiguous_array_estimator",
            "check_methods_sample_order_invariance",
            "check_methods_subset_invariance",
            "check_dict_unchanged",
            "check_fit_idempotent",
        )
        expected |= dict.fromkeys(without_y, NEEDS_Y) | {"check_clustering": NEEDS_Y_TO_FIT}
    return expected


@pytest.mark.filterwarnings("ignore:X is sparse and was made dense:UserWarning")
@pytest.mark.filterwarnings("ignore:.* the most probable of no row:UserWarning")
@parametrize_with_checks(
    [EnvironmentInference(m, max_steps=5, n_shuffles=5, random_state=0) for m in ("clusters", "eiil")],
    expected_failed_checks=expected_failures,
    **STRICT,
)
def test_scikit_learn_check(estimator, check):
    check(estimator)


@pytest.fixture
def exported(monkeypatch):
    for kind in (EnvironmentInference, InvariantClassifier):
        monkeypatch.setattr(irmtv, kind.__name__, kind, raising=False)


@pytest.mark.usefixtures("exported")
def test_docstrings():
    outcome = doctest.testmod(environment_inference)
    assert outcome.failed == 0 and outcome.attempted > 5
