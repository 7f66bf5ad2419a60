"""What the classifiers of environments read: the features and their products, so that they see more than means.

Two environments may have the same mean and spread in every column and still differ in how columns go together; that is
how a spurious feature changes. So beside the features stand the squares of those with more than two values, and all
products of the first principal components. Labels are not looked at.
"""

from __future__ import annotations

import numpy as np

from irmtv.diagnose.rows import Floats

MOST_COMPONENTS = 16


def quadratic_basis(x: Floats) -> Floats:
    """(N, D) standardised -> (N, D + squares + products), standardised, extreme values drawn in."""
    n_components = min(x.shape[1], MOST_COMPONENTS)
    if x.shape[1] > n_components:
        _, vectors = np.linalg.eigh(x.T @ x)
        parts = x @ vectors[:, -n_components:]
        parts = parts / parts.std(0).clip(1e-12)
        # where all pairs of columns are multiplied, their squares are among the products
        several = np.array([len(np.unique(column[:1000])) > 2 for column in x.T])
        squares = x[:, several] ** 2
    else:
        parts, squares = x, np.empty((len(x), 0))
    i, j = np.triu_indices(n_components)
    basis = np.hstack([x, squares, parts[:, i] * parts[:, j]])
    spread = basis.std(0)
    there = spread > 1e-9
    return np.asarray(((basis[:, there] - basis[:, there].mean(0)) / spread[there]).clip(-8.0, 8.0))
