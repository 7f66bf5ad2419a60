"""Contracts that every objective keeps, from one list. An entry says which does not apply to it, and why."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from contracts.reference import MINIMAX, Settings, train_reference
from irmtv import OBJECTIVES, Runs, make_task, train
from irmtv.core.types import Statistics

# several contracts need no inferred environments worth the name, only a fixed q
pytestmark = pytest.mark.filterwarnings("ignore:warmup=0 with schedule='annealed'")

SUMS = ("irm-tv-l1+vrex", "minimax-tv-l1+vrex")
NAMES = (*OBJECTIVES, *SUMS)
CONTRACTS = (
    "batched-equals-alone",
    "zero-weight-is-erm",
    "environment-order",
    "duplicate-rows",
    "sample-weight",
    "duplicate-environment",
    "authors-reduction",
    "penalty-gradient",
    "textbook-steps",
)


def applies(contract):
    """The objectives that a contract is for."""
    assert contract in CONTRACTS
    return pytest.mark.parametrize("name", [n for n in NAMES if contract not in OBJECTIVES[n].not_applicable])


def data(loss="binary", n=120, seed=0, environments=3):
    rng = np.random.default_rng(seed)
    e = rng.choice(environments, n, p=[0.5, 0.3, 0.2][:environments])
    t = np.sort(rng.uniform(size=n))
    x = rng.normal(size=(n, 4)) + 0.5 * e[:, None]
    signal = x @ [1.0, -1.0, 0.5, 0.0] * (1 + 0.5 * e) + rng.normal(size=n)
    y = {"binary": (signal > 0).astype(float), "squared": signal, "multiclass": np.digitize(signal, [-1, 1])}[loss]
    return x, y, e, t


def task_of(x, y, e, t, loss="binary"):
    return make_task(x, y, environment=e, aux=t, loss=loss, dtype=torch.float64, min_rows=1)


def has(name, hyperparameter):
    return any(h.name == hyperparameter for h in OBJECTIVES[name].hyperparameters)


# what a method needs to show something within a few steps
QUICK = {
    "penalty_weight": 100.0,
    "warmup": 10,
    "environment_learning_rate": 1e-2,
    "cluster_steps": 20,
    "cluster_learning_rate": 0.05,
    "rounds": 2,
    "measure_rate": 0.1,
}


def settings_for(name, **more):
    """Penalty on from an early step, in float64."""
    s = {"dtype": torch.float64, "steps": 40, "learning_rate": 5e-3, **more}
    return {**{k: v for k, v in QUICK.items() if has(name, k)}, **s}


def fitted_parameters(task, name, runs=None, **settings):
    coef, intercept = train(task, name, runs, **settings).coefficients()
    return torch.cat([coef.flatten(1), intercept.reshape(len(coef), -1)], 1)  # (R, P)


def close(a, b, tolerance=1e-8):
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * 1e-2)


@applies("batched-equals-alone")
@pytest.mark.parametrize("loss", ["binary", "squared", "multiclass"])
def test_a_run_in_a_batch_is_the_same_run_alone(name, loss):
    """Float64, 100 steps with the penalty on, 1e-8 relative: seeds, weights, rates and warm-ups of its own."""
    tasks = [task_of(*data(loss, seed=i), loss) for i in range(2)]
    columns = {
        "seed": [3, 4, 5, 6],
        "data": [0, 1, 1, 0],
        "learning_rate": [1e-3, 5e-3, 2e-3, 5e-3],
        "l2": [0, 1e-3, 0, 0],
    }
    if loss == "squared" and "regression" not in OBJECTIVES[name].tasks:
        pytest.skip(OBJECTIVES[name].undefined["regression"])
    own = {"penalty_weight": [10.0, 100.0, 0.0, 1e3], "warmup": [20, 20, 0, 20]}
    columns |= {k: v for k, v in own.items() if has(name, k)}
    shared = settings_for(name, steps=120)
    shared = {k: v for k, v in shared.items() if k not in columns}
    together = fitted_parameters(tasks, name, Runs(**columns), **shared)
    for r in range(4):
        alone = fitted_parameters(tasks, name, Runs(**{k: v[r] for k, v in columns.items()}), **shared)
        assert close(together[r], alone[0])
        assert not close(together[r], together[(r + 1) % 4])  # the runs do differ


@applies("zero-weight-is-erm")
def test_penalty_weight_zero_is_erm(name):
    task = task_of(*data())
    zero = fitted_parameters(task, name, **settings_for(name, penalty_weight=0.0))
    own = OBJECTIVES[name].measure  # of the risk term
    assert close(zero, fitted_parameters(task, "erm", measure=own, **settings_for("erm")))


@applies("environment-order")
def test_order_and_names_of_environments_do_not_matter(name):
    x, y, e, t = data()
    settings = settings_for(name)
    expected = fitted_parameters(task_of(x, y, e, t), name, **settings)
    renamed = np.array(["zebra", "ant", "cow"])[e]
    assert close(fitted_parameters(task_of(x, y, renamed, t), name, **settings), expected)
    shuffle = np.random.default_rng(1).permutation(len(y))
    shuffled = task_of(x[shuffle], y[shuffle], e[shuffle], t[shuffle])
    assert close(fitted_parameters(shuffled, name, **settings), expected)


@applies("duplicate-rows")
def test_every_row_twice_changes_nothing(name):
    x, y, e, t = data()
    settings = settings_for(name)
    twice = task_of(*(np.concatenate([v, v]) for v in (x, y, e, t)))
    assert close(fitted_parameters(twice, name, **settings), fitted_parameters(task_of(x, y, e, t), name, **settings))


@applies("sample-weight")
@pytest.mark.parametrize("loss", ["binary", "squared", "multiclass"])
def test_whole_numbers_as_weights_are_repeated_rows(name, loss):
    """Float64, 60 steps of which 50 with the penalty on, 1e-8 relative; a row of weight 0 is not there."""
    if loss == "squared" and "regression" not in OBJECTIVES[name].tasks:
        pytest.skip(OBJECTIVES[name].undefined["regression"])
    x, y, e, t = data(loss)
    times = np.random.default_rng(7).integers(0, 4, len(y))
    settings = settings_for(name, steps=60, l2=1e-3)
    repeated = task_of(*(np.repeat(v, times, axis=0) for v in (x, y, e, t)), loss)
    expected = fitted_parameters(repeated, name, **settings)
    about = {"environment": e, "aux": t, "loss": loss, "dtype": torch.float64, "min_rows": 1}
    weighted = make_task(x, y, sample_weight=0.7 * times, **about)
    assert close(fitted_parameters(weighted, name, **settings), expected)
    assert not close(fitted_parameters(task_of(x, y, e, t, loss), name, **settings), expected, 1e-4)


@applies("duplicate-environment")
def test_an_environment_twice_under_two_names_is_one_environment(name):
    """Expectation and empirical measure: what matters is how much of each kind of row there is, not the names."""
    x, y, e, t = data()
    settings = settings_for(name)
    settings |= {k: v for k, v in {"measure": "empirical", "reduction": "expectation"}.items() if has(name, k)}
    again = e == 0
    doubled = [np.concatenate([v, v[again]]) for v in (x, y, e, t)]
    one_name = fitted_parameters(task_of(*doubled), name, **settings)
    second_name = doubled[2].copy()
    second_name[len(e) :] = 7
    two_names = fitted_parameters(task_of(doubled[0], doubled[1], second_name, doubled[3]), name, **settings)
    assert close(two_names, one_name)
    # and all environments at once
    x2, y2, t2 = (np.concatenate([v, v]) for v in (x, y, t))
    everything = fitted_parameters(task_of(x2, y2, np.concatenate([e, e + 10]), t2), name, **settings)
    assert close(everything, fitted_parameters(task_of(x, y, e, t), name, **settings))


@applies("authors-reduction")
def test_the_authors_reduction_of_l1_is_the_expectation(name):
    task = task_of(*data())
    expectation = fitted_parameters(task, name, **settings_for(name, reduction="expectation"))
    authors = fitted_parameters(task, name, **settings_for(name, reduction="authors"))
    assert close(authors, expectation)


def test_the_authors_reduction_of_l2_is_another_penalty():
    task = task_of(*data())
    expectation = fitted_parameters(task, "irm-tv-l2", **settings_for("irm-tv-l2", reduction="expectation"))
    authors = fitted_parameters(task, "irm-tv-l2", **settings_for("irm-tv-l2", reduction="authors"))
    assert not close(authors, expectation, 1e-3)


@applies("penalty-gradient")
def test_the_penalty_pulls_where_environments_differ_and_rests_where_they_agree(name):
    objective = OBJECTIVES[name]
    settings = objective.resolve({})
    mass = torch.full((1, 3), 1 / 3, dtype=torch.float64)

    def gradient(risk, slope):
        leaves = [torch.tensor([v], dtype=torch.float64, requires_grad=True) for v in (risk, slope)]
        e = Statistics(leaves[0].mean(-1), mass, leaves[0], leaves[1])
        torch.stack(objective.penalty_values(e, settings)).sum().backward()
        return torch.cat([leaf.grad for leaf in leaves if leaf.grad is not None])

    differ = gradient([0.3, 0.5, 0.9], [0.2, -0.1, 0.4])
    used = frozenset().union(*(p.uses for p in objective.penalties))
    assert len(differ) == len(used)
    assert (differ.abs() > 1e-4).any(1).all()
    assert torch.isfinite(differ).all()
    agree = gradient([0.5, 0.5, 0.5], [0.0, 0.0, 0.0])
    assert torch.allclose(agree, torch.zeros_like(agree), atol=1e-12)


@applies("textbook-steps")
@pytest.mark.parametrize("loss", ["binary", "squared", "multiclass"])
@pytest.mark.parametrize("steps", [1, 12])
def test_steps_equal_the_textbook_double_backward(name, loss, steps):
    """One penalised step, and a warm-up of 5 with 7 penalised steps: the same parameters to 1e-8."""
    task = task_of(*data(loss), loss)
    s = Settings(steps=steps, warmup=0 if steps == 1 else 5)
    expected = train_reference(task, name, s)
    ours = {"steps": s.steps, "l2": s.l2, "learning_rate": s.rate}
    if name != "erm":
        ours |= {"warmup": s.warmup, "penalty_weight": s.weight}
    if OBJECTIVES[name].needs == "aux":
        ours["environment_learning_rate"] = s.rho_rate
    coef, intercept = train(task, name, Runs(seed=s.seed), dtype=torch.float64, **ours).coefficients()
    assert close(coef.flatten(), expected[0].flatten())
    assert close(intercept.flatten(), expected[1].flatten())


@pytest.mark.parametrize("name", sorted(MINIMAX))
def test_the_alternating_schedule_equals_the_papers_update_equations(name):
    task = task_of(*data())
    s = Settings(steps=10, warmup=0, alternating=True)
    expected = train_reference(task, name, s)
    fitted = train(
        task,
        name,
        Runs(seed=0),
        dtype=torch.float64,
        steps=10,
        warmup=0,
        penalty_weight=s.weight,
        l2=s.l2,
        learning_rate=s.rate,
        environment_learning_rate=s.rho_rate,
        schedule="alternating",
    )
    assert close(fitted.coefficients()[0].flatten(), expected[0].flatten())


def test_every_exception_names_a_contract_and_a_reason(capsys):
    """The list of what does not apply, printed for a reader of the test log (pytest -rP shows it)."""
    for name in NAMES:
        for contract, why in OBJECTIVES[name].not_applicable.items():
            assert contract in CONTRACTS
            assert len(why) > 10
            print(f"{name:20s} {contract:24s} {why}")
    printed = capsys.readouterr().out
    assert "erm                  penalty-gradient" in printed
    print(printed)


def test_irmv1_is_irm_tv_l2_under_the_uniform_measure():
    """Corollary IRMv1w; without a warm-up and without the division the two objectives are one."""
    task = task_of(*data())
    settings = settings_for("irmv1", warmup=0, normalise=False)
    v1 = fitted_parameters(task, "irmv1", **settings)
    assert close(v1, fitted_parameters(task, "irm-tv-l2", measure="uniform", **settings))


def test_zin_is_minimax_tv_l2_with_the_authors_reduction():
    task = task_of(*data())
    zin = fitted_parameters(task, "zin", **settings_for("zin"))
    assert close(zin, fitted_parameters(task, "minimax-tv-l2", reduction="authors", **settings_for("minimax-tv-l2")))


def test_environment_names_of_any_hashable_kind():
    x, y, e, t = data()
    labels = [[("a", 1), 3.5, "site"][c] for c in e]
    settings = settings_for("irm-tv-l1")
    assert close(
        fitted_parameters(task_of(x, y, labels, t), "irm-tv-l1", **settings),
        fitted_parameters(task_of(x, y, e, t), "irm-tv-l1", **settings),
    )
