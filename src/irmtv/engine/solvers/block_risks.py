"""The risks of a linear model on rows that come in blocks: what `LinearRisks` is of rows in memory.

All that Newton's method asks for are sums over rows, by environment: a pass over the blocks adds them up, and processes
that have blocks of their own add theirs. For squared errors one pass is enough for all models.

What is looked at next may be announced (`look_ahead`): then the pass that comes first has it, too. And every pass is
kept in `log`, so that a solution that was stopped is found again without the passes that it had made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from threading import Event

import torch
from torch import Tensor

from irmtv.core.cores import InOrder, side_by_side
from irmtv.core.losses import Loss, Squared
from irmtv.core.ranks import Ranks
from irmtv.core.types import Rows
from irmtv.data.blocks import BlockSource
from irmtv.engine.agree import together
from irmtv.engine.solvers.linear_risks import LinearRisks, Point, Room, SharedRows

NUMBERS_OF_PIECE = 1 << 18  # of rows that are looked at together: they stay in the cache
FEWEST, MOST = 1 << 12, 1 << 16  # rows of a piece
MOST_SPANS, NUMBERS_OF_SPANS = 32, 1 << 23  # of blocks side by side; of a model's sums, up to which there are several
ROWS_PER_ENVIRONMENT = 64  # of a piece, at least, where there are many environments

Codes = Callable[[Rows], Tensor]  # the environments of some rows, (n,)
Sums = list[Tensor]  # (K, E, ...) each
Ask = Callable[[SharedRows, Tensor], Sums]  # of a piece and the environments (m,) that are in it: (K, m, ...) each


class BlockRows(SharedRows):
    """The rows of a `BlockSource`, read once for every question that is asked of all of them.

    Parameters
    ----------
    source : the blocks.
    n_environments, loss, n_outputs : as of `SharedRows`.
    codes : the environments of a block's rows; None: those given, or one for all where n_environments is 1.
    ranks : the processes that have the other blocks.
    """

    def __init__(
        self,
        source: BlockSource,
        n_environments: int,
        loss: Loss,
        n_outputs: int,
        codes: Codes | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.source, self.ranks = source, ranks
        self.log: dict[str, Sums] = {}  # what passes have found, by what was asked
        self.name = ""  # tells these rows apart where several share a log
        self.after_pass: Callable[[], None] | None = None
        self.loss, self.n_outputs, self.n_environments = loss, n_outputs, n_environments
        self.size = source.n_features + 1  # D + 1
        self.n_parameters = n_outputs * self.size
        self.passes = 0  # made, not found in the log
        self._codes = codes
        self._known: dict[bytes, Sums] = {}  # by model: of the last pass, and what was announced
        self._flat: dict[bytes, Sums] = {}  # the same without a Hessian
        self._soon: dict[bytes, tuple[Tensor, bool]] = {}  # what was announced, and whether with a Hessian

    @cached_property
    def counts(self) -> Tensor:
        """Rows of every environment, of all processes: (E,)."""
        if self._codes is not None:
            (counts,) = self._summed("rows of environments", [], lambda piece, _: [_rows_of(piece)])
            return counts.flatten()
        own = self.source.rows_of_environments if self.n_environments > 1 else ()
        counts = torch.tensor(own or [self.source.n_rows], dtype=torch.float64)
        if self.ranks is not None:
            self.ranks.add_(counts)
        return counts

    # ---- what is asked of all rows -----------------------------------------------------------------------------

    def at(self, theta: Tensor, member: Tensor, curved: int | None = None) -> Point:
        if isinstance(self.loss, Squared):
            self.read_moments()
            return self._squared(theta, member)
        keys, bends = [_key(one) for one in theta], len(theta) if curved is None else curved
        if any(key not in (self._known if k < bends else self._known | self._flat) for k, key in enumerate(keys)):
            self.look_ahead(theta[:bends])
            self.look_ahead(theta[bends:], curved=False)
            self._look()
        each = [self._known[key] if key in self._known else self._flat[key] for key in keys]
        risk, gradient = (torch.stack(values) for values in zip(*(sums[:2] for sums in each), strict=True))
        hessian = [sums[2] for sums in each[:bends]]
        return Point(theta, risk, gradient, torch.stack(hessian) if hessian else risk.new_empty(0), member)

    def read_moments(self) -> None:
        """All that squared errors ask for, in one pass."""
        if hasattr(self, "xx"):
            return

        def of(piece: SharedRows, _: Tensor) -> Sums:
            y = piece.y.reshape(len(piece.x), -1)  # (n, C)
            targets = torch.stack([y[part].T @ y[part] for part in piece.parts]).unsqueeze(0)
            return [piece.xx, piece.xy, piece.yy, targets]

        self.xx, self.xy, self.yy, self.targets = self._means("moments", [], of)  # (1, E, ...) each

    def look_ahead(self, theta: Tensor, curved: bool = True) -> None:
        """Models (K, P) that the next pass is to look at, beside what it is made for; whether with their Hessians."""
        if not isinstance(self.loss, Squared):
            for key, one in ((_key(one), one) for one in theta):
                self._soon[key] = one, curved or (key in self._soon and self._soon[key][1])

    def _look(self) -> None:
        """One pass for the models that were announced."""
        curved = {key: one for key, (one, bends) in self._soon.items() if bends and key not in self._known}
        known = self._known.keys() | self._flat.keys() | curved.keys()
        flat = {key: one for key, (one, bends) in self._soon.items() if not bends and key not in known}
        theta, members = torch.stack([*curved.values(), *flat.values()]), torch.zeros(len(curved) + len(flat)).long()

        def of(piece: SharedRows, _: Tensor) -> Sums:
            point = piece.at(theta, members, len(curved))
            return [point.risk, point.gradient, point.hessian]

        found = self._means(f"at, {len(curved)} with Hessians", [theta], of)
        self._known, self._flat = (
            {key: sums for key, sums in of.items() if key in self._soon} for of in (self._known, self._flat)
        )
        self._known |= {key: [v[i] for v in found] for i, key in enumerate(curved)}
        self._flat |= {key: [v[i] for v in found[:2]] for i, key in enumerate(flat, len(curved))}
        self._soon = {}  # known now, until the next pass

    def along(self, point: Point, v: Tensor) -> Tensor:
        if isinstance(self.loss, Squared):
            return v.new_zeros(()).expand(len(v), self.n_parameters, self.n_parameters)
        theta, members = point.theta, torch.zeros(len(v), dtype=torch.long)

        def of(piece: SharedRows, present: Tensor) -> Sums:
            return [piece.along_each(piece.outputs_at(theta, members), v[:, present])]

        (found,) = self._means("along", [theta, v], of)
        return found.sum(1)

    def spread(self, theta: Tensor, member: Tensor) -> Tensor:
        (found,) = self._means("spread", [theta], lambda piece, _: [piece.spread(theta, torch.zeros_like(member))])
        return found

    # ---- a pass ------------------------------------------------------------------------------------------------

    def _means(self, what: str, of: Sequence[Tensor], sums: Ask) -> Sums:
        """Means over the rows of every environment, (K, E, ...) each; 0 of one that has no rows."""
        found = self._summed(what, of, sums)
        n = self.counts.clamp_min(1)
        return [v / n.view(-1, *(1,) * (v.ndim - 2)) for v in found]

    def _summed(self, what: str, of: Sequence[Tensor], sums: Ask) -> Sums:
        """Sums over the rows of every environment, of all processes: one pass, unless it was made before."""
        key = _digest(f"{self.name}, {what}, {self.n_environments}", of)
        if key in self.log:
            return self.log[key]
        self.passes += 1
        found = together(self.ranks, lambda: self._pass(sums))
        if self.ranks is not None:
            for v in found:
                self.ranks.add_(v)
        self.log[key] = found
        if self.after_pass is not None:
            self.after_pass()
        return found

    def _pass(self, sums: Ask) -> Sums:
        """Spans of blocks side by side; their sums are added in their order, whatever the number of cores is."""
        total: Sums = []
        n_rows, unwanted = 0, Event()

        def take(found: tuple[int, Sums]) -> None:
            nonlocal n_rows
            n_rows += found[0]
            if total:
                for into, v in zip(total, found[1], strict=True):
                    into.add_(v)
            total.extend([] if total else found[1])

        ready = InOrder(take)

        def work(span: tuple[int, Iterator[Rows]]) -> None:
            number, blocks = span
            own: Sums = []
            n, room = 0, Room()
            for rows in blocks:
                if unwanted.is_set():
                    return
                n += len(rows)
                piece, present = self._by_environment(rows, room)
                found = sums(piece, present)
                own = own or [v.new_zeros(len(v), self.n_environments, *v.shape[2:]) for v in found]
                for into, v in zip(own, found, strict=True):
                    into.index_add_(1, present, v)
            ready.put(number, (n, own))

        small = self.n_environments * self.n_parameters**2 <= NUMBERS_OF_SPANS
        fewest = max(FEWEST, ROWS_PER_ENVIRONMENT * self.n_environments)
        spans = self.source.spans(MOST_SPANS if small else 1, min(max(fewest, NUMBERS_OF_PIECE // self.size), MOST))
        side_by_side(work, list(enumerate(spans)), stop=unwanted.set)
        if n_rows != self.source.n_rows or not n_rows:
            raise ValueError(
                f"blocks must have the rows that they say, {self.source.n_rows}, at every pass, and at least one. Got "
                f"{n_rows}. Leave files alone while they are read."
            )
        return total

    def _by_environment(self, rows: Rows, room: Room) -> tuple[SharedRows, Tensor]:
        """A piece, environment by environment, and which of them (m,) it has."""
        self._check(rows)
        x, y, codes = rows.x.cpu().flatten(1), rows.y.cpu(), self._codes_of(rows)
        if bool((codes == codes[0]).all()):  # as where folders are environments
            return SharedRows.sums_of(x, y, [len(x)], self.loss, self.n_outputs, room), codes[:1]
        counts = torch.bincount(codes, minlength=self.n_environments)
        present, order = counts.nonzero().squeeze(1), torch.argsort(codes, stable=True)
        ends = counts[present].cumsum(0).tolist()
        return SharedRows.sums_of(x[order], y[order], ends, self.loss, self.n_outputs, room), present

    def _codes_of(self, rows: Rows) -> Tensor:
        if self._codes is not None:
            return self._codes(rows)
        if self.n_environments == 1 or rows.environment is None:
            return torch.zeros(len(rows), dtype=torch.long)
        return rows.environment.cpu()

    def _check(self, rows: Rows) -> None:
        d = rows.x[0].numel() if len(rows) else self.size - 1
        given = rows.environment is not None or self.n_environments == 1 or self._codes is not None
        if rows.weight is None and d == self.size - 1 and given:
            return
        got = f"{d} columns, {'no ' * (not given)}environments, {'no ' * (rows.weight is None)}weights"
        raise ValueError(
            f"blocks must be Rows of {self.size - 1} columns, with environments where they have names, without "
            f"weights. Got {got}. Make all blocks by the same preparation."
        )


class BlockRisks(LinearRisks):
    """One data set, in blocks."""

    def __init__(self, rows: BlockRows) -> None:
        self.shared, self.member = rows, 0
        self.loss, self.n_outputs, self.n_environments = rows.loss, rows.n_outputs, rows.n_environments
        self.size, self.n_parameters, self.parts = rows.size, rows.n_parameters, []
        self.x = torch.empty(0, rows.size, dtype=torch.float64)  # none of them stays
        self.blocks = rows

    def count(self) -> BlockRisks:
        """With the environments' shares, for which inferred environments take a pass."""
        self.effective = self.blocks.counts
        self.mass = self.effective / self.effective.sum()
        self.blocks.effective = self.effective.unsqueeze(0)
        return self

    def at_some(self, theta: Tensor, curved: bool) -> Point:
        """At theta (K, P), with Hessians or without."""
        return self.blocks.at(theta, self._members(theta), None if curved else 0)

    def second_moments(self) -> Tensor:
        """Of u = (1, columns, targets) in every environment, of squared errors: means of u u', (E, m, m)."""
        self.blocks.read_moments()
        xx, xy, yy = (v[0] for v in (self.blocks.xx, self.blocks.xy, self.blocks.targets))  # the constant last
        turned = torch.arange(self.size).roll(1)
        xx, xy = xx[:, turned][:, :, turned], xy[:, :, turned]
        return torch.cat([torch.cat([xx, xy.mT], 2), torch.cat([xy, yy], 2)], 1)


def _rows_of(piece: SharedRows) -> Tensor:
    """(1, m)."""
    return torch.tensor([[part.stop - part.start for part in piece.parts]], dtype=torch.float64)


def _key(theta: Tensor) -> bytes:
    return bytes(theta.contiguous().numpy().tobytes())


def _digest(what: str, of: Sequence[Tensor]) -> str:
    digest = hashlib.sha256(what.encode())
    for v in of:
        digest.update(_key(v))
    return digest.hexdigest()[:32]
