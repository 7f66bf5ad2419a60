"""Records of candidates, written by hand or counted from single rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from scipy import stats

from irmtv.selection import Records
from irmtv.selection.records import COLUMNWISE

ERM = [0.30, 0.50]  # far apart
SE = 0.02
ASKEW = [-1.5 * SE * np.sqrt(2), 1.5 * SE * np.sqrt(2)]  # slopes of that standard error: unequal by z = 3
CLEARLY = [-5 * SE, 5 * SE]  # so unequal that ERM fails by them beyond doubt
FIELDS = ("rows", "risk", "risk_cov", "slope", "slope_cov")


def written(risk, se, *, slope=None, slope_se=None, rows=100.0, erm=0, stated=0, constant=1.0, **more):
    """One fold, from nested lists (C, E): risks and their standard errors; slopes 0 unless given."""
    risk = torch.tensor(risk, dtype=torch.float64)
    se = torch.as_tensor(se, dtype=torch.float64).expand_as(risk)
    slope = torch.zeros_like(risk) if slope is None else torch.tensor(slope, dtype=torch.float64)
    slope_se = torch.as_tensor(0.01 if slope_se is None else slope_se, dtype=torch.float64).expand_as(slope)
    rows = torch.as_tensor(rows, dtype=torch.float64).expand_as(risk)
    which = torch.arange(len(risk))
    return Records(
        rows=rows.clone()[None],
        risk=risk[None],
        risk_cov=se.square()[None],
        slope=slope[None],
        slope_cov=slope_se.square()[None],
        constant=constant,
        reference=torch.isin(which, torch.tensor(erm)),
        stated=torch.isin(which, torch.tensor(stated)),
        **more,
    )


def mean_and_cov(v, q):
    """Weighted means (E,) of v (N,) over the columns of q (N, E), and their covariance (E, E): loops, no algebra.

    n - 1 instead of n, for the n = Q^2 / sum q^2 rows that an environment is worth: s^2 / n where q is 0 or 1.
    """
    n, e = q.shape
    mean, cov = np.full(e, np.nan), np.full((e, e), np.nan)
    total = q.sum(0)
    for a in range(e):
        if total[a] > 0:
            mean[a] = sum(q[i, a] * v[i] for i in range(n)) / total[a]
    for a in range(e):
        for b in range(e):
            if total[a] > 0 and total[b] > 0:
                terms = [q[i, a] * (v[i] - mean[a]) * q[i, b] * (v[i] - mean[b]) for i in range(n)]
                cov[a, b] = np.sqrt(small(q[:, a]) * small(q[:, b])) * sum(terms) / (total[a] * total[b])
    return mean, cov


def weights_of_rows(q, fold):
    """(N, E): what every row counts in the pooled mean of an environment.

    A fold counts by all its rows, whatever environments they are in, among the folds that have the environment.
    """
    q, fold = np.asarray(q), np.asarray(fold)
    weights = np.zeros(q.shape)
    for e in range(q.shape[1]):
        having = [f for f in np.unique(fold) if q[fold == f, e].sum() > 0]
        everything = sum(q[fold == f].sum() for f in having)
        for f in having:
            here = fold == f
            weights[here, e] = q[here].sum() / everything * q[here, e] / q[here, e].sum()
    return weights


def small(q):
    """n / (n - 1) of effective rows; 2, as of two rows, where there are fewer than two."""
    n = sum(q) ** 2 / sum(w * w for w in q)
    return n / (n - 1) if n > 2 else 2.0


def counted(loss, slope, q, fold, n_folds, *, soft=False, **more):
    """From single rows: loss (C, N), slope (C, N) or (C, N, J), q (N, E), fold (N,)."""
    loss, slope, q = np.asarray(loss), np.asarray(slope), np.asarray(q)
    vector = slope.ndim == 3
    slope = slope if vector else slope[..., None]  # (C, N, J)
    fields = {k: [] for k in ("rows", "risk", "risk_cov", "slope", "slope_cov")}
    for f in range(n_folds):
        here = np.asarray(fold) == f
        of_risk = [mean_and_cov(v[here], q[here]) for v in loss]
        of_slope = [[mean_and_cov(v[here, j], q[here]) for j in range(v.shape[1])] for v in slope]
        fields["rows"].append(np.stack([q[here].sum(0)] * len(loss)))
        fields["risk"].append([m for m, _ in of_risk])
        fields["risk_cov"].append([c if soft else np.diag(c) for _, c in of_risk])
        fields["slope"].append([np.stack([m for m, _ in js], -1) for js in of_slope])
        fields["slope_cov"].append([np.stack([c if soft else np.diag(c) for _, c in js], -1) for js in of_slope])
    tensors = {k: torch.as_tensor(np.array(v)) for k, v in fields.items()}
    if not vector:
        tensors |= {k: tensors[k].squeeze(-1) for k in ("slope", "slope_cov")}
    settings = {"constant": 1.0, "erm": 0, "stated": 0, **more}
    which = torch.arange(len(loss))
    return Records(
        **tensors,
        constant=settings.pop("constant"),
        reference=torch.isin(which, torch.tensor(settings.pop("erm"))),
        stated=torch.isin(which, torch.tensor(settings.pop("stated"))),
        **settings,
    )


def two(values):
    return torch.as_tensor(np.asarray(values, dtype=np.float64))


def random_covariance(rng, candidates, environments):
    a = rng.normal(size=(candidates, environments, 2 * environments))
    return a @ a.swapaxes(1, 2) / 100


def p_of_both(z, rows=(100, 100)):
    """Of risks that differ by z standard errors and slopes that are equal: Bonferroni over the two tests."""
    return np.minimum(1, 2 * p_of_difference(z, rows))


def p_of_difference(z, rows=(100, 100)):
    """The t test of two means that are equally sure, by Satterthwaite's degrees of freedom."""
    a, b = rows
    return 2 * stats.t.sf(z, 2**2 / (1 / (a - 1) + 1 / (b - 1)))


def of_folds(folds):
    names = FIELDS if folds[0].column_slope is None else (*FIELDS, *COLUMNWISE)
    return replace(folds[0], **{k: torch.cat([getattr(f, k) for f in folds]) for k in names})


def columns(slope, se):
    """What `written` takes of linear models: slopes in every column (C, E, J), independent, of this standard error."""
    slope = two(slope)[None]
    cov = se**2 * torch.eye(slope.shape[-1], dtype=torch.float64)
    return {"column_slope": slope, "column_slope_cov": cov.expand(*slope.shape, -1)}
