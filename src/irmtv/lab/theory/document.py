"""All statements in one page: each is run, drawn, and written down with its numbers and its verdict."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from irmtv._version import __version__
from irmtv.core.files import write_text
from irmtv.core.messages import check_positive, did_you_mean
from irmtv.html.page import Chapter, Content, Kind, Section, figure_svg, formula, page, table, text
from irmtv.lab.experiments.workers import one_by_one, side_by_side
from irmtv.lab.theory.finding import Comparison, Finding, Role, Verdict
from irmtv.lab.theory.statements import CHAPTERS, STATEMENTS

COLOURS: Mapping[Verdict, Kind] = {
    "holds": "good",
    "holds under its condition": "partly",
    "does not hold as printed": "bad",
    "not verified": "unknown",
}
WHERE_IT_FAILS: Mapping[Role, Kind] = {"claim": "bad", "beyond": "partly", "ours": "unknown"}
ROLES: Mapping[Role, str] = {"claim": "as printed", "beyond": "condition violated", "ours": "ours"}
TITLE = "Invariant risk minimization is a total variation model: the statements, run"
LEAD = (
    "Each statement of the paper's mathematics was run: both sides of it were computed in different ways, and the "
    "verdict is computed from the numbers.",
    "A line 'as printed' compares what the paper states. A line 'condition violated' repeats it where a condition of "
    "the statement does not hold; there it may fail, which shows that the condition is needed. A line 'ours' is a "
    "check of the method, or what is true in place of what is printed.",
)


@dataclass(frozen=True)
class Told:
    """A finding without what cannot travel between processes: the figure is drawn."""

    name: str
    title: str
    label: str
    statement: str
    formula: str
    comparisons: tuple[Comparison, ...]
    meaning: str
    verdict: Verdict
    svg: str

    @classmethod
    def of(cls, found: Finding) -> Told:
        return cls(
            found.name,
            found.title,
            found.label,
            found.statement,
            found.formula,
            found.comparisons,
            found.meaning,
            found.verdict,
            figure_svg(found.draw()),
        )


@dataclass(frozen=True)
class Statement:
    """A piece of work: one statement to run."""

    name: str

    @property
    def label(self) -> str:
        return self.name


def told(statement: Statement) -> Told:
    """Run it and draw it."""
    return Told.of(STATEMENTS[statement.name]())


@dataclass(frozen=True)
class TheoryReport:
    """What `irmtv reproduce theory` writes."""

    found: Mapping[str, Told]  # in the order of the page
    seconds: Mapping[str, float]
    failed: Mapping[str, str]  # statement -> its error

    @property
    def sound(self) -> bool:
        """Whether every statement was run and what we say about it agrees with the numbers."""
        return not self.failed and all(t.verdict != "not verified" for t in self.found.values())

    def counted(self) -> str:
        """How many statements have which verdict."""
        counts = Counter(t.verdict for t in self.found.values())
        return ", ".join(f"{verdict}: {counts[verdict]}" for verdict in COLOURS if counts[verdict])

    def by_chapter(self) -> dict[str, list[str]]:
        """The statements that were asked for, under the titles of their chapters."""
        asked = {title: [n for n in names if n in self.seconds] for title, names in CHAPTERS.items()}
        return {title: names for title, names in asked.items() if names}

    def content(self) -> Content:
        """The page, as data."""
        chapters: list[Chapter] = [
            {
                "title": title,
                "sections": [
                    _section(self.found[name], self.seconds[name])
                    if name in self.found
                    else _failure(name, self.failed[name])
                    for name in names
                ],
            }
            for title, names in self.by_chapter().items()
        ]
        return {
            "title": TITLE,
            "lead": LEAD,
            "facts": [
                ("paper", "Lai & Wang, Invariant Risk Minimization Is A Total Variation Model, ICML 2024"),
                ("statements", f"{len(self.found) + len(self.failed)} ({self.counted()})"),
                ("made by", f"irmtv {__version__}, irmtv reproduce theory, {sum(self.seconds.values()):.0f} s of work"),
            ],
            "chapters": chapters,
            "foot": "The numbers are in theory.json, the figures in the folder figures.",
        }

    def numbers(self) -> dict[str, Any]:
        """Every comparison, for programs."""
        return {
            name: {
                "title": t.title,
                "label": t.label,
                "verdict": t.verdict,
                "seconds": round(self.seconds[name], 2),
                "comparisons": [{**asdict(c), "error": c.error, "agrees": c.agrees} for c in t.comparisons],
                "meaning": t.meaning,
            }
            for name, t in self.found.items()
        } | {name: {"failed": error} for name, error in self.failed.items()}

    def markdown(self) -> str:
        """The verdicts and what they rest on, to be read without a browser."""
        lines = [f"# {TITLE}", "", *(f"{paragraph}\n" for paragraph in LEAD)]
        lines += [f"{len(self.found) + len(self.failed)} statements: {self.counted()}.", ""]
        for title, names in self.by_chapter().items():
            lines += [f"## {title}", ""]
            for name in names:
                if name in self.failed:
                    lines += [f"### {name}", "", f"**failed**: {self.failed[name]}", ""]
                    continue
                t = self.found[name]
                lines += [f"### {t.title}", "", f"**{t.verdict}** · {t.label} · `{name}`", ""]
                lines += [t.statement, "", t.meaning, ""]
        return "\n".join(lines)

    def write(self, folder: str | Path) -> list[Path]:
        """theory.html, theory.md, theory.json and figures/NAME.svg."""
        target = Path(folder)
        (target / "figures").mkdir(parents=True, exist_ok=True)
        for name, t in self.found.items():
            write_text(target / "figures" / f"{name}.svg", t.svg)
        return [
            write_text(target / "theory.html", page(self.content())),
            write_text(target / "theory.md", self.markdown()),
            # numbers that are not finite become text: JSON has none
            write_text(target / "theory.json", json.dumps(_finite(self.numbers()), indent=1, ensure_ascii=False)),
        ]


def run_statements(
    names: Sequence[str] | None = None, jobs: int = 1, progress: Callable[[float, str], None] | None = None
) -> TheoryReport:
    """Run the statements (default: all), one after the other or in `jobs` processes.

    `progress` is told the share that is done and the name of what was begun last. A statement that raises is reported
    as failed and the others go on.
    """
    check_positive(jobs, "jobs")
    for name in names or ():
        if name not in STATEMENTS:
            raise ValueError(
                f"names must be statements. Got {name!r}.{did_you_mean(name, STATEMENTS)} "
                "irmtv.lab.theory.STATEMENTS has them all."
            )
    asked = [Statement(name) for name in STATEMENTS if names is None or name in names]
    begun, done = "", 0

    def tell(label: str) -> None:
        nonlocal begun
        begun = label
        if progress is not None:
            progress(done / len(asked), begun)

    found: dict[str, Told] = {}
    seconds: dict[str, float] = {}
    failed: dict[str, str] = {}
    outcomes = one_by_one(asked, told, tell) if jobs == 1 else side_by_side(asked, told, jobs, tell)
    for statement, outcome in outcomes:
        seconds[statement.name] = outcome.seconds
        if outcome.error is None:
            found[statement.name] = outcome.result
        else:
            failed[statement.name] = outcome.error
        done += 1
        tell(begun)
    return TheoryReport({s.name: found[s.name] for s in asked if s.name in found}, seconds, failed)


def _section(t: Told, seconds: float) -> Section:
    rows = [
        [
            ROLES[c.role],
            c.what,
            f"{number(c.left)} ({c.left_name})",
            c.relation,
            f"{number(c.right)} ({c.right_name})",
            f"{c.error:.1e}",
            "yes" if c.agrees else "no",
        ]
        for c in t.comparisons
    ]
    return {
        "id": t.name,
        "title": t.title,
        "note": f"{t.label} · irmtv.lab.theory.STATEMENTS[{t.name!r}]() · {seconds:.1f} s",
        "badge": {"text": t.verdict, "kind": COLOURS[t.verdict]},
        "blocks": [
            text(t.statement),
            *([formula(t.formula)] if t.formula else []),
            {"kind": "figure", "svg": t.svg, "alt": f"{t.title}. {' '.join(t.meaning.split())}"},
            table(
                ["", "what", "left", "", "right", "difference", "true"],
                rows,
                marks=[_mark(c) for c in t.comparisons],
            ),
            *(text(paragraph) for paragraph in t.meaning.split("\n\n")),
        ],
    }


def _mark(c: Comparison) -> Kind:
    return "good" if c.agrees else WHERE_IT_FAILS[c.role]


def _failure(name: str, error: str) -> Section:
    return {
        "id": name,
        "title": name,
        "note": "could not be run",
        "badge": {"text": "failed", "kind": "unknown"},
        "blocks": [text(error)],
    }


def number(value: float) -> str:
    """Six digits where they say something, without a long tail of zeros.

    >>> number(0.25), number(123456.7), number(1.2345678e-9)
    ('0.25', '123457', '1.23457e-09')
    """
    return f"{value:.6g}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return str(value)
    return value
