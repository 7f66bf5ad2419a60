"""Per-sample losses and their slopes in closed form.

The dummy classifier w = 1 multiplies the network's outputs f. The slope of sample i is

    s_i = d l(w f_i, y_i) / dw  at w = 1,

an explicit function of f_i, so one ordinary backward through (l, s) is exact: nothing here ever
differentiates a gradient.

| loss                 | l                       | residual r = dl/df | slope s             |
|----------------------|-------------------------|--------------------|---------------------|
| binary (logits)      | softplus(f) - y f       | sigmoid(f) - y     | r f                 |
| squared              | (f - y)^2               | 2 (f - y)          | r f                 |
| multiclass (softmax) | logsumexp(f) - f_y      | p - onehot(y)      | sum_k r_k f_k       |
| any other            | the user's function     | forward-mode derivative of w -> l(w f, y)|

Shapes: f and y are (...) for one output and (..., C) for several (y is (...) int64 for multiclass);
l and s are (...). Several regression targets are averaged.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


@runtime_checkable
class Loss(Protocol):
    """A per-sample loss with its slope."""

    name: str

    def value(self, f: Tensor, y: Tensor) -> Tensor:
        """l: (...)."""
        ...

    def value_and_slope(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """l and s: (...) each, both differentiable in f."""
        ...

    def residual(self, f: Tensor, y: Tensor) -> Tensor:
        """r = dl/df, shaped like f, differentiable in f."""
        ...


class ClosedForm:
    """A loss whose residual and curvature are known; subclasses give the three formulas."""

    name: str
    several = False  # whether a row has several outputs: f is then (..., C)

    def forward(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """l (...), r shaped like f, and what the curve needs."""
        raise NotImplementedError

    def derivatives(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """r and what the curve needs, as `forward` gives them: a step that needs no loss saves a pass over the rows."""
        return self.forward(f, y)[1:]

    def _curve(self, f: Tensor, kept: Tensor) -> Tensor:
        """The part of ds/df that is not r: sum_k f_k dr_k/df. A new tensor shaped like f."""
        raise NotImplementedError

    def residual(self, f: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError

    def value(self, f: Tensor, y: Tensor) -> Tensor:
        (loss,) = _Fused.apply(f, y, self, False)  # type: ignore[no-untyped-call]
        return loss  # type: ignore[no-any-return]

    def value_and_slope(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        loss, slope = _Fused.apply(f, y, self, True)  # type: ignore[no-untyped-call]
        return loss, slope

    def pull_back(
        self, f: Tensor, residual: Tensor, kept: Tensor, grad_loss: Tensor | None, grad_slope: Tensor | None
    ) -> Tensor | None:
        """df = r (g_l + g_s) + curve g_s, from gradients that broadcast against f."""
        if grad_slope is None:
            return None if grad_loss is None else residual * grad_loss
        both = grad_slope if grad_loss is None else grad_slope + grad_loss
        return self._curve(f, kept).mul_(grad_slope).addcmul_(residual, both)

    def __repr__(self) -> str:
        return f"<loss {self.name}>"


class _Fused(torch.autograd.Function):
    """(l, s) in one pass with the backward written out.

    Plain autograd gives the same gradient with about twice the passes over memory, and memory is what
    a training step on a small network spends its time on.
    """

    @staticmethod
    def forward(ctx: Any, f: Tensor, y: Tensor, loss: ClosedForm, want_slope: bool) -> tuple[Tensor, ...]:
        value, residual, kept = loss.forward(f, y)
        ctx.loss = loss
        ctx.save_for_backward(f, residual, kept)
        ctx.set_materialize_grads(False)
        if not want_slope:
            return (value,)
        slope = residual * f
        return value, slope.sum(-1) if loss.several else slope

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        f, residual, kept = ctx.saved_tensors
        per_row = [g.unsqueeze(-1) if ctx.loss.several and g is not None else g for g in (*grads, None)]
        return ctx.loss.pull_back(f, residual, kept, per_row[0], per_row[1]), None, None, None


class Binary(ClosedForm):
    """Cross-entropy on one logit, y in {0, 1}."""

    name = "binary"

    def forward(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # softplus(f) = f beyond the threshold: torch's 20 would cost float64 half of its digits there
        return functional.softplus(f, threshold=40).addcmul_(y, f, value=-1), *self.derivatives(f, y)

    def derivatives(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        p = torch.sigmoid(f)
        return p - y, p

    def _curve(self, f: Tensor, p: Tensor) -> Tensor:
        return torch.ops.aten.sigmoid_backward(f, p)  # type: ignore[no-any-return]  # f p (1 - p), one pass

    def residual(self, f: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(f) - y


class Squared(ClosedForm):
    """Squared error; the mean over targets where there are several."""

    name = "squared"

    def __init__(self, n_targets: int = 1) -> None:
        self.n_targets, self.several = n_targets, n_targets > 1

    def forward(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        d = f - y
        value = d.square().mean(-1) if self.several else d.square()
        return value, d * (2 / self.n_targets), d

    def derivatives(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        d = f - y
        return d * (2 / self.n_targets), d

    def _curve(self, f: Tensor, kept: Tensor) -> Tensor:
        return f * (2 / self.n_targets)

    def residual(self, f: Tensor, y: Tensor) -> Tensor:
        return (f - y) * (2 / self.n_targets)


class Multiclass(ClosedForm):
    """Softmax cross-entropy on C logits, y in {0, ..., C - 1}."""

    name = "multiclass"
    several = True

    def forward(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_p = _over_classes(torch.log_softmax, f)
        p = log_p.exp()
        index = y.expand(f.shape[:-1]).unsqueeze(-1)  # (..., 1)
        value = -log_p.gather(-1, index).squeeze(-1)
        return value, p.scatter_add(-1, index, -torch.ones_like(index, dtype=p.dtype)), p

    def _curve(self, f: Tensor, p: Tensor) -> Tensor:
        return p * (f - (p * f).sum(-1, keepdim=True))

    def residual(self, f: Tensor, y: Tensor) -> Tensor:
        index = y.expand(f.shape[:-1]).unsqueeze(-1)
        p = _over_classes(torch.softmax, f)
        return p.scatter_add(-1, index, -torch.ones_like(index, dtype=p.dtype))


def _over_classes(softmax: Callable[[Tensor, int], Tensor], f: Tensor) -> Tensor:
    """Along the last axis of f, class by class: networks keep the rows of a class together, and few classes are slow
    along an axis of their own (20 times, for six)."""
    return softmax(f.transpose(-1, -2), -2).transpose(-1, -2)


class Custom:
    """Any differentiable per-sample loss: ``fn(f, y) -> l``, one number per sample.

    The slope is the forward-mode derivative of w -> fn(w f, y) at w = 1: one evaluation of dual numbers.
    """

    def __init__(self, fn: Callable[[Tensor, Tensor], Tensor], name: str | None = None, n_outputs: int = 1) -> None:
        self.fn, self.n_outputs = fn, n_outputs
        self.name: str = name or str(getattr(fn, "__name__", "custom"))

    def value(self, f: Tensor, y: Tensor) -> Tensor:
        return self._per_row(f, _for_every_run(y, f))

    def value_and_slope(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y = _for_every_run(y, f)
        one = torch.ones((), dtype=f.dtype, device=f.device)
        return _jvp(lambda w: self._per_row(w * f, y), one, one)

    def residual(self, f: Tensor, y: Tensor) -> Tensor:
        y = _for_every_run(y, f)
        if self.n_outputs == 1:
            return _jvp(lambda g: self.fn(g, y), f, torch.ones_like(f))[1]
        columns = []
        for k in range(f.shape[-1]):  # one direction per output
            direction = torch.zeros_like(f)
            direction[..., k] = 1
            columns.append(_jvp(lambda g: self.fn(g, y), f, direction)[1])
        return torch.stack(columns, -1)

    def _per_row(self, f: Tensor, y: Tensor) -> Tensor:
        value = self.fn(f, y)
        expected = f.shape if self.n_outputs == 1 else f.shape[:-1]
        if value.shape != expected:  # a mean, say, would mix the runs
            raise ValueError(
                f"loss {self.name!r} must give one number per row, {tuple(expected)} for {self.n_outputs} "
                f"output{'s' * (self.n_outputs > 1)}. Got {tuple(value.shape)}; take the mean or sum over the outputs "
                "(the last axis) and leave out any over the rows."
            )
        return value

    def __repr__(self) -> str:
        return f"<loss {self.name}>"


def _for_every_run(y: Tensor, f: Tensor) -> Tensor:
    """y, which the runs on a data set share, with f's runs: most functions of torch.nn ask for equal shapes."""
    leading = [theirs if ours == 1 else ours for ours, theirs in zip(y.shape, f.shape, strict=False)]
    return y.expand(*leading, *y.shape[f.ndim :])


def _jvp(fn: Callable[[Tensor], Tensor], at: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """fn(at) and its derivative along `direction`."""
    _load_forward_mode()
    return cast(tuple[Tensor, Tensor], torch.func.jvp(fn, (at,), (direction,)))  # three only with has_aux


@cache
def _load_forward_mode() -> None:
    """The first use of forward mode makes torch warn that torch itself uses `torch.jit`: not the user's concern."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.func.jvp(torch.sin, (torch.zeros(()),), (torch.ones(()),))


def as_loss(loss: str | Loss | Callable[[Tensor, Tensor], Tensor], n_outputs: int = 1) -> Loss:
    """A loss from its name ("binary", "squared", "multiclass"), from a function, or unchanged."""
    if isinstance(loss, str):
        named: dict[str, Loss] = {
            "binary": Binary(),
            "squared": Squared(n_outputs),
            "multiclass": Multiclass(),
        }
        if loss not in named:
            raise ValueError(f"loss must be one of {sorted(named)} or a function (f, y) -> loss. Got {loss!r}.")
        return named[loss]
    if not isinstance(loss, type):  # a class has a loss's methods too; its instances are losses
        if isinstance(loss, Custom) and loss.n_outputs != n_outputs:
            return Custom(loss.fn, loss.name, n_outputs)
        if isinstance(loss, Loss):
            return loss
        if callable(loss):
            return Custom(loss, n_outputs=n_outputs)
    raise ValueError(f"loss must be a name, a function (f, y) -> loss, or a Loss. Got {type(loss).__name__}.")
