"""Whether there is anything in a split of the rows: the penalty it reaches against random splits of the same sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from irmtv.core.membership import Codes
from irmtv.core.risk import summarise
from irmtv.objectives.irm_tv_l1 import tv_l1

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
AT_ONCE = 1 << 22  # values, to bound memory


@dataclass(frozen=True)
class Strength:
    """How much more the risk of ERM varies over these environments than over random ones of the same sizes.

    Slopes are taken from their mean over all rows, S, so that only differences between environments count. A model at
    the minimum of its risk has S = 0 anyway. That of one that is shrunk or has not got there has slopes of one sign in
    every environment, and sum_e m_e |S_e| is then |S|, however the rows are divided.

    Attributes
    ----------
    penalty
        The TV-l1 penalty of these, ``(sum_e m_e |S_e - S|)^2``, with the environments as hard labels.
    shuffled
        Its mean over random permutations of the labels.
    p_value
        Share of the permutations (this split counted among them) that reach the penalty. None where the environments
        were chosen by the labels y of these very rows: they then beat random ones even in pure noise.
    """

    penalty: float
    shuffled: float
    p_value: float | None = None

    @property
    def ratio(self) -> float:
        """penalty / shuffled; about 1 where there is nothing in the environments, on rows not used to find them."""
        return self.penalty / self.shuffled if self.shuffled > 0 else float("nan")


def split_strength(slope: Floats, labels: Labels, n_shuffles: int, seed: int, honest: bool = True) -> Strength:
    """The strength of a split.

    Parameters
    ----------
    slope
        Slopes of the reference model, (N,).
    labels
        Environments, (N,) codes from 0.
    n_shuffles
        Permutations of the labels, at least 1.
    seed
        Of the permutations.
    honest
        Whether the labels were found without the y of these rows, so that a p-value has a meaning.
    """
    rng = np.random.default_rng(seed)
    n_environments = int(labels.max()) + 1
    values = torch.as_tensor(slope - slope.mean())

    def penalties(codes: Labels) -> Floats:  # (K, N) -> (K,)
        membership = Codes(torch.as_tensor(codes)[None], n_environments)
        slopes = values.expand(1, len(codes), -1)
        statistics = summarise(torch.zeros_like(slopes), slopes, membership, {"slope"})
        result: Floats = tv_l1(statistics, statistics.measure("empirical")).numpy()
        return result

    at_once = max(1, AT_ONCE // len(labels))
    sizes = [min(at_once, n_shuffles - start) for start in range(0, n_shuffles, at_once)]
    random = np.concatenate([penalties(np.stack([rng.permutation(labels) for _ in range(k)])) for k in sizes])
    reached = float(penalties(labels[None])[0])
    # equal splits may differ by rounding
    as_good = int((random >= reached * (1 - 1e-9)).sum())
    return Strength(reached, float(random.mean()), (1 + as_good) / (1 + n_shuffles) if honest else None)
