"""One gradient step of all runs of a chunk:

    rows -> logits -> losses and slopes -> a few numbers per environment -> objective -> gradient -> Adam

`GradientStep.__call__` is that line; `engine/components` has what else may act in it. The middle of it, from the
logits to the gradient in them, is done in one of three ways, chosen once for a chunk of runs:

* `_in_closed_form`: a scalar classifier and a built-in loss, on all rows or on batches of given environments. Losses,
  slopes, their means and the gradient in the logits are written out, of linear models and networks without a mask the
  gradient in their weights too.
* `_by_autograd`: everything else (halves of batches, a vector classifier, a user's loss or module).
* `_of_weighted_rows`: the mean loss, with a weight on every row; written out, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from irmtv.core.losses import ClosedForm
from irmtv.core.membership import RowMembership, Soft, SoftPair, Weighted, mean_over_rows
from irmtv.core.risk import Head, LastLayer, per_sample, summarise
from irmtv.core.types import Statistics
from irmtv.engine.block_rows import training_rows
from irmtv.engine.components import ENVIRONMENT_SOURCES, MASKS, ROW_WEIGHTS
from irmtv.engine.components.base import Phase, StepRows
from irmtv.engine.components.learned_measure import LearnedMeasure
from irmtv.engine.components.penalty_weights import PenaltyWeights
from irmtv.engine.context import Context
from irmtv.engine.networks import MLP, Conv1d, Net, ThereAndBack
from irmtv.engine.optim import Adam, FlatParameters, Guard
from irmtv.engine.slope_pull import SlopePull, pulling_penalty
from irmtv.objectives.base import Weight
from irmtv.objectives.lambda_phi import worst_risk_objective

# the objective (R,) and the scale (R,) of its gradient, which is written into Phi's parameters
Gradient = Callable[[Phase, StepRows, Tensor, LastLayer | None], tuple[Tensor, Tensor]]


class GradientStep:
    """A step, and everything that moves in it: Phi, the environments that are inferred, masks, learned weights."""

    def __init__(self, context: Context, net: Net, phi: FlatParameters, guard: Guard) -> None:
        objective = context.objective
        self.context, self.objective, self.static, self.loss = context, objective, context.static, context.loss
        self.net, self.phi, self.guard = net, phi, guard
        self.vector = self.static["classifier"] == "vector"
        self.uses = objective.uses(self.static)
        self.adam = Adam(phi, context.column("learning_rate"))
        self.l2 = context.column("l2")
        # each component draws from the runs' random streams in turn: the order is part of the results
        self.source = None if objective.infers is None else ENVIRONMENT_SOURCES[objective.infers](context)
        given = max(1, len(context.tasks[0].train.names))
        self.n_environments = given if self.source is None else self.source.n_environments
        self.rows = training_rows(context, net, self.source, self.n_environments, bool(self.uses))
        self.mask = None if objective.mask is None else MASKS[objective.mask](context, net, phi, self.source)
        weigher = objective.row_weights
        self.row_weights = None if weigher is None else ROW_WEIGHTS[weigher](context, net)
        self.weights = PenaltyWeights(context, phi, guard)
        learned = objective.measure_of(self.static) == "learned"
        self.measure = LearnedMeasure(context, self.n_environments) if learned else None
        self.mixtures: Tensor | None = None
        if self.static.get("expand") is not None:
            drawn = self.static["expand"].draw(self.n_environments, context.generators)
            self.mixtures = drawn.to(context.device, context.dtype)
        alone = context.ranks is None
        followed = self.weights.varies or self.measure is not None or self.mixtures is not None
        mean = self.source is not None or objective.measure_of(self.static) == "empirical"
        # the mean loss, with a weight that stays, and at most one penalty on slopes beside it
        self.plain = mean and not followed and self.rows.batches is None and alone and self.row_weights is None
        self.pulling = pulling_penalty(objective) if self.plain else None
        self.pull: SlopePull | None = None
        self.climbs_by_hand = self._climbs_by_hand()
        self.explicit = objective.explicit and not self.weights.exact  # the objective's gradient is written out
        self.halves = self.rows.batches is not None and objective.wants_halves(self.static)
        self.gradient = self._choose_gradient()
        self._membership: RowMembership | None = None
        self._no_mass = context.full((1, self.n_environments), 0.0)
        by_hand = self.gradient in (self._in_closed_form, self._of_weighted_rows) and self.mask is None
        self.through = ThereAndBack(net, by_hand)

    def _climbs_by_hand(self) -> bool:
        """Whether the gradient of what climbs is written out: of one penalty, on slopes alone."""
        penalties, measure = self.objective.penalties, self.static.get("measure")
        plain = self.mixtures is None and self.measure is None and measure in (None, "empirical") and not self.vector
        plain &= self.context.ranks is None
        return plain and len(penalties) == 1 and penalties[0].by_sums is not None

    def _choose_gradient(self) -> Gradient:
        if self.row_weights is not None:
            return self._of_weighted_rows
        in_one = self.rows.batches is None or (self.source is None and not self.halves)
        if in_one and isinstance(self.loss, ClosedForm) and not self.vector:
            return self._in_closed_form
        return self._by_autograd

    @property
    def recordable(self) -> bool:
        """Whether nothing in a step can need the host: a GPU may then replay it."""
        own = isinstance(self.net, (MLP, Conv1d)) and isinstance(self.loss, ClosedForm)
        alone = self.context.ranks is None
        return self.context.device.type == "cuda" and own and alone and self.rows.batches is None

    def begin(self, phase: Phase) -> None:
        """Before the first step of a phase."""
        self._membership, self.pull = None, None
        self.weights.begin(phase)
        if self.plain:  # what the mean loss pulls at every row
            shape = (self.context.n_sets, self.context.per_set, *(1,) * len(self.rows.whole.shape))
            self.by_loss = phase.scale.view(shape) * self.rows.share
        self.l2_gradient = self.phi.spread(2 * self.l2 * phase.scale) if bool(self.l2.any()) else None
        if self.source is not None:
            self.source.begin(phase, self._training_slopes)
            if phase.climbing is not None and self.source.adam is not None:
                self.source.adam.set_rate(self.source.rate * phase.climbing * ~self.guard.dead)

    def __call__(self, phase: Phase) -> None:
        """Rows, logits, the gradient of the objective and of l2, a look at it, Adam; then the mask's own step."""
        context, rows = self.context, self.rows.next()
        views = self.phi.views if self.mask is None else self.mask.apply(self.phi.views)
        out = self.through.forward(views, rows.x)
        f = out.logits.view(context.n_sets, context.per_set, *rows.shape, *out.logits.shape[2:])
        total, scale = self.gradient(phase, rows, f, out.last)
        if self.l2_gradient is not None:
            pull = self.phi.spread(2 * self.l2 * scale) if self.weights.varies else self.l2_gradient
            self.phi.gradient.addcmul_(self.phi.vector, pull)
        self.guard.check(total, context.now, self.adam, *self.moved_optimizers(phase))
        self.adam.step()
        if self.mask is not None:
            self.mask.step()

    def moved_optimizers(self, phase: Phase) -> list[Adam | None]:
        """The optimizers that a frozen run must be held still in, beside Phi's."""
        climbing = self.source.adam if self.source is not None and phase.climbing is not None else None
        learner = self.weights.learner
        return [climbing, None if self.mask is None else self.mask.adam, None if learner is None else learner.adam]

    # ---- from logits to the gradient -------------------------------------------------------------------------

    def _in_closed_form(self, phase: Phase, rows: StepRows, f: Tensor, last: LastLayer | None) -> tuple[Tensor, Tensor]:
        assert isinstance(self.loss, ClosedForm)
        by_hand = self.explicit or not phase.penalised
        with torch.no_grad():
            # a penalty weight that varies may follow the risks
            want_value = not by_hand or "risk" in self.uses or self.weights.varies
            head = Head(self.loss, f.detach(), rows.y, want_value, self._wants_slope(phase))
            if phase.climbing is not None:
                self.climb(head.value, head.slope, rows, False)
            membership = rows.given
            if membership is None and phase.penalised:
                membership = self.inferred(rows, phase)
            if not want_value and (self.plain if not phase.penalised else self.pulling is not None):
                total = head.value.flatten(2).sum(2).flatten()
                by_logits = self._pulled(phase, rows, head, membership if phase.penalised else None, total)
                self._through_the_network(by_logits)
                return total, phase.scale
            if membership is None:  # Phi does not see the inferred environments yet
                e = Statistics(self._mean_loss(head.value, rows), self._no_mass)
            else:
                e = summarise(head.value, head.slope, membership, self.uses)
            e, weights, scale = self._with_weights(phase, e)
            if by_hand:
                total, *grads = self.objective.value_and_gradient(e, self.static, weights, scale)
            else:
                total, *grads = self._differentiated(phase, e, weights, scale)
            by_logits = head.pull_back(membership, self.rows.share_of(rows), *grads)
        self._through_the_network(by_logits)
        self.weights.learn(phase, e, scale)
        return total, scale

    def _through_the_network(self, by_logits: Tensor | None) -> None:
        """From the gradient in the logits to that in Phi's parameters."""
        self.through.pull_back(self.phi, by_logits)
        self._sum_gradient(self.phi)

    def _pulled(
        self, phase: Phase, rows: StepRows, head: Head, membership: RowMembership | None, total: Tensor
    ) -> Tensor | None:
        """The gradient in the logits where the mean loss acts, alone or with one penalty on slopes.

        `total` (R,) stops being finite where the penalty is not.
        """
        if membership is None:
            return head.pull_back_rows(self.by_loss, None)
        assert head.slope is not None
        sums = membership.sums(head.slope)
        pull = self.pull_of(phase, membership)(sums)
        total += sums.square().sum(1)  # finite where the penalty is, which is all that is asked
        shape = (self.context.n_sets, self.context.per_set, *rows.shape)
        return head.pull_back_rows(self.by_loss, membership.spread(pull, shape))

    def pull_of(self, phase: Phase, membership: RowMembership, unit: Tensor | float = 1.0) -> SlopePull:
        """How the one penalty pulls at the environments' sums of slopes, in a unit that stays through the phase."""
        if self.pull is None or self.pull.membership is not membership:
            assert self.pulling is not None
            self.pull = SlopePull(self.pulling, membership, phase, self.static, unit)
        return self.pull

    def _differentiated(
        self, phase: Phase, e: Statistics, weights: Sequence[Weight], scale: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """As `Objective.value_and_gradient`, by autograd, for objectives that have no closed form of it."""
        with torch.enable_grad():
            mean, risk, slope = (
                None if v is None else v.detach().requires_grad_() for v in (e.mean_risk, e.risk, e.slope)
            )
            assert mean is not None
            total = self._objective(phase, replace(e, mean_risk=mean, risk=risk, slope=slope), weights)
            inputs = [v for v in (mean, risk, slope) if v is not None]
            grads = iter(torch.autograd.grad(total, inputs, scale, allow_unused=True))
        by_mean, by_risk, by_slope = (None if v is None else next(grads) for v in (mean, risk, slope))
        return total.detach(), by_mean, by_risk, by_slope

    def _by_autograd(self, phase: Phase, rows: StepRows, f: Tensor, last: LastLayer | None) -> tuple[Tensor, Tensor]:
        want_slope = self._wants_slope(phase)
        value, slope = per_sample(self.loss, f, rows.y, want_slope, last, self.vector)
        halves = self.halves and want_slope
        if phase.climbing is not None:
            self.climb(value.detach(), None if slope is None else slope.detach(), rows, halves)
        if phase.penalised or rows.given is not None:
            e = summarise(value, slope, rows.given or self.inferred(rows, phase), self.uses, halves)
        else:  # Phi does not see the inferred environments yet
            e = Statistics(self._mean_loss(value, rows), self._no_mass)
        e, weights, scale = self._with_weights(phase, e)
        total = self._objective(phase, e, weights)
        self.phi.gradient.zero_()
        torch.autograd.backward(total, scale)
        self._sum_gradient(self.phi)
        self.weights.learn(phase, e, scale)
        return total.detach(), scale

    def _sum_gradient(self, parameters: FlatParameters) -> None:
        """What every process found by its own rows -> the gradient of all rows, the same on all."""
        if self.context.ranks is not None:
            self.context.ranks.add_(parameters.gradient)

    def _of_weighted_rows(
        self, phase: Phase, rows: StepRows, f: Tensor, last: LastLayer | None
    ) -> tuple[Tensor, Tensor]:
        assert self.row_weights is not None
        assert isinstance(self.loss, ClosedForm)
        with torch.no_grad():
            head = Head(self.loss, f.detach(), rows.y, True, False)
            weight = self.row_weights.weigh(rows, f.detach(), head.value)
            total = mean_over_rows(weight * head.value, rows.weight)
            by_logits = head.pull_back_rows(weight * rows.share, None)
        self._through_the_network(by_logits)
        return total, phase.scale

    def _wants_slope(self, phase: Phase) -> bool:
        return "slope" in self.uses and (phase.penalised or phase.climbing is not None)

    # ---- the objective on the numbers per environment --------------------------------------------------------

    def _with_weights(self, phase: Phase, e: Statistics) -> tuple[Statistics, Sequence[Weight], Tensor]:
        """The statistics with mixtures and a learned measure, and the penalty weights and scale that follow."""
        if self.mixtures is None and self.measure is None and not self.weights.varies:
            return e, phase.weights if phase.penalised else (), phase.scale
        e = self._seen_by_penalties(e)
        weights, scale = self.weights.at(phase, e)
        weights = weights if phase.penalised else ()
        if self.measure is not None and e.risk is not None:  # inferred environments: none before the penalty acts
            e = self.measure.update(e, weights, scale, self.guard.dead)
        return e, weights, scale

    def _seen_by_penalties(self, e: Statistics) -> Statistics:
        """With the mixtures and the learned measure, if there are any."""
        if self.mixtures is None and self.measure is None:
            return e
        return replace(e, mixtures=self.mixtures, learned=None if self.measure is None else self.measure.of(e))

    def _objective(self, phase: Phase, e: Statistics, weights: Sequence[Weight]) -> Tensor:
        """risk + sum_k weight_k penalty_k, or what takes its place where lambda is differentiated: (R,)."""
        total = self.objective.risk(e, self.static)
        if not phase.penalised:
            return total
        values = self.objective.penalty_values(e, self.static)
        if self.weights.exact:
            penalty, worst = torch.stack(values).sum(0), self.objective.worst_risk(e)
            exact = worst_risk_objective(worst, total, penalty, self.weights.cap)
            return torch.where(phase.acting, exact, total)
        for (weight, _), value in zip(weights, values, strict=True):
            total = torch.addcmul(total, weight, value)
        return total

    # ---- inferred environments -------------------------------------------------------------------------------

    def climb(self, value: Tensor | None, slope: Tensor | None, rows: StepRows, halves: bool) -> None:
        """One step of the environments up the penalties; Phi stands still.

        Where the gradient is written out, the losses `value` are not looked at and need not be known.
        """
        source = self.source
        assert source is not None
        source.before_climbing(rows.inferred, rows.y, rows.weight)
        if source.parameters is None or source.adam is None:
            return
        if self.climbs_by_hand and not halves and slope is not None and slope.ndim == 2 + len(rows.shape):
            source.climb(rows, slope, self.objective.penalties[0], self.static.get("reduction"))
        else:
            assert value is not None
            source.parameters.gradient.zero_()
            with torch.enable_grad():
                e = self._seen_by_penalties(summarise(value, slope, self._from_source(rows), self.uses, halves))
                penalties = torch.stack(self.objective.penalty_values(e, self.static), 1)  # (R, P)
                torch.autograd.backward((self.weights.relative * penalties).sum())
        self._sum_gradient(source.parameters)
        self.guard.check_other(source.parameters, self.context.now, source.adam)
        source.adam.step()

    def climb_at_rest(self, steps: int) -> None:
        """The environments up the penalties of the present Phi, which stands still, by the slopes of a vector w."""
        context, rows = self.context, self.rows.whole
        with torch.no_grad():
            out = self.net.forward(self.phi.views, rows.x)
            f = out.logits.view(context.n_sets, context.per_set, *rows.shape, *out.logits.shape[2:])
            value, slope = per_sample(self.loss, f, rows.y, "slope" in self.uses, out.last, True)
        for _ in range(steps):
            self.climb(value, slope, rows, False)

    def inferred(self, rows: StepRows, phase: Phase) -> RowMembership:
        """q for Phi's step. On the full batch it stays the same while nothing climbs."""
        if self._membership is not None:
            return self._membership
        with torch.no_grad():
            membership = self._from_source(rows)
        if phase.climbing is None and self.rows.batches is None:
            self._membership = membership
        return membership

    def _from_source(self, rows: StepRows) -> RowMembership:
        """The present q of these rows, with their weights."""
        assert self.source is not None
        q = self.source.membership(rows.inferred)
        if rows.weight is not None and isinstance(q, (Soft, SoftPair)):
            return Weighted(q, rows.weight)
        return self.context.pooled(q)

    def _mean_loss(self, value: Tensor, rows: StepRows) -> Tensor:
        assert self.source is not None
        if self.context.ranks is not None:
            return self.rows.mean_over_ranks(value, rows)
        return self.source.mean(value) if rows.weight is None else mean_over_rows(value, rows.weight)

    @torch.no_grad()
    def _training_slopes(self) -> Tensor:
        """Slopes of all training rows, in their own order, under the present Phi: (R, N)."""
        context = self.context
        rows = [t.train for t in context.tasks]
        out = self.net.forward(self.predictor(), self.net.prepare(context.inputs(rows)))
        f = out.logits.view(context.n_sets, context.per_set, *out.logits.shape[1:])
        _, slope = per_sample(self.loss, f, context.targets(rows).unsqueeze(1), True)
        assert slope is not None
        return slope.flatten(0, 1)

    # ---- what a fitted model keeps ---------------------------------------------------------------------------

    def predictor(self) -> Mapping[str, Tensor]:
        """A copy of the parameters that the fitted model predicts with."""
        return self.phi.state() if self.mask is None else self.mask.fitted(self.phi.views)

    def learned(self) -> dict[str, Tensor]:
        """What was learned beside Phi and the source of environments, by name: (R, ...)."""
        components = (self.weights, self.measure, self.mask, self.row_weights)
        learned = {name: v for c in components if c is not None for name, v in c.state().items()}
        return learned if self.source is None else learned | self.source.learned()

    def optimizers(self) -> list[Adam]:
        """Of everything that can move in the warm-up of runs that share it."""
        return [self.adam] if self.source is None else [self.adam, *self.source.optimizers()]
