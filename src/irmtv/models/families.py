"""Which model family to take: by ERM in environments that were left out, else on held-out rows.

A family is chosen before any penalty, by what its ERM does; the rule then chooses among the candidates of that family.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from irmtv.core.numbers import several
from irmtv.models.search import Search

NEARLY = 0.95  # share of the best family's gain over a constant that a simpler one must have to be preferred
LEAST = 0.01  # of the risk of a constant: smaller risks count as this one, so that no ratio is of two nothings


@dataclass(frozen=True)
class FamilyChoice:
    """The family that was taken, and the comparison that it rests on. K families, the simplest first."""

    index: int
    names: tuple[str, ...]  # (K,)
    by: Literal["left-out", "held-out"]
    risk: tuple[float, ...]  # (K,) of ERM, or an invariant model; left out: the geometric mean over environments
    behind: tuple[float, ...]  # (K,) mean difference from the family with the lowest: of log risk, or of risk
    error: tuple[float, ...]  # (K,) standard error of that difference
    units: int  # environments (or groups of them) that were left out; folds x environments of held-out rows
    message: str


def pick_family(searches: Sequence[Search], names: Sequence[str]) -> FamilyChoice:
    """The family that has the lowest risk where it was not trained; a simpler one within one standard error.

    That of its ERM; or of an invariant model that its search has found, where that one does better in environments that
    were left out: what is invariant in a simple family may be nothing that a larger one sees.

    Or one that has nearly all of its gain over a constant: a network that is better by a hair is not worth its size.

    Parameters
    ----------
    searches : one per family on the same rows and folds, the simplest family first.
    names : of the families.

    Notes
    -----
    Where environments were left out in every search, families are compared by the mean of log risk over them: noise
    differs between environments, and the one with the most would decide alone in a mean of risks. The standard error
    is that of the paired differences over environments.

    Else by the risk on held-out rows, where every fold and environment is one difference, and counts by its rows.
    """
    first = searches[0]
    if any(not torch.equal(search.fold, first.fold) for search in searches):
        raise RuntimeError("searches on different folds cannot be compared row by row")
    left_out = all(search.records.left_out is not None for search in searches)
    value, share = _left_out(searches) if left_out else _held_out(searches)  # (K, U), (U,)
    mean = (share * value).sum(-1).nan_to_num(torch.inf, torch.inf)  # (K,)
    best = int(mean.argmin())
    off = value - value[best]
    behind = (share * off).sum(-1)
    n = int((share > 0).sum())
    error = ((share * (off - behind.unsqueeze(-1))).square().sum(-1) * n / max(1, n - 1)).sqrt()
    risk = mean.exp() if left_out else mean
    gain = first.records.constant - risk
    near = (behind <= error) | (gain >= NEARLY * gain[best])  # NaN is neither
    index = int(near.nonzero()[0]) if bool(mean.isfinite().any()) else 0
    return FamilyChoice(
        index,
        tuple(names),
        "left-out" if left_out else "held-out",
        tuple(risk.tolist()),
        tuple(behind.tolist()),
        tuple(error.tolist()),
        n,
        _message(names, index, best, risk, _where(first, n, left_out), [left_out and _found(s) for s in searches]),
    )


def _left_out(searches: Sequence[Search]) -> tuple[Tensor, Tensor]:
    """Log risk in every part that was left out: (K, U); all count the same."""
    risks = [_risk_left_out(search, search.choice.index if _found(search) else search.erm) for search in searches]
    least = LEAST * searches[0].records.constant
    value = torch.stack(risks).double().clamp_min(least).log()
    return value, value.new_full(value.shape[1:], 1 / value.shape[1])


def _risk_left_out(search: Search, index: int) -> Tensor:
    assert search.records.left_out is not None
    return search.records.left_out[index]


def _found(search: Search) -> bool:
    """Whether an invariant model was found that does better than ERM in environments that were left out."""
    if search.choice.outcome != "invariant-found":
        return False
    better = _risk_left_out(search, search.choice.index).log() - _risk_left_out(search, search.erm).log()
    return bool(better.mean() < 0)


def _held_out(searches: Sequence[Search]) -> tuple[Tensor, Tensor]:
    """Risk of ERM in every fold and environment: (K, U), and the share of its rows: (U,)."""
    rows = searches[0].records.rows[:, searches[0].erm].flatten()
    value = torch.stack([search.records.risk[:, search.erm].flatten() for search in searches])
    return torch.where(rows > 0, value, 0), rows / rows.sum()


def _where(search: Search, n: int, left_out: bool) -> str:
    if not left_out:
        return "on held-out rows"
    names = len(search.split.task.train.names)
    return f"in the {several(n, 'environment' if n == names else 'group')} left out" + (
        "" if n == names else f" of {names} environments"
    )


def _message(names: Sequence[str], index: int, best: int, risk: Tensor, where: str, found: Sequence[bool]) -> str:
    """Why it was taken, in a sentence; `found`: of which families an invariant model counts, not ERM."""
    each = [f"{name} {float(r):.4g}" for name, r in zip(names, risk, strict=True)]
    if len(names) == 1:
        only = f"{names[0]} is the only kind of model that was asked for"
        return f"{only}; its {_model(found[0])} has risk {float(risk[0]):.4g} {where}."
    if index == best:
        return f"{names[index]} is taken: its {_model(found[index])} has the lowest risk {where} ({', '.join(each)})."
    of = "" if any(found) else "; ERM"
    return (
        f"{names[index]} is taken: {names[best]} has a lower risk {where}, but by little ({', '.join(each)}{of}), and "
        f"{names[index]} is simpler."
    )


def _model(found: bool) -> str:
    return "invariant model" if found else "ERM"
