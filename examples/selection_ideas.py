"""What each idea for the `invariance` rule brings, on repetitions that no published figure of ours uses.

    python examples/selection_ideas.py --out results/ideas       # trains once: about ten minutes on two cores

Prints, for every idea, how many points of worst population accuracy its choice lies below the best reachable value,
by setting and on average. The candidates are those of papers/irm_tv/selection.toml with given environments.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from irmtv.core.progress_bar import ProgressBar
from irmtv.datasets import DATASETS
from irmtv.lab.experiments import load_spec, read_records, run_experiment
from irmtv.selection import Records, equal_means, iid, invariance, zero_means

SPEC = Path(__file__).parents[1] / "papers" / "irm_tv" / "selection.toml"
FIRST_SEED, REPETITIONS = 1000, 10
Idea = Callable[[Records, np.ndarray], int]


def lowest_risk(statistic: Callable[[Records], Tensor], least_p: float) -> Idea:
    """The lowest risk of all candidates with a p-value of at least this; ERM if there is none."""

    def choose(records: Records, _: np.ndarray) -> int:
        risk = iid(records.pooled())
        passing = statistic(records) >= least_p
        erm = int(risk.masked_fill(~records.reference, torch.inf).argmin())
        return int(risk.masked_fill(~passing, torch.inf).argmin()) if passing.any() and not passing[erm] else erm

    return choose


def near(least_p: float, level: float = 0.01) -> Idea:
    """The lowest risk of those near equality; where none is near, the nearest one that is not rejected."""

    def choose(records: Records, values: np.ndarray) -> int:
        nearest = float(risks(records)[~records.reference].max())
        return lowest_risk(risks, max(level, min(least_p, nearest)))(records, values)

    return choose


def both_halves(least_p: float) -> Idea:
    """The lowest risk of those that pass in each half of the folds."""

    def smaller(records: Records) -> Tensor:
        return torch.minimum(risks(records.folds([0, 2, 4])), risks(records.folds([1, 3])))

    return lowest_risk(smaller, least_p)


def risks(records: Records) -> Tensor:
    return equal_means(records.pooled().risk, records.pooled().risk_cov)


def slopes(records: Records) -> Tensor:
    return equal_means(records.pooled().slope, records.pooled().slope_cov)


def zero_slopes(records: Records) -> Tensor:
    return zero_means(records.pooled().slope, records.pooled().slope_cov)


def rule(**options: object) -> Idea:
    return lambda records, _: invariance(records, **options).index


def one_fold(idea: Idea) -> Idea:
    """A plain hold-out: a fifth of the rows is looked at once."""
    return lambda records, values: idea(records.folds([0]), values)


# abs z < 1.645, 1 and 0.5 for two environments are p-values above 0.1, 0.317 and 0.617
IDEAS: dict[str, Idea] = {
    "oracle": lambda _, values: int(np.nanargmax(values)),
    "iid": lambda records, _: int(iid(records.pooled()).nan_to_num(torch.inf).argmin()),
    "hold-out, risks equal, abs z < 1": one_fold(lowest_risk(risks, 0.317)),
    "risks equal, abs z < 1.64": lowest_risk(risks, 0.1),
    "risks equal, abs z < 1": lowest_risk(risks, 0.317),
    "risks equal, abs z < 0.5": lowest_risk(risks, 0.617),
    "slopes equal, abs z < 1": lowest_risk(slopes, 0.317),
    "slopes zero, chi-square 10 %": lowest_risk(zero_slopes, 0.1),
    "abs z < 1 in both halves of the folds": both_halves(0.317),
    "abs z < 1, else the nearest": near(0.317),
    "abs z < 0.5, else the nearest": near(0.617),
    "extrapolated, no least gain": rule(min_gain=0.0),
    "extrapolated, no slack": rule(slack=0.0),
    "extrapolated, reach 3": rule(reach=3.0),
    "extrapolated, reach 30": rule(reach=30.0),
    "extrapolated, slopes alone": rule(test="slopes"),
    "extrapolated, hold-out": one_fold(rule()),
    "extrapolated (the rule)": rule(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the experiment")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    spec = load_spec(SPEC).with_(
        methods=["TV-l1", "V-REx", "TV-l1 + V-REx"], repetitions=REPETITIONS, device=given.device
    )
    spec = spec.model_copy(update={"first_seed": FIRST_SEED})
    with ProgressBar("selection ideas") as bar:
        run_experiment(spec, given.out, progress=bar, stage=bar.rename)
    limit = DATASETS["simulation"].limit
    assert limit is not None
    gaps: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for setting, pool, _, records, values in read_records(spec, given.out, "population/accuracy"):
        if pool == "given":
            for name, idea in IDEAS.items():
                gap = limit(spec.data.arguments_of(setting)) - values[idea(records, values)]
                gaps[name][setting].append(100 * gap)
    settings = list(spec.data.settings)
    print(f"| idea | {' | '.join(settings)} | average |")
    print("| --- |" + " ---: |" * (len(settings) + 1))
    for name, by_setting in gaps.items():
        means = [float(np.mean(by_setting[s])) for s in settings]
        print(f"| {name} | {' | '.join(f'{m:.1f}' for m in means)} | {np.mean(means):.2f} |")


if __name__ == "__main__":
    main()
