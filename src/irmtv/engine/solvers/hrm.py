"""The training procedure of heterogeneous risk minimisation (`objectives.hrm` has the formulas).

`steps` of a call are the steps of the back end over all rounds, and of the refit: a round has
L = steps / (rounds + erm_share) of them, the refit erm_share L. The published 5 rounds of 3000 + 6000 steps with a
refit of 3000 are steps=48_000 and learning_rate=1e-3. The front end's steps (`cluster_steps` each time the rows have
been assigned anew) come on top. A snapshot within a round shows that round's theta, which begins anew each time: a rule
that keeps the best snapshot may keep one from the middle of a round, before the refit.

Every round begins anew: random labels, new models in the front end, theta at the run's start and gates half open in
the back end. What a round hands on is the density of its gates. The ERM steps move theta alone, on the mean loss over
all rows, under gates with noise: theta then fits the gates as they are when these begin to move. The refit starts
from the last round's coefficients times their gates, and features that are not kept have coefficient 0. Where no
feature would be kept, the one with the largest density is, with a warning.

The clusters' models have no intercepts unless asked for. With them the clusters follow the target, not the features:
levels of y in a regression, and in a classification the classes themselves, which an intercept alone predicts.

A step knows the data through gradients and Hessian products of every cluster's risk. Squared errors have them from
Gram matrices that are made once per assignment (`GramRisks`), so a step does not touch the rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from irmtv.core.losses import ClosedForm, Loss, Squared
from irmtv.core.messages import shown, users_stacklevel
from irmtv.engine.components.base import Mask, gated
from irmtv.engine.context import Context
from irmtv.engine.device import CapturedStep
from irmtv.engine.fitted import State
from irmtv.engine.networks import MLP, Parameters
from irmtv.engine.optim import Adam, FlatParameters
from irmtv.engine.plan import Chunk
from irmtv.engine.program import Call, Program
from irmtv.engine.progress import Reporter
from irmtv.objectives import hrm
from irmtv.objectives.gates import density, gate

NOISE_STREAM = 11
NOISE_BLOCK = 128  # steps whose gate noise is drawn at once


class RowRisks:
    """What a step asks of the mean losses R_e of a linear model on the rows of every cluster, for any loss.

    Weights are (..., C, D + 1), the intercept last (or without one, where x has no column of ones). Of a cluster
    without rows everything is 0.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        codes: Tensor,
        n_clusters: int,
        loss: Loss,
        n_outputs: int,
        weight: Tensor | None = None,
    ) -> None:
        """x (T, N, D + 1), y (T, N) or (T, N, C), codes (R, N), weight (R, N)."""
        self.x, self.x_t = x, x.transpose(1, 2).contiguous()
        self.y, self.loss, self.n_outputs, self.n_sets = y.unsqueeze(1), loss, n_outputs, len(x)
        one_hot = torch.nn.functional.one_hot(codes, n_clusters).to(x).transpose(1, 2)  # (R, E, N)
        self.own = one_hot.unsqueeze(2).contiguous()  # (R, E, 1, N)
        counted = one_hot if weight is None else one_hot * weight.unsqueeze(1).to(x)
        self.rows = counted.sum(2)
        self.share = counted.unsqueeze(2).contiguous() / torch.where(self.rows > 0, self.rows, 1)[:, :, None, None]

    def gradients(self, w: Tensor, curve: bool = False) -> Tensor:
        """Of R_e in the weights (R, 1, C, D + 1), or (R, E, C, D + 1), a model for each cluster: (R, E, C, D + 1).

        `curve` says that `hessian_product` will be asked for.
        """
        f = logits(self.x_t, w)  # (R, 1 or E, C, N)
        f = self._outputs_last(f.squeeze(1) if w.shape[1] == 1 else (f * self.own).sum(1))
        if curve:
            self.f = f.requires_grad_()
            with torch.enable_grad():
                self.residual = self.loss.residual(f, self.y)
            residual = self.residual.detach()
        else:
            residual = self.loss.residual(f, self.y)
        return self._times_x(self.share * self._outputs_first(residual).unsqueeze(1))

    def hessian_product(self, v: Tensor) -> Tensor:
        """sum_e H_e v_e (R, C, D + 1) of v (R, E, C, D + 1), at the weights (R, 1, C, D + 1) asked for last."""
        by_residual = (logits(self.x_t, v) * self.share).sum(1)  # (R, C, N)
        (by_f,) = torch.autograd.grad(self.residual, self.f, self._outputs_last(by_residual))
        return self._times_x(self._outputs_first(by_f))

    def _outputs_last(self, f: Tensor) -> Tensor:
        """(R, C, N) -> (T, K, N), or (T, K, N, C) for several outputs."""
        f = f.view(self.n_sets, -1, *f.shape[1:])
        return f.squeeze(2) if self.n_outputs == 1 else f.transpose(2, 3)

    def _outputs_first(self, f: Tensor) -> Tensor:
        f = f.flatten(0, 1)
        return f.unsqueeze(1) if self.n_outputs == 1 else f.transpose(1, 2)

    def _times_x(self, value: Tensor) -> Tensor:
        """(R, ..., N) -> (R, ..., D + 1): sums over the rows of value times x."""
        flat = value.reshape(self.n_sets, -1, value.shape[-1])
        return (flat @ self.x).view(*value.shape[:-1], -1)


class GramRisks:
    """The same for squared errors: R_e = (w' A_e w - 2 w' c_e) / C + constant, summed over the C targets."""

    def __init__(self, x: Tensor, y: Tensor, codes: Tensor, n_clusters: int, weight: Tensor | None = None) -> None:
        """x (T, N, D + 1), y (T, N, C), codes (R, N), weight (R, N)."""
        n_sets, size = len(x), x.shape[2]
        self.factor = 2 / y.shape[2]
        one_hot = torch.nn.functional.one_hot(codes, n_clusters).double().transpose(1, 2)  # (R, E, N)
        counted = one_hot if weight is None else one_hot * weight.unsqueeze(1)
        rows = counted.sum(2)
        self.rows = rows.to(x)
        share = counted / torch.where(rows > 0, rows, 1).unsqueeze(2)
        x, both = x.double(), torch.cat([x, y], 2).double()  # sums in float64: a gradient is a small difference of them
        per_set = len(codes) // n_sets
        products = [(share[r].unsqueeze(1) * both[r // per_set].T) @ x[r // per_set] for r in range(len(codes))]
        every = torch.stack(products).to(y)  # (R, E, D + 1 + C, D + 1)
        self.a, self.c = every[:, :, :size].contiguous(), every[:, :, size:].contiguous()

    def gradients(self, w: Tensor, curve: bool = False) -> Tensor:
        return (w @ self.a).sub_(self.c).mul_(self.factor)  # A is symmetric

    def hessian_product(self, v: Tensor) -> Tensor:
        return (v @ self.a).sum(1).mul_(self.factor)


Risks = RowRisks | GramRisks


def logits(x_t: Tensor, w: Tensor) -> Tensor:
    """x_t (T, D + 1, N), w (R, ..., D + 1) -> (R, ..., N)."""
    return (w.reshape(len(x_t), -1, w.shape[-1]) @ x_t).view(*w.shape[:-1], x_t.shape[2])


def _column_means(values: Tensor, weights: Tensor | None) -> Tensor:
    """Over the rows: (T, N, ...) -> (T, 1, ...), by their weights (T, N) where they have any."""
    if weights is None:
        return values.mean(1, keepdim=True)
    share = (weights / weights.sum(1, keepdim=True)).to(values.dtype)
    return (share.view(*share.shape, *(1,) * (values.ndim - 2)) * values).sum(1, keepdim=True)


class Gates(Mask):
    """One gate per feature: stochastic in the rounds, what was kept after them."""

    def __init__(self, context: Context, n_features: int) -> None:
        self.context = context
        zero = torch.zeros(n_features, dtype=torch.float64)
        self.parameters = FlatParameters([{"mu": zero}] * context.n_runs, context.device, context.dtype)
        self.mu = self.parameters.views["mu"].detach()  # (R, D), the same memory
        self.sigma = context.column("gate_noise").unsqueeze(1)
        self.rate = context.column("gate_learning_rate")
        self.noise = context.noise(NOISE_STREAM)
        # of the steps of a block, made between steps: (R, block, D)
        self.block = context.full((context.n_runs, NOISE_BLOCK, n_features), 0.0)
        self.opened = torch.ones_like(self.mu)
        self.kept: Tensor | None = None  # (R, D) of 0 and 1

    def begin(self, held: Tensor) -> None:
        """Half open, but for the runs that are held still (R,)."""
        self.mu.mul_(held.to(self.mu.dtype).unsqueeze(1))
        self.adam = Adam(self.parameters, self.rate)

    def draw(self, step: int) -> None:
        """Before a step, outside of what is recorded: its noise, with that of its block."""
        if step % NOISE_BLOCK == 0:
            shape = self.block.shape[1:]
            self.block.copy_(self.noise.normal(step // NOISE_BLOCK, shape, self.block.dtype))

    def apply(self, views: Parameters) -> Parameters:
        """Coefficients under gates with this step's noise."""
        if self.kept is not None:
            self.opened = self.kept
        else:
            now = self.context.now
            if isinstance(now, Tensor):
                noise = self.block.index_select(1, (now % NOISE_BLOCK).view(1)).squeeze(1)
            else:
                noise = self.block[:, now % NOISE_BLOCK]
            self.opened = gate(self.mu, noise, self.sigma)
        return gated(views, "W0", self.opened)

    def step(self) -> None:
        if self.adam is not None:
            self.adam.step()

    def settle(self, held: Tensor) -> Tensor:
        """From here on only features above the limit; where there are none, the one with the largest density.

        Says for whom there were none (R,). Runs that are held still (R,) keep what they have.
        """
        densities = self.density()
        kept = densities > self.context.column("keep_density").unsqueeze(1)
        none = ~kept.any(1) & ~held
        best = torch.nn.functional.one_hot(densities.argmax(1), densities.shape[1]).bool()
        self.kept = torch.where(none.unsqueeze(1), best, kept | held.unsqueeze(1)).to(self.mu.dtype)
        return none

    def density(self) -> Tensor:
        return density(self.mu, self.sigma)  # (R, D)

    def fitted(self, views: Parameters) -> dict[str, Tensor]:
        opened = gate(self.mu) if self.kept is None else self.kept
        return {name: view.detach().clone() for name, view in gated(views, "W0", opened).items()}

    def state(self) -> dict[str, Tensor]:
        return {"gates": self.density()}


class HrmProgram(Program):
    """One chunk of runs; see the head of this file."""

    def __init__(self, chunk: Chunk, call: Call) -> None:
        super().__init__(chunk, call)
        context = self.context
        if not isinstance(self.net, MLP) or len(self.net.widths) != 2:
            raise ValueError(
                "objective 'hrm' selects input features of a linear model: use hidden=() and no net=. "
                f"Got net={type(self.net).__name__}."
            )
        rows = [t.train for t in context.tasks]
        x = context.inputs(rows)
        self.y = context.targets(rows)
        self.x = torch.cat([x, torch.ones_like(x[..., :1])], 2)  # (T, N, D + 1)
        weights = None if context.weights is None else context.weights.to(context.device)  # (T, N)
        self.weight = None if weights is None else weights.repeat_interleave(context.per_set, 0)  # (R, N)
        # what the front end reads
        self.front_x, self.front_y = self.x, self.y
        if not self.static["cluster_intercept"]:
            self.front_x = x - _column_means(x, weights)
            self.front_y = self.y - _column_means(self.y, weights) if isinstance(self.loss, Squared) else self.y
        self.front_x_t = self.front_x.transpose(1, 2).contiguous()
        n_runs, n_rows, n_features = context.n_runs, x.shape[1], x.shape[2]
        self.gates = Gates(context, n_features)
        self.step.mask = self.gates
        self.l2 = context.column("l2")
        self.start = self.phi.vector.clone()
        self.codes = torch.zeros(n_runs, n_rows, dtype=torch.int64, device=context.device)
        self.alpha, self.opening = context.column("penalty_weight"), context.column("gate_weight")
        self.growth = context.column("growth")
        self.nothing = context.full((n_runs,), 0.0)

    def lengths(self) -> list[tuple[int, int, int]]:
        """For every round: where its ERM steps begin, where its penalised steps begin, and where it ends."""
        rounds, share = self.static["rounds"], self.static["erm_share"]
        length = self.steps / (rounds + share)
        return [(round(k * length), round((k + share) * length), round((k + 1) * length)) for k in range(rounds)]

    # ---- training --------------------------------------------------------------------------------------------

    @torch.no_grad()  # every gradient is written out
    def run(self, report: Reporter) -> None:
        end, everything = 0, self._risks(self.x, self.y, torch.zeros_like(self.codes), 1)
        for k, (begin, middle, end) in enumerate(self.lengths()):
            if self.guard.all_dead:
                break
            report(begin)
            self._find_clusters(first=k == 0)
            risks = self._risks(self.x, self.y, self.codes, self.static["n_clusters"])
            held = self.guard.dead
            self.phi.vector.copy_(torch.where(held[self.phi.owner], self.phi.vector, self.start))
            self.gates.begin(held)
            self._restart()
            self._go(report, begin, middle, partial(self._plain_step, everything))
            self._restart()
            mean, growth = hrm.mean_weights(risks.rows), self.growth**k
            alpha, opening = self.alpha * growth, self.opening * growth
            self._go(report, middle, end, partial(self._penalised_step, risks, mean, alpha, opening))
        self._refit(report, end, everything)
        self._finish(report)

    def _go(self, report: Reporter, start: int, stop: int, step: Callable[[], None]) -> None:
        """Steps of the back end, start to stop."""
        recorded = self._recorded(step)

        def advance() -> None:
            self.gates.draw(self.context.step)
            recorded()

        self._walk(start, stop, advance, report)

    def _recorded(self, step: Callable[[], None]) -> Callable[[], None]:
        recordable = self.context.device.type == "cuda" and isinstance(self.loss, ClosedForm)
        return CapturedStep(step) if recordable else step

    def _restart(self) -> None:
        self.adam = Adam(self.phi, self.context.column("learning_rate"))
        self.l2_gradient = self.phi.spread(2 * self.l2) if bool(self.l2.any()) else None

    def _risks(self, x: Tensor, y: Tensor, codes: Tensor, n_clusters: int) -> Risks:
        if isinstance(self.loss, Squared):
            return GramRisks(x, y.view(*y.shape[:2], -1), codes, n_clusters, self.weight)
        return RowRisks(x, y, codes, n_clusters, self.loss, self.context.n_outputs, self.weight)

    # ---- front end -------------------------------------------------------------------------------------------

    def _find_clusters(self, first: bool) -> None:
        """New clusters (R, N) of every run; a run whose clusters have settled waits for the others."""
        context, n = self.context, self.static["n_clusters"]
        held = self.guard.dead.clone()
        labels = [self._random_labels(g) for g in context.generators]
        self.codes = torch.where(held.unsqueeze(1), self.codes, torch.stack(labels).to(context.device))
        starts, size = [], self.front_x.shape[2]
        for s, g in zip(context.settings, context.generators, strict=True):
            each = [self.net.init(int(s["seed"]), g) for _ in range(n)]
            # (K, C, D + 1), or (K, C, D) without intercepts
            starts.append({"w": torch.stack([torch.cat([m["W0"], m["b0"]], 1)[:, :size] for m in each])})
        models = FlatParameters(starts, context.device, context.dtype)
        wanted = self.gates.density()
        wanted = context.column("first_density").unsqueeze(1).expand_as(wanted) if first else wanted
        wanted = wanted * context.column("cluster_shrinkage").unsqueeze(1)
        rate, limit = context.column("cluster_learning_rate"), context.column("cluster_moves")
        moving = ~held
        for _ in range(self.static["max_cluster_iterations"]):
            # who has settled stands still: alone it would be done, and nothing may go wrong with it here
            self._fit(models, self._risks(self.front_x, self.front_y, self.codes, n), wanted, rate * moving)
            new = self._nearest(models.views["w"].detach())
            moving &= ~self.guard.dead
            moved = self._share_of_rows(new != self.codes, rate.dtype)
            self.codes = torch.where(moving.unsqueeze(1), new, self.codes)
            moving &= moved > limit
            if not bool(moving.any()):
                break

    def _random_labels(self, generator: torch.Generator) -> Tensor:
        return torch.randint(self.static["n_clusters"], (self.codes.shape[1],), generator=generator)

    def _share_of_rows(self, which: Tensor, dtype: torch.dtype) -> Tensor:
        """(R, N) bool -> (R,)."""
        if self.weight is None:
            return which.to(dtype).mean(1)
        return ((which * self.weight).sum(1) / self.weight.sum(1)).to(dtype)

    def _fit(self, models: FlatParameters, risks: Risks, wanted: Tensor, rate: Tensor) -> None:
        """Every cluster's model to its own rows."""
        adam, w = Adam(models, rate), models.views["w"].detach()
        gradient = models.views["w"].grad
        assert gradient is not None
        features = slice(wanted.shape[1])

        def step() -> None:
            gradient.copy_(risks.gradients(w))
            gradient[..., features].add_(hrm.shrinkage_gradient(w[..., features], wanted))
            self.guard.check_other(models, self.context.now, adam)
            adam.step()

        advance = self._recorded(step)
        for _ in range(self.static["cluster_steps"]):
            advance()

    def _nearest(self, w: Tensor) -> Tensor:
        """The model with the least loss of every row: (R, N)."""
        n_sets, per_set = self.context.n_sets, self.context.per_set
        f = logits(self.front_x_t, w)  # (R, K, C, N)
        f = f.view(n_sets, per_set, *f.shape[1:])
        f = f.squeeze(3) if self.context.n_outputs == 1 else f.transpose(3, 4)  # (T, K, models, N), with C last
        return self.loss.value(f, self.front_y[:, None, None]).argmin(2).flatten(0, 1)

    # ---- back end --------------------------------------------------------------------------------------------

    def _gated(self) -> Tensor:
        """Weights under gates, the intercept last: (R, 1, C, D + 1)."""
        views = self.gates.apply(self.phi.views)
        return torch.cat([views["W0"].detach(), views["b0"].detach()], 2).unsqueeze(1)

    def _pull(self, by_weights: Tensor) -> None:
        """The gradient in the gated weights (R, C, D + 1), written into theta's, with l2."""
        w, b = self.phi.views["W0"].grad, self.phi.views["b0"].grad
        assert w is not None and b is not None
        torch.mul(by_weights[..., :-1], self.gates.opened.unsqueeze(1), out=w)
        b.copy_(by_weights[..., -1:])
        if self.l2_gradient is not None:
            self.phi.gradient.addcmul_(self.phi.vector, self.l2_gradient)

    def _plain_step(self, everything: Risks) -> None:
        """theta alone, on the mean loss."""
        self._pull(everything.gradients(self._gated()).squeeze(1))
        self.guard.check(self.nothing, self.context.now, self.adam)
        self.adam.step()

    def _penalised_step(self, risks: Risks, mean: Tensor, alpha: Tensor, opening: Tensor) -> None:
        """theta and the gates, on the back end's objective; its gradient is written out."""
        gates, mu = self.gates, self.gates.mu
        gradient = risks.gradients(self._gated(), curve=True)  # (R, E, C, D + 1)
        opened = gates.opened[:, None, None]
        by_risk = (gradient * mean[:, :, None, None]).sum(1)  # (R, C, D + 1)
        deviation = hrm.deviations(gradient[..., :-1] * opened, mean)  # G_e - mean G: (R, E, C, D)
        spread = hrm.heterogeneity(deviation)
        closed = hrm.closed_gates(gates.density())
        # the risk has no part here: it is finite where its gradient is, which the guard looks at too
        total = alpha * hrm.invariance_penalty(mu, spread) + opening * closed.square()
        # sum_e (G_e - mean G) = 0, so the mean has no part in the derivative by G_e
        factor = (mu + 0.5) * gates.opened * (2 * alpha).unsqueeze(1)  # (R, D)
        along = torch.nn.functional.pad(deviation * factor[:, None, None], (0, 1))
        self._pull(by_risk + risks.hessian_product(along))
        by_mu = gates.parameters.views["mu"].grad
        assert by_mu is not None and gates.adam is not None
        by_gate = (by_risk[..., :-1] * self.phi.views["W0"]).sum(1)
        torch.mul(by_gate, hrm.gate_slope(gates.opened), out=by_mu)
        by_mu.addcmul_(alpha.unsqueeze(1), spread)
        by_mu.addcmul_((2 * opening * closed).unsqueeze(1), hrm.density_slope(mu, gates.sigma))
        self.guard.check_other(gates.parameters, self.context.now, gates.adam)
        self.guard.check(total, self.context.now, self.adam, gates.adam)
        self.adam.step()
        gates.step()

    def _refit(self, report: Reporter, start: int, everything: Risks) -> None:
        """On the features kept, from where the last round left them."""
        self.phi.views["W0"].copy_(self.gates.fitted(self.phi.views)["W0"])
        none = self.gates.settle(self.guard.dead)
        if bool(none.any()):
            which = [self.chunk.runs[r] for r in none.nonzero().flatten().tolist()]
            warnings.warn(
                f"hrm closed the gates of all features (runs {shown(which)}); the feature with the largest density was "
                "kept. Lower penalty_weight, or raise gate_weight.",
                stacklevel=users_stacklevel(),
            )
        self._restart()
        self._go(report, start, self.steps, partial(self._plain_step, everything))

    # ---- what is kept ----------------------------------------------------------------------------------------

    def _state(self) -> State:
        state = super()._state()
        return replace(state, learned={**state.learned, "clusters": self.codes.cpu()})
