"""A path of penalty weights, cross-fitted with boosters, and the choice among all weights and rounds.

The same records as `models.search` makes of networks, so that the rules mean the same: every candidate is a weight at
one of its rounds, measured on rows that its boosters have not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from irmtv.core.types import Rows, Task, drop_zero_weight
from irmtv.engine import Progress
from irmtv.engine.snapshots import Snapshot
from irmtv.models.own_models import MOST_OWN, mean_gain
from irmtv.models.search.checks import check_search
from irmtv.models.search.families import Candidate, Family, Searched, infers_held_out
from irmtv.models.search.records import STATISTICS
from irmtv.models.trees.measured import snapshots
from irmtv.models.trees.parameters import Asked
from irmtv.models.trees.rounds import Binned, Boosted, boost
from irmtv.objectives import OBJECTIVES
from irmtv.selection import Records, choose
from irmtv.selection.folds import (
    align,
    constant_risk,
    deal_folds,
    gain_over_rescaled,
    left_out_tasks,
    own_task,
    tasks_outside,
)

SNAPSHOTS = 40  # rounds at which every booster is a candidate
KEPT, KEPT_WITH_PENALTY = 0.98, 0.9  # share of the best gain that fewer leaves must have
COMPARED = 2  # folds on which leaves are compared
ERM = OBJECTIVES["erm"]


@dataclass
class _Parts:
    """Folds (or what is left out) in bins, and the boosters that were trained outside each."""

    tasks: list[Task]
    categorical: Sequence[int]
    every: int
    binned: dict[Any, list[Binned]] = field(default_factory=dict)  # by what is set aside for penalties
    known: dict[Any, list[tuple[Boosted, list[Snapshot]]]] = field(default_factory=dict)
    tell: Callable[[], None] = lambda: None  # after every booster

    def trained(self, asked: Asked, most: int | None = None) -> list[tuple[Boosted, list[Snapshot]]]:
        """Per part: the booster, and what was measured on the rows held out. Plain boosting is done once.

        `most` asks for so many parts only.
        """
        n = len(self.tasks) if most is None else min(most, len(self.tasks))
        plain = asked.objective.infers is None and not _has_penalty(asked)
        plain = plain and asked.objective.measure_of(asked.settings) == "empirical"
        key = ("plain", asked.trees.num_leaves) if plain else None
        found = self.known.get(key, []) if key is not None else []
        if asked.reserve not in self.binned:
            made = [Binned(task, self.categorical, asked.trees, asked.reserve) for task in self.tasks]
            self.binned[asked.reserve] = made
        found = found + [self.one(binned, asked) for binned in self.binned[asked.reserve][len(found) : n]]
        if key is not None:
            self.known[key] = found
        return found

    def one(self, binned: Binned, asked: Asked) -> tuple[Boosted, list[Snapshot]]:
        found = trained_on(binned, asked, self.every)
        self.tell()
        return found


def trained_on(binned: Binned, asked: Asked, every: int) -> tuple[Boosted, list[Snapshot]]:
    """One booster, and what was measured of it on the watched rows."""
    boosted = boost(
        binned, asked.objective, asked.settings, asked.trees, weights=asked.weights, warmup=asked.warmup, every=every
    )
    return boosted, snapshots(binned.watched, binned.task.loss, boosted.watched, "held-out")


@dataclass(frozen=True)
class Found:
    """What was chosen, and the boosters of the folds."""

    searched: Searched
    asked_of: Sequence[Sequence[Asked]]  # by family and combination
    folds_of: Sequence[Sequence[Sequence[Boosted]]]  # and by fold

    @property
    def asked(self) -> Asked:
        """Of the choice."""
        chosen = self.searched.chosen
        return self.asked_of[chosen.family][chosen.combination]

    @property
    def folds(self) -> Sequence[Boosted]:
        """Of the choice."""
        chosen = self.searched.chosen
        return self.folds_of[chosen.family][chosen.combination]


def search_trees(
    task: Task,
    combinations: Sequence[Mapping[str, Any]],
    ask: Callable[[Any, Mapping[str, Any], int | None], Asked],
    categorical: Sequence[int],
    *,
    rule: str,
    n_folds: int,
    seed: int,
    leaves: Sequence[int] = (),
    options: Mapping[str, Any] | None = None,
    plain_beside: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Found:
    """Train every combination outside every fold, and choose.

    Parameters
    ----------
    task : training rows; rows of weight 0 are not looked at.
    combinations : penalty weights, one mapping each; 0 among them is plain boosting.
    ask : (objective or None for the task's own, combination, leaves or None) -> what to train.
    categorical : columns that hold codes.
    rule, n_folds, seed, options, plain_beside : as for `irmtv.models.search.search`.
    leaves : numbers of leaves. Plain boosting has the fewest with which it gains 98 % of what it gains with the best,
        on held-out rows of two folds. Where a penalty acts 90 % must do: it makes the gradient of the rows noisier, and
        large trees follow the noise.
    progress : called with a `Progress` after every booster.
    """
    first = ask(None, combinations[0], leaves[0] if leaves else None)
    objective = first.objective
    has_places = isinstance(first.settings.get("measure"), tuple)  # one weight per environment
    task = replace(task, train=drop_zero_weight(task.train, every_environment=has_places))
    check_search(task, objective, combinations, rule=rule, n_folds=n_folds, options=options, settings=first.settings)
    fold = deal_folds(task, n_folds, seed, by_class=True)
    every = max(1, first.trees.n_estimators // SNAPSHOTS)
    n_environments = len(task.train.names)
    own_is_asked = rule == "invariance" and not infers_held_out(objective)
    left_is_asked = rule == "leave-one-env-out"
    expected = min(COMPARED, n_folds) * max(0, len(leaves) - 1) + n_folds * len(combinations)
    expected += n_folds * n_environments * (own_is_asked and 1 < n_environments <= MOST_OWN)
    tell = _telling(progress, expected + n_environments * len(combinations) * left_is_asked, first.trees.n_estimators)
    folds = _Parts(tasks_outside(task, fold, n_folds), categorical, every, tell=tell)
    without = _Parts(left_out_tasks(task), categorical, every, tell=tell) if left_is_asked else None
    best = _best_leaves(folds, ask, leaves) if leaves else _Leaves()
    families = [(objective, list(combinations))]
    plain_is_there = any(not any(ask(None, c, best.plain).weights) for c in combinations) and bool(objective.penalties)
    wanted = (plain_beside or rule == "invariance") and objective.name != "erm"
    if wanted and not infers_held_out(objective) and not plain_is_there:
        families.append((ERM, [{}]))
    asked = [[ask(o, c, best.of(ask(o, c, best.plain))) for c in some] for o, some in families]
    trained = [[folds.trained(a) for a in some] for some in asked]
    candidates = tuple(
        Candidate(f, c, at)
        for f, some in enumerate(asked)
        for c, a in enumerate(some)
        for at in _candidate_rounds(a, trained[f][c][0][0], plain_is_there)
    )
    left_out = None
    if without is not None:
        outside = [[without.trained(a) for a in some] for some in asked]
        left_out = torch.stack([_left_out(outside[c.family][c.combination], c.step) for c in candidates])
    records = _records(task, folds.tasks, asked, trained, candidates, left_out)
    if own_is_asked:
        plain = candidates[records.plain]
        scores = trained[plain.family][plain.combination]
        own = _own(task, fold, folds, asked[plain.family][plain.combination], scores, plain.step)
        records = replace(records, own=own)
    choice = choose(rule, records, **(dict(options or {}) if rule == "invariance" else {}))
    told = tuple(Family(o, tuple(some), first.settings, cast(Any, None)) for o, some in families)
    boosters = [[[boosted for boosted, _ in parts] for parts in some] for some in trained]
    return Found(Searched(choice, told, candidates, records, fold), asked, boosters)


def _telling(progress: Callable[[Progress], None] | None, boosters: int, rounds: int) -> Callable[[], None]:
    """To be called after every booster; there may be more of them than were expected."""
    done, begin = count(1), perf_counter()

    def tell() -> None:
        n = next(done)
        if progress is not None:
            progress(Progress(rounds, rounds, n, 0, max(n, boosters), perf_counter() - begin))

    return tell


@dataclass(frozen=True)
class _Leaves:
    """How many a tree has, in plain boosting and where a penalty acts; None where that is not chosen here."""

    plain: int | None = None
    penalised: int | None = None

    def of(self, asked: Asked) -> int | None:
        return self.penalised if _has_penalty(asked) else self.plain


def _best_leaves(
    folds: _Parts, ask: Callable[[Any, Mapping[str, Any], int | None], Asked], leaves: Sequence[int]
) -> _Leaves:
    """The fewest with which plain boosting, at its best round, gains nearly what it does with the best."""
    lowest = []
    for n in leaves:
        seen = [measured for _, measured in folds.trained(ask(ERM, {}, n), COMPARED)]
        rows = torch.stack([torch.stack([s.rows[0] for s in fold]) for fold in seen])  # (F, S, E)
        risk = torch.stack([torch.stack([s.risk[0] for s in fold]) for fold in seen])
        overall = torch.where(rows > 0, rows * risk, 0).sum((0, 2)) / rows.sum((0, 2))
        lowest.append(float(overall.amin()))
    constant = float(np.mean([constant_risk(t) for t in folds.tasks[:COMPARED]]))
    best = min(lowest)

    def fewest(kept: float) -> int:
        enough = max(best, constant - kept * max(0.0, constant - best))
        return next(n for n, risk in zip(leaves, lowest, strict=True) if risk <= enough)

    return _Leaves(fewest(KEPT), fewest(KEPT_WITH_PENALTY))


def _has_penalty(asked: Asked) -> bool:
    """Whether it is more than plain risk minimisation, at some round."""
    learned = asked.objective.infers is None and asked.objective.measure_of(asked.settings) == "learned"
    return learned or any(asked.weights)


def is_plain(asked: Asked, at: int) -> bool:
    """Whether a booster is plain risk minimisation at a round."""
    in_warmup = at <= asked.warmup and asked.objective.silent_in_warmup and any(asked.weights)
    return in_warmup or not _has_penalty(asked)


def _candidate_rounds(asked: Asked, boosted: Boosted, plain_is_there: bool) -> list[int]:
    """Not before environments are settled, nor in a warm-up that plain boosting has in common with it."""
    rounds = [w.round for w in boosted.watched]
    begin = 1
    if asked.objective.infers is not None:
        settled = asked.warmup if asked.objective.climbs(asked.settings) == "warm-up" else rounds[-1]
        begin = min(settled, rounds[-1])
    if plain_is_there and any(asked.weights) and is_plain(asked, asked.warmup):
        begin = max(begin, asked.warmup + 1)
    return [r for r in rounds if r >= begin]


def _records(
    task: Task,
    folds: Sequence[Task],
    asked: Sequence[Sequence[Asked]],
    trained: Sequence[Sequence[Sequence[tuple[Boosted, list[Snapshot]]]]],
    candidates: Sequence[Candidate],
    left_out: Tensor | None,
) -> Records:
    held: dict[str, list[Tensor]] = {name: [] for name in STATISTICS}
    for f in range(len(folds)):
        of = [trained[c.family][c.combination] for c in candidates]
        orders = [_order(task.train, boosters[0][0], boosters[f][0]) for boosters in of]
        at = [{s.step: s for s in boosters[f][1]}[c.step] for boosters, c in zip(of, candidates, strict=True)]
        for name in STATISTICS:
            each = [_ordered(getattr(s, name)[0], name, order) for s, order in zip(at, orders, strict=True)]
            held[name].append(torch.stack(each).double())
    stacked = {name: torch.stack(values) for name, values in held.items()}
    if torch.equal(stacked["effective"], stacked["rows"]):  # no weights
        del stacked["effective"]
    sizes = [
        float(len(t.held_out) if t.held_out.weight is None else t.held_out.weight.sum()) for t in folds if t.held_out
    ]
    return Records(
        **stacked,
        constant=float(np.average([constant_risk(t) for t in folds], weights=sizes)),
        reference=torch.tensor([is_plain(asked[c.family][c.combination], c.step) for c in candidates]),
        stated=torch.zeros(len(candidates), dtype=torch.bool),
        left_out=left_out,
        inferred=infers_held_out(asked[0][0].objective),
    )


def _order(rows: Rows, first: Boosted, other: Boosted) -> Tensor | None:
    """Inferred environments in the order of the first fold's."""
    if first.rho is None or other.rho is None:
        return None
    assert rows.aux is not None
    return align(first.rho.membership(rows.aux), other.rho.membership(rows.aux))


def _ordered(values: Tensor, name: str, order: Tensor | None) -> Tensor:
    if order is None:
        return values
    values = values[order]
    return values[:, order] if name.endswith("_cov") else values


def _left_out(parts: Sequence[tuple[Boosted, list[Snapshot]]], at: int) -> Tensor:
    """Risk in every environment of the booster that was trained without it: (E,)."""
    return torch.stack([{s.step: s for s in seen}[at].risk[0, 0] for _, seen in parts]).double()


def cross_fitted(fold: Tensor, boosters: Sequence[Boosted], at: int) -> Tensor:
    """Scores of every row after some round of the booster that has not seen it: (N,) or (N, C)."""
    parts = [next(w for w in boosted.watched if w.round == at).scores for boosted in boosters]
    scores = parts[0].new_empty(len(fold), *parts[0].shape[1:])
    for k, part in enumerate(parts):
        scores[fold == k] = part
    return scores


def _own(
    task: Task,
    fold: Tensor,
    folds: _Parts,
    asked: Asked,
    plain: Sequence[tuple[Boosted, list[Snapshot]]],
    at: int,
) -> Tensor | None:
    """Gains of every environment's own booster over plain boosting, rescaled to it, on every fold: (F, E, 3).

    Unlike networks, trees are far too sure of the rows that they were grown on: the scale that suits an environment is
    looked for in scores that were cross-fitted, of the other folds. An environment's own boosters stop at one round
    for all folds, the best, as plain boosting does.
    """
    n_environments = len(task.train.names)
    if not 1 < n_environments <= MOST_OWN:
        return None
    asked = replace(asked, objective=ERM, settings=ERM.resolve({}), weights=(), warmup=0, reserve=Fraction(0))
    scores = cross_fitted(fold, [boosted for boosted, _ in plain], at)
    assert task.train.environment is not None
    found = torch.full((len(folds.tasks), n_environments, 3), torch.nan, dtype=torch.float64)
    for e in range(n_environments):
        own = [own_task(t, e) for t in folds.tasks]
        some = [k for k, t in enumerate(own) if len(t.train) > 1 and t.held_out is not None and len(t.held_out) > 1]
        some = [k for k in some if own[k].loss.name == "squared" or bool((own[k].train.y != own[k].train.y[0]).any())]
        if not some:
            continue
        alone = {k: folds.one(Binned(_nameless(own[k]), folds.categorical, asked.trees), asked) for k in some}
        totals = torch.stack([torch.stack([s.rows[0, 0] * s.risk[0, 0] for s in seen]) for _, seen in alone.values()])
        best = int(totals.sum(0).argmin())
        here = task.train.environment == e
        for k, (boosted, _) in alone.items():
            gain = gain_over_rescaled(
                own[k], scores[here & (fold != k)], scores[here & (fold == k)], boosted.watched[best].scores
            )
            held_out = own[k].held_out
            assert held_out is not None
            found[k, e] = torch.tensor(mean_gain(gain, held_out.weight))
    return found


def _nameless(task: Task) -> Task:
    """As one environment."""
    assert task.held_out is not None
    parts = (replace(rows, environment=None, names=()) for rows in (task.train, task.held_out))
    train, held_out = parts
    return replace(task, train=train, held_out=held_out)
