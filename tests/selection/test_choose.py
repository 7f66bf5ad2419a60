"""Every rule by name, and what each refuses."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from irmtv.selection import RULES, Choice, choose, invariance
from selection.candidates import counted, written

nan, inf = np.nan, np.inf
RISKS = [[0.30, 0.50, 0.30], [0.40, 0.42, 0.41], [0.45, 0.45, 0.45], [nan, nan, nan]]
ROWS = [200.0, 100.0, 100.0]
EVERYTHING = {
    "left_out": torch.tensor([[0.9, 0.1, 0.9], [0.5, 0.7, 0.5], [0.2, 0.9, 0.1], [nan, 0.1, 0.1]]),
    "test": torch.tensor([0.2, 0.9, 0.6, nan]),
}


def records(**more):
    return written(RISKS, 0.02, rows=ROWS, stated=1, **{**EVERYTHING, **more})


def refuse(*parts):
    return pytest.raises(ValueError, match="(?s)" + ".*".join(re.escape(p) for p in parts))


@pytest.mark.parametrize(
    ("rule", "index", "score"),
    [
        ("iid", 0, (2 * 0.30 + 0.50 + 0.30) / 4),
        ("worst-env", 1, 0.42),
        ("leave-one-env-out", 2, 0.4),
        ("oracle", 1, -0.9),
    ],
)
def test_rules_that_compare_scores(rule, index, score):
    choice = choose(rule, records())
    assert (choice.rule, choice.index, choice.outcome, choice.message) == (rule, index, None, "")
    assert choice.figures["score"] == pytest.approx(score) and choice.figures["candidates"] == 4


def test_the_candidate_that_was_stated():
    choice = choose("fixed", records())
    assert (choice.rule, choice.index) == ("fixed", 1)


def test_invariance_with_and_without_options():
    for options in ({}, {"test": "slopes"}, {"reach": 0}, {"test": "risks", "level": 0.9}):
        choice, verdict = choose("invariance", records(), **options), invariance(records(), **options)
        assert (choice.rule, choice.index, choice.outcome) == ("invariance", verdict.index, verdict.outcome)
        assert choice.figures == verdict.figures and choice.message == verdict.message
    assert choose("invariance", records()).index == 1
    assert choose("invariance", records(), test="slopes").index == 0


def test_the_oracle_alone_is_labelled():
    for rule in RULES:
        assert choose(rule, records()).oracle == (rule == "oracle")
    assert Choice("oracle", 0).oracle and not Choice("iid", 0).oracle


def test_only_the_oracle_sees_test_rows():
    """Every other choice stays the same whatever happens on test rows."""
    for rule in RULES:
        choices = [choose(rule, records(test=t)).index for t in (torch.arange(4.0), -torch.arange(4.0))]
        assert choices == ([3, 0] if rule == "oracle" else choices[:1] * 2)


@pytest.mark.parametrize("rule", ["iid", "worst-env"])
def test_a_candidate_that_missed_a_fold_is_not_chosen(rule):
    """Candidate 1 is best where it was measured, because the hard fold is not among it."""
    loss = np.r_[[np.repeat([0.2, 0.8], 30)], [np.repeat([0.1, 0.9], 30)], [np.repeat([0.3, 0.8], 30)]]
    made = counted(loss, loss, np.eye(3)[np.arange(60) % 3], np.repeat([0, 1], 30), 2)
    for name in ("rows", "risk", "risk_cov", "slope", "slope_cov"):
        getattr(made, name)[1, 1] = 0 if name == "rows" else nan
    assert choose(rule, made).index == 0


def test_rules_over_folds_see_all_rows():
    rng = np.random.default_rng(0)
    loss, q, fold = rng.gamma(2.0, size=(5, 60)), np.eye(3)[np.arange(60) % 3], rng.permutation(np.arange(60) % 4)
    q[fold == 2] = [0, 0, 1]
    made = counted(loss, loss, q, fold, 4)
    assert choose("iid", made).index == loss.mean(1).argmin()
    assert choose("worst-env", made).index == ((loss @ q) / q.sum(0)).max(1).argmin()


@pytest.mark.parametrize("bad", [nan, inf])
def test_what_is_not_finite_is_never_chosen(bad):
    risks = [[bad, 0.1, 0.1], [0.4, 0.4, 0.4], [0.1, bad, 0.1]]
    made = written(risks, 0.02, erm=1, left_out=torch.tensor(risks), test=-torch.tensor([bad, 1.0, bad]))
    for rule in ("iid", "worst-env", "leave-one-env-out", "oracle", "invariance"):
        assert choose(rule, made).index == 1, rule


def test_nothing_to_choose_from():
    made = written([[nan] * 3] * 2, 0.02, left_out=torch.full((2, 3), nan), test=torch.full((2,), nan))
    for rule in ("iid", "worst-env", "leave-one-env-out", "oracle"):
        with refuse(f"rule {rule!r} needs", "of at least one candidate. Got none"):
            choose(rule, made)


@pytest.mark.parametrize(("name", "near"), [("invariant", "invariance"), ("worst_env", "worst-env"), ("banana", None)])
def test_an_unknown_rule(name, near):
    with refuse("rule must be one of ['fixed', 'invariance', 'iid'", f"Got {name!r}.") as error:
        choose(name, records())
    assert ("Did you mean" in str(error.value)) == (near is not None)
    assert near is None or f"Did you mean {near!r}?" in str(error.value)


@pytest.mark.parametrize("rule", [r for r in RULES if r != "invariance"])
def test_options_of_a_rule_that_has_none(rule):
    with refuse("only rule 'invariance' has options", "['level']", repr(rule)):
        choose(rule, records(), level=0.1)


def test_options_that_are_unknown_or_wrong():
    with refuse("options of 'invariance' are", "Got 'min_gian'", "Did you mean 'min_gain'"):
        choose("invariance", records(), min_gian=0.1)
    with refuse("level must be a number from 0 to 1"):
        choose("invariance", records(), level=7)


def test_leaving_one_of_two_environments_out():
    two = written([[0.3, 0.5]], 0.02, left_out=torch.tensor([[0.1, 0.1]]))
    with refuse("'leave-one-env-out'", "needs three or more", "Got 2; use 'invariance', which needs two"):
        choose("leave-one-env-out", two)
    with refuse("needs the risks of models trained without each environment. Got none"):
        choose("leave-one-env-out", records(left_out=None))


def test_what_rules_need():
    with refuse("rule 'oracle' looks at test rows. Got no scores"):
        choose("oracle", records(test=None))
    with refuse("rule 'worst-env' needs the environments", "use 'iid'"):
        choose("worst-env", written([[0.3]], 0.02))
    with refuse("rule 'invariance'", "at least 2. Got 1"):
        choose("invariance", written([[0.3]], 0.02))
    assert choose("iid", written([[0.3], [0.2]], 0.02)).index == 1


@pytest.mark.parametrize("stated", [[], [0, 2]])
def test_fixed_needs_one_stated_candidate(stated):
    with refuse("rule 'fixed' takes the one candidate that was stated beforehand", f"Got {len(stated)}"):
        choose("fixed", written(RISKS, 0.02, stated=stated))
