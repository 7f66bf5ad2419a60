"""The weights of stored linear runs, and the share of the invariant columns in them.

Three numbers describe a weight vector w, its first columns invariant, the others spurious:

    normalised    |w_j| / sum_k |w_k|                                 (the paper's table of feature weights)
    share         sum over the invariant columns of the above         (the paper's percentages)
    net share     |V| / (|V| + |S|), V and S the sums of w over the invariant and over the spurious columns

A prediction depends on the spurious sign through S alone (:func:`irmtv.datasets.population_accuracy`). Weights of both
signs on the spurious columns cancel in S and add up in the share: there, estimation noise counts as if it were use.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import minimize

from irmtv.core.messages import check_positive
from irmtv.lab.experiments.evaluation import COEFFICIENTS
from irmtv.lab.experiments.plan import ALL, members
from irmtv.lab.experiments.results import read_results
from irmtv.lab.experiments.spec import Spec
from irmtv.lab.experiments.store import RunRecord, Store

Floats = npt.NDArray[np.float64]
KEPT = (
    "setting", "method", "published_key", "rule", "repetition", "chosen_method", "hyperparameters", "step", "outcome",
    "message", "note",
)  # fmt: skip


def normalised(weights: npt.ArrayLike) -> Floats:
    """Absolute weights (..., D) that sum to 1; NaN for a model whose weights are all zero.

    >>> normalised([3.0, -1.0]).tolist()
    [0.75, 0.25]
    """
    size = np.abs(np.asarray(weights, dtype=np.float64))
    total = size.sum(-1, keepdims=True)
    return np.asarray(np.divide(size, total, out=np.full_like(size, np.nan), where=total > 0))


def invariant_share(weights: npt.ArrayLike, n_invariant: int) -> Floats:
    """The share (...) of the absolute weights (..., D) that the first `n_invariant` columns have.

    >>> float(invariant_share([3.0, -1.0, 1.0, 1.0], n_invariant=2).round(3))
    0.667
    """
    return np.asarray(normalised(_checked(weights, n_invariant))[..., :n_invariant].sum(-1))


def net_share(weights: npt.ArrayLike, n_invariant: int) -> Floats:
    """|V| / (|V| + |S|), with parameters as in `invariant_share`: weights of both signs cancel within V and within S.

    >>> float(net_share([3.0, 1.0, -1.0, 1.0], n_invariant=2))  # the spurious weights cancel
    1.0
    """
    w = _checked(weights, n_invariant)
    sums = np.stack([w[..., :n_invariant].sum(-1), w[..., n_invariant:].sum(-1)], -1)  # V, S
    return np.asarray(normalised(sums)[..., 0])


def _checked(weights: npt.ArrayLike, n_invariant: int) -> Floats:
    check_positive(n_invariant, "n_invariant")
    w = np.asarray(weights, dtype=np.float64)
    if w.ndim < 1 or w.shape[-1] < n_invariant:
        raise ValueError(
            f"weights must have shape (..., D), invariant columns first, with D at least n_invariant={n_invariant}. "
            f"Got shape {w.shape}. Give the weights of all columns."
        )
    return w


def risk_minimiser(
    p_s: Sequence[float], p_v: float, n_invariant: int = 5, n_spurious: int = 10, l2: float = 0.0
) -> Floats:
    """The linear predictor of the lowest logistic risk over all the rows that the simulation could draw: (D,).

    `p_s`: agreement of the spurious sign with the label in the training environments, which are of equal size; `p_v`:
    that of the invariant sign; `l2`: weight of the sum of squares of the coefficients. The intercept is 0.

    Columns of one kind are exchangeable and the risk is convex, so its minimiser has one weight u for the invariant
    columns and one v for the spurious ones. Then y f = a n u + b m v + sqrt(n u^2 + m v^2) Z with Z standard normal
    and independent signs a, b that are +1 with probabilities p_v and the mean of p_s; E softplus(-y f) is four
    integrals over Z (Gauss-Hermite quadrature), minimised over u and v.

    >>> erm = risk_minimiser((0.999, 0.9), 0.8)
    >>> round(float(invariant_share(erm, 5)), 3)
    0.274
    """
    z, mass = np.polynomial.hermite_e.hermegauss(80)
    mass = mass / mass.sum()
    agree = float(np.mean(p_s))
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])  # (4, 2): a, b
    chance = np.array([p_v * agree, p_v * (1 - agree), (1 - p_v) * agree, (1 - p_v) * (1 - agree)])
    columns = np.array([n_invariant, n_spurious])

    def risk(uv: Floats) -> float:
        squares = float(columns @ np.square(uv))
        margin = (signs @ (columns * uv))[:, None] + np.sqrt(squares) * z  # (4, nodes): y f
        return float(chance @ (np.logaddexp(0, -margin) @ mass)) + l2 * squares

    # starts away from 0, where the square root has no slope
    minimum = minimize(risk, np.full(2, 0.1), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14})
    return np.repeat(minimum.x, columns)


def read_weights(spec: Spec, folder: str | Path) -> pd.DataFrame:
    """The weights of what each rule of the spec chose, from the store in `folder`. Nothing is trained.

    The methods are linear, and the distribution of the data is known. A row for every setting, method, rule and
    repetition: what was chosen, and why, as `read_results` has it; "weights", an array (D,), None where the rule could
    not choose; "worst", the accuracy in the worst test environment, exact. Without rows where nothing is stored.
    """
    results = read_results(spec, folder)
    exact = results[(results["metric"] == "population accuracy") & (results["summary"] == "worst")]
    if exact.empty and not results.empty:
        raise ValueError(
            f"feature weights are those of linear models on data of known distribution. Spec {spec.name!r} on "
            f"{spec.data.name!r} has none: use hidden = [] on the simulation."
        )
    records = _stored_records(spec, folder)
    rows = []
    for row in exact.to_dict("records"):
        weights = None
        if isinstance(row["hyperparameters"], dict):
            key = row["setting"], row["chosen_method"], row["repetition"], _text(row["hyperparameters"])
            weights = _coefficients_at(records[key], int(row["step"]), folder)
        rows.append({**{c: row[c] for c in KEPT}, "worst": row["value"], "weights": weights})
    return pd.DataFrame(rows, columns=[*KEPT, "worst", "weights"])


def _stored_records(spec: Spec, folder: str | Path) -> dict[tuple[str, str, int, str], RunRecord]:
    """Stored runs on all rows, by setting, label of the method, repetition and hyper-parameters."""
    with Store.read(folder) as store:
        stored = {record.key: record for record in store.runs()}
    return {
        (setting, method.label, m.repetition, _text(m.settings)): stored[m.key]
        for setting in spec.data.settings
        for method in spec.methods
        for m in members(spec, setting, method, "all", (ALL,), range(spec.repetitions))
        if m.key in stored
    }


def _text(settings: object) -> str:
    return json.dumps(settings, sort_keys=True)


def _coefficients_at(record: RunRecord, step: int, folder: str | Path) -> Floats:
    if COEFFICIENTS not in record.arrays:
        raise ValueError(
            f"the runs in {str(folder)!r} must hold their coefficients. Got runs of an earlier version of irmtv, which "
            "kept none. Train them again in another folder."
        )
    (place,) = np.flatnonzero(record.arrays["steps"] == step)
    return np.asarray(record.arrays[COEFFICIENTS][place], dtype=np.float64)
