"""How near the candidates of a linear search come to the invariant model, and what the search costs.

    python examples/solving.py simulation          six settings, environments given
    python examples/solving.py inferred            the same, environments inferred from time
    python examples/solving.py unit-tests          the field's unit tests 1, 1s, 2, 2s, 3, 3s
    python examples/solving.py rotated             the hardest setting, columns mixed by a random rotation
    python examples/solving.py time                against scikit-learn's LogisticRegressionCV
    python examples/solving.py solvers             TV-l1 by Adam's subgradients and by Newton's method
    python examples/solving.py networks            of 32 units: divided by 1 + lambda or not, scalar or vector (minutes)

Every candidate of the default path of InvariantClassifierCV(hidden=()) (InvariantRegressorCV for unit test 1) is
trained on all rows; "best" is the best of them by the population, "chosen" what the estimator takes. The limit and the
oracles are exact. Seeds 6000 to 6009 unless said otherwise (--first-seed), ten repetitions (--repetitions).
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegressionCV

from irmtv import InvariantClassifierCV, InvariantRegressorCV, Runs, Task, train
from irmtv.datasets import make_simulation, make_unit_test, population_accuracy, simulation_limit
from irmtv.datasets.unit_tests import unit_test_error

SETTINGS = ((0.7, 0.9), (0.7, 0.8), (0.8, 0.9), (0.8, 0.8), (0.9, 0.9), (0.9, 0.8))  # p_s+, p_v
TEST_P_S = (0.999, 0.8, 0.2, 0.001)
Score = Callable[[Any, Any], float]  # coefficients (D,), intercept -> how good, higher is better


def scores(estimator: Any, task: Task, score: Score, *, inferred: bool = False) -> tuple[list[float], float, str]:
    """Of every candidate on all rows, of the choice, and what the rule said."""
    rows = task.train
    given = {"aux": rows.aux.numpy()} if inferred else {"environment": rows.environment.numpy()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = estimator.read_data(rows.x.double().numpy(), rows.y.numpy(), **given)
        search = estimator.search(data)

        def fitted(index: int) -> float:
            estimator.fit_choice(data, replace(search, choice=replace(search.choice, index=index)))
            return score(np.ravel(estimator.coef_), float(np.ravel(estimator.intercept_)[0]))

        return [fitted(i) for i in range(len(search.candidates))], fitted(search.choice.index), search.choice.outcome


def worst_accuracy(p_v: float, back: Any = None) -> Score:
    """In percent, exactly; `back` turns coefficients of mixed columns into those of the columns themselves."""

    def score(coef: Any, intercept: Any) -> float:
        own = coef if back is None else coef @ back
        return 100 * float(population_accuracy(own, intercept, TEST_P_S, p_v, 5).min())

    return score


def simulation(seeds: range, inferred: bool) -> None:
    print("p_s+  p_v   limit   best candidate (distance)   chosen (distance)   outcomes")
    distances = []
    for p, p_v in SETTINGS:
        limit = 100 * simulation_limit(p_v, 5)
        results = []
        for seed in seeds:
            task = make_simulation(5000, (0.999, p), p_v, random_state=seed)
            estimator = InvariantClassifierCV(hidden=(), random_state=seed)
            results.append(scores(estimator, task, worst_accuracy(p_v), inferred=inferred))
        best = np.array([max(r[0]) for r in results])
        chosen = np.array([r[1] for r in results])
        distances.append((limit - best.mean(), limit - chosen.mean()))
        found = sum(r[2] == "invariant-found" for r in results)
        print(
            f"{p:4}  {p_v:3}  {limit:6.2f}   {best.mean():6.2f} ({limit - best.mean():5.2f})   "
            f"{chosen.mean():6.2f} ({limit - chosen.mean():5.2f})   invariant-found {found} of {len(results)}"
        )
    mean = np.mean(distances, 0)
    print(f"mean distance from the limit: best {mean[0]:.2f}, chosen {mean[1]:.2f}")


def unit_tests(seeds: range) -> None:
    print("test  oracle   ERM      best candidate   chosen   (test error: mse for 1, else share of errors)")
    for name in ("1", "1s", "2", "2s", "3", "3s"):
        rows = []
        for seed in seeds:
            task = make_unit_test(name, 10_000, random_state=seed)
            kind = InvariantRegressorCV if name[0] == "1" else InvariantClassifierCV

            def score(coef: Any, intercept: Any, task: Task = task) -> float:
                return -float(np.mean(unit_test_error(coef, intercept, task)))

            every, chosen, _ = scores(kind(hidden=(), random_state=seed), task, score)
            rows.append((task.card["oracle"], -every[0], -max(every), -chosen))
        oracle, erm, best, chosen = np.mean(rows, 0)
        print(f"{name:4}  {oracle:7.4f}  {erm:7.4f}  {best:7.4f}          {chosen:7.4f}")


def rotated(seeds: range) -> None:
    p, p_v = 0.9, 0.8
    print(f"limit {100 * simulation_limit(p_v, 5):.2f}; best candidate, chosen:")
    for layer in (None, "auto"):
        results = []
        for seed in seeds:
            task = make_simulation(5000, (0.999, p), p_v, random_state=seed)
            turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(15, 15)))[0]
            mixed = replace(task, train=replace(task.train, x=task.train.x.double() @ torch.as_tensor(turn)))
            estimator = InvariantClassifierCV(hidden=(), layer=layer, random_state=seed)
            every, chosen, _ = scores(estimator, mixed, worst_accuracy(p_v, turn.T))
            results.append((max(every), chosen))
        print(f"layer={layer!r}: {np.mean(results, 0).round(2)}, by repetition {np.round(np.array(results)[:, 0], 1)}")


def timing(repeats: int = 5) -> None:
    rows = make_simulation(6000, (0.999, 0.8), 0.8, random_state=0).train
    x, y, environment = rows.x.double().numpy(), rows.y.numpy(), rows.environment.numpy()
    theirs, ours = [], []
    warnings.simplefilter("ignore")
    for _ in range(repeats):
        begun = time.perf_counter()
        LogisticRegressionCV(cv=5).fit(x, y)
        theirs.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        InvariantClassifierCV(hidden=(), random_state=0).fit(x, y, environment=environment)
        ours.append(time.perf_counter() - begun)
    print(f"6,000 x 15: LogisticRegressionCV {np.median(theirs):.2f} s, InvariantClassifierCV {np.median(ours):.2f} s")
    print(f"ratio of the medians of {repeats}: {np.median(ours) / np.median(theirs):.1f}; first call {ours[0]:.2f} s")


def solvers(seeds: range) -> None:
    """TV-l1, lambda 1000: the objective that is reached, worst accuracy, steps, time."""
    newton = {
        "Newton, from ERM": {"solver": "newton", "start": "erm"},
        "Newton, from equal risks": {"solver": "newton", "start": "equal-risks"},
    }
    given = {
        "Adam, from ERM": {"solver": "subgradient", "start": "erm", "warmup": 0},
        "Adam, small start": {"solver": "subgradient", "start": "small", "warmup": 0},
        **newton,
    }
    inferred = {  # half of the steps are ERM's and rho's, as the authors do it
        "Adam": {"solver": "subgradient", "warmup": 0.5},
        "Adam, rho 20 x as fast": {"solver": "subgradient", "warmup": 0.5, "environment_learning_rate": 0.02},
        **newton,
    }
    print("environments  classifier  solver                      objective   worst accuracy   steps   seconds")
    _solve(seeds, "irm-tv-l1", "given", given)
    _solve(seeds, "minimax-tv-l1", "inferred", inferred)


def _solve(seeds: range, objective_name: str, environments: str, ways: dict[str, dict[str, Any]]) -> None:
    for classifier in ("scalar", "vector"):
        for name, how in ways.items():
            values = []
            for p, p_v in SETTINGS:
                for seed in seeds:
                    task = make_simulation(5000, (0.999, p), p_v, random_state=seed)
                    begun = time.perf_counter()
                    fitted = train(
                        task,
                        objective_name,
                        Runs(penalty_weight=1e3),
                        classifier=classifier,
                        steps=2000,
                        learning_rate=0.02,
                        normalise=False,
                        dtype=torch.float64,
                        snapshot_every=2000,
                        **how,
                    )
                    seconds = time.perf_counter() - begun
                    coef, intercept = fitted.coefficients()
                    newton = how["solver"] == "newton"
                    steps = int(fitted.learned("newton_steps")[0]) if newton else 2000
                    accuracy = worst_accuracy(p_v)(coef[0].numpy(), float(intercept[0]))
                    values.append((_objective(fitted), accuracy, steps, seconds))
            objective, accuracy, steps, seconds = np.mean(values, 0)
            print(
                f"{environments:12}  {classifier:10}  {name:26}  {objective:9.4f}   {accuracy:14.2f}   {steps:5.0f}   "
                f"{seconds:7.2f}"
            )


def networks(seeds: range) -> None:
    """The best of all weights and steps after the warm-up, on the test rows, and the best weight at the last step."""
    tasks = [make_simulation(5000, (0.999, p), p_v, random_state=s) for p, p_v in SETTINGS for s in seeds]
    limits = np.repeat([100 * simulation_limit(p_v, 5) for _, p_v in SETTINGS], len(seeds))
    weights = [10.0, 100.0, 1e3, 1e4]
    print("classifier  divided by 1 + lambda   distance from the limit: best of the path, best at the end   seconds")
    for classifier in ("scalar", "vector"):
        for divided in (True, False):
            begun = time.perf_counter()
            fitted = train(
                tasks,
                "irm-tv-l1",
                Runs.grid(data=range(len(tasks)), penalty_weight=weights),
                hidden=(32,),
                classifier=classifier,
                normalise=divided,
                learning_rate=0.02,
                l2=1e-3,
                snapshot_every=100,
                keep_states=True,
            )
            seconds = time.perf_counter() - begun
            shape = (len(tasks), len(weights))
            worst = np.array([np.reshape(fitted.at(s).evaluate().worst, shape) for s in range(1000, 2001, 100)])
            best, last = limits - 100 * worst.max((0, 2)), limits - 100 * worst[-1].max(1)
            print(
                f"{classifier:10}  {divided!s:21}   {best.mean():6.2f}, {last.mean():6.2f}   {seconds:5.0f}", flush=True
            )


def _objective(fitted: Any, weight: float = 1e3) -> float:
    """risk + lambda (sum_e mu_e |S_e|)^2 on the training rows, from the last snapshot."""
    history = fitted.history
    share = history.rows[-1, 0] / history.rows[-1, 0].sum()
    slope = history.slope[-1, 0]
    length = slope.abs() if slope.ndim == 1 else torch.linalg.vector_norm(slope, dim=-1)
    return float((share * history.risk[-1, 0]).sum() + weight * (share * length).sum() ** 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", choices=["simulation", "inferred", "unit-tests", "rotated", "time", "solvers", "networks"]
    )
    parser.add_argument("--first-seed", type=int, default=6000)
    parser.add_argument("--repetitions", type=int, default=10)
    given = parser.parse_args()
    seeds = range(given.first_seed, given.first_seed + given.repetitions)
    if given.what in ("simulation", "inferred"):
        simulation(seeds, inferred=given.what == "inferred")
    elif given.what == "time":
        timing()
    else:
        {"unit-tests": unit_tests, "rotated": rotated, "solvers": solvers, "networks": networks}[given.what](seeds)


if __name__ == "__main__":
    main()
