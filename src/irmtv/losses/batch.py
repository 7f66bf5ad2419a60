"""A user's batch -> what the mathematics reads: one run (T = K = 1) of logits, labels and a membership.

Every message about a batch is written here. What must look at the values (are the codes in range?) makes a GPU's host
wait, and has no place in a compiled graph: it is switched by `check`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from irmtv.core.losses import ClosedForm, Custom, Loss, as_loss
from irmtv.core.membership import Codes, Membership, Pooled, Soft, SoftPair, counted_over_ranks
from irmtv.core.messages import shown
from irmtv.core.risk import LastLayer, per_sample, slopes_by_component
from irmtv.losses.ranks import adding

LossFunction = Callable[[Tensor, Tensor], Tensor]  # (logits, y) -> one number per row
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def widened(t: Tensor) -> Tensor:
    """At least float32: a mean over a batch in half precision has lost what the penalty looks for."""
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


def require_tensor(value: Any, name: str) -> None:
    if isinstance(value, Tensor):
        return
    if _holds_text(value):
        raise ValueError(
            f"{name} must be a torch.Tensor of numbers. Got {type(value).__name__} of text. Number the labels once, "
            "over all training rows (a batch may lack some): names, codes = numpy.unique(labels, return_inverse=True), "
            "or codes, names = pandas.factorize(labels); then pass torch.as_tensor(codes) of the rows of the batch."
        )
    raise ValueError(f"{name} must be a torch.Tensor. Got {type(value).__name__}. Use torch.as_tensor({name}).")


def _holds_text(value: Any) -> bool:
    """A list, an array or a column of strings; a table's strings would be the names of its columns."""
    if isinstance(value, Mapping) or hasattr(value, "columns") or getattr(value, "ndim", 1) != 1:
        return False
    return isinstance(value, Iterable) and isinstance(next(iter(value), None), str)


@dataclass(frozen=True)
class BatchRows:
    """Logits and labels with the run axes, and the loss that reads them."""

    loss: Loss
    f: Tensor  # (1, 1, N) or (1, 1, N, C)
    y: Tensor  # (1, 1, N), int64 classes where there are several, or (1, 1, N, C) targets

    @property
    def n_outputs(self) -> int:
        return self.f.shape[3] if self.f.ndim == 4 else 1

    def __len__(self) -> int:
        return self.f.shape[2]

    def values_and_slopes(self, vector: bool, last: LastLayer | None) -> tuple[Tensor, Tensor]:
        """l (1, 1, N) and s (1, 1, N), or (1, 1, N, J) for a vector classifier."""
        if not torch.compiler.is_compiling():
            value, slope = per_sample(self.loss, self.f, self.y, True, last, vector)
            return value, cast(Tensor, slope)
        # a compiler fuses the plain formulas itself, and cannot look into what fuses them by hand
        if isinstance(self.loss, ClosedForm):
            value, residual, _ = self.loss.forward(self.f, self.y)
            if not vector:
                slope = residual * self.f
                return value, slope.sum(-1) if slope.ndim > value.ndim else slope
            return value, slopes_by_component(self.loss, self.f, self.y, last)
        fn = cast(Custom, self.loss).fn
        if vector:
            raise ValueError(
                "classifier='vector' with a function as loss cannot be compiled. Use classifier='scalar', "
                "loss='binary', 'multiclass' or 'squared', or call the loss outside of the compiled part."
            )
        one = torch.ones((), dtype=self.f.dtype, device=self.f.device)
        return cast(tuple[Tensor, Tensor], torch.func.jvp(lambda w: fn(w * self.f, self.y), (one,), (one,)))

    def values(self) -> Tensor:
        """l alone: (1, 1, N)."""
        if torch.compiler.is_compiling() and isinstance(self.loss, ClosedForm):
            return self.loss.forward(self.f, self.y)[0]
        return self.loss.value(self.f, self.y)


def read_rows(
    loss: str | LossFunction, logits: Tensor, y: Tensor, check: bool, may_be_empty: bool = False
) -> BatchRows:
    """Check logits and y against the loss, and lay them out."""
    require_tensor(logits, "logits")
    require_tensor(y, "y")
    if not logits.is_floating_point() or logits.ndim == 0:
        raise ValueError(
            f"logits must be floating point, one row per sample. Got {logits.dtype} of shape {tuple(logits.shape)}. "
            "Pass the network's outputs before any sigmoid, softmax or argmax."
        )
    if y.ndim == 0 or len(y) != len(logits):
        got = f"{len(logits)} rows of logits and y of shape {tuple(y.shape)}"
        raise ValueError(f"y must have one entry per row of logits. Got {got}. Select the same rows in both.")
    if len(logits) == 0 and not may_be_empty:
        raise ValueError("logits must have at least one row. Got none. Skip empty batches.")
    f = widened(logits)
    if not isinstance(loss, str):
        return _rows_of_a_function(loss, f, y)
    one_output = f.ndim == 1 or f.shape[1:] == (1,)
    f = f.reshape(len(f)) if one_output else f
    y = y.squeeze(1) if y.shape[1:] == (1,) else y
    _check_shapes(loss, logits, f, y)
    if check and len(f):
        _check_labels(loss, f, y)
    n_outputs = 1 if one_output else f.shape[1]
    y = y.long() if loss == "multiclass" else y.to(f.dtype)
    return BatchRows(as_loss(loss, n_outputs), f[None, None], y[None, None])


def _check_shapes(loss: str, logits: Tensor, f: Tensor, y: Tensor) -> None:
    got = f"Got logits {tuple(logits.shape)}, y {tuple(y.shape)} of {y.dtype}."
    if loss == "multiclass":
        if f.ndim != 2:
            raise ValueError(
                f"logits must be (rows, classes) for loss 'multiclass'. {got} For one logit per row use loss='binary'; "
                "for pixels or tokens, move the classes last and flatten the rest into rows."
            )
        if y.ndim != 1 or y.dtype not in _INTEGERS:
            raise ValueError(
                f"y must be class numbers, (rows,) of an integer type, for loss 'multiclass'. {got} Use y.long() for "
                "class numbers held as floats, y.argmax(1) for one column per class."
            )
    elif loss == "binary" and (f.ndim != 1 or y.ndim != 1):
        raise ValueError(
            f"logits and y must be (rows,) or (rows, 1) for loss 'binary'. {got} For one logit per class use "
            "loss='multiclass', or the difference logits[:, 1] - logits[:, 0]."
        )
    elif loss == "squared" and (f.ndim > 2 or f.shape != y.shape):
        raise ValueError(
            f"logits and y must have one shape, (rows,) or (rows, targets), for loss 'squared'. {got} Reshape the "
            "predictions or select the same targets."
        )


def _check_labels(loss: str, f: Tensor, y: Tensor) -> None:
    y = y.detach()
    least, greatest = y.min().item(), y.max().item()
    if loss == "binary" and not (least >= 0 and greatest <= 1):
        advice = "Use (y > 0) for labels -1 and 1, (y == 2) for labels 1 and 2."
        raise ValueError(f"y must lie in [0, 1] for loss 'binary'. Got values from {least} to {greatest}. {advice}")
    if loss == "multiclass" and not (least >= 0 and greatest < f.shape[1]):
        raise ValueError(
            f"y must be classes 0..{f.shape[1] - 1}, as the logits have {f.shape[1]} columns. Got classes from {least} "
            f"to {greatest}. Number the classes from 0, or give the network one output per class."
        )


def _rows_of_a_function(fn: LossFunction, f: Tensor, y: Tensor) -> BatchRows:
    """The function sees logits and y as the user passed them; the mathematics sees the outputs as one axis."""
    n_rows, trailing = len(f), f.shape[1:]
    n_outputs = max(1, trailing.numel())

    def per_row(g: Tensor, _: Tensor) -> Tensor:
        value = fn(g.reshape(n_rows, *trailing), y)
        if value.shape not in ((n_rows,), (n_rows, 1)):
            raise ValueError(
                f"loss must give one number per row, shape ({n_rows},). Got {tuple(value.shape)}. Leave out any mean "
                "over the rows (reduction='none'), and take the mean or sum over the outputs."
            )
        return value.reshape(1, 1, n_rows)

    flat = f.reshape(1, 1, n_rows) if n_outputs == 1 else f.reshape(1, 1, n_rows, n_outputs)
    return BatchRows(Custom(per_row, "function", n_outputs), flat, flat)


def read_last_layer(rows: BatchRows, vector: bool, features: Tensor | None, weight: Tensor | None) -> LastLayer | None:
    """The inputs and weights of the last layer, where a vector classifier multiplies those inputs."""
    if not vector or rows.n_outputs > 1:
        if features is None and weight is None:
            return None
        reason = f"{rows.n_outputs} outputs have one w per logit" if vector else "classifier is 'scalar'"
        raise ValueError(f"features and weight must be left out: {reason}. Got them. Drop both arguments.")
    if features is None or weight is None:
        raise ValueError(
            "features and weight must be given for classifier='vector' and one output: w multiplies the inputs of the "
            f"last layer. Got {'no features' if features is None else 'no weight'}. Pass features=h and "
            "weight=layer.weight, where logits = layer(h); for a linear model h is x."
        )
    require_tensor(features, "features")
    require_tensor(weight, "weight")
    if features.ndim != 2 or len(features) != len(rows) or weight.numel() != features.shape[1]:
        raise ValueError(
            f"features must be (rows, J) and weight (J,) or (1, J), with {len(rows)} rows. Got features "
            f"{tuple(features.shape)} and weight {tuple(weight.shape)}. Pass what the last layer reads and its weight."
        )
    dtype = rows.f.dtype
    return LastLayer(widened(features).to(dtype).T[None], widened(weight).to(dtype).reshape(1, -1))


@dataclass(frozen=True)
class OfBatch(Pooled):
    """A batch's membership, its sums pooled over the ranks that hold parts of the batch."""

    codes: Tensor  # (E,) the user's code of every environment

    @classmethod
    def of_batch(cls, inner: Membership, rows: BatchRows, ranks: int, codes: Tensor) -> OfBatch:
        n_rows, add = len(rows), adding(ranks)
        ones = torch.ones((1, 1, n_rows), dtype=rows.f.dtype, device=codes.device)
        return cls(inner, *counted_over_ranks(inner.sums(ones), ones.new_full((1,), n_rows), add), add, codes)


def given_environments(
    environment: Tensor | None,
    membership: Tensor | None,
    rows: BatchRows,
    n_environments: int | None,
    check: bool,
    ranks: int,
) -> OfBatch:
    """The environments of the rows, from codes or from probabilities."""
    if (environment is None) == (membership is None):
        came = "neither" if environment is None else "both"
        raise ValueError(
            f"exactly one of environment and membership must be given. Got {came}. Pass environment=codes, (rows,) "
            "integers, where environments are known, or membership=q, (rows, environments) probabilities."
        )
    if membership is not None:
        return _from_membership(membership, rows, n_environments, check, ranks)
    assert environment is not None
    return _from_codes(environment, rows, n_environments, check, ranks)


def _from_codes(environment: Tensor, rows: BatchRows, n_environments: int | None, check: bool, ranks: int) -> OfBatch:
    require_tensor(environment, "environment")
    codes = environment.squeeze(1) if environment.shape[1:] == (1,) else environment
    if codes.ndim != 1 or len(codes) != len(rows) or codes.dtype not in _INTEGERS:
        raise ValueError(
            f"environment must be one integer per row, {len(rows)} of them. Got shape {tuple(environment.shape)} of "
            f"{environment.dtype}. Number the environments 0..E-1 and pass codes.long(); probabilities go to "
            "membership=."
        )
    codes = codes.long()
    if n_environments is None:
        if ranks > 1:
            raise ValueError(
                "n_environments must be given where a batch is spread over ranks: a rank cannot know which "
                "environments the others have. Got None. Pass n_environments=E to the loss."
            )
        labels, codes = torch.unique(codes, return_inverse=True)
    else:
        labels = torch.arange(n_environments, device=codes.device)
        if check and len(codes) and not (int(codes.min()) >= 0 and int(codes.max()) < n_environments):
            outside = torch.unique(codes[(codes < 0) | (codes >= n_environments)]).tolist()
            raise ValueError(
                f"environment must be codes 0..{n_environments - 1}, as n_environments is {n_environments}. Got "
                f"{shown(outside)}. Number the environments from 0, or raise n_environments."
            )
    inner = Codes(codes[None, None], len(labels))
    return OfBatch.of_batch(inner, rows, ranks, labels)


def _from_membership(q: Tensor, rows: BatchRows, n_environments: int | None, check: bool, ranks: int) -> OfBatch:
    require_tensor(q, "membership")
    wrong_width = n_environments is not None and q.shape[1:] != (n_environments,)
    if q.ndim != 2 or len(q) != len(rows) or q.shape[1] == 0 or not q.is_floating_point() or wrong_width:
        wanted = n_environments or "environments"
        raise ValueError(
            f"membership must be probabilities of shape ({len(rows)}, {wanted}). Got shape {tuple(q.shape)} of "
            f"{q.dtype}. Pass one row per sample and one column per environment; codes go to environment=."
        )
    if check and len(q):
        rounding = 1e-2 if widened(q) is not q else 1e-4
        plain = widened(q.detach())
        off, least = float((plain.sum(1) - 1).abs().max()), float(plain.min())
        if not (off <= rounding and least >= 0):
            raise ValueError(
                f"membership must have rows of probabilities that sum to 1. Got rows that miss 1 by up to {off:.3g} "
                f"and values down to {least:.3g}. Use logits.softmax(1)."
            )
    return pooled_soft(Soft(widened(q).to(rows.f.dtype).T[None, None]), rows, ranks)


def pooled_soft(inner: Soft | SoftPair, rows: BatchRows, ranks: int) -> OfBatch:
    """Inferred environments, numbered from 0."""
    codes = torch.arange(inner.n_environments, device=rows.f.device)
    return OfBatch.of_batch(inner, rows, ranks, codes)
