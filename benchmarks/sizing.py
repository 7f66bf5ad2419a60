"""What a large table costs: bytes that are read, that stay in memory, and that ranks send each other.

python -m benchmarks.sizing                      10^9 rows x 10^3 columns, 10^3 environments, 16 ranks
python -m benchmarks.sizing --rows 2e7 --columns 20 --environments 4 --ranks 2 --hidden 32

It counts; nothing is trained. `python -m benchmarks.ranks` compares the counts of `numbers_of_step` with what is sent.
Times are bytes over the rates of `--disk`, `--network` and `--memory`, and operations over `--flops`: bounds, not
measurements.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from irmtv import OBJECTIVES

Phase = Literal["warm-up", "penalised"]

SINGLE, DOUBLE = 4, 8  # bytes of a number
HELD = 2.5  # what training takes of memory, times the bytes of x, y and environment (python -m benchmarks.axes)
MODELS = 2  # that a pass looks at: ERM and the choice
COPIES = 12  # of a model's sums that a solution on blocks holds, as measured
STAY_ROWS, STAY_NUMBERS = 1 << 18, 1 << 25  # of batches from files: rows that stay in memory, and their numbers
BINS, BIN_BYTES, BIN_OF_SUMS = 255, 1, 16  # of LightGBM: bins, bytes of a binned value, bytes of a bin's sums
LEAVES = 31
ROW_OF_TREES = 48  # scores, residuals, gradients, Hessians, target and environment, some of them twice
UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


@dataclass(frozen=True)
class Size:
    """A table, a network, and machines."""

    rows: float = 1e9
    columns: int = 1000
    environments: int = 1000
    ranks: int = 16
    hidden: tuple[int, ...] = (256, 64)
    disk: float = 1e9  # bytes a second that a rank reads
    network: float = 1.25e9  # bytes a second that a rank sends: 10 Gbit
    memory: float = 1e11  # bytes a second that a rank reads from its memory
    flops: float = 5e11  # operations a second of a rank: 16 cores or so

    @property
    def table(self) -> float:
        """Bytes of the features, in float32."""
        return self.rows * self.columns * SINGLE


@dataclass(frozen=True)
class Step:
    """A gradient step of some runs of an objective, as far as what is sent depends on it."""

    objective: str
    environments: int  # given or inferred
    parameters: int  # of Phi
    phase: Phase = "penalised"
    batches: bool = False  # mini-batches
    rho: int = 0  # parameters of the network that infers environments, where they are inferred
    first: bool = False  # of its phase
    runs: int = 1
    classifier_width: int = 1  # components of w
    sums: tuple[int, ...] = field(init=False)  # numbers of every message, without the gradient of Phi

    def __post_init__(self) -> None:
        object.__setattr__(self, "sums", tuple(self._sums()))

    def _sums(self) -> Iterator[int]:
        objective, e = OBJECTIVES[self.objective], self.environments
        uses, slopes = objective.uses({}), e * self.classifier_width
        inferred, penalised = objective.infers is not None, self.phase == "penalised"
        counts = e + 1  # rows of every environment, and of all
        if inferred and not penalised:  # rho climbs, and Phi descends along the mean loss
            yield from (counts, e, slopes, self.rho, 1)
            return
        if self.batches or (inferred and self.first):
            yield counts
        yield e if uses or self.batches or inferred else 1  # losses; ERM has one environment
        if "slope" in uses and penalised:
            yield slopes
            if self.batches and objective.wants_halves({"batch_estimator": "auto"}):
                yield from (counts, counts, slopes, slopes)

    @property
    def numbers(self) -> int:
        """Numbers that a rank hands to all-reduce."""
        return self.runs * (sum(self.sums) + self.parameters)

    @property
    def messages(self) -> int:
        return len(self.sums) + 1


def n_parameters(columns: int, hidden: Sequence[int] = (), outputs: int = 1) -> int:
    """Weights and constants of a linear model or a network."""
    return sum((a + 1) * b for a, b in pairwise((columns, *hidden, outputs)))


def numbers_of_sums(environments: int, parameters: int) -> int:
    """Risk, gradient and Hessian of a linear model in every environment."""
    return environments * (1 + parameters + parameters**2)


def numbers_of_pass(environments: int, parameters: int, models: int = MODELS) -> int:
    """What a pass of Newton's method over blocks adds up; the models themselves are those of the first rank."""
    return models * (numbers_of_sums(environments, parameters) + parameters)


def numbers_of_moments(environments: int, columns: int, outputs: int = 1) -> int:
    """Second moments of columns and targets in every environment: all that squared errors need, in one pass."""
    size = columns + 1
    return environments * (size**2 + outputs * size + outputs + outputs**2)


def by_ring(n_bytes: float, ranks: int) -> float:
    """What each rank sends in an all-reduce of so many bytes: its share of them, around the ring and back."""
    return 2 * n_bytes * (ranks - 1) / ranks


def shown(n_bytes: float) -> str:
    """Three digits and a unit."""
    unit = 0
    while n_bytes >= 999.5 and unit < len(UNITS) - 1:
        n_bytes, unit = n_bytes / 1000, unit + 1
    digits = f"{n_bytes:.0f}" if unit == 0 or n_bytes >= 99.95 else f"{n_bytes:.3g}"
    return f"{digits} {UNITS[unit]}"


def duration(seconds: float) -> str:
    for length, unit in ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "s")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{1000 * seconds:.2g} ms"


def report(size: Size) -> str:
    """All of it, as text."""
    own = size.rows / size.ranks
    head = [
        f"{size.rows:,.0f} rows x {size.columns:,} columns, {size.environments:,} environments, {size.ranks} ranks",
        f"rates of a rank: disk {shown(size.disk)}/s, network {shown(size.network)}/s, memory {shown(size.memory)}/s, "
        f"{size.flops:.0e} operations/s",
        "",
        f"features in float32        {shown(size.table)}; {shown(size.table / size.ranks)} and {own:,.0f} rows a rank",
        f"one pass over the files    {duration(size.table / size.ranks / size.disk)}",
    ]
    parts = [head, _newton(size), _steps(size, (), "linear model, gradient steps")]
    if size.hidden:
        parts.append(_steps(size, size.hidden, f"network {size.hidden}, gradient steps"))
    return "\n\n".join("\n".join(part) for part in (*parts, _trees(size)))


def _newton(size: Size) -> list[str]:
    parameters = size.columns + 1
    sums = DOUBLE * numbers_of_sums(size.environments, parameters)
    sent = DOUBLE * numbers_of_pass(size.environments, parameters)
    kept = MODELS * sums
    moments = DOUBLE * numbers_of_moments(size.environments, size.columns)
    products = 2 * MODELS * size.rows / size.ranks * parameters**2
    return [
        "linear model, Newton's method on files, one pass (E environments, P = columns + 1 parameters, float64)",
        f"  read                     {shown(size.table / size.ranks)} a rank: {_read(size)}",
        f"  products of columns      {products:.1e} operations a rank: {duration(products / size.flops)}",
        f"  sums of a model          {shown(sums)}, E (1 + P + P^2)",
        f"  all-reduced, two models  {shown(sent)}; each rank sends {_sent(size, sent)}",
        f"  memory                   about {shown(COPIES * sums)} a rank; with a checkpoint {shown(kept)} more a pass",
        f"  ERM alone, one pass      {shown(DOUBLE * numbers_of_pass(1, parameters, 1))}: it has one environment",
        f"  squared errors           {shown(moments)}, once: one pass",
    ]


def _steps(size: Size, hidden: tuple[int, ...], title: str) -> list[str]:
    parameters = n_parameters(size.columns, hidden)
    own = size.rows / size.ranks
    held = HELD * own * (size.columns * SINGLE + 16)  # y and environment are 64-bit
    stay = 2 * SINGLE * min(STAY_ROWS * size.columns, STAY_NUMBERS)
    full = Step("irm-tv-l1", size.environments, parameters)
    batch = Step("irm-tv-l1", size.environments, parameters, batches=True)
    all_rows = max(6 * own * parameters / size.flops, 2 * own * size.columns * SINGLE / size.memory)
    return [
        f"{title}, in float32 (P = {parameters:,} parameters)",
        f"  memory, all rows         {shown(held)} a rank ({HELD:g} times its rows)",
        f"  memory, from files       {shown(stay)} a rank: rows that stay for some steps, and the next ones",
        f"  a step of all rows       {duration(all_rows)}: 6 P operations a row, and x is read twice from memory",
        f"  all-reduced, 2 E + P     {_message(size, full)}",
        f"  the same, mini-batches   {_message(size, batch)}, 3 E + 1 + P",
    ]


def _message(size: Size, step: Step) -> str:
    n_bytes = SINGLE * step.numbers
    return f"{shown(n_bytes)} in {step.messages} messages; each rank sends {_sent(size, n_bytes)}"


def _read(size: Size) -> str:
    return duration(size.table / size.ranks / size.disk)


def _sent(size: Size, n_bytes: float) -> str:
    sent = by_ring(n_bytes, size.ranks)
    return f"{shown(sent)}: {duration(sent / size.network)}"


def _trees(size: Size) -> list[str]:
    binned = size.rows * size.columns * BIN_BYTES
    sums = LEAVES * size.columns * BINS * BIN_OF_SUMS
    return [
        "trees, one process: rows are not spread over ranks",
        f"  features in bins         {shown(binned)} of memory, a byte each",
        f"  scores and gradients     {shown(size.rows * ROW_OF_TREES)}, {ROW_OF_TREES} bytes a row",
        f"  histograms               {shown(sums)}: {LEAVES} leaves, {BINS} bins a column, {BIN_OF_SUMS} bytes each",
    ]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Bytes read, held and sent for a table of some size.")
    default = Size()
    for name in ("rows", "disk", "network", "memory", "flops"):
        parser.add_argument(f"--{name}", type=float, default=getattr(default, name))
    for name in ("columns", "environments", "ranks"):
        parser.add_argument(f"--{name}", type=lambda text: int(float(text)), default=getattr(default, name))
    parser.add_argument("--hidden", type=int, nargs="*", default=list(default.hidden), help="widths of hidden layers")
    asked = vars(parser.parse_args(words))
    print(report(Size(**asked | {"hidden": tuple(asked["hidden"])})))


if __name__ == "__main__":
    main()
