"""Whether environments would choose the same direction: beside the scores of any model, and in a search."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.linalg import null_space
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.preprocessing import StandardScaler
from torch.nn import functional

from irmtv import InvariantClassifierCV, make_task, train
from irmtv.datasets import make_control, make_simulation
from irmtv.models.own_directions import directions_beside, directions_toward, own_directions
from irmtv.selection.invariant import would_be_taken

# --- beside the scores of any model --------------------------------------------------------------------------------

F64 = {"dtype": torch.float64}


def drawn(kind, n=1000, features=4, seed=0, bend=0.3):
    """Two environments of n rows with equal weights in both of them: their directions differ a little."""
    rng = np.random.default_rng(seed)
    e = np.repeat([0, 1], n)
    x = 1 + 3.0 ** np.arange(features) * rng.normal(size=(2 * n, features))  # columns of other scales, not around 0
    z = (x - x.mean(0)) / x.std(0)
    f = z[:, 0] - 0.5 * z[:, 1] + bend * np.where(e == 0, z[:, 2], -z[:, 2])
    if kind == "binary":
        y = (f > rng.logistic(size=2 * n)).astype(float)
    elif kind == "squared":
        y = f + rng.normal(size=2 * n)
    else:
        y = (np.column_stack([f, z[:, 1], 0 * f]) + rng.gumbel(size=(2 * n, 3))).argmax(1)
    loss = {"loss": "squared"} if kind == "squared" else {}
    weight = np.tile(rng.uniform(0.2, 2, size=n), 2)  # both environments are worth as many rows
    return make_task(x, y, environment=e, sample_weight=weight, **loss, **F64)


def linear_erm(task):
    coef, intercept = train(task, "erm", solver="newton", **F64).coefficients(which="last")
    n = task.n_outputs
    return torch.cat([coef.double().view(n, -1), intercept.double().view(n, 1)], 1)  # (C, D + 1)


def with_x(task, x):
    return replace(task, train=replace(task.train, x=torch.as_tensor(x)))


@pytest.mark.parametrize("kind", ["binary", "squared", "multiclass"])
@pytest.mark.parametrize("weighted", [False, True])
def test_of_a_linear_model_it_is_the_exact_test(kind, weighted):
    """Columns span its score: without the direction of the score they are all other directions."""
    task = drawn(kind)
    if not weighted:
        task = replace(task, train=replace(task.train, weight=None))
    theta = linear_erm(task)
    scores = task.train.x @ theta[:, :-1].T + theta[:, -1]
    exact = own_directions(task, theta.flatten())
    found = directions_beside(task, scores.squeeze(1) if task.n_outputs == 1 else scores)
    assert 1e-200 < exact.p < 0.01
    assert found == pytest.approx(exact, rel=1e-6)


def test_against_a_likelihood_ratio_on_many_rows():
    """Of logits s_e (f + w'z) + b_e, one w for all, within s_e f + w_e'z + b_e; f is no linear model.

    z are two combinations of three columns which are not correlated with f.
    """
    rng = np.random.default_rng(3)
    n = 60_000
    e, x = np.repeat([0, 1, 2], n // 3), rng.normal(size=(n, 3))
    f = x[:, 0] + np.sin(2 * x[:, 1]) + 0.5 * x[:, 2] ** 2
    apart = np.array([[0.0, 0.0, 0.1], [0.0, 0.08, 0.0], [-0.08, 0.0, -0.05]])
    logit = np.array([1.0, 0.7, 1.3])[e] * f + (apart[e] * x).sum(1) + np.array([0.5, -0.5, 0.0])[e]
    y = (logit > rng.logistic(size=n)).astype(float)
    found = directions_beside(make_task(x, y, environment=e, **F64), torch.tensor(f))
    z = x @ null_space(((f - f.mean()) @ (x - x.mean(0)))[None])
    parts = [(torch.tensor(f[e == k]), torch.tensor(z[e == k]), torch.tensor(y[e == k])) for k in range(3)]

    def loss(v, common):
        v = torch.tensor(v, requires_grad=True)
        scale, shift, w = v[:3], v[3:6], v[6:].view(-1, 2)
        total = torch.zeros((), **F64)
        for k, (of_f, of_z, of_y) in enumerate(parts):
            f = scale[k] * (of_f + of_z @ w[0]) if common else scale[k] * of_f + of_z @ w[k]
            total = total + functional.binary_cross_entropy_with_logits(f + shift[k], of_y, reduction="sum")
        total.backward()
        return float(total.detach()), v.grad.numpy()

    start = np.r_[np.ones(3), np.zeros(3)]
    one, each = (
        minimize(loss, np.r_[start, np.zeros(k)], args=(k == 2,), jac=True, method="BFGS", options={"gtol": 1e-3}).fun
        for k in (2, 6)
    )
    ratio = 2 * (one - each)
    assert ratio > 30  # of 4 degrees of freedom
    assert stats.chi2.isf(found.p, 4) == pytest.approx(ratio, rel=0.03)
    assert found.gain == pytest.approx((ratio - 4) / 2 / n, rel=0.05)


def true_logit(task):
    """Of a control with labels: of x given y in the mean over environments, which is the sum of five columns, bent."""
    total, agreement = 2 * task.train.x[:, :5].double().sum(1).numpy(), float(np.mean(task.card["agreement"]))
    return np.logaddexp(np.log(agreement) + total, np.log(1 - agreement)) - np.logaddexp(
        np.log(1 - agreement) + total, np.log(agreement)
    )


def cross_fitted(task):
    rows = task.train
    folds = KFold(10, shuffle=True, random_state=0)
    model = RidgeClassifier(alpha=1.0)  # as good a direction as that of a logistic regression, and quick
    return 2 * cross_val_predict(model, rows.x.numpy(), rows.y.numpy(), cv=folds, method="decision_function")


NULL = {
    "nothing, the true logit": ("nothing", true_logit),
    "base rates, the true logit": ("base-rate", true_logit),
    "label noise, the best direction": ("label-noise", lambda task: task.train.x[:, :5].sum(1).numpy()),
    "label noise, cross-fitted": ("label-noise", cross_fitted),
    "feature noise, cross-fitted": ("feature-noise", cross_fitted),
}


@pytest.mark.parametrize("case", NULL)
def test_where_all_would_choose_the_same_direction_p_is_uniform(case):
    differ, score = NULL[case]
    tasks = [make_control(1200, differ, random_state=seed, n_noise=5, n_test=2) for seed in range(150)]
    p = [directions_beside(task, torch.as_tensor(score(task))).p for task in tasks]
    assert stats.kstest(p, "uniform").pvalue > 1e-3
    assert stats.binomtest(int(np.sum(np.array(p) < 0.05)), len(p), 0.05).pvalue > 1e-3


@pytest.mark.parametrize(("p_s", "most"), [((0.999, 0.7), 1e-8), ((0.95, 0.7), 1e-3)])
def test_a_spurious_column_is_seen_beside_a_model_that_uses_it(p_s, most):
    task = make_simulation(2000, p_s, 0.8, random_state=0)
    rows = task.train
    model = HistGradientBoostingClassifier(max_iter=30, random_state=0)
    scores = cross_val_predict(model, rows.x.numpy(), rows.y.numpy(), cv=4, method="decision_function")
    found = directions_beside(task, torch.as_tensor(scores))
    assert found.p < most and found.gain > 0.004
    # were the labels drawn from the scores, nothing would be left beside them
    y = torch.as_tensor(np.random.default_rng(0).random(len(rows)) < expit(scores)).to(rows.y)
    drawn = directions_beside(replace(task, train=replace(rows, y=y)), torch.as_tensor(scores))
    assert drawn.p > 0.01 and drawn.gain < 0.2 * found.gain


def test_gaps_are_filled_by_the_mean_of_their_column():
    task = drawn("binary")
    scores = torch.tanh(task.train.x[:, 0])
    x = task.train.x.numpy().copy()
    gaps = np.random.default_rng(1).random(x.shape) < 0.2
    x[gaps] = np.nan
    found = directions_beside(with_x(task, x), scores)
    expected = directions_beside(with_x(task, SimpleImputer().fit_transform(x)), scores)
    assert found == pytest.approx(expected, rel=1e-9)
    assert found.p != pytest.approx(directions_beside(task, scores).p, rel=0.01)
    empty = np.column_stack([x, np.full(len(x), np.nan), np.full(len(x), 3.0)])  # neither tells anything
    assert directions_beside(with_x(task, empty), scores) == pytest.approx(found, rel=1e-9)


def components(x, n):
    return PCA(n, svd_solver="full").fit_transform(StandardScaler().fit_transform(x))


@pytest.mark.parametrize(("features", "rows", "kept"), [(20, 1000, 20), (21, 1000, 5), (15, 80, 15), (15, 79, 5),
                                                        (15, 29, 4), (15, 20, 3)])  # fmt: skip
def test_of_many_columns_or_few_rows_the_first_principal_components(features, rows, kept):
    """Five rows for an intercept and for each of the columns; where that is too few, five columns at most."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=(2 * rows, 5)) * [3.0, 2.5, 2.0, 1.5, 1.0]
    x = common @ rng.normal(size=(5, features)) + 0.5 * rng.normal(size=(2 * rows, features))
    e, f = np.repeat([0, 1], rows), x[:, 0] / 3
    y = (f + 0.3 * np.where(e == 0, x[:, 1], -x[:, 1]) > rng.logistic(size=2 * rows)).astype(float)
    task, scores = make_task(x, y, environment=e, min_rows=1, **F64), torch.tensor(f + 0.1 * f**3)
    by_hand = x if kept == features else components(x, kept)
    found = directions_beside(task, scores)
    assert found == pytest.approx(directions_beside(with_x(task, by_hand), scores), rel=1e-6)
    if kept < features:
        fewer = directions_beside(with_x(task, components(x, kept - 1)), scores)
        assert np.log(found.p) != pytest.approx(np.log(fewer.p), rel=1e-3)


def test_where_columns_tell_nothing_or_are_one_there_is_one_direction():
    task = drawn("binary")
    scores = torch.tanh(task.train.x[:, 0])
    for x in (task.train.x[:, :1], torch.ones(2000, 3, **F64), torch.full((2000, 2), torch.nan, **F64)):
        assert directions_beside(with_x(task, x), scores) == (1.0, 0.0, 0.0)


def test_scores_that_are_not_correlated_with_any_column():
    """The same for all rows: then all directions of the columns are left, of which the first two differ."""
    task = drawn("binary", bend=0.0)
    y = torch.where(task.train.environment == 0, task.train.x[:, 0] > 1, task.train.x[:, 1] > 1).double()
    found = directions_beside(replace(task, train=replace(task.train, y=y)), torch.zeros(2000))
    assert found.p < 1e-12


def test_images_are_columns_too():
    task = drawn("binary")
    scores = torch.tanh(task.train.x[:, 0])
    assert directions_beside(with_x(task, task.train.x.view(-1, 2, 2)), scores) == directions_beside(task, scores)


def test_classes_have_columns_each():
    """Three classes: 3 * 4 columns and 3 intercepts are 15 directions, for which 75 rows must be there."""
    task = drawn("multiclass", n=75)
    task = replace(task, train=replace(task.train, weight=None))
    scores = torch.tanh(task.train.x[:, :3])
    mixed = with_x(task, task.train.x @ torch.linalg.qr(torch.arange(16.0, **F64).view(4, 4).cos())[0])
    assert directions_beside(mixed, scores) == pytest.approx(directions_beside(task, scores), rel=1e-6)  # all four
    fewer = replace(task, train=task.train.take(torch.arange(149)))  # 74 rows of one: 3 components
    found = directions_beside(fewer, scores[:149])
    expected = directions_beside(with_x(fewer, components(fewer.train.x.numpy(), 3)), scores[:149])
    assert found == pytest.approx(expected, rel=1e-6)


def test_environments_with_few_rows_neither_count_nor_take_columns_from_the_others():
    task = drawn("binary", n=400)
    task = replace(task, train=replace(task.train, weight=None))
    scores = torch.tanh(task.train.x[:, 0])
    codes = task.train.environment.clone()
    codes[:19] = 2
    three = replace(task, train=replace(task.train, environment=codes, names=("a", "b", "small")))
    without = three.train.take(torch.arange(19, 800))
    expected = directions_beside(replace(task, train=without), scores[19:])
    assert directions_beside(three, scores).p == pytest.approx(expected.p, rel=0.05)  # standardised with the 19
    codes[:] = 0
    codes[:19] = 1
    assert directions_beside(replace(task, train=replace(task.train, environment=codes)), scores) is None
    nobody = replace(task.train, environment=torch.zeros_like(codes))
    assert directions_beside(replace(task, train=nobody), scores) is None


def test_weights_count_as_repeated_rows_but_for_how_sure_they_are():
    """Rows of weight 0 are not there; those of one weight are rows without any; few heavy rows are few."""
    task = drawn("binary", n=500)
    scores = torch.tanh(task.train.x[:, 0])
    plain = replace(task.train, weight=None)
    same = directions_beside(replace(task, train=replace(plain, weight=torch.full((1000,), 7.3))), scores)
    assert same == pytest.approx(directions_beside(replace(task, train=plain), scores), rel=1e-6)
    heavy = torch.full((1000,), 1e-6, dtype=torch.float64)
    heavy[::100] = 1.0  # five rows of each
    assert directions_beside(replace(task, train=replace(plain, weight=heavy)), scores) is None
    heavy[::10] = 1.0  # fifty: the four columns can be asked for
    assert directions_beside(replace(task, train=replace(plain, weight=heavy)), scores) is not None


def test_columns_are_those_that_the_weights_leave_rows_for():
    """100 rows, which are worth 50: there are rows for nine columns, not for 12."""
    rng = np.random.default_rng(0)
    x, e = rng.normal(size=(200, 12)), np.repeat([0, 1], 100)
    y = (x[:, 0] > rng.logistic(size=200)).astype(float)
    weight = np.tile([1.0, 1e-9], 100)
    task = make_task(x, y, environment=e, sample_weight=weight, **F64)
    scores = torch.tensor(x[:, 0])
    expected = directions_beside(with_x(task, components(x, 5)), scores)
    assert expected is not None and directions_beside(task, scores) == pytest.approx(expected, rel=1e-6)


# --- in a search ----------------------------------------------------------------------------------------------------


def searched(task, **given):
    estimator = InvariantClassifierCV(hidden=(), penalty_weights=[100.0], cv=3, l2=0.0, random_state=0)
    data = estimator.read_data(task.train.x.double().numpy(), task.train.y.numpy(), **given)
    return estimator.search(data)


# --- toward another model ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["binary", "squared"])
def test_toward_another_score_is_the_exact_test_of_two_columns(kind):
    task = drawn(kind)
    f, g = task.train.x[:, 0] / 3, task.train.x[:, 2]
    theta = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    exact = own_directions(with_x(task, torch.stack([f, g], 1)), theta)
    assert directions_toward(task, f, g) == pytest.approx(exact, rel=1e-9)
    assert exact.p < 1e-6 and exact.gain > 0


def test_two_classes_are_a_binary_label():
    task = drawn("binary")
    f, g = task.train.x[:, 0] / 3, task.train.x[:, 2]
    classes = replace(
        task, train=replace(task.train, y=task.train.y.long()), loss=drawn("multiclass").loss, n_outputs=2
    )
    found = directions_toward(classes, *(torch.stack([-v / 2, v / 2], 1) for v in (f, g)))
    expected = directions_toward(task, f, g)
    assert found.gain == pytest.approx(expected.gain, rel=1e-3)
    assert np.log(found.p) == pytest.approx(np.log(expected.p), rel=1e-2)  # one parameter more is counted


@pytest.mark.parametrize("differ", ["nothing", "label-noise", "base-rate"])
def test_where_none_would_go_there_p_is_uniform(differ):
    """A candidate that leaves half of the columns out, beside a model that was fitted on other rows."""
    p = []
    for seed in range(120):
        task = make_control(1200, differ, n_environments=2, random_state=seed)
        train_rows, rows = (task.train.take(torch.arange(k, 1200, 2)) for k in (0, 1))
        model = RidgeClassifier().fit(train_rows.x.numpy(), train_rows.y.numpy())
        coef = torch.as_tensor(model.coef_).flatten().to(rows.x.dtype)
        half = torch.where(torch.arange(len(coef)) % 2 == 0, coef, 0)
        p.append(directions_toward(replace(task, train=rows), rows.x @ coef, rows.x @ half).p)
    assert stats.kstest(p, "uniform").pvalue > 0.01


def test_one_direction_is_sharper_than_all():
    """The hardest setting with three environments; the candidate is the mean of the invariant columns."""
    for seed in range(3):
        task = make_simulation(5000, (0.999, 0.95, 0.9), 0.8, random_state=seed)
        theta = linear_erm(task)
        erm = task.train.x.double() @ theta[0, :-1]
        toward = directions_toward(task, erm, task.train.x[:, :5].double().mean(1))
        assert toward.p < 1e-4 and toward.p < own_directions(task, theta.flatten()).p


def test_a_search_shows_environments_the_candidate_that_it_would_take():
    """Labels with more noise in one environment: some candidate has equal slopes and risks, but nobody wants it."""
    kept = 0
    for seed in (841, 842, 843):
        task = make_control(600, "label-noise", n_environments=3, random_state=seed)
        model = InvariantClassifierCV(hidden=(), random_state=seed)
        x, rows = task.train.x.double().numpy(), task.train
        search = model.search(model.read_data(x, rows.y.numpy(), environment=rows.environment.numpy()))
        taken = would_be_taken(search.records)
        assert (taken is None) == (search.records.toward is None)
        if taken is not None:
            kept += 1
            assert not search.records.reference[taken] and search.choice.outcome == "erm-kept"
            assert search.choice.figures["p_own"] == search.records.toward.p >= 0.002
            assert would_be_taken(search.records, own_level=1) is None, "then it is not asked"
    assert kept > 0


def test_given_environments_in_place_of_models_of_their_own():
    rows = make_simulation(1500, (0.999, 0.7), 0.8, random_state=0).train
    search = searched(make_simulation(1500, (0.999, 0.7), 0.8, random_state=0), environment=rows.environment.numpy())
    records = search.records
    assert records.own is None and records.directions is not None and records.directions.p < 1e-6
    at = search.path_of(search.erm).middle_model
    assert records.directions == own_directions(search.split.task, at.flatten())
    assert search.choice.figures["p_own"] == records.toward.p < records.directions.p
    assert search.choice.figures["own_gain"] == records.directions.gain


def test_inferred_environments_on_rows_that_did_not_infer_them():
    task = make_simulation(1500, (0.999, 0.7), 0.8, random_state=0)
    search = searched(task, aux=task.train.aux.numpy())
    batch = search.path_of(search.erm).batch
    assert search.records.directions.p < 1e-6
    codes = batch.with_inferred(0).environment
    for f in range(3):
        run = batch.runs_of(f, 0)[0]
        here = search.fold == f
        own = batch.membership[run].argmax(1)[here]
        # the same stretches of time, maybe in another order
        assert len({(int(a), int(b)) for a, b in zip(codes[here], own, strict=True)}) == len(torch.unique(own)) == 2
    control = make_control(1500, "label-noise", random_state=0)
    kept = searched(control, aux=control.train.aux.numpy())
    assert kept.records.directions.p > 0.03 and kept.choice.outcome == "erm-kept"
    assert "each of them would choose the same model, but for its scale" in kept.choice.message
