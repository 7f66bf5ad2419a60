"""Which family is taken, on records made up so that the answer can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean, stdev

import numpy as np
import pytest
import torch

from irmtv.core.losses import as_loss
from irmtv.core.types import Rows, Task
from irmtv.models.base import Split
from irmtv.models.families import LEAST, pick_family
from irmtv.models.search import Search
from irmtv.selection import Choice, Records


def made_up(held_out, left_out=None, *, rows=None, constant=1.0, names=None, outcome="erm-kept", other=0.1) -> Search:
    """A search of ERM and one other candidate that is better everywhere, and counts where it was found.

    `held_out` (F, E) and `left_out` (U,) are risks of ERM, `other` times that those of the other.
    """
    risk = torch.tensor(held_out, dtype=torch.float64).unsqueeze(1)  # (F, 1, E)
    risk = torch.cat([risk, 0.1 * risk], 1)
    counted = torch.full_like(risk, 10.0)
    if rows is not None:
        counted = torch.tensor(rows, dtype=torch.float64).unsqueeze(1).expand_as(risk)
    nothing = torch.zeros_like(risk)
    without = None if left_out is None else torch.tensor([left_out, [other * v for v in left_out]], dtype=torch.float64)
    records = Records(
        rows=counted,
        risk=risk,
        risk_cov=nothing,
        slope=nothing,
        slope_cov=nothing,
        constant=constant,
        reference=torch.tensor([True, False]),
        stated=torch.zeros(2, dtype=torch.bool),
        left_out=without,
    )
    x = torch.zeros(4, 1)
    names = tuple(names or (len(left_out) if left_out else len(held_out[0])) * "e")
    task = Task(Rows(x, x[:, 0], torch.zeros(4, dtype=torch.int64), names=names), as_loss("squared"))
    choice = Choice("invariance", int(outcome == "invariant-found"), outcome)
    return Search(choice, (), (), records, Split(task, torch.zeros(4, dtype=torch.int64), ()))


EVEN = [[1.0, 1.0], [1.0, 1.0]]


def by_hand(a: list[float], b: list[float]) -> tuple[float, float]:
    """Mean of the paired differences a - b, and its standard error."""
    off = [x - y for x, y in zip(a, b, strict=True)]
    return mean(off), stdev(off) / len(off) ** 0.5


def test_left_out_environments_decide_by_log_risk_whatever_held_out_rows_say():
    lines, trees = [0.5, 0.6, 0.4, 0.5], [0.41, 0.5, 0.33, 0.4]
    picked = pick_family([made_up(EVEN, lines), made_up([[2.0, 2.0], [2.0, 2.0]], trees)], ["linear", "trees"])
    behind, error = by_hand(np.log(lines).tolist(), np.log(trees).tolist())
    assert behind > error
    assert picked.index == 1 and picked.by == "left-out" and picked.units == 4
    assert picked.behind == pytest.approx((behind, 0.0)) and picked.error == pytest.approx((error, 0.0))
    assert picked.risk == pytest.approx((np.prod(lines) ** 0.25, np.prod(trees) ** 0.25))
    assert picked.message.startswith("trees is taken: its ERM has the lowest risk in the 4 environments left out")


def test_the_simpler_family_stays_where_it_has_nearly_all_of_the_gain():
    lines = [0.3] * 4
    for trees, index in (([0.27] * 4, 0), ([0.25] * 4, 1)):
        searches = [made_up(EVEN, lines), made_up(EVEN, trees)]
        constant = searches[0].records.constant
        kept = (constant - 0.3) / (constant - trees[0])
        assert (kept >= 0.95) == (index == 0)
        assert pick_family(searches, ["linear", "trees"]).index == index


def test_the_simpler_family_stays_within_one_standard_error():
    lines, trees = [0.5, 0.6, 0.4, 0.5], [0.3, 0.7, 0.5, 0.42]
    behind, error = by_hand(np.log(lines).tolist(), np.log(trees).tolist())
    assert 0 < behind < error
    searches = [made_up(EVEN, lines), made_up(EVEN, trees)]
    picked = pick_family(searches, ["linear", "trees"])
    assert picked.index == 0 and "but by little" in picked.message and "simpler" in picked.message
    assert pick_family(searches[::-1], ["trees", "linear"]).index == 0  # the order says what is simpler


def test_the_noisiest_environment_does_not_decide_alone():
    """In a mean of risks the last one would outweigh the others."""
    lines, trees = [0.5, 0.5, 0.5, 100.0], [0.4, 0.4, 0.4, 101.0]
    picked = pick_family([made_up(EVEN, lines), made_up(EVEN, trees)], ["linear", "trees"])
    assert sum(lines) < sum(trees) and picked.index == 1


def test_risks_near_nothing_are_alike():
    lines, trees = [0.5 * LEAST] * 3, [1e-9, 1e-6, 1e-4]
    assert pick_family([made_up(EVEN, lines), made_up(EVEN, trees)], ["linear", "trees"]).index == 0


def test_groups_of_environments_are_said():
    searches = [made_up(EVEN, [0.5] * 3, names="abcdefg"), made_up(EVEN, [0.4, 0.39, 0.41], names="abcdefg")]
    assert "in the 3 groups left out of 7 environments" in pick_family(searches, ["linear", "trees"]).message


@pytest.mark.parametrize("partly", [False, True])
def test_without_left_out_environments_held_out_rows_decide(partly):
    lines, trees = [[0.5, 0.9], [0.6, 0.8]], [[0.4, 0.7], [0.5, 0.65]]
    rows = [[10.0, 30.0], [20.0, 40.0]]
    first = made_up(lines, [0.1, 0.1, 0.1] if partly else None, rows=rows)
    picked = pick_family([first, made_up(trees, rows=rows)], ["linear", "trees"])
    share = np.array(rows) / 100
    off = np.array(lines) - np.array(trees)
    behind = float((share * off).sum())
    error = float(np.sqrt((share**2 * (off - behind) ** 2).sum() * 4 / 3))
    assert picked.by == "held-out" and picked.units == 4 and picked.index == 1
    assert picked.risk == pytest.approx(((share * lines).sum(), (share * trees).sum()))
    assert (picked.behind[0], picked.error[0]) == pytest.approx((behind, error))
    assert "lowest risk on held-out rows" in picked.message
    uneven = made_up([[0.2, 0.9], [0.7, 0.78]], rows=rows)
    assert pick_family([first, uneven], ["linear", "trees"]).index == 0


def test_cells_without_rows_do_not_count():
    rows = [[10.0, 0.0], [10.0, 10.0]]
    lines, trees = ([[value, float("nan")], [value, value]] for value in (0.5, 0.4))
    picked = pick_family([made_up(lines, rows=rows), made_up(trees, rows=rows)], ["linear", "trees"])
    assert picked.index == 1 and picked.units == 3 and picked.risk == pytest.approx((0.5, 0.4))


def test_a_family_that_diverged_is_not_taken():
    lost = made_up(EVEN, [float("nan"), 0.1, 0.1])
    for searches, index in (([lost, made_up(EVEN, [0.5] * 3)], 1), ([made_up(EVEN, [0.5] * 3), lost], 0)):
        assert pick_family(searches, ["linear", "trees"]).index == index


def test_one_family_is_taken_and_other_folds_are_refused():
    one = made_up(EVEN, [0.5, 0.4, 0.3])
    assert pick_family([one], ["linear"]).index == 0
    turned = replace(one, split=replace(one.split, fold=torch.ones(4, dtype=torch.int64)))
    with pytest.raises(RuntimeError, match="different folds"):
        pick_family([one, turned], ["linear", "trees"])


@pytest.mark.parametrize(("other", "index"), [(0.5, 0), (0.9, 1), (1.1, 1)])
def test_an_invariant_model_that_was_found_counts_where_it_is_better_left_out(other, index):
    """A network's ERM has 0.7 of a linear model's; what the linear search found has `other` times its ERM's."""
    linear = made_up(EVEN, [0.5, 0.6, 0.4], outcome="invariant-found", other=other)
    network = made_up(EVEN, [0.35, 0.42, 0.28])
    picked = pick_family([linear, network], ["linear", "network"])
    assert picked.index == index
    assert picked.risk[0] == pytest.approx(min(1, other) * (0.5 * 0.6 * 0.4) ** (1 / 3))
    which = "invariant model" if index == 0 else "ERM"
    assert f"is taken: its {which} has the lowest risk in the 3 environments left out" in picked.message
