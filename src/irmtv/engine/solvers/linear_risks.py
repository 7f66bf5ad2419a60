"""The risks of a linear model in every environment, with their derivatives up to the third, in closed form.

A model is theta (P,), for every output the weights of the columns and then the intercept: P = C (D + 1). With
f_i = theta . x_i, and l', l'' the derivatives of the loss in f,

    R_e = mean_e l_i,   g_e = mean_e l'_i x_i,   H_e = mean_e l''_i x_i x_i',

and `along(v)` is the Hessian of sum_e v_e . g_e, for which the third derivative of the loss is needed. Squared errors
need the rows once: their second moments say everything.

Folds have most rows in common. So the rows of several data sets are kept once, with what each row counts in each data
set (`SharedRows`), and models of different folds are looked at together.

Everything is float64. Means count rows by their weights, where they have any.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor

from irmtv.core.losses import Binary, Loss, Multiclass, Squared
from irmtv.core.types import Rows

SMOOTH = (Binary, Multiclass, Squared)  # losses whose derivatives are known here
PRODUCTS_KEPT = 1 << 23  # products of two columns that are kept for all rows, at most: 64 MiB
COMPARED = 1 << 25  # numbers of all data sets, up to which it is asked which rows they share: 256 MiB
WORTH_SHARING = 0.7  # rows of all data sets together that are kept, at most, as a share of the sum


@dataclass
class _Read:
    """What is known of rows while they are trained on again and again."""

    risks: list[tuple[Sequence[Rows], Sequence[Tensor], bool, list[LinearRisks]]] = field(default_factory=list)
    erm: dict[tuple[int, float], Tensor] = field(default_factory=dict)  # by (rows, l2)

    def find(
        self, rows: Sequence[Rows], codes: Sequence[Tensor], n_environments: int, many: bool
    ) -> list[LinearRisks] | None:
        for before, its_codes, kept, found in self.risks:
            same = len(before) == len(rows) and all(a is b for a, b in zip(before, rows, strict=True))
            same = same and (kept or not many) and found[0].n_environments == n_environments
            if same and all(torch.equal(a, b) for a, b in zip(its_codes, codes, strict=True)):
                return found
        return None

    def keep(self, rows: Sequence[Rows], codes: Sequence[Tensor], many: bool, found: list[LinearRisks]) -> None:
        self.risks.append((rows, codes, many, found))  # keeps the rows, too, so that their ids stay theirs
        for one, r in zip(found, rows, strict=True):
            one.of = id(r)


_READ: ContextVar[_Read | None] = ContextVar("read", default=None)


@contextmanager
def rows_read_once() -> Iterator[None]:
    """Inside, several calls of `train` on the same rows read them once, and begin with the ERM that is known."""
    token = _READ.set(_Read())
    try:
        yield
    finally:
        _READ.reset(token)


@dataclass(frozen=True)
class Point:
    """K models, and the risks of all environments around them."""

    theta: Tensor  # (K, P)
    risk: Tensor  # (K, E)
    gradient: Tensor  # (K, E, P)
    hessian: Tensor  # (K, E, P, P)
    member: Tensor | None = None  # (K,) data set, of those that share rows
    probability: Tensor | None = None  # (K, C, N) of the classes; of one output (K, 1, N)


class Room:
    """Memory for tables of rows that is used again and again: what the system gives anew costs more than most of what
    is computed in it."""

    def __init__(self) -> None:
        self._known: dict[str, Tensor] = {}

    def empty(self, name: str, *shape: int) -> Tensor:
        """Float64, in place of the last one of this name."""
        n = math.prod(shape)
        if name not in self._known or len(self._known[name]) < n:
            self._known[name] = torch.empty(n, dtype=torch.float64)
        return self._known[name][:n].view(shape)


class SharedRows:
    """The rows of data sets, environment by environment, each once."""

    room: Room | None = None
    products: Tensor | None  # (N, pairs) of two columns
    share: Tensor | None  # (T, N) what a row counts in its environment, of every data set; None: 1, which makes sums

    def __init__(
        self,
        rows: Sequence[Rows],
        codes: Sequence[Tensor],
        n_environments: int,
        loss: Loss,
        n_outputs: int,
        many: bool,
        distinct: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """`distinct`: of all rows, where each is found first and which of these every one is; None: all differ."""
        keys = _numbers(rows, codes)
        first, place = distinct or (torch.arange(len(keys)), torch.arange(len(keys)))
        order = torch.argsort(keys[first, 0], stable=True)  # by environment
        first, place = first[order], torch.argsort(order)[place]
        n = len(first)
        member = torch.arange(len(rows)).repeat_interleave(torch.tensor([len(r) for r in rows]))
        code = keys[:, 0].long()
        weight = torch.cat([torch.ones(len(r)) if r.weight is None else r.weight.cpu() for r in rows]).double()
        total = torch.zeros(len(rows), n_environments, dtype=torch.float64)
        total.index_put_((member, code), weight, accumulate=True)
        share = weight / torch.where(total > 0, total, 1)[member, code]
        self.share = torch.zeros(len(rows), n, dtype=torch.float64).index_put_((member, place), share, accumulate=True)
        self.mass = total / total.sum(1, keepdim=True)  # (T, E)
        squares = torch.zeros_like(total).index_put_((member, code), share.square(), accumulate=True)
        self.effective = torch.where(squares > 0, 1 / squares, 0)  # (T, E) rows that would count as much
        ends = torch.bincount(code[first], minlength=n_environments).cumsum(0).tolist()
        self._hold(
            keys[first, 1 : 1 + rows[0].x[0].numel()],
            torch.cat([r.y.cpu() for r in rows])[first],
            ends,
            loss,
            n_outputs,
        )
        self.centre = self.x[:, :-1].mean(0)  # (D,)
        upper = torch.triu_indices(self.size, self.size)
        position = torch.zeros(self.size, self.size, dtype=torch.long)
        position[upper[0], upper[1]] = position[upper[1], upper[0]] = torch.arange(upper.shape[1])
        self.position = position.flatten()
        keep = many and n * upper.shape[1] <= PRODUCTS_KEPT and not isinstance(loss, Squared)
        each = [self.x[:, i : i + 1] * self.x[:, i:] for i in range(self.size)] if keep else []
        if keep:
            self.products = torch.cat(each, 1)  # (N, pairs)
        if isinstance(loss, Squared):
            self._make_moments()

    @classmethod
    def sums_of(
        cls, x: Tensor, y: Tensor, ends: Sequence[int], loss: Loss, n_outputs: int, room: Room | None = None
    ) -> SharedRows:
        """One piece of a data set, rows (n, D) environment by environment up to `ends` (E,): sums in place of means.

        `room` is where it is computed: one piece after another.
        """
        one = cls.__new__(cls)
        one.room = room
        one.share = None
        one.mass = torch.empty(1, len(ends))
        one._hold(x, y, ends, loss, n_outputs)
        if isinstance(loss, Squared):
            one._make_moments()
        return one

    def _hold(self, x: Tensor, y: Tensor, ends: Sequence[int], loss: Loss, n_outputs: int) -> None:
        """Rows (N, D), environment by environment."""
        self.parts = [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]
        by_column = x.stride(0) == 1  # as it comes, so that it is copied as it lies
        shape = (x.shape[1] + 1, len(x)) if by_column else (len(x), x.shape[1] + 1)
        whole = torch.empty(shape, dtype=torch.float64) if self.room is None else self.room.empty("rows", *shape)
        self.x = whole.T if by_column else whole
        self.x[:, :-1] = x
        self.x[:, -1] = 1
        if isinstance(loss, Multiclass):
            self.y = y
            self.one_hot = torch.nn.functional.one_hot(y, n_outputs).T.double()  # (C, N)
        else:
            self.y = y.double()
        self.loss, self.n_outputs, self.n_environments = loss, n_outputs, len(ends)
        self.size = self.x.shape[1]  # D + 1
        self.n_parameters = n_outputs * self.size
        self.products = None

    # ---- squared errors: second moments ------------------------------------------------------------------------

    def _make_moments(self) -> None:
        y = self.y.reshape(len(self.x), -1)  # (N, C)

        def of(a: Tensor, b: Tensor) -> Tensor:
            """Means of a'b in every environment of every data set, (T, E, ...)."""
            columns = [a.T] if self.share is None else [a.T * s for s in self.share]
            each = [column[:, part] @ b[part] for column in columns for part in self.parts]
            return torch.stack(each).view(*self.mass.shape, a.shape[1], b.shape[1])

        self.xx, self.xy = of(self.x, self.x), of(y, self.x)  # (T, E, D + 1, D + 1), (T, E, C, D + 1)
        self.yy = of(torch.ones_like(y[:, :1]), y.square()).squeeze(2)  # (T, E, C)

    def _squared(self, theta: Tensor, member: Tensor) -> Point:
        """R_e = mean over the C targets of w' A_e w - 2 w' c_e + yy_e."""
        w = theta.view(-1, 1, self.n_outputs, self.size)  # (K, 1, C, D + 1)
        xx, xy = self.xx[member], self.xy[member]
        pulled = w @ xx  # (K, E, C, D + 1)
        risk = ((pulled - 2 * xy) * w).sum((2, 3)) + self.yy[member].sum(2)
        gradient = (pulled - xy) * (2 / self.n_outputs)
        if self.n_outputs == 1:
            return Point(theta, risk, gradient.flatten(2), 2 * xx, member)
        eye = torch.eye(self.n_outputs, dtype=torch.float64) * (2 / self.n_outputs)
        hessian = torch.einsum("cd,keij->kecidj", eye, xx).reshape(*risk.shape, self.n_parameters, self.n_parameters)
        return Point(theta, risk / self.n_outputs, gradient.flatten(2), hessian, member)

    # ---- any loss ----------------------------------------------------------------------------------------------

    def at(self, theta: Tensor, member: Tensor, curved: int | None = None) -> Point:
        """Risks, gradients and Hessians at theta (K, P) on the data sets `member` (K,).

        `curved` is of how many models, the first ones, there are to be Hessians; None: of all.
        """
        if isinstance(self.loss, Squared):
            return self._squared(theta, member)
        f = self._outputs(theta)
        if isinstance(self.loss, Binary):
            value, residual, p = self.loss.forward(f, self.y)
            value, curve = value.squeeze(1), p * (1 - p)  # p - p p has no digits left near 1
        else:
            log_p = torch.log_softmax(f, 1)
            value = -log_p.gather(1, self.y.expand(len(f), 1, -1)).squeeze(1)
            p = log_p.exp()
            residual = p - self.one_hot
            curve = torch.cat(
                [p[:, c : c + 1] * (float(c == d) - p[:, d : d + 1]) for c, d in self._pairs()], 1
            )  # (K, pairs of outputs, N)
        value = self._counted(value.unsqueeze(1), member).squeeze(1)
        residual, curve = self._counted(residual, member), self._counted(curve, member)[:curved]
        risk = torch.stack([value[:, part].sum(1) for part in self.parts], 1)
        gradient = torch.stack([residual[..., part] @ self.x[part] for part in self.parts], 1)  # (K, E, C, D + 1)
        hessian = torch.stack([self._second_moments(curve, part) for part in self.parts], 1)
        return Point(theta, risk, gradient.flatten(2), hessian, member, p)

    def _counted(self, values: Tensor, member: Tensor) -> Tensor:
        """Numbers of the rows (K, m, N) by what the rows count in the data sets `member` (K,)."""
        return values if self.share is None else values * self.share[member].unsqueeze(1)

    def outputs_at(self, theta: Tensor, member: Tensor) -> Point:
        """A point (K, P) that knows its probabilities alone."""
        f, nothing = self._outputs(theta), theta.new_zeros(0)
        p = torch.sigmoid(f) if self.n_outputs == 1 else torch.softmax(f, 1)
        return Point(theta, nothing, nothing, nothing, member, p)

    def spread(self, theta: Tensor, member: Tensor) -> Tensor:
        """Second moments of the rows' gradients, mean_e of l'_i x_i (l'_i x_i)', at theta (K, P): (K, E, P, P)."""
        residual = self._residual(self._outputs(theta))
        weights = torch.stack([residual[:, c] * residual[:, d] for c, d in self._pairs()], 1)
        weights = self._counted(weights, member)
        return torch.stack([self._second_moments(weights, part) for part in self.parts], 1)

    def _outputs(self, theta: Tensor) -> Tensor:
        """(K, C, N)."""
        return (theta.view(-1, self.size) @ self.x.T).view(-1, self.n_outputs, len(self.x))

    def _residual(self, f: Tensor) -> Tensor:
        """l' of the outputs (K, C, N): (K, C, N)."""
        if self.n_outputs == 1:
            return self.loss.residual(f.squeeze(1), self.y.flatten()).unsqueeze(1)
        return self.loss.residual(f.transpose(1, 2), self.y).transpose(1, 2)

    def along(self, point: Point, v: Tensor) -> Tensor:
        """The Hessian of sum_e v_e . g_e at this point, v (K, E, P) held fixed: (K, P, P)."""
        if point.probability is None:
            return v.new_zeros(()).expand(len(v), self.n_parameters, self.n_parameters)
        assert point.member is not None
        curve = self._counted(self.third(point, v), point.member)
        return self._second_moments(curve, slice(0, len(self.x)))

    def third(self, point: Point, v: Tensor) -> Tensor:
        """Third derivatives of the rows' losses, once along v (K, E, P): for pairs of outputs (K, pairs, N)."""
        p = point.probability  # (K, C, N)
        assert p is not None
        shaped = v.view(len(v), self.n_environments, self.n_outputs, self.size)
        z = torch.cat([shaped[:, e] @ self.x[part].T for e, part in enumerate(self.parts)], 2)  # (K, C, N) v_e . x_i
        if self.n_outputs == 1:
            return p * (1 - p) * (1 - 2 * p) * z
        mean = (p * z).sum(1, keepdim=True)  # (K, 1, N)
        return torch.cat([self._third(p, z, mean, c, d) for c, d in self._pairs()], 1)

    def along_each(self, point: Point, v: Tensor) -> Tensor:
        """The same as `along`, environment by environment: (K, E, P, P)."""
        assert point.member is not None
        curve = self._counted(self.third(point, v), point.member)
        return torch.stack([self._second_moments(curve, part) for part in self.parts], 1)

    @staticmethod
    def _third(p: Tensor, z: Tensor, mean: Tensor, c: int, d: int) -> Tensor:
        """d^2 (z . p) / df_c df_d of the softmax p: (K, 1, N)."""
        at_c, at_d = slice(c, c + 1), slice(d, d + 1)
        twice = -p[:, at_c] * p[:, at_d] * (z[:, at_c] + z[:, at_d] - 2 * mean)
        return twice + p[:, at_c] * (z[:, at_c] - mean) if c == d else twice

    def _pairs(self) -> list[tuple[int, int]]:
        return [(c, d) for c in range(self.n_outputs) for d in range(c, self.n_outputs)]

    def _like(self, x: Tensor) -> Tensor:
        """Room for rows that lie like these."""
        if self.room is None:
            return torch.empty_like(x)
        return self.room.empty("weighted", *x.T.shape).T if x.stride(0) == 1 else self.room.empty("weighted", *x.shape)

    def _second_moments(self, weights: Tensor, part: slice) -> Tensor:
        """sum_i w_i x_i x_i' over a part of the rows, for pairs of outputs (K, pairs, N): (K, P, P)."""
        n, w = len(weights), weights[..., part].flatten(0, 1)
        if self.products is not None:
            blocks = (w @ self.products[part])[:, self.position]  # (K pairs, (D + 1)^2)
        else:
            x = self.x[part]
            weighted = self._like(x)
            each = [torch.mul(one.unsqueeze(1), x, out=weighted).T @ x for one in w]
            blocks = torch.stack(each) if each else x.new_empty(0, self.size, self.size)
        blocks = blocks.view(n, -1, self.size, self.size)
        if self.n_outputs == 1:
            return blocks.squeeze(1)
        moments = blocks.new_empty(n, self.n_outputs, self.size, self.n_outputs, self.size)
        for k, (c, d) in enumerate(self._pairs()):
            moments[:, c, :, d] = moments[:, d, :, c] = blocks[:, k]
        return moments.view(n, self.n_parameters, self.n_parameters)


class LinearRisks:
    """One data set, of those that share rows."""

    of = 0  # which rows, where they are read once

    def known_erm(self, l2: float) -> Tensor | None:
        """(P,), where it was solved before, maybe with another measure."""
        read = _READ.get()
        return None if read is None else read.erm.get((self.of, l2))

    def keep_erm(self, l2: float, theta: Tensor) -> None:
        read = _READ.get()
        if read is not None and self.of:
            read.erm[self.of, l2] = theta

    def __init__(
        self, rows: Rows, codes: Tensor, n_environments: int, loss: Loss, n_outputs: int, many: bool = True
    ) -> None:
        """`codes` (N,) are the environments: those of `rows`, or others that were inferred.

        `many` says that many models will be looked at: then products of columns are kept.
        """
        self._belong(SharedRows([rows], [codes], n_environments, loss, n_outputs, many), 0)

    def _belong(self, shared: SharedRows, member: int) -> None:
        self.shared, self.member = shared, member
        self.loss, self.n_outputs, self.n_environments = shared.loss, shared.n_outputs, shared.n_environments
        self.size, self.n_parameters, self.parts = shared.size, shared.n_parameters, shared.parts
        self.x, self.y = shared.x, shared.y
        if shared.share is not None:
            self.share = shared.share[member]  # rows of the others have a share of 0
        self.mass, self.effective = shared.mass[member], shared.effective[member]  # (E,)

    @classmethod
    def several(
        cls,
        rows: Sequence[Rows],
        codes: Sequence[Tensor],
        n_environments: int,
        loss: Loss,
        n_outputs: int,
        many: bool = True,
    ) -> list[LinearRisks]:
        """Of every data set; they share rows where most of them are common."""
        read = _READ.get()
        known = None if read is None else read.find(rows, codes, n_environments, many)
        if known is not None:
            return known
        found: list[LinearRisks] = []
        if len(rows) > 1 and sum(r.x.numel() for r in rows) <= COMPARED:
            distinct = _distinct(_numbers(rows, codes))
            if len(distinct[0]) <= WORTH_SHARING * sum(map(len, rows)):
                shared = SharedRows(rows, codes, n_environments, loss, n_outputs, many, distinct)
                found = [cls.__new__(cls) for _ in rows]
                for member, one in enumerate(found):
                    one._belong(shared, member)
        found = found or [cls(r, c, n_environments, loss, n_outputs, many) for r, c in zip(rows, codes, strict=True)]
        if read is not None:
            read.keep(rows, codes, many, found)
        return found

    def at(self, theta: Tensor) -> Point:
        """Risks, gradients and Hessians at theta (K, P)."""
        return self.shared.at(theta, self._members(theta))

    def spread(self, theta: Tensor) -> Tensor:
        """Second moments of the rows' gradients at theta (K, P): (K, E, P, P)."""
        return self.shared.spread(theta, self._members(theta))

    def along(self, point: Point, v: Tensor) -> Tensor:
        """The Hessian of sum_e v_e . g_e at this point, v (K, E, P) held fixed: (K, P, P)."""
        return self.shared.along(point, v)

    def _members(self, theta: Tensor) -> Tensor:
        return torch.full((len(theta),), self.member)


def _numbers(rows: Sequence[Rows], codes: Sequence[Tensor]) -> Tensor:
    """Environment, columns and target of every row, data set by data set: (N, 1 + D + targets) float64."""

    def of(r: Rows, c: Tensor) -> Tensor:
        x, y = r.x.double().cpu().flatten(1), r.y.double().cpu().reshape(len(r), -1)
        return torch.cat([c.cpu().double().unsqueeze(1), x, y], 1)

    return torch.cat([of(r, c) for r, c in zip(rows, codes, strict=True)])


def _distinct(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (N, K) without repetition: where each is found first (M,), and which of them every row is (N,).

    By a hash of their bits; where two rows that differ have the same one, all stay.
    """
    bits = keys.view(torch.int64)
    factors = torch.randint(-(1 << 62), 1 << 62, (2, keys.shape[1]), generator=torch.Generator().manual_seed(0)) | 1
    mixed = bits * factors[0]
    mixed.bitwise_xor_(mixed >> 32).mul_(factors[1])
    hashed, order = mixed.sum(1).sort(stable=True)
    new = torch.ones_like(order, dtype=torch.bool)
    new[1:] = hashed[1:] != hashed[:-1]
    first, place = order[new], torch.empty_like(order)
    place[order] = new.cumsum(0) - 1
    if bool((bits[first[place]] == bits).all()):
        return first, place
    return torch.arange(len(keys)), torch.arange(len(keys))


def row_slopes(rows: Rows, theta: Tensor, loss: Loss, n_outputs: int) -> Tensor:
    """Slopes of linear models (..., P) in a vector classifier, row by row: (..., N, J)."""
    x = rows.x.double().cpu().flatten(1)
    w = theta.view(*theta.shape[:-1], n_outputs, -1)
    f = x @ w[..., :-1].mT + w[..., -1].unsqueeze(-2)  # (..., N, C)
    if n_outputs > 1:
        y = rows.y.cpu()
        y = y.double() if y.is_floating_point() else y
        return loss.residual(f, y.expand(*f.shape[: f.ndim - 2], *y.shape)) * f
    return loss.residual(f.squeeze(-1), rows.y.double().cpu()).unsqueeze(-1) * x * w[..., :-1]
