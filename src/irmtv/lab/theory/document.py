"""All statements in one page: each is run, drawn, and written down with its numbers and its verdict."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from irmtv._version import __version__
from irmtv.core.files import write_files
from irmtv.core.messages import check_positive, did_you_mean
from irmtv.html.page import Chapter, Content, Kind, Section, figure_svg, formula, page, table, text
from irmtv.lab.theory.finding import Comparison, Finding, Role, Verdict
from irmtv.lab.theory.statements import CHAPTERS, STATEMENTS
from irmtv.lab.workers import one_by_one, side_by_side

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
class DrawnFinding(Finding):
    """A finding that can travel between processes: its figure is drawn, and what draws it is left behind."""

    svg: str = ""

    @classmethod
    def of(cls, finding: Finding) -> DrawnFinding:
        values = {f.name: getattr(finding, f.name) for f in fields(finding)}
        return cls(**values | {"paint": no_paint, "svg": figure_svg(finding.draw())})


def no_paint(figure: Figure) -> None:
    """The figure is in `DrawnFinding.svg`."""


@dataclass(frozen=True)
class Statement:
    """A piece of work: one statement to run."""

    label: str  # its name


def run_statement(statement: Statement) -> DrawnFinding:
    """Run a statement and draw its figure."""
    return DrawnFinding.of(STATEMENTS[statement.label]())


@dataclass(frozen=True)
class TheoryReport:
    """What `irmtv reproduce theory` writes."""

    found: Mapping[str, DrawnFinding]  # in the order of the page
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
        """The statements that were run, under the titles of their chapters."""
        chapters = {title: [n for n in names if n in self.seconds] for title, names in CHAPTERS.items()}
        return {title: names for title, names in chapters.items() if names}

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
        numbers = json.dumps(_finite(self.numbers()), indent=1, ensure_ascii=False)
        texts = {"theory.html": page(self.content()), "theory.md": self.markdown(), "theory.json": numbers}
        figures = {f"figures/{name}.svg": t.svg for name, t in self.found.items()}
        return write_files(folder, {**texts, **figures})[: len(texts)]


def run_statements(
    names: Sequence[str] | None = None, jobs: int = 1, progress: Callable[[float, str], None] | None = None
) -> TheoryReport:
    """Run the statements (default: all), one after the other or in `jobs` processes.

    `progress` is called with the share that is done and the name of the statement begun last. A statement that raises
    is reported as failed and the others go on.
    """
    check_positive(jobs, "jobs")
    for name in names or ():
        if name not in STATEMENTS:
            raise ValueError(
                f"names must be statements. Got {name!r}.{did_you_mean(name, STATEMENTS)} "
                "irmtv.lab.theory.STATEMENTS has them all."
            )
    statements = [Statement(name) for name in STATEMENTS if names is None or name in names]
    begun, done = "", 0

    def begin(label: str) -> None:
        nonlocal begun
        begun = label
        if progress is not None:
            progress(done / len(statements), begun)

    found: dict[str, DrawnFinding] = {}
    seconds: dict[str, float] = {}
    failed: dict[str, str] = {}
    outcomes = (
        one_by_one(statements, run_statement, begin)
        if jobs == 1
        else side_by_side(statements, run_statement, jobs, begin)
    )
    for statement, outcome in outcomes:
        seconds[statement.label] = outcome.seconds
        if outcome.error is None:
            found[statement.label] = outcome.result
        else:
            failed[statement.label] = outcome.error
        done += 1
        begin(begun)
    return TheoryReport({s.label: found[s.label] for s in statements if s.label in found}, seconds, failed)


def _section(t: DrawnFinding, seconds: float) -> Section:
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
                ["", "what", "left", "", "right", "difference", "true"], rows, marks=[_mark(c) for c in t.comparisons]
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
    """The same with text in place of numbers that are not finite: JSON has none."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return str(value)
    return value
