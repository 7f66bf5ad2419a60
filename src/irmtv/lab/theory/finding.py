"""What comes of running one statement of the paper: both sides in numbers, their error, a verdict, a figure.

The verdict is computed from the numbers and never written by hand:

| role     | what it compares                                               | where it fails               |
|----------|----------------------------------------------------------------|------------------------------|
| "claim"  | the statement as the paper prints it                           | "does not hold as printed"   |
| "beyond" | the same where a condition of the statement is violated        | "holds under its condition"  |
| "ours"   | what we say beside or in place of it, and checks of the method | "not verified": we are wrong |

A statement is a function that returns a `Result`; `statement` puts the paper's claim on top of it and makes its answer
a `Finding`. A comparison is written as its role, what is compared, and the relation of the two sides:

>>> ours("pi", equal("series", 3.1416, "constant", 3.14159265, 1e-4)).agrees
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from inspect import getdoc
from typing import TYPE_CHECKING, Literal, NamedTuple, ParamSpec, SupportsFloat

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Role = Literal["claim", "beyond", "ours"]
Relation = Literal["=", "≠", "<", "≤", ">", "≥"]
Verdict = Literal["holds", "holds under its condition", "does not hold as printed", "not verified"]
P = ParamSpec("P")


@dataclass(frozen=True)
class Comparison:
    """Two numbers and the relation that is stated between them.

    >>> Comparison("pi", "series", 3.1416, "=", "constant", 3.14159265, tolerance=1e-4).agrees
    True
    >>> Comparison("pi", "series", 3.1416, "<", "constant", 3.14159265, tolerance=1e-4).agrees
    False
    """

    what: str  # the quantity, in a few words
    left_name: str  # where each side comes from
    left: float
    relation: Relation
    right_name: str
    right: float
    tolerance: float = 0.0  # absolute; how far apart equal sides may lie, and how far apart unequal ones must
    role: Role = "claim"

    def __post_init__(self) -> None:
        for side in ("left", "right", "tolerance"):  # plain numbers, whatever library they come from
            object.__setattr__(self, side, float(getattr(self, side)))

    @property
    def error(self) -> float:
        """How far apart the two sides are."""
        return 0.0 if self.left == self.right else abs(self.left - self.right)

    @property
    def agrees(self) -> bool:
        """Whether the relation is true of the two numbers; never where one of them is not a number."""
        match self.relation:
            case "=":
                return self.error <= self.tolerance
            case "≠":
                return self.error > self.tolerance
            case "<":
                return self.left < self.right - self.tolerance
            case "≤":
                return self.left <= self.right + self.tolerance
            case ">":
                return self.left > self.right + self.tolerance
            case "≥":
                return self.left >= self.right - self.tolerance


class Sides(NamedTuple):
    """Two numbers, where they come from, and the relation that is stated between them; see `Comparison`."""

    left_name: str
    left: float
    relation: Relation
    right_name: str
    right: float
    tolerance: float
    note: str = ""  # added to what is compared


def _sides(
    relation: Relation,
    left_name: str,
    left: SupportsFloat,
    right_name: str,
    right: SupportsFloat,
    tolerance: SupportsFloat = 0.0,
) -> Sides:
    return Sides(left_name, float(left), relation, right_name, float(right), float(tolerance))


equal, unequal = partial(_sides, "="), partial(_sides, "≠")
less, at_most = partial(_sides, "<"), partial(_sides, "≤")
greater, at_least = partial(_sides, ">"), partial(_sides, "≥")


def all_equal(
    left_name: str, left: ArrayLike | Tensor, right_name: str, right: ArrayLike | Tensor, tolerance: float
) -> Sides:
    """Equality of many numbers: judged by the pair that lies farthest apart, one that is not a number before all."""
    a, b = np.broadcast_arrays(np.asarray(left, dtype=float), np.asarray(right, dtype=float))
    index = int(np.argmax(np.abs(a - b)))  # the first NaN, where there is one
    return Sides(left_name, a.flat[index], "=", right_name, b.flat[index], tolerance, f" (farthest of {a.size})")


def _comparison(role: Role, what: str, sides: Sides) -> Comparison:
    left_name, left, relation, right_name, right, tolerance, note = sides
    return Comparison(what + note, left_name, left, relation, right_name, right, tolerance, role)


claim = partial(_comparison, "claim")
beyond = partial(_comparison, "beyond")
ours = partial(_comparison, "ours")


@dataclass(frozen=True)
class Finding:
    """One statement: what the paper says, what was computed, what follows."""

    name: str  # "coarea-2d"
    title: str
    label: str  # where in the paper: "Proposition 3.6 (prop:IRMTVL1coarea)"
    statement: str  # in our words
    comparisons: tuple[Comparison, ...]
    meaning: str  # what the numbers say, with the numbers
    paint: Callable[[Figure], None] = field(repr=False, compare=False)  # draws on an empty figure
    formula: str = ""  # in matplotlib's mathtext
    size: tuple[float, float] = (7.2, 2.8)  # of the figure, in inches

    def __post_init__(self) -> None:
        if not any(c.role == "claim" for c in self.comparisons):
            raise ValueError(f"{self.name}: a statement needs at least one comparison of role 'claim'. Got none.")

    @property
    def verdict(self) -> Verdict:
        def all_agree(role: Role) -> bool:
            return all(c.agrees for c in self.comparisons if c.role == role)

        if not all_agree("ours"):
            return "not verified"
        if not all_agree("claim"):
            return "does not hold as printed"
        return "holds" if all_agree("beyond") else "holds under its condition"

    @property
    def error(self) -> float:
        """The largest error among the equalities that are claimed; NaN where none is."""
        return max((c.error for c in self.comparisons if c.role == "claim" and c.relation == "="), default=np.nan)

    def table(self) -> pd.DataFrame:
        """Every comparison, one per row."""
        columns = (
            "role",
            "what",
            "left",
            "left_name",
            "relation",
            "right",
            "right_name",
            "error",
            "tolerance",
            "agrees",
        )
        return pd.DataFrame([{name: getattr(c, name) for name in columns} for c in self.comparisons])

    def draw(self) -> Figure:
        """The figure of the statement, new at every call."""
        from irmtv.lab.theory.figures import new_figure

        figure = new_figure(self.size)
        self.paint(figure)
        return figure

    def __str__(self) -> str:
        lines = [f"{self.title} [{self.label}]", f"  {self.verdict}"]
        for c in self.comparisons:
            sides = f"{c.left_name} {c.left:.6g} {c.relation} {c.right_name} {c.right:.6g}"
            lines.append(f"  {'yes' if c.agrees else 'no ':3s} {c.role:6s} {c.what}: {sides} (error {c.error:.1e})")
        return "\n".join([*lines, f"  {self.meaning}"])


class Result(NamedTuple):
    """What the function of a statement computes."""

    comparisons: Sequence[Comparison]
    meaning: str  # what the numbers say, with the numbers
    paint: Callable[[Figure], None]  # draws on an empty figure


def statement(
    title: str, label: str, formula: str = "", size: tuple[float, float] = (7.2, 2.8)
) -> Callable[[Callable[P, Result]], Callable[P, Finding]]:
    """Make a function a statement of the paper, named after the function; see `Finding` for the parameters.

    What the paper says is the first paragraph of the function's docstring.
    """

    def decorate(run: Callable[P, Result]) -> Callable[P, Finding]:
        text = " ".join((getdoc(run) or "").split("\n\n")[0].split())

        @wraps(run)
        def find(*args: P.args, **kwargs: P.kwargs) -> Finding:
            comparisons, meaning, paint = run(*args, **kwargs)
            return Finding(statement_name(run), title, label, text, tuple(comparisons), meaning, paint, formula, size)

        return find

    return decorate


def statement_name(function: Callable[..., object]) -> str:
    """The name of a statement: that of its function, with hyphens."""
    return function.__name__.replace("_", "-")
