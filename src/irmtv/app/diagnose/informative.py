"""Whether environments are informative: the invariance penalty they reach, against what chance reaches.

The penalty is TV-l1 of ERM, (sum_e m_e |S_e - S|)^2, with S_e the mean slope of environment e and S
that of all rows, on held-out predictions.

* Given environments: the labels are permuted among the rows.
* Environments inferred from aux: the rows of aux are permuted and the network is trained again. All of these are runs
  of one tensor program. Permuted aux is noise, so the comparison accounts for the optimism of the network.

The p-value compares the same difference in units of its standard error: where one environment is noisier than others,
its mean slope varies more, which is no lack of invariance, and permutations of the penalty itself would not know it.

    given:  sum_e (S_e - S0)^2 / v_e,   v_e the squared standard error of S_e, S0 the mean of S_e weighted by 1 / v_e
    found:  (sum_i d_i (s_i - S))^2 / sum_i d_i^2 (s_i - S)^2,   d_i the membership of row i less its mean

p = (1 + number of permutations that reach it) / (1 + number of permutations): exact where slopes do not depend on the
environment or on aux at all, and right for many rows where their means do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from irmtv.app.diagnose.erm_model import ErmModel
from irmtv.app.diagnose.inferred_environments import train_environment_networks
from irmtv.app.diagnose.rows import DiagnosisRows, Floats, Ints
from irmtv.app.diagnose.words import LEVEL, Part
from irmtv.core.numbers import number, p_text
from irmtv.engine import Progress
from irmtv.estimators.strength import split_strength

OF_LABELS, OF_AUX = 499, 99
MOST_ROWS = 5_000  # on which networks on permuted aux are trained


@dataclass(frozen=True)
class Informative(Part):
    """The penalty that the environments reach, and how often chance reaches it."""

    ALSO = ("ratio", "informative")

    source: str  # "given", "found"
    penalty: float
    by_chance: float  # mean over the permutations
    p: float
    permutations: int
    rows: int

    @property
    def informative(self) -> bool:
        return self.p < LEVEL

    @property
    def ratio(self) -> float:
        return self.penalty / self.by_chance if self.by_chance > 0 else float("nan")

    @property
    def sentence(self) -> str:
        """One sentence."""
        what = "The given environments" if self.source == "given" else "Environments found in aux"
        verdict = "are not shown to be informative: the invariance penalty is"
        if self.informative:
            verdict = "are informative: the plain model is not invariant over them; its penalty is"
        return (
            f"{what} {verdict} {number(self.ratio, 2)} times what chance reaches "
            f"({p_text(self.p)}, {self.permutations} permutations)."
        )


def given_informative(rows: DiagnosisRows, model: ErmModel, seed: int, permutations: int = OF_LABELS) -> Informative:
    """The test of given environments: their labels are permuted among the rows."""
    codes, n_env = rows.codes, len(rows.names)
    strength = split_strength(model.slope, codes, permutations, seed)
    rng = np.random.default_rng(seed)
    drawn = np.array([_of_labels(model.slope, rng.permutation(codes), n_env) for _ in range(permutations)])
    p = _p(_of_labels(model.slope, codes, n_env), drawn)
    return Informative("given", strength.penalty, strength.shuffled, p, permutations, len(rows))


def inferred_informative(
    rows: DiagnosisRows,
    model: ErmModel,
    seed: int,
    permutations: int = OF_AUX,
    progress: Callable[[Progress], None] | None = None,
) -> Informative:
    """The test of environments inferred from aux: the rows of aux are permuted, and networks trained again."""
    assert rows.aux is not None
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(len(rows))[:MOST_ROWS])
    index, aux = torch.as_tensor(chosen), torch.as_tensor(rows.aux[chosen])
    orders = [np.arange(len(chosen)), *(rng.permutation(len(chosen)) for _ in range(permutations))]
    fitted = train_environment_networks(
        rows, model, [(index, aux[torch.as_tensor(order)]) for order in orders], seed, progress
    )
    # penalty weight 0: the predictor is the same in every run
    f = fitted.logits(fitted.tasks[0].train.x)[0].double()
    slope = rows.loss.value_and_slope(f[None, None], torch.as_tensor(rows.y[chosen])[None, None])[1][0, 0].numpy()
    q = fitted.membership().double().numpy()  # (1 + permutations, N, 2)
    penalties, tested = _penalties(q, slope), _of_memberships(q, slope)
    p = _p(tested[0], tested[1:])
    return Informative("found", float(penalties[0]), float(penalties[1:].mean()), p, permutations, len(chosen))


def _p(reached: float, drawn: Floats) -> float:
    """Equal divisions may differ by rounding."""
    return float((1 + (drawn >= reached * (1 - 1e-9)).sum()) / (1 + len(drawn)))


def _of_labels(slope: Floats, codes: Ints, n_env: int) -> float:
    """The squared differences of the mean slopes in units of their errors, for given environments."""
    n = np.bincount(codes, minlength=n_env)
    mean = np.bincount(codes, slope, n_env) / n
    spread = np.bincount(codes, np.square(slope - mean[codes]), n_env) / np.maximum(n - 1, 1)
    weight = n / spread.clip(1e-300)
    return float((weight * np.square(mean - (weight @ mean) / weight.sum())).sum())


def _of_memberships(q: Floats, slope: Floats) -> Floats:
    """The same for two soft environments: (R, N, 2) -> (R,)."""
    away = q[:, :, 0] - q[:, :, 0].mean(1, keepdims=True)
    each = away * (slope - slope.mean())
    return np.asarray(np.square(each.sum(1)) / np.square(each).sum(1).clip(1e-300))


def _penalties(q: Floats, slope: Floats) -> Floats:
    """(sum_e m_e |S_e - S|)^2 for memberships (R, N, E): (R,)."""
    sums = np.einsum("rne,n->re", q, slope - slope.mean())
    return np.asarray(np.square(np.abs(sums).sum(1) / len(slope)))
