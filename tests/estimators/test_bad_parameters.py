"""Parameters that cannot be what was meant, and a penalty that leaves nothing to predict with."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, r2_score, roc_auc_score, root_mean_squared_error

from estimators.rows import arrays
from irmtv.core.losses import as_loss
from irmtv.core.types import Rows, Task
from irmtv.estimators import InvariantClassifier, InvariantClassifierCV, InvariantRegressor
from irmtv.models.networks.fit import FLAT
from irmtv.selection.folds import constant_risk

FAST = {"max_steps": 3, "hidden": (), "random_state": 0}
X, Y, SITE, YEAR = arrays(60)


def fit(X=X, y=Y, kind=InvariantClassifier, environment=SITE, aux=None, **parameters):
    return kind(**{**FAST, **parameters}).fit(X, y, environment=environment, aux=aux)


class TooWide(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(width, 1)

    def forward(self, x):
        return self.layer(x)


class GivesTwoThings(TooWide):
    def __init__(self):
        super().__init__(2)

    def forward(self, x):
        return self.layer(x), x


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            lambda: TooWide(5),
            r"module must read rows of X, 2 columns .*\(rows, 2\).*from TooWide.*torch.nn.Linear\(2, ",
        ),
        (TooWide, r"module must be a function \(or class\) without arguments. Got TooWide.*'width'.*lambda: TooWide"),
        (lambda width: TooWide(width), r"without arguments. Got <lambda>.*'width'.*module=lambda: MyModule"),
        (lambda: torch.nn.Linear(2, 3), r"1 output per row, the logit of the second.*Got shape \(8, 3\) for 8 rows"),
        (GivesTwoThings, r"module must give 1 output per row.*Got tuple from GivesTwoThings"),
        (lambda: "net", r"module must be a function that returns a torch.nn.Module. Got str from <lambda>\(\)"),
    ],
)
def test_a_module_that_does_not_fit(module, message):
    for kind in (InvariantClassifier, InvariantClassifierCV):
        with pytest.raises(ValueError, match=message):
            fit(module=module, kind=kind)


def test_a_module_with_the_wrong_number_of_outputs_for_several():
    targets = np.c_[X[:, 0], X[:, 1]]
    with pytest.raises(ValueError, match=r"2 outputs per row, one for each target. Got shape \(8, 1\) for 8 rows"):
        fit(y=targets, kind=InvariantRegressor, module=lambda: torch.nn.Linear(2, 1))
    with pytest.raises(ValueError, match=r"3 outputs per row, a logit for each class.*torch.nn.Linear\(..., 3\)"):
        fit(y=np.arange(60) % 3, module=lambda: torch.nn.Linear(2, 1))
    with pytest.raises(ValueError, match=r"rows of X, 2 channels of length 5.*torch.nn.Conv1d\(2, ...\)"):
        fit(np.random.default_rng(0).normal(size=(60, 2, 5)), module=lambda: torch.nn.Conv1d(3, 1, 2))


def test_looking_at_a_module_leaves_no_trace():
    """Random numbers of the caller, and those that the module starts from, are as they would have been."""

    def net():
        return torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))

    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    one = fit(module=net)
    assert torch.rand(1) == expected
    np.testing.assert_array_equal(one.decision_function(X), fit(module=net).decision_function(X))
    tiva = InvariantClassifier("tiva", module=lambda: torch.nn.Linear(3, 1), **FAST).fit(X, Y, aux=YEAR)
    assert tiva.predict(X, aux=YEAR).shape == (60,)  # reads aux beside X


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"random_state": 2**70}, r"random_state must be at most 2\*\*62. Got 1180591620717411303424. Use a smaller"),
        ({"random_state": np.int64(-3)}, r"random_state must not be negative. Got -3. Use 0 or more"),
        ({"random_state": "now"}, r"random_state must be a whole number .* Got 'now', which cannot be used to seed"),
        ({"random_state": np.random.default_rng(0)}, r"a numpy RandomState or None. Got Generator"),
        ({"class_weight": "balance"}, r"class_weight must be 'balanced'.* Got 'balance'. Did you mean 'balanced'\?"),
        ({"class_weight": {0: 1, 5: 2}}, r"class_weight must name classes of y, 0, 1. Got 5."),
        ({"class_weight": {0: -1, 1: 1}}, r"class_weight must be finite numbers of at least 0. Got -1 for class 0"),
        ({"class_weight": {0: np.nan, 1: 1}}, r"Got nan for class 0"),
        ({"class_weight": 3}, r"class_weight must be 'balanced', a dict .* Got 3. Use class_weight=\{0: 1, 1: 2\}"),
        ({"dtype": ["a"]}, r"dtype must be one of \['float32', 'float64'\]. Got \['a'\]"),
        ({"hidden": 32}, r"hidden must be a sequence of layer widths.* Got 32. Use hidden=\(32,\)"),
        ({"hidden": (0,)}, r"hidden must be a tuple of whole numbers.* Got \(0,\). Use hidden=\(32,\)"),
        ({"max_steps": np.int64(0)}, r"max_steps must be a positive integer. Got 0. Use 1 or more"),
        ({"learning_rate": np.float64(-1)}, r"learning_rate must be a finite number above 0. Got -1.0. Use 0.02"),
        ({"warmup": 2.5}, r"warmup of 'irm-tv-l1' must be.* Got 2.5. Use 0.5 for half of max_steps"),
        ({"penalty_weight": -1}, r"penalty_weight of 'irm-tv-l1' must be.* Got -1. Use 1 to 1e4, or a CV estimator"),
        ({"batch_size": -3}, r"batch_size must be None, 'auto' or a whole number.* Got -3. Use None for all rows"),
        ({"device": "gpu"}, r"device must be 'cpu', 'cuda' or 'auto'. Got 'gpu'. Use 'cuda' for an NVIDIA GPU"),
        ({"validation_fraction": np.float64(3)}, r"validation_fraction must be.* Got 3.0. Use 0.1"),
    ],
)
def test_values(parameters, message):
    with pytest.raises(ValueError, match=message):
        fit(**parameters)


def test_a_class_that_a_fold_does_not_have_may_have_a_weight():
    """As in scikit-learn: the weights of the classes that are there are all known."""
    np.testing.assert_array_equal(
        fit(class_weight={0: 1, 1: 3, 2: 5}).decision_function(X), fit(class_weight={0: 1, 1: 3}).decision_function(X)
    )
    with pytest.raises(
        ValueError, match=r"class_weight must name classes of y, 'no', 'yes'. Got 'yess'. Did you mean 'yes'"
    ):
        fit(y=np.where(Y, "yes", "no"), class_weight={"yess": 2, "no": 1})


def test_an_objective_that_is_linear_takes_the_default_width():
    """An explicit width other than the default is refused: nobody is given another model than was asked for."""
    quick = {"rounds": 1, "cluster_steps": 5}
    settings = {"max_steps": 10, "random_state": 0, "objective_params": quick}
    by_default = InvariantClassifier("hrm", **settings).fit(X, Y)
    linear = InvariantClassifier("hrm", hidden=(), **settings).fit(X, Y)
    np.testing.assert_array_equal(by_default.coef_, linear.coef_)
    assert by_default.get_params()["hidden"] == (32,)  # the parameter is as it was
    with pytest.raises(ValueError, match=r"hidden must be empty. Got hidden=\(8,\)"):
        InvariantClassifier("hrm", hidden=(8,), **settings).fit(X, Y)


# ---- a constant is invariant ------------------------------------------------------------------------------------


def reversed_somewhere(n=600, seed=0):
    """The only feature that predicts does so with the other sign in a quarter of the rows."""
    rng = np.random.default_rng(seed)
    x, place = rng.normal(size=(n, 3)), np.repeat(["a", "b", "c", "d"], n // 4)
    return x, np.where(place == "d", -1, 1) * x[:, 0] + 0.3 * rng.normal(size=n), place


LONG = {"hidden": (), "max_steps": 400, "random_state": 0}


@pytest.mark.parametrize("kind", [InvariantClassifier, InvariantRegressor])
def test_a_penalty_that_leaves_a_constant_is_told_of(kind):
    x, y, place = reversed_somewhere()
    y = y if kind is InvariantRegressor else y > 0
    message = rf"predicts nearly a constant: its training risk is .*before the penalty .*=1000.0 .*{kind.__name__}CV"
    with pytest.warns(UserWarning, match=message):
        model = kind(**LONG).fit(x, y, environment=place)
    outputs = model.predict(x) if kind is InvariantRegressor else model.predict_proba(x)[:, 1]
    assert np.std(outputs) < 0.1 * np.std(y)
    weighted = np.where(place == "d", 0.5, 1.0)
    with pytest.warns(UserWarning, match="predicts nearly a constant"):
        kind(**LONG).fit(x, y, environment=place, sample_weight=weighted)


def test_no_other_model_is_taken_for_a_constant():
    x, y, place = reversed_somewhere()
    rng = np.random.default_rng(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        InvariantRegressor(penalty_weight=0.0, **LONG).fit(x, y, environment=place)
        InvariantRegressor("erm", **LONG).fit(x, y)
        InvariantRegressor("erm", **LONG).fit(x, rng.normal(size=600))
        InvariantRegressor(**LONG).fit(x, x[:, 1] + y, environment=place)  # something invariant is left
        InvariantRegressor(**LONG).fit(x, rng.normal(size=600), environment=place)  # nothing was there to lose
        adam = {**LONG, "solver": "adam", "max_steps": 50}
        InvariantRegressor(warmup=0, **adam).fit(x, y, environment=place)  # nothing learned yet
        InvariantRegressor(warmup=0, penalty_weight=0.0, **LONG).fit(x, rng.normal(size=600), environment=place)
        little = InvariantRegressor(**LONG).fit(x, y + 0.2 * x[:, 1], environment=place)  # little is left, not nothing
        wild = InvariantClassifier(**{**LONG, "max_steps": 1000}).fit(x, y > 0.5, environment=place)
    assert np.std(little.predict(x)) < FLAT * np.std(y)  # the two would be warned of by one of the criteria alone
    rare = np.mean(y > 0.5)
    assert wild.history_["risk"].iloc[-4:].mean() > -rare * np.log(rare) - (1 - rare) * np.log(1 - rare)


@pytest.mark.parametrize("weight", [None, np.linspace(0, 3, 60)])
def test_the_risk_of_a_constant_is_that_of_the_best(weight):
    w = np.ones(60) if weight is None else weight
    share = np.average(Y, weights=w)
    several = np.arange(60) % 3
    shares = np.array([w[several == c].sum() for c in range(3)]) / w.sum()
    targets = np.c_[X[:, 0] / X[:, 0].std(), YEAR]
    spread = np.average((targets - np.average(targets, 0, w)) ** 2, 0, w)
    for y, loss, n_outputs, expected in (
        (torch.as_tensor(Y).double(), as_loss("binary", 1), 1, log_loss(Y, np.full(60, share), sample_weight=w)),
        (
            torch.as_tensor(several),
            as_loss("multiclass", 3),
            3,
            log_loss(several, np.tile(shares, (60, 1)), sample_weight=w),
        ),
        (torch.as_tensor(targets), as_loss("squared", 2), 2, spread.mean()),
    ):
        rows = Rows(torch.zeros(60, 2), y, weight=None if weight is None else torch.as_tensor(w))
        assert constant_risk(Task(rows, loss, n_outputs)) == pytest.approx(expected, rel=1e-9)


def test_without_a_warm_up_it_may_be_either():
    x, y, place = reversed_somewhere()
    how = {**LONG, "max_steps": 1000, "warmup": 0}
    with pytest.warns(UserWarning, match=r"Either X says little about y, or penalty_weight=1000.0 .*warmup=0.5"):
        InvariantRegressor(solver="adam", **how).fit(x, y, environment=place)
    with pytest.warns(UserWarning, match=r"and it was 0.8.* before the penalty had its effect"):
        InvariantRegressor(**how).fit(x, y, environment=place)  # Newton's method has seen ERM


# ---- metrics ----------------------------------------------------------------------------------------------------


def test_evaluate_has_the_usual_metrics():
    clf = fit(max_steps=30)
    table = clf.evaluate(X, Y, environment=SITE, metric="roc_auc")
    logits = clf.decision_function(X)
    expected = [roc_auc_score(Y[site == SITE], logits[site == SITE]) for site in table.names]
    np.testing.assert_allclose(table.by_environment[0], expected)
    one_class = clf.evaluate(X, Y, environment=np.where(Y, SITE, "zero"), metric="roc_auc", n_bootstrap=5)
    assert np.isnan(one_class.by_environment).all()
    np.testing.assert_allclose(one_class.overall, roc_auc_score(Y, logits))
    y = X[:, 0] + X[:, 1]
    reg = fit(kind=InvariantRegressor, y=y, max_steps=30)
    for metric, score in (("r2", r2_score), ("rmse", root_mean_squared_error)):
        found = reg.evaluate(X, y, environment=SITE, metric=metric)
        expected = [score(y[site == SITE], reg.predict(X)[site == SITE]) for site in found.names]
        np.testing.assert_allclose(found.by_environment[0], expected)
    assert (clf.evaluate(X, Y).metric, reg.evaluate(X, y).metric) == ("accuracy", "mse")


def test_a_metric_of_another_task():
    several = fit(y=np.arange(60) % 3)
    with pytest.raises(ValueError, match=r"one of \['accuracy', 'log_loss', .*\] for two classes. Got 'mse'"):
        fit().evaluate(X, Y, metric="mse")
    with pytest.raises(ValueError, match=r"one of \['accuracy', 'log_loss', .*\] for several classes. Got 'r2'"):
        several.evaluate(X, np.arange(60) % 3, metric="r2")
    with pytest.raises(
        ValueError, match=r"\['mse', 'mae', 'r2', 'rmse'\] for a regression. Got 'rsme'. Did you mean 'rmse'"
    ):
        fit(kind=InvariantRegressor).evaluate(X, Y, metric="rsme")
