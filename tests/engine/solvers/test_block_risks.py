"""Linear models on rows in blocks: the risks and the solutions of the same rows in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.problems import refuse, task_of
from irmtv import Runs, train
from irmtv.core.losses import Squared
from irmtv.data.blocks import RowsInBlocks
from irmtv.engine.solvers import block_risks
from irmtv.engine.solvers.block_risks import BlockRisks, BlockRows
from irmtv.engine.solvers.column_sets import Moments
from irmtv.engine.solvers.corrected import FixedPoint
from irmtv.engine.solvers.linear_risks import LinearRisks
from irmtv.engine.solvers.newton import SHARPENING
from irmtv.engine.solvers.second_order import Problem, Term

N, SIZES = 1500, [1, 700, 17, 300, 482]  # of unequal blocks
KINDS = ("binary", "multiclass", "squared", "targets")
S = {"solver": "newton", "dtype": torch.float64, "l2": 1e-3}


def whole_task(kind, **more):
    """All rows, environment by environment: the last one is in the last blocks alone."""
    task = task_of(kind, n=N, environments=4, **more)
    return replace(task, train=task.train.take(torch.argsort(task.train.environment, stable=True)))


def sample_of(task, n=600):
    index = torch.randperm(N, generator=torch.Generator().manual_seed(1))[:n].sort().values
    return replace(task, train=task.train.take(index))


def blocks_of(task):
    return RowsInBlocks.cut(task.train, SIZES)


def models(fitted):
    """(R, C, D + 1)."""
    coef, intercept = fitted.coefficients()
    shape = len(fitted), fitted.tasks[0].n_outputs
    return torch.cat([coef.view(*shape, -1), intercept.view(*shape, 1)], 2)


@pytest.fixture
def passes(monkeypatch):
    """How many were made."""
    made, one = [], BlockRows._pass

    def counted(self, *of):
        made.append(None)
        return one(self, *of)

    monkeypatch.setattr(BlockRows, "_pass", counted)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_sums_over_blocks_are_the_risks_of_all_rows(kind, monkeypatch):
    monkeypatch.setattr(block_risks, "NUMBERS_OF_PIECE", 1)  # several pieces in a block
    monkeypatch.setattr(block_risks, "FEWEST", 50)
    task = whole_task(kind)
    memory = LinearRisks(task.train, task.train.environment, 4, task.loss, task.n_outputs)
    blocks = BlockRisks(BlockRows(blocks_of(task), 4, task.loss, task.n_outputs)).count()
    g = torch.Generator().manual_seed(0)
    theta = torch.randn(3, memory.n_parameters, generator=g, dtype=torch.float64)
    v = torch.randn(3, 4, memory.n_parameters, generator=g, dtype=torch.float64)
    at, there = memory.at(theta), blocks.at(theta)
    for name in ("risk", "gradient", "hessian"):
        assert torch.allclose(getattr(there, name), getattr(at, name), rtol=1e-11, atol=1e-12)
    assert torch.allclose(blocks.along(there, v), memory.along(at, v), rtol=1e-11, atol=1e-11)
    assert torch.allclose(blocks.spread(theta), memory.spread(theta), rtol=1e-11, atol=1e-12)
    assert torch.allclose(blocks.mass, memory.mass)
    assert torch.allclose(blocks.effective, memory.effective)


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_a_pass_leaves_out_hessians_that_nothing_asks_for(kind, passes):
    task = whole_task(kind)
    memory = LinearRisks(task.train, task.train.environment, 4, task.loss, task.n_outputs)
    rows = BlockRows(blocks_of(task), 4, task.loss, task.n_outputs)
    blocks = BlockRisks(rows).count()
    g = torch.Generator().manual_seed(0)
    theta = torch.randn(2, memory.n_parameters, generator=g, dtype=torch.float64)
    rows.look_ahead(theta[1:], curved=False)
    at = memory.at(theta)
    assert torch.allclose(blocks.at(theta[:1]).hessian, at.hessian[:1], rtol=1e-11, atol=1e-12)
    flat = blocks.at_some(theta[1:], curved=False)
    assert len(passes) == 1 and not len(flat.hessian)
    assert torch.allclose(flat.risk, at.risk[1:], rtol=1e-11, atol=1e-12)
    assert torch.allclose(flat.gradient, at.gradient[1:], rtol=1e-11, atol=1e-12)
    assert torch.allclose(blocks.at(theta[1:]).hessian, at.hessian[1:], rtol=1e-11, atol=1e-12)
    assert len(passes) == 2  # what a Hessian is asked of after all
    assert torch.equal(blocks.at_some(theta[1:], curved=False).risk, blocks.at(theta[1:]).risk) and len(passes) == 2


def test_moments_of_blocks_are_those_of_all_rows():
    task = whole_task("targets")
    memory = LinearRisks(task.train, task.train.environment, 4, task.loss, task.n_outputs)
    blocks = BlockRisks(BlockRows(blocks_of(task), 4, task.loss, task.n_outputs)).count()
    one, other = Moments.of(blocks, blocks.mass), Moments.of(memory, memory.mass)
    assert torch.allclose(one.each, other.each, rtol=1e-10, atol=1e-12)
    assert torch.allclose(one.rows, other.rows)


CASES = {
    "erm": ("erm", {}),
    "irm-tv-l1": ("irm-tv-l1", {"penalty_weight": 10.0}),
    "irm-tv-l2, vector": ("irm-tv-l2", {"penalty_weight": 100.0, "classifier": "vector"}),
    "vrex": ("vrex", {"penalty_weight": 10.0, "measure": "uniform"}),
    "a sum": ("irm-tv-l1+vrex", {"penalty_weight": 10.0}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_solution_is_that_of_all_rows_in_memory(kind, case, passes):
    name, more = CASES[case]
    task, sample = whole_task(kind), sample_of(whole_task(kind))
    found = train(sample, name, blocks=blocks_of(task), **S, **more)
    # of squared errors the same is done with the same sums; else the start is the model of the sample, and says which
    # stationary point is reached
    memory = models(train(sample, name, **S, **more))
    if case == "erm" or isinstance(task.loss, Squared):
        memory = models(train(task, name, **S, **more))
    else:
        for _ in range(3):  # and once more, as near as it gets
            begin = {"W0": memory[..., :-1], "b0": memory[..., -1:]}
            memory = models(train(task, name, start=begin, **S, **more))
    difference = (models(found) - memory).norm() / memory.norm()
    # in memory the kinks of l1 are solved to 1e-10 of the objective; the next test is exact
    assert difference < (1e-8 if "l1" not in name or isinstance(task.loss, Squared) else 1e-6)
    assert found.learned("converged").all()
    assert len(passes) == 1 if isinstance(task.loss, Squared) else len(passes) <= 12


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_the_solution_with_kinks_is_stationary_for_all_rows(kind):
    task, sample, weight = whole_task(kind), sample_of(whole_task(kind)), 10.0
    found = models(train(sample, "irm-tv-l1", blocks=blocks_of(task), penalty_weight=weight, **S)).flatten(1)
    erm = models(train(task, "erm", **S)).flatten(1)
    risks = LinearRisks(task.train, task.train.environment, 4, task.loss, task.n_outputs)
    one = torch.ones(risks.n_parameters, 1, dtype=torch.float64)
    problem = Problem([risks], [risks.mass], [Term("slope", "l1", [risks.mass])], one)
    slopes = (erm.unsqueeze(1) * risks.at(erm).gradient).sum(2)
    eps = SHARPENING[-1] * slopes.abs() @ risks.mass
    none, l2 = torch.zeros(1, dtype=torch.long), torch.tensor([1e-3], dtype=torch.float64)
    exact = problem.minimise(found, none, l2, torch.full((1, 1), weight, dtype=torch.float64), eps, 1e-15)
    assert (found - exact.theta).norm() < 1e-8 * found.norm()
    assert int(exact.steps) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["binary", "squared"])
def test_several_runs_are_those_alone(kind):
    task, sample = whole_task(kind), sample_of(whole_task(kind))
    runs = Runs(seed=0, penalty_weight=[0.0, 10.0, 10.0], classifier=["scalar", "scalar", "vector"])
    together = models(train(sample, "irm-tv-l2", runs, blocks=blocks_of(task), **S))
    for r in range(3):
        alone = models(train(sample, "irm-tv-l2", runs.take([r]), blocks=blocks_of(task), **S))
        assert torch.allclose(together[r], alone[0], rtol=1e-7, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["binary", "squared"])
@pytest.mark.parametrize("columns", [1, 2])
def test_environments_are_inferred_on_the_sample_and_taken_for_all_rows(kind, columns):
    task = whole_task(kind)
    aux = torch.cat([task.train.aux, task.train.aux.sin() + task.train.x[:, :1]], 1)[:, :columns]
    task = replace(task, train=replace(task.train, aux=aux))
    more = {"penalty_weight": 10.0, **S}
    found = train(sample_of(task), "minimax-tv-l2", blocks=blocks_of(task), **more)
    codes = found.membership(aux=task.train.aux)[0].argmax(1)
    given = replace(task, train=replace(task.train, environment=codes, names=("a", "b")))
    begin = models(found)
    start = {"W0": begin[..., :-1], "b0": begin[..., -1:]}
    memory = models(train(given, "irm-tv-l2", start=start, **more))
    assert (begin - memory).norm() < 1e-7 * memory.norm()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_eills_are_fitted_to_all_rows(kind, passes):
    task, sample = whole_task(kind, features=5), sample_of(whole_task(kind, features=5))
    found = train(sample, "eills", blocks=blocks_of(task), penalty_weight=10.0, l2=1e-3, dtype=torch.float64)
    model, used = models(found)[0], found.learned("columns")[0].bool()
    if isinstance(task.loss, Squared):
        memory = train(task, "eills", penalty_weight=10.0, l2=1e-3, dtype=torch.float64)
        assert torch.equal(memory.learned("columns")[0].bool(), used)
        assert torch.allclose(model, models(memory)[0], rtol=1e-9, atol=1e-10)
        assert len(passes) <= 2
        return
    assert torch.equal(train(sample, "eills", penalty_weight=10.0, l2=1e-3).learned("columns")[0].bool(), used)
    assert bool((model[:, :-1][:, ~used] == 0).all())
    # the gradient of the risk of all rows, on these columns
    theta = model.clone().requires_grad_()
    f = task.train.x @ theta[:, :-1].T + theta[:, -1]
    loss = task.loss.value(f.squeeze(1) if kind == "binary" else f, task.train.y).mean() + 1e-3 * theta.square().sum()
    (gradient,) = torch.autograd.grad(loss, theta)
    assert float(torch.cat([gradient[:, :-1][:, used], gradient[:, -1:]], 1).abs().max()) < 1e-8


def test_directions_of_eills_are_those_of_all_rows():
    task, sample = whole_task("squared"), sample_of(whole_task("squared"))
    how = {"penalty_weight": 100.0, "form": "directions", "dtype": torch.float64}
    found, memory = train(sample, "eills", blocks=blocks_of(task), **how), train(task, "eills", **how)
    assert torch.allclose(models(found), models(memory), rtol=1e-6, atol=1e-8)


def test_fixed_points_of_linear_maps_are_found_in_as_many_steps_as_they_have_parameters():
    g = torch.Generator().manual_seed(0)
    matrix = torch.randn(4, 4, generator=g, dtype=torch.float64)
    matrix = 0.9 * matrix / torch.linalg.matrix_norm(matrix, 2)
    shift = torch.randn(4, generator=g, dtype=torch.float64)
    point, end = torch.zeros(4, dtype=torch.float64), FixedPoint()
    for _ in range(7):
        point = end.next(point, matrix @ point + shift)
    solution = torch.linalg.solve(torch.eye(4, dtype=torch.float64) - matrix, shift)
    assert torch.allclose(point, solution, rtol=1e-6)


# ---- what is refused -----------------------------------------------------------------------------------------------


class Shrunk(RowsInBlocks):
    """Says more rows than it has."""

    @property
    def n_rows(self):
        return super().n_rows + 1


def test_blocks_that_are_not_what_they_say_are_refused():
    task, sample = whole_task("binary"), sample_of(whole_task("binary"))
    with refuse("blocks must have the rows that they say, 1501", "1500", "Leave files alone"):
        train(sample, "erm", blocks=Shrunk(blocks_of(task).parts), **S)
    narrow = RowsInBlocks((replace(task.train, x=task.train.x[:, :2]),))
    with refuse("blocks must have the columns of the task", "(3,)", "Got 2"):
        train(sample, "erm", blocks=narrow, **S)
    mixed = RowsInBlocks((task.train, replace(task.train, x=task.train.x[:, :2])))
    with refuse("blocks must be Rows of 3 columns", "Got 2 columns"):
        train(sample, "erm", blocks=mixed, **S)
    renamed = RowsInBlocks((replace(task.train, names=("a", "b", "c", "d")),))
    with refuse("blocks must have the environments of the task", "'a'"):
        train(sample, "erm", blocks=renamed, **S)
    weighted = RowsInBlocks((replace(task.train, weight=torch.ones(N).double()),))
    with refuse("blocks must be Rows", "without weights", "Got", "weights"):
        train(sample, "erm", blocks=weighted, **S)


def test_what_blocks_cannot_train_is_refused():
    task, sample = whole_task("binary"), sample_of(whole_task("binary"))
    source = blocks_of(task)
    with refuse("task must be one Task", "Got 2"):
        train([sample, sample], "erm", blocks=source, **S)
    with refuse("objective must be one of sums over environments", "'hrm'"):
        train(sample, "hrm", blocks=source)
    with refuse("layer must be None"):
        train(sample, "irm-tv-l1", blocks=source, layer=2, **S)
    with refuse("batch_size must be a number, or 'auto'"):
        train(sample, "erm", blocks=source, batch_size=None)
    bare = RowsInBlocks(tuple(replace(part, aux=None) for part in source.parts))
    with refuse("blocks must have aux where environments are inferred"):
        train(sample, "minimax-tv-l1", blocks=bare, **S)


@pytest.mark.parametrize("case", ["erm", "irm-tv-l1"])
def test_what_is_found_does_not_depend_on_the_number_of_cores(case, monkeypatch):
    """Nor on whether models are looked at one by one, up to rounding."""
    task, sample, found = whole_task("binary"), sample_of(whole_task("binary")), []
    for worth in (1 << 60, 0):
        monkeypatch.setattr("irmtv.engine.solvers.second_order.PRODUCTS_WORTH_A_THREAD", worth)
        for n in (1, 2, 3):
            monkeypatch.setattr("irmtv.core.cores.cores", lambda n=n: n)
            runs = Runs(seed=0, penalty_weight=[1.0, 10.0]) if case != "erm" else Runs(seed=0)
            found.append(models(train(sample, case, runs, blocks=blocks_of(task), **S)))
    for each in (found[:3], found[3:]):
        assert all(torch.equal(one, each[0]) for one in each)
    torch.testing.assert_close(found[0], found[-1], rtol=1e-8, atol=1e-10)


# ---- stopped and continued -----------------------------------------------------------------------------------------


class Lost(Exception):
    pass


class Failing(RowsInBlocks):
    """Its pass after some good ones ends in an error."""

    left = 0

    def spans(self, most, rows):
        if Failing.left == 0:
            raise Lost
        Failing.left -= 1
        return super().spans(most, rows)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["irm-tv-l1", "minimax-tv-l1", "eills"])
def test_passes_that_were_made_are_not_made_again(case, passes, tmp_path):
    task, sample = whole_task("binary"), sample_of(whole_task("binary"))
    how = {"penalty_weight": 10.0, **S}
    whole = models(train(sample, case, blocks=blocks_of(task), **how))
    needed = len(passes)
    assert needed >= 3
    path = tmp_path / "training.ckpt"
    Failing.left = 2
    with pytest.raises(Lost):
        train(sample, case, blocks=Failing(blocks_of(task).parts), checkpoint=path, **how)
    passes.clear()
    again = models(train(sample, case, blocks=blocks_of(task), checkpoint=path, **how))
    assert len(passes) == needed - 2
    assert torch.equal(again, whole)
    passes.clear()
    assert torch.equal(models(train(sample, case, blocks=blocks_of(task), checkpoint=path, **how)), whole)
    assert not passes


def test_a_damaged_checkpoint_is_noticed_and_the_one_before_used(passes, tmp_path):
    task, sample = whole_task("binary"), sample_of(whole_task("binary"))
    path = tmp_path / "training.ckpt"
    whole = models(train(sample, "erm", blocks=blocks_of(task), checkpoint=path, **S))
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    passes.clear()
    with pytest.warns(UserWarning, match=r"training.ckpt is damaged"):
        again = models(train(sample, "erm", blocks=blocks_of(task), checkpoint=path, **S))
    assert torch.equal(again, whole)
    assert len(passes) == 1  # the last one, which the file before does not have
    other = RowsInBlocks.cut(task.train, [750, 750])
    with refuse("checkpoint must be of the same training", "blocks was"):
        train(sample, "erm", blocks=other, checkpoint=path, **S)
