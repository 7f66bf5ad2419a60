"""What the default rule chooses, on data whose truth is known: InvariantClassifierCV(hidden=()) and the regressor.

    python examples/choice.py unit-tests     the field's unit tests, also with five environments, ten spurious columns
    python examples/choice.py simulation     the paper's six settings, environments given
    python examples/choice.py inferred       the same, environments inferred from time
    python examples/choice.py three          three environments
    python examples/choice.py auto           the six settings, InvariantClassifierCV() without arguments, which takes a
                                             linear model or a network (--inferred: environments inferred from time)
    python examples/choice.py fit            the six settings through `irmtv fit`, which takes the kind of model, too;
                                             both on 200,000 test rows of each environment (10 minutes of one core)
    python examples/choice.py controls       data on which nothing is to be gained: how often ERM is what is returned
                                             (--inferred: environments inferred from time)

Seeds 7000 to 7009 unless said otherwise (--first-seed, --repetitions); --jobs processes. Accuracies are of the
population, in the worst of four test environments; errors of the unit tests are exact, too.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from irmtv import InvariantClassifierCV, InvariantRegressorCV, Task
from irmtv.app.fit import fit_table
from irmtv.datasets import make_control, make_simulation, make_unit_test, population_accuracy, simulation_limit
from irmtv.datasets.unit_tests import unit_test_error

SETTINGS = ((0.7, 0.9), (0.7, 0.8), (0.8, 0.9), (0.8, 0.8), (0.9, 0.9), (0.9, 0.8))  # p_s+, p_v
THREE = ((0.999, 0.8, 0.6), (0.999, 0.9, 0.7), (0.999, 0.95, 0.9))
TEST_P_S = (0.999, 0.8, 0.2, 0.001)
KINDS: tuple[dict[str, int], ...] = ({}, {"n_environments": 5}, {"n_spurious": 10})
LABELS, NUMBERS = ("nothing", "label-noise", "feature-noise", "base-rate"), ("nothing", "outcome-noise", "base-rate")
SIZES = ((5000, 2), (5000, 3), (600, 3))  # rows, environments
FEW = ((80, 2), (200, 2), (180, 3))  # of controls in which nothing differs


def fitted(task: Task, seed: int, inferred: bool = False, hidden: Any = ()) -> Any:
    torch.set_num_threads(1)
    rows, regression = task.train, task.loss.name == "squared"
    estimator = (InvariantRegressorCV if regression else InvariantClassifierCV)(hidden=hidden, random_state=seed)
    given = {"aux": rows.aux.numpy()} if inferred else {"environment": rows.environment.numpy()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(rows.x.double().numpy(), rows.y.numpy(), **given)


def line_of(estimator: Any) -> tuple[Any, float]:
    return np.ravel(estimator.coef_), float(np.ravel(estimator.intercept_)[0])


def of_simulation(environments: tuple[float, ...], p_v: float, seed: int, inferred: bool = False) -> tuple[float, str]:
    """Distance from the limit, in points, and the outcome."""
    chosen = fitted(make_simulation(5000, environments, p_v, random_state=seed), seed, inferred)
    worst = float(population_accuracy(*line_of(chosen), TEST_P_S, p_v, 5).min())
    return 100 * (simulation_limit(p_v, 5) - worst), chosen.selected_["outcome"]


def of_auto(environments: tuple[float, ...], p_v: float, seed: int, inferred: bool = False) -> tuple[float, str]:
    """The same of the estimator without arguments, on test rows: what it takes may be a network."""
    task = with_test_rows(environments, p_v, seed)
    chosen = fitted(task, seed, inferred, hidden="auto")
    assert task.test is not None
    distance = on_test_rows(chosen.predict(task.test.x.double().numpy()), task, p_v)
    return distance, f"{chosen.selected_['outcome']} ({'network' if chosen.hidden_ else 'linear'})"


def of_fit(environments: tuple[float, ...], p_v: float, seed: int) -> tuple[float, str]:
    """The same of `irmtv fit`, on test rows: what it takes may be a network, or trees."""
    torch.set_num_threads(1)
    task = with_test_rows(environments, p_v, seed)
    assert task.test is not None and task.train.environment is not None
    frames = [pd.DataFrame(rows.x.numpy()).rename(columns="x{}".format) for rows in (task.train, task.test)]
    table = frames[0].assign(place=task.train.environment.numpy(), label=task.train.y.long().numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = fit_table(table, "label", ["place"], random_state=seed)
        distance = on_test_rows(answer.pipeline.predict(frames[1]), task, p_v)
    (kind,) = (one["name"] for one in answer.summary["families"]["compared"] if one["taken"])
    return distance, f"{answer.summary['outcome']} ({kind})"


def with_test_rows(environments: tuple[float, ...], p_v: float, seed: int) -> Task:
    return make_simulation(5000, environments, p_v, random_state=seed, n_test=4 * 200_000)


def on_test_rows(predicted: Any, task: Task, p_v: float) -> float:
    assert task.test is not None and task.test.environment is not None
    right = np.asarray(predicted) == task.test.y.long().numpy()
    worst = min(right[task.test.environment.numpy() == e].mean() for e in range(len(task.test.names)))
    return 100 * (simulation_limit(p_v, 5) - float(worst))


def of_unit_test(name: str, kind: dict[str, int], seed: int) -> tuple[float, float, str]:
    """Error, the oracle's, and the outcome."""
    task = make_unit_test(name, 10_000, random_state=seed, **kind)
    chosen = fitted(task, seed)
    return float(np.mean(unit_test_error(*line_of(chosen), task))), task.card["oracle"], chosen.selected_["outcome"]


def of_control(
    differ: str, regression: bool, rows: int, environments: int, seed: int, inferred: bool = False
) -> tuple[bool, str]:
    """Whether ERM was returned, and the outcome."""
    task = make_control(rows, differ, n_environments=environments, random_state=seed, regression=regression)
    chosen = fitted(task, seed, inferred)
    return chosen.best_params_["penalty_weight"] == 0, chosen.selected_["outcome"]


def told(outcomes: Iterable[str]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(Counter(outcomes).items()))


def simulations(
    run: Callable[..., list[Any]], cases: list[tuple[tuple[float, ...], float]], one: Callable[..., Any]
) -> None:
    print("p_s                  p_v   distance from the limit   outcomes")
    means = []
    for environments, p_v in cases:
        each = run(partial(one, environments, p_v))
        means.append(np.mean([d for d, _ in each]))
        print(f"{environments!s:20} {p_v}   {means[-1]:5.2f}   {told(o for _, o in each)}")
    print(f"mean {np.mean(means):.2f}")


def controls(run: Callable[..., list[Any]], inferred: bool) -> None:
    print("differ         target  rows  environments   ERM returned   outcomes")
    for target, kinds in (("label", LABELS), ("number", NUMBERS)):
        for differ in kinds:
            for rows, environments in SIZES + FEW * (differ == "nothing"):
                each = run(partial(of_control, differ, target == "number", rows, environments, inferred=inferred))
                kept = f"{sum(erm for erm, _ in each)} of {len(each)}"
                print(f"{differ:14} {target:6} {rows:5}  {environments:12}   {kept:12}   {told(o for _, o in each)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["unit-tests", "simulation", "inferred", "three", "auto", "fit", "controls"])
    parser.add_argument("--first-seed", type=int, default=7000)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--inferred", action="store_true", help="auto, controls: infer the environments from time")
    args = parser.parse_args()
    seeds = range(args.first_seed, args.first_seed + args.repetitions)
    with ProcessPoolExecutor(args.jobs) as pool:

        def run(one: Callable[[int], Any]) -> list[Any]:
            return list(pool.map(partial(_with_seed, one), seeds))

        ones = {
            "simulation": of_simulation,
            "inferred": partial(of_simulation, inferred=True),
            "auto": partial(of_auto, inferred=args.inferred),
            "fit": of_fit,
        }
        if args.what in ones:
            one = ones[args.what]
            simulations(run, [((0.999, p), p_v) for p, p_v in SETTINGS], one)
        elif args.what == "three":
            simulations(run, [(environments, p_v) for environments in THREE for p_v in (0.9, 0.8)], of_simulation)
        elif args.what == "unit-tests":
            print("test                         oracle    chosen   beyond the oracle   outcomes")
            for name in ("1", "1s", "2", "2s", "3"):
                for kind in KINDS:
                    each = run(partial(of_unit_test, name, kind))
                    errors, oracles = np.array([e[0] for e in each]), np.array([e[1] for e in each])
                    beyond = f"{100 * (errors / oracles - 1).mean():5.1f} %" if name[0] == "1" else "       "
                    said = " ".join(f"{k} {v}" for k, v in kind.items())
                    print(
                        f"{name:3} {said:22}  {oracles.mean():8.4f}  {errors.mean():8.4f}   {beyond}   "
                        f"{told(e[2] for e in each)}"
                    )
        else:
            controls(run, args.inferred)


def _with_seed(one: Callable[..., Any], seed: int) -> Any:
    return one(seed=seed)


if __name__ == "__main__":
    main()
