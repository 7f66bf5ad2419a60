"""What messages advise works: pooling, the grid, the estimator for another kind of y."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GridSearchCV

from estimators.rows import arrays
from irmtv import InvariantClassifier, InvariantClassifierCV, InvariantRegressor, InvariantRegressorCV

FAST = {"hidden": (), "max_steps": 5, "random_state": 0, "penalty_weights": [1.0], "l2": 0.0}


def sites(*sizes):
    X, y, *_ = arrays(sum(sizes))
    return X, y, np.repeat([f"s{i}" for i in range(len(sizes))], sizes)


@pytest.mark.parametrize(
    ("sizes", "pools"), [((14, 16), False), ((14, 16, 60), True), ((12, 60), False), ((14,) * 3, False)]
)
def test_pooling_is_advised_where_it_leaves_two_environments(sizes, pools):
    X, y, site = sites(*sizes)
    with pytest.raises(ValueError, match=r"at least 20 rows and needs 2 such.*rule='iid'") as caught:
        InvariantClassifierCV(**FAST, cv=2).fit(X, y, environment=site)
    assert ("(min_rows=20)" in str(caught.value)) is pools
    assert ("Pooling would not leave two such either" in str(caught.value)) is not pools
    pooled = InvariantClassifierCV(**FAST, cv=2, min_rows=20)
    if pools:
        with pytest.warns(UserWarning, match="are pooled"):
            pooled.fit(X, y, environment=site)
    else:
        with pytest.raises(ValueError, match="environment must have two or more labels with min_rows=20"):
            pooled.fit(X, y, environment=site)


def test_pooling_counts_what_rows_are_worth():
    """One row of the small sites counts for nearly all of them: together they are still worth about one."""
    X, y, site = sites(14, 16, 60)
    weight = np.ones(90)
    weight[0] = 1e4
    with pytest.raises(ValueError, match="Pooling would not leave two such either"):
        InvariantClassifierCV(**FAST, cv=2).fit(X, y, environment=site, sample_weight=weight)


@pytest.mark.parametrize(
    ("sizes", "advice", "not_advised"),
    [
        ((3, 30), "Use cv=3.", "min_rows"),
        ((3, 4, 30), "Use cv=3, or min_rows=5, which pools", "fewer"),
        ((1, 30), "Use a coarser label.", "cv=1"),
    ],
)
def test_fewer_folds_and_pooling(sizes, advice, not_advised):
    X, y, site = sites(*sizes)
    with pytest.raises(ValueError, match="cv must be at most the rows of the smallest environment") as caught:
        InvariantClassifierCV(**FAST, cv=5, min_rows=1, rule="iid").fit(X, y, environment=site)
    assert advice in str(caught.value) and not_advised not in str(caught.value)


@pytest.mark.parametrize("name", ["measure", "reduction", "normalise", "penalty_schedule"])
def test_the_grid_says_why_it_refuses(name):
    X, y, site = sites(40, 40)
    message = (
        rf"hyper-parameters that may differ between the runs of one batch, of .*'warmup'.* Got '{name}', "
        rf"which is the same for all.*GridSearchCV\(estimator, {{'objective_params': \[{{'{name}': ...}}, ...\]}}\)"
    )
    with pytest.raises(ValueError, match=message):
        InvariantClassifierCV("irm-tv-l1", **FAST, grid={name: ["uniform"]}).fit(X, y, environment=site)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hidden", r"Got 'hidden', which is the same.*GridSearchCV\(estimator, {'hidden': \[...\]}\)"),
        ("penalty_weight", r"Got 'penalty_weight'. The penalty weights are penalty_weights="),
        ("seed", r"Got 'seed'. The seeds that are averaged over are n_seeds="),
        ("learning_rat", r"Got 'learning_rat'. Did you mean 'learning_rate'\?"),
        ("mesure", r"Got 'mesure'. Did you mean 'measure'\?"),
    ],
)
def test_other_names_in_the_grid(name, message):
    X, y, site = sites(40, 40)
    with pytest.raises(ValueError, match=message):
        InvariantClassifierCV("irm-tv-l1", **FAST, grid={name: [1]}).fit(X, y, environment=site)


def test_the_search_that_the_grid_advises():
    X, y, _ = sites(40, 40)
    table = np.c_[X, np.arange(80) % 2]
    measures = {"objective_params": [{"measure": "uniform"}, {"measure": "empirical"}]}
    frame = pd.DataFrame(table, columns=["a", "b", "site"])
    one = InvariantClassifier("irm-tv-l1", environment="site", hidden=(), max_steps=5, random_state=0)
    search = GridSearchCV(one, measures, cv=2).fit(frame, y)
    assert search.best_params_["objective_params"] in measures["objective_params"]


@pytest.mark.parametrize(
    ("classifier", "regressor"),
    [(InvariantClassifier, InvariantRegressor), (InvariantClassifierCV, InvariantRegressorCV)],
)
def test_numbers_are_for_a_regressor(classifier, regressor):
    X, _, site = sites(40, 40)
    message = rf"Unknown label type: continuous.* Use {regressor.__name__}, or make classes of them"
    with pytest.raises(ValueError, match=message):
        classifier(hidden=(), max_steps=5).fit(X, X[:, 0] / 3, environment=site)
    with pytest.raises(ValueError) as caught:  # of several columns nothing is said of numbers
        classifier(hidden=(), max_steps=5).fit(X, np.eye(2, dtype=int)[np.arange(80) % 2], environment=site)
    assert "Regressor" not in str(caught.value)
