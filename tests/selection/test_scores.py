"""The scores of single candidates, on records written by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from irmtv.selection import RULES, as_rule, iid, worst_environment
from irmtv.selection.records import STREAMING


@dataclass
class Record:
    rows: Tensor
    risk: Tensor


TWO_RUNS = Record(
    rows=torch.tensor([[10.0, 30.0, 60.0], [50.0, 50.0, 0.0]]),
    risk=torch.tensor([[1.0, 2.0, 0.5], [0.2, 0.4, 9.0]]),
)


def test_iid_is_the_risk_over_all_rows():
    torch.testing.assert_close(iid(TWO_RUNS), torch.tensor([(10 + 60 + 30) / 100, (10 + 20) / 100]))


def test_worst_environment_is_the_largest_risk_among_those_with_rows():
    torch.testing.assert_close(worst_environment(TWO_RUNS), torch.tensor([2.0, 0.4]))


def test_risks_below_zero():
    """A loss of one's own may be negative; an environment without rows, whose risk is 0, is then the largest."""
    record = Record(torch.tensor([[5.0, 0.0]]), torch.tensor([[-3.0, 0.0]]))
    assert worst_environment(record).tolist() == [-3.0]
    assert iid(record).tolist() == [-3.0]


def test_rules_leave_the_record_alone():
    before = TWO_RUNS.risk.clone()
    worst_environment(TWO_RUNS)
    assert torch.equal(TWO_RUNS.risk, before)


def test_rules_by_name():
    assert as_rule("fixed") is None
    assert as_rule("iid") is iid
    assert as_rule("worst-env") is worst_environment
    assert set(STREAMING) == {"fixed", "iid", "worst-env"}


@pytest.mark.parametrize("name", sorted(set(RULES) - set(STREAMING)))
def test_rules_that_compare_all_candidates_choose_after_training(name):
    with pytest.raises(
        ValueError, match=rf"select='{name}' .*chooses after training.*irmtv\.selection\.choose"
    ) as error:
        as_rule(name)
    assert str(sorted(STREAMING)) in str(error.value)


def test_a_function_is_its_own_rule():
    def mine(record):
        return record.risk[:, 0]

    assert as_rule(mine) is mine


@pytest.mark.parametrize(
    ("name", "near"), [("worst_env", "worst-env"), ("IID", "iid"), ("fix", "fixed"), ("banana", None)]
)
def test_an_unknown_name(name, near):
    with pytest.raises(ValueError, match="select must be one of") as error:
        as_rule(name)
    assert f"Got {name!r}" in str(error.value)
    assert (f"Did you mean {near!r}?" in str(error.value)) == (near is not None)
    assert ("Did you mean" in str(error.value)) == (near is not None)


@pytest.mark.parametrize("wrong", [None, 3, ["iid"]])
def test_something_that_is_no_rule(wrong):
    with pytest.raises(ValueError, match="select must be one of"):
        as_rule(wrong)
