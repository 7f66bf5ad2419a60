"""What solved linear models store of their folds, and that experiments choose as a search on the same folds does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from irmtv import Runs, train
from irmtv.datasets import make_control, make_simulation
from irmtv.lab.experiments import Spec, Store, fold_arrays, read_records, read_results, run_experiment
from irmtv.lab.experiments import plan as plan_module
from irmtv.lab.experiments.store import RunRecord
from irmtv.models.networks.model import NetworkModel
from irmtv.models.own_directions import directions_beside, own_directions
from irmtv.models.search import Search, search, search_model
from irmtv.objectives import OBJECTIVES
from irmtv.selection import invariance
from irmtv.selection.directions import Directions
from irmtv.selection.folds import deal_folds, fold_tasks
from lab.experiments.records import a_group
from lab.experiments.small import ERM, THREE, TV, small

WEIGHTS, OF_VECTOR = [10.0, 1e3], [100.0, 1e4]
VECTOR = {"classifier": "vector", "start": "equal-risks"}
GIVEN = (
    ERM,
    {"objective": "irm-tv-l1", "label": "scalar", "penalty_weight": WEIGHTS},
    {"objective": "irm-tv-l1", "label": "vector", "penalty_weight": OF_VECTOR, **VECTOR},
    {"objective": "eills", "penalty_weight": [10.0, 100.0]},
)
OWN = (
    {"objective": "minimax-tv-l1", "label": "scalar", "penalty_weight": [0.0, *WEIGHTS]},
    {"objective": "minimax-tv-l1", "label": "vector", "penalty_weight": [0.0, *OF_VECTOR], **VECTOR},
)
NEWTON = {"solver": "newton", "dtype": "float64", "l2": 1e-3}
POOLS = {"given": {"pool": ["scalar", "vector", "eills"]}, "inferred": {"pool": ["scalar", "vector"]}}
COLUMNS = {"held-out/column_slope", "held-out/column_slope_cov"}
SCALAR = {"held-out/scalar_slope", "held-out/scalar_slope_cov"}


def solved_spec(kind: str = "given", **options: Any) -> Spec:
    options = {"rules": ["invariance"], "folds": 3, "training": NEWTON, "pools": POOLS[kind], **options}
    options["arguments"] = {"n_samples": 900, **options.get("arguments", {})}
    return small(*(GIVEN if kind == "given" else OWN), **options)


def ran(spec: Spec, folder: Path) -> list[RunRecord]:
    assert run_experiment(spec, folder).failed == ()
    with Store.read(folder) as store:
        return store.runs()


def copied(runs: list[RunRecord], folder: Path) -> Path:
    with Store.create_or_open(folder) as store:
        store.add_group(a_group(*runs))
    return folder


def pooled_records(spec: Spec, folder: Path) -> list[Any]:
    return [r for _, name, _, r, _ in read_records(spec, folder, "test/accuracy") if name == "pool"]


def searched(task: Any, kind: str, seed: int) -> Search:
    """The same path in a search: folds are dealt by environment alone, and nothing is standardised."""
    model = NetworkModel({"solver": "newton", "dtype": torch.float64, "l2": 1e-3, "steps": 30}, seeds=(seed,))
    kinds = {"classifier": "scalar", "start": "erm"}
    combinations = [{"penalty_weight": w, **kinds} for w in (0.0, *WEIGHTS)]
    combinations += [{"penalty_weight": w, **VECTOR} for w in OF_VECTOR]
    columns = [(OBJECTIVES["eills"], [{"penalty_weight": w} for w in (10.0, 100.0)])]
    objective = OBJECTIVES["irm-tv-l1" if kind == "given" else "minimax-tv-l1"]
    beside = columns if kind == "given" else []
    return search_model(model, task, objective, combinations, n_folds=3, seed=seed, by_class=False, beside=beside)


def assert_close(a: Any, b: Any) -> None:
    assert type(a) is type(b) or {type(a), type(b)} <= {int, float}
    if isinstance(a, (float, list)):
        np.testing.assert_allclose(np.array(a, dtype=float), np.array(b, dtype=float), rtol=1e-5, atol=1e-9)
    else:
        assert a == b


# --- what is stored ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[Spec, Path, list[RunRecord]]:
    spec, folder = solved_spec(repetitions=2), tmp_path_factory.mktemp("given") / "x"
    return spec, folder, ran(spec, folder)


def test_columns_are_those_of_the_models_on_the_rows_that_they_have_not_seen(given):
    for seed in (0, 1):
        tasks = fold_tasks(make_simulation(900, n_test=120, random_state=seed), 3, seed)
        for k, task in enumerate(tasks):
            of_run = Runs(seed=seed, penalty_weight=1e4)
            settings = {**VECTOR, "l2": 1e-3, "solver": "newton", "dtype": torch.float64}
            coef, intercept = train(task, "irm-tv-l1", of_run, **settings).coefficients()
            w, b = coef[0].numpy(), float(intercept[0])
            (run,) = (
                r
                for r in given[2]
                if (r.method, r.seed, r.part, r.hyperparameters.get("penalty_weight"))
                == ("vector", seed, f"fold {k + 1}/3", 1e4)
            )
            x, y = task.held_out.x.double().numpy(), task.held_out.y.numpy()
            residual = 1 / (1 + np.exp(-(x @ w + b))) - y
            slopes, alone = residual[:, None] * x * w, residual * (x @ w + b)
            for e in range(2):
                here = task.held_out.environment.numpy() == e
                mean, cov = run.arrays["held-out/column_slope"][e], run.arrays["held-out/column_slope_cov"][e]
                np.testing.assert_allclose(mean, slopes[here].mean(0), rtol=1e-5, atol=1e-8)
                np.testing.assert_allclose(cov, np.cov(slopes[here].T) / here.sum(), rtol=1e-5, atol=1e-8)
                scalar, error = (run.arrays[name][e] for name in sorted(SCALAR))
                np.testing.assert_allclose(scalar, alone[here].mean(), rtol=1e-5, atol=1e-8)
                np.testing.assert_allclose(error, alone[here].var(ddof=1) / here.sum(), rtol=1e-5, atol=1e-8)


def test_which_runs_store_what(given):
    for run in given[2]:
        names, on_fold = set(run.arrays), run.part.startswith("fold")
        assert (names >= COLUMNS) == on_fold and bool(COLUMNS & names) == on_fold
        assert (names >= SCALAR) == bool(SCALAR & names) == (on_fold and run.method == "vector")
        assert ("held-out/directions" in names) == (on_fold and run.method == "erm")
        assert "held-out/own" not in names  # of older versions


def test_erm_has_the_test_of_the_same_direction(given):
    for seed in (0, 1):
        whole = make_simulation(900, n_test=120, random_state=seed)
        coef, intercept = train(
            fold_tasks(whole, 3, seed),
            "erm",
            Runs(seed=seed, data=[0, 1, 2]),
            solver="newton",
            l2=1e-3,
            dtype=torch.float64,
        ).coefficients()
        models = torch.cat([coef, intercept.unsqueeze(1)], 1)
        middle = models[(models - models.mean(0)).square().sum(1).argmin()]
        stored = [r.arrays["held-out/directions"] for r in given[2] if r.seed == seed and r.method == "erm"
                  and r.part != "all"]  # fmt: skip
        assert len(stored) == 3
        for each in stored:
            np.testing.assert_allclose(each, own_directions(whole, middle), rtol=1e-5)


def test_erm_by_adam_has_directions_beside_its_scores_where_its_risk_is_lowest(tmp_path):
    """Of every combination over all folds together, against runs by hand."""
    spec = small({**ERM, "learning_rate": [0.002, 0.3]}, TV, rules=["invariance"], arguments={"n_samples": 900})
    runs = ran(spec, tmp_path / "x")
    assert not any({*COLUMNS, *SCALAR, "held-out/own"} & set(run.arrays) for run in runs)
    stored = [r for r in runs if "held-out/directions" in r.arrays]
    assert len(stored) == 4 and all(r.method == "erm" and r.part.startswith("fold") for r in stored)
    whole = make_simulation(900, n_test=120, random_state=0)
    fold = deal_folds(whole, 2, 0)
    for rate in (0.002, 0.3):
        fits = [
            train(task, "erm", Runs(seed=0), steps=30, learning_rate=rate, snapshot_every=5, keep_states=True)
            for task in fold_tasks(whole, 2, 0)
        ]
        risks = {
            step: np.mean([nll(fit.at(step), fit.tasks[0].held_out) for fit in fits]) for step in range(5, 31, 5)
        }  # folds of equal size
        step = min(risks, key=risks.__getitem__)
        scores = torch.empty(900, dtype=torch.float64)
        for f, fit in enumerate(fits):
            scores[fold == f] = fit.at(step).logits(fit.tasks[0].held_out.x)[0].double()
        expected = directions_beside(whole, scores)
        found = [r.arrays["held-out/directions"] for r in stored if r.hyperparameters["learning_rate"] == rate]
        assert len(found) == 2
        for each in found:
            np.testing.assert_allclose(each, expected, rtol=1e-3)


def test_a_method_that_infers_has_directions_at_the_end_of_its_warm_up(tmp_path):
    """As in a search, in the environments that it has inferred by then."""
    how = {"warmup": 15, "environment_learning_rate": 0.1, "learning_rate": 0.05}
    method = {"objective": "minimax-tv-l1", **how, "penalty_weight": [10.0, 1e3]}
    spec = small(method, rules=["invariance"], arguments={"n_samples": 900}, training={"dtype": "float64"})
    runs = ran(spec, tmp_path / "x")
    task = make_simulation(900, n_test=120, random_state=0)
    combinations = [{"penalty_weight": w} for w in (10.0, 1e3)]
    how |= {"steps": 30, "snapshot_every": 5, "n_folds": 2, "dtype": torch.float64, "keep_states": True}
    found = search(task, "minimax-tv-l1", combinations, **how)
    assert found.candidates[found.erm].step == 15
    stored = [r.arrays["held-out/directions"] for r in runs if r.part != "all"]
    assert len(stored) == 4
    for each in stored:  # up to the end of the warm-up both weights are the same model
        np.testing.assert_allclose(each, found.records.directions, rtol=1e-6)


def nll(fitted: Any, rows: Any) -> float:
    f, y = fitted.logits(rows.x)[0].double().numpy(), rows.y.double().numpy()
    return float(np.mean(np.logaddexp(0, f) - f * y))


def test_erm_that_diverged_in_a_fold_has_no_directions(tmp_path):
    arguments = {"differ": "outcome-noise"}  # squared errors overflow
    spec = small({**ERM, "learning_rate": [0.05, 1e30]}, rules=["invariance"], data="control", arguments=arguments)
    runs = [r for r in ran(spec, tmp_path / "x") if r.part != "all"]
    lost = {r.hyperparameters["learning_rate"] for r in runs if r.status == "diverged"}
    assert lost == {1e30}
    for run in runs:
        assert ("held-out/directions" in run.arrays) == (run.hyperparameters["learning_rate"] == 0.05)


def test_a_grid_of_solvers_has_each_runs_own(tmp_path):
    """Of Newton's method the exact ones, of Adam's those beside its scores; the sooner it stops the less they agree."""
    spec = small({**ERM, "solver": ["adam", "newton"]}, rules=["invariance"], arguments={"n_samples": 900})
    found = {}
    for run in ran(spec, tmp_path / "x"):
        if run.part != "all":
            by_newton = run.hyperparameters.get("solver") == "newton"
            assert (set(run.arrays) >= COLUMNS) == by_newton and "held-out/own" not in run.arrays
            found.setdefault(by_newton, []).append(tuple(run.arrays["held-out/directions"]))
    assert {key: len(values) for key, values in found.items()} == {False: 2, True: 2}
    assert len({*found[True]}) == len({*found[False]}) == 1 and found[True] != found[False]


@pytest.mark.parametrize(("most", "there"), [(14, False), (15, True)])
def test_many_columns_are_not_looked_at_one_by_one(tmp_path, monkeypatch, most, there):
    monkeypatch.setattr(fold_arrays, "MOST_COLUMNS", most)
    spec = small(ERM, rules=["invariance"], training=NEWTON, arguments={"n_samples": 900})
    for run in ran(spec, tmp_path / "x"):
        on_fold = run.part != "all"
        assert (set(run.arrays) >= COLUMNS) == (there and on_fold)
        assert ("held-out/directions" in run.arrays) == on_fold
    assert read_results(spec, tmp_path / "x")["value"].notna().all()


def test_labels_that_were_inferred_are_environments_like_given_ones(tmp_path, monkeypatch):
    monkeypatch.setitem(plan_module.INFERENCE, "steps", 60)
    inferred = [{**method, "environments": "inferred"} for method in GIVEN]
    spec = small(*inferred, rules=["invariance"], training=NEWTON, pools=POOLS["given"], arguments={"n_samples": 900})
    ran(spec, tmp_path / "x")
    (records,) = pooled_records(spec, tmp_path / "x")
    assert records.column_slope is not None and records.directions is not None and not records.inferred
    assert records.column_slope.shape == (2, 7, 2, 15) and records.rows.shape == (2, 7, 2)


# --- what is chosen ------------------------------------------------------------------------------------------------

CASES = {
    "two environments": ("given", {"p_s": [0.999, 0.7]}),
    "three environments": ("given", THREE),
    "environments of its own": ("inferred", {"p_s": [0.999, 0.7]}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_pool_chooses_as_a_search_on_the_same_folds(tmp_path, case):
    kind, arguments = CASES[case]
    arguments = {"n_samples": 2000, **arguments}
    spec = solved_spec(kind, arguments=arguments, repetitions=2)
    ran(spec, tmp_path / "x")
    frame = read_results(spec, tmp_path / "x")
    frame = frame[(frame["method"] == "pool") & (frame["metric"] == "accuracy") & (frame["summary"] == "worst")]
    outcomes = []
    for seed, records in zip((0, 1), pooled_records(spec, tmp_path / "x"), strict=True):
        search = searched(make_simulation(random_state=seed, **arguments), kind, seed)
        assert records.directions is not None and records.own is None and records.column_slope is not None
        assert (records.left_out is not None) == (case == "three environments")
        np.testing.assert_allclose(records.directions, search.records.directions, rtol=1e-5)
        (row,) = frame[frame["repetition"] == seed].itertuples()
        chosen = search.combination["penalty_weight"]
        assert row.outcome == search.choice.outcome
        assert row.hyperparameters.get("penalty_weight", 0.0) == chosen
        if chosen:
            label = "eills" if search.path.objective.name == "eills" else search.combination["classifier"]
            assert row.chosen_method == label
        for name, value in search.choice.figures.items():
            if name != "toward":  # without outputs a store cannot ask; both p are 0 here
                assert_close(row.figures[name], value)
        outcomes.append(row.outcome)
    assert "invariant-found" in outcomes


def test_too_few_rows_for_all_columns_leave_components_as_in_a_search(tmp_path):
    """60 rows in each environment, and 16 parameters: the exact test would need 80."""
    arguments = {"n_samples": 120, "differ": "label-noise"}
    spec = solved_spec(data="control", arguments=arguments)
    ran(spec, tmp_path / "x")
    (records,) = pooled_records(spec, tmp_path / "x")
    task = make_control(120, "label-noise", random_state=0)
    search = searched(task, "given", 0)
    assert records.own is None and records.directions is not None
    np.testing.assert_allclose(records.directions, search.records.directions, rtol=1e-4)
    erm = search.path_of(search.erm)
    assert own_directions(task, erm.middle_model.flatten()) is None


def test_a_store_of_an_older_version_is_read_without_columns(given, tmp_path):
    """Its runs have none; those of ERM had models of single environments."""
    spec, _, runs = given
    new = {*COLUMNS, *SCALAR, "held-out/directions"}

    def old(run: RunRecord) -> RunRecord:
        arrays = {name: a for name, a in run.arrays.items() if name not in new}
        if "held-out/directions" in run.arrays:
            rows = run.arrays["held-out/rows"][0]
            arrays["held-out/own"] = np.stack([rows, np.full_like(rows, 0.01), np.full_like(rows, 0.1)], 1)
        return replace(run, arrays=arrays)

    folder = copied([old(run) for run in runs], tmp_path / "old")
    frame = read_results(spec, folder)
    assert frame["value"].notna().all()
    for repetition, records in enumerate(pooled_records(spec, folder)):
        assert records.column_slope is None and records.directions is None and records.own is not None
        assert records.slope.ndim == 4  # as it was: a scalar beside the components of a vector
        mine = frame[(frame["method"] == "pool") & (frame["repetition"] == repetition)]
        verdict = invariance(records)
        assert set(mine["outcome"]) == {verdict.outcome}
    assert run_experiment(spec, folder).trained == 0  # the keys are the same


def test_environments_that_were_not_left_out_are_not_asked_for(tmp_path):
    """A store of an older version, whose spec has the rule "invariance" alone."""
    spec = solved_spec(arguments=THREE)
    runs = ran(spec, tmp_path / "x")
    kept = [run for run in runs if not run.part.startswith("without")]
    assert len(runs) - len(kept) == 3 * 7
    folder = copied(kept, tmp_path / "old")
    (records,) = pooled_records(spec, folder)
    assert records.left_out is None and records.column_slope is not None
    assert read_results(spec, folder)["value"].notna().all()
    assert run_experiment(spec, folder).trained == 3 * 7
    (records,) = pooled_records(spec, folder)
    assert records.left_out is not None and records.left_out.shape[1] == 3


def test_a_pool_of_adam_and_newton_is_tested_by_what_all_have(tmp_path):
    adam = {**TV, "label": "adam"}
    newton = {"objective": "irm-tv-l1", "label": "newton", "penalty_weight": [100.0], "solver": "newton"}
    erm = {**ERM, "label": "erm, newton", "solver": "newton"}
    pools = {"mixed": ["adam", "newton"]}
    spec = small(ERM, adam, erm, newton, rules=["invariance"], pools=pools, arguments={"n_samples": 900})
    ran(spec, tmp_path / "x")
    found = {name: records for _, name, _, records, _ in read_records(spec, tmp_path / "x", "test/accuracy")}
    assert found["mixed"].column_slope is None
    assert isinstance(found["mixed"].directions, Directions)  # that of the ERM with the lowest risk
    assert len(found["mixed"]) == 6 + 12 + 1 + 1  # snapshots of ERM and of two weights, a solution of each
    # alone, each stands beside an ERM that was trained as it was
    assert found["newton"].column_slope is not None and len(found["newton"]) == 2
    assert found["adam"].column_slope is None and len(found["adam"]) == 6 + 12
    assert found["adam"].own is None and found["adam"].directions not in (None, found["newton"].directions)


def test_a_solved_method_has_any_erm_where_there_is_no_other(tmp_path):
    newton = {"objective": "irm-tv-l1", "penalty_weight": [100.0], "solver": "newton"}
    spec = small(ERM, newton, rules=["invariance"])
    ran(spec, tmp_path / "x")
    assert read_results(spec, tmp_path / "x")["value"].notna().all()
