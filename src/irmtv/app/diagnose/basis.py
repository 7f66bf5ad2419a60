"""What the classifiers of environments read: the features and their products, so that they see more than means.

Two environments may have the same mean and spread in every column and still differ in how columns go together; that is
how a spurious feature changes. So beside the features stand the squares of those with more than two values, and all
products of the first principal components. Labels are not looked at.
"""

from __future__ import annotations

import numpy as np

from irmtv.app.diagnose.rows import Floats

MOST_COMPONENTS = 16  # whose products are taken
MOST_COLUMNS = 200  # of more features the first principal components stand for all


def quadratic_basis(x: Floats) -> Floats:
    """(N, D) standardised -> (N, D + squares + products), standardised, extreme values drawn in."""
    squares = np.empty((len(x), 0))
    parts = x
    if x.shape[1] > MOST_COMPONENTS:
        values, vectors = np.linalg.eigh(x.T @ x / len(x))
        scaled = vectors[:, ::-1] / np.sqrt(values[::-1].clip(1e-12))
        parts = x @ scaled[:, :MOST_COMPONENTS]
        if x.shape[1] > MOST_COLUMNS:
            x = x @ scaled[:, :MOST_COLUMNS]
        # where all pairs of columns are multiplied, their squares are among the products
        several = np.array([len(np.unique(column[:1000])) > 2 for column in x.T])
        squares = x[:, several] ** 2
    i, j = np.triu_indices(parts.shape[1])
    basis = np.hstack([x, squares, parts[:, i] * parts[:, j]])
    spread = basis.std(0)
    there = spread > 1e-9
    return np.asarray(((basis[:, there] - basis[:, there].mean(0)) / spread[there]).clip(-8.0, 8.0))
