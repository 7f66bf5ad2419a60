"""One choice among the candidates of several kinds of models, by the same rule on the same held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from irmtv.app.fit.contenders import Floats, Path
from irmtv.models.search import Searched
from irmtv.selection import Records, choose

BY_FOLD_AND_CANDIDATE = ("rows", "risk", "risk_cov", "slope", "slope_cov", "effective")  # (F, C, ...)
BY_CANDIDATE = ("reference", "stated", "left_out")  # (C, ...)


def together(paths: Sequence[Path], rule: str) -> Path:
    """All candidates of all paths as one, in the order of the paths, with what the rule chooses among all of them.

    The rule knows nothing of kinds of models: plain risk minimisation is that candidate of weight 0 with the lowest
    held-out risk, of whatever kind, and all others are compared with it.
    """
    if len(paths) == 1:
        return paths[0]
    each = [path.searched for path in paths]
    if any(not torch.equal(searched.fold, each[0].fold) for searched in each):
        raise RuntimeError("paths of different folds cannot be compared row by row")
    records = beside([searched.records for searched in each])
    choice = choose(rule, records)
    if not choice.message:
        said = f"the lowest risk by {rule!r} among {len(records)} candidates of {len(paths)} kinds of models"
        plain = ": plain risk minimisation." if bool(records.reference[choice.index]) else "."
        choice = replace(choice, message=said + plain)
    shift, candidates = 0, []
    for searched in each:
        candidates += [replace(c, family=c.family + shift) for c in searched.candidates]
        shift += len(searched.families)
    families = tuple(family for searched in each for family in searched.families)

    def outputs(index: int) -> Floats:
        which, place = owner(paths, index)
        return paths[which].outputs(place)

    return Path(Searched(choice, families, tuple(candidates), records, each[0].fold), outputs)


def owner(paths: Sequence[Path], index: int) -> tuple[int, int]:
    """Of a candidate of all paths together: which path it is from, and its place there."""
    for which, path in enumerate(paths):
        n = len(path.searched.candidates)
        if index < n:
            return which, index
        index -= n
    raise IndexError("there are fewer candidates")


def beside(records: Sequence[Records]) -> Records:
    """Candidates of several records of the same held-out rows as one.

    What environments' own models gain (`own`) is known for each kind of model over its own plain risk minimisation;
    that of the best one counts, since it is what the choice is compared with.
    """
    counts = [r.rows.amax(1) for r in records]  # (F, E): a candidate that was not measured has no rows
    if any(not torch.equal(c, counts[0]) for c in counts):
        raise RuntimeError("records of different held-out rows cannot stand side by side")
    joined: dict[str, Any] = {}
    for name in (*BY_FOLD_AND_CANDIDATE, *BY_CANDIDATE):
        values = [getattr(r, name) for r in records]
        if all(v is not None for v in values):
            joined[name] = torch.cat(values, dim=1 if name in BY_FOLD_AND_CANDIDATE else 0)
    best = min(records, key=lambda r: float(r.pooled().overall[r.plain].nan_to_num(torch.inf)))
    return Records(**joined, constant=best.constant, own=best.own)
