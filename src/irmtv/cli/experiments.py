"""`irmtv run` and `irmtv reproduce`: experiments, the paper's and one's own."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Protocol

import typer
from rich.markup import escape

from irmtv.cli.options import AsJson
from irmtv.cli.output import note, notes, print_json, progress, terminal, written
from irmtv.cli.report import NAME as PAGE

if TYPE_CHECKING:
    from irmtv.html.page import Content
    from irmtv.lab.experiments import Report, Spec
    from irmtv.lab.real import RealReport
    from irmtv.lab.tables.identifiability import Identifiability
    from irmtv.lab.tables.running_times import RunningTimesReport
    from irmtv.lab.theory import TheoryReport


AFTER_TRAINING = ("irmtv.lab.tables.experiment_page", "matplotlib.backends.backend_svg")


class Written(Protocol):
    def write(self, folder: Path) -> list[Path]: ...


THEORY, IDENTIFIABILITY, RUNNING_TIMES = "theory", "identifiability", "running-times"  # no tables of scores
REAL = "real"
THEORY_DESCRIPTION = "Every statement of the paper's mathematics, run: one page with numbers, figures and verdicts."
RUNNING_TIMES_DESCRIPTION = "The paper's running times on its five data sets beside ours, and the ratio of l1 to l2."
REAL_DESCRIPTION = (
    "Real tables, every environment left out in turn: what is chosen without it, and what the choice does there."
)
OWN = {REAL: REAL_DESCRIPTION, RUNNING_TIMES: RUNNING_TIMES_DESCRIPTION, THEORY: THEORY_DESCRIPTION}  # without a spec

Out = Annotated[Path, typer.Option("--out", help="Folder of the experiment; one that exists is continued.")]
Repetitions = Annotated[int | None, typer.Option(help="Number of repetitions (default: the spec's).")]
Settings = Annotated[
    list[str] | None,
    typer.Option(help="Setting to run: its label, or its number in the spec. Repeat for more (default: all)."),
]
Methods = Annotated[
    list[str] | None, typer.Option(help="Method to run: label or objective. Repeat for more (default: all).")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or auto (default: the spec's).")]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", help="Number of parallel training processes (default: 1; several on a GPU)."),
]
Engine = Annotated[
    str,
    typer.Option(help="local, or ray: groups of runs are trained on a Ray cluster (pip install 'irmtv[ray]')."),
]
Address = Annotated[
    str | None,
    typer.Option(help="Ray cluster, auto or HOST:PORT (default: one for the time of the command, on this machine)."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait while another process writes to the folder.")]
Repair = Annotated[bool, typer.Option("--repair", help="Train again what is damaged in the folder.")]
Yes = Annotated[bool, typer.Option("--yes", help="Begin even where there are very many runs.")]


@dataclass(frozen=True)
class RunOptions:
    """What of a spec is run, and how."""

    repetitions: int | None
    settings: list[str] | None
    methods: list[str] | None
    device: str | None
    jobs: int | None
    engine: str
    address: str | None
    wait: bool
    repair: bool
    yes: bool

    def prepare(self) -> None:
        """Have the processes that will train begin their imports beside ours."""
        if self.engine == "local" and ((self.jobs or 1) > 1 or (self.device or "").startswith("cuda")):
            from irmtv.lab.workers import prepare

            prepare("irmtv.lab.experiments.run")


def run_spec(
    spec: Annotated[Path, typer.Argument(help="Experiment spec (TOML).")],
    out: Out,
    repetitions: Repetitions = None,
    settings: Settings = None,
    methods: Methods = None,
    device: Device = None,
    jobs: Jobs = None,
    engine: Engine = "local",
    address: Address = None,
    wait: Wait = False,
    repair: Repair = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Run an experiment: train what is missing, write the tables.

    It can be stopped at any time: finished runs are kept, and the same command continues.
    """
    options = RunOptions(repetitions, settings, methods, device, jobs, engine, address, wait, repair, yes)
    _run(spec, out, as_json, options)


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Table to make again (default: list all).")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the experiment; one that exists is continued.")
    ] = None,
    repetitions: Repetitions = None,
    settings: Settings = None,
    methods: Methods = None,
    device: Device = None,
    jobs: Jobs = None,
    engine: Engine = "local",
    address: Address = None,
    wait: Wait = False,
    repair: Repair = False,
    yes: Yes = False,
    steps: Annotated[int | None, typer.Option(help="Number of timed steps of each phase (running-times only).")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a published table again, beside its numbers."""
    if name is None:
        _list_tables(as_json)
        return
    if out is None:
        raise ValueError(f"--out is missing: give the folder for the experiment, irmtv reproduce {name} --out DIR.")
    if steps is not None and name != RUNNING_TIMES:
        raise ValueError(f"--steps is for {RUNNING_TIMES}; {name} trains as its settings say. Leave it out.")
    options = RunOptions(repetitions, settings, methods, device, jobs, engine, address, wait, repair, yes)
    if name in OWN:
        _reject(f"experiments; {name} keeps none. Leave it out.", repair=repair, yes=yes)
        _reject(f"experiments; {name} is none. Leave it out.", engine=engine != "local", address=address is not None)
    # before minutes of work rather than after; the store of an experiment looks itself
    if name in OWN and out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a folder. Got {str(out)!r}, which is a file. Name another one.")
    if name == RUNNING_TIMES:
        why = "tables of scores; times are measured one by one. Leave it out."
        _reject(why, methods=methods is not None, jobs=jobs is not None, wait=wait)
        _running_times(out, as_json, settings, steps, repetitions, device)
    elif name == THEORY:
        given = {key: getattr(options, key) is not None for key in ("repetitions", "settings", "methods", "device")}
        _reject("tables; the theory has statements. Leave it out, or see --jobs.", **given, wait=wait)
        _theory(out, as_json, jobs or 1)
    elif name == REAL:
        _reject("specs; the estimators' defaults are measured. Leave it out.", device=device is not None, wait=wait)
        _real(out, as_json, options)
    else:
        from irmtv.lab.experiments.papers import paper_spec

        run = _identifiability if name.startswith(IDENTIFIABILITY) else _run
        run(paper_spec(name, tuple(OWN)), out, as_json, options)


def _reject(why: str, **given: bool) -> None:
    """Raise where an option is given that means nothing here."""
    for option in (option for option, is_given in given.items() if is_given):
        raise ValueError(f"--{option} is for {why}")


def _list_tables(as_json: bool) -> None:
    import tomllib

    from irmtv.lab.experiments.papers import paper_specs

    tables = {
        spec: tomllib.loads(path.read_text(encoding="utf-8")).get("description", "")
        for spec, path in paper_specs().items()
    }
    tables |= OWN
    described = {name: " ".join(description.split()) for name, description in sorted(tables.items())}
    if as_json:
        print_json([{"name": name, "description": description} for name, description in described.items()])
        return
    for name, description in described.items():
        terminal().print(f"[bold]{name:20s}[/bold] {escape(description)}")


def _train(path: Path, out: Path, options: RunOptions) -> tuple[Spec, Report]:
    """The spec with the options applied, trained into the folder."""
    from irmtv.html.page import check_page
    from irmtv.lab.experiments import ExperimentInterrupted, load_spec, repair_store, run_experiment

    spec = load_spec(path)
    check_page(out / PAGE)
    if options.repair and out.exists():
        note(repair_store(out) or f"{out}: nothing is damaged.")
    settings = options.settings
    if settings is not None:
        labels = list(spec.data.settings)
        numbers = {str(i + 1): label for i, label in enumerate(labels) if str(i + 1) not in labels}
        settings = [numbers.get(s, s) for s in settings]
    spec = spec.with_(
        repetitions=options.repetitions, settings=settings, methods=options.methods, device=options.device
    )
    with progress(escape(spec.name), "stopped before anything was trained; the same command continues.") as bar:

        def begins(label: str) -> None:
            bar.rename(escape(label))
            _import_what_comes_after()

        try:
            report = run_experiment(
                spec,
                out,
                progress=bar,
                stage=begins,
                wait=options.wait,
                on_wait=note,
                jobs=options.jobs,
                engine=options.engine,
                address=options.address,
                yes=options.yes,
            )
        except ExperimentInterrupted as error:  # it says what is kept
            note(f"irmtv: {error}")
            raise typer.Exit(130) from None
    note(_done(report))
    return spec, report


@cache
def _import_what_comes_after() -> None:
    """Tables and figures take seconds to import: while models are trained nobody waits for them."""
    threading.Thread(target=lambda: [import_module(name) for name in AFTER_TRAINING], daemon=True).start()


def _run(path: Path, out: Path, as_json: bool, options: RunOptions) -> None:
    options.prepare()
    spec, trained = _train(path, out, options)
    from irmtv.html.page import write_page
    from irmtv.lab.tables import report_experiment, to_terminal
    from irmtv.lab.tables.experiment import stored_versions
    from irmtv.lab.tables.experiment_page import experiment_content

    made = report_experiment(spec, out, trained.jobs)
    if made.results.empty:
        _no_result(out)
    files = _write(made, out)  # first: a pipe may be closed while the tables are printed
    files.append(write_page(experiment_content(made, spec, stored_versions(out)), out / PAGE))
    if as_json:
        print_json({"name": made.name, "summary": made.summary, "tests": made.tests, "written": list(map(str, files))})
    else:
        to_terminal(made.summary, terminal(), made.tests)
    written(*files)
    if trained.failed:
        raise typer.Exit(1)


def _no_result(out: Path) -> NoReturn:
    note(f"irmtv: {out} has no result to make a table of.")
    raise typer.Exit(1)


def _identifiability(path: Path, out: Path, as_json: bool, options: RunOptions) -> None:
    options.prepare()
    spec, trained = _train(path, out, options)
    from irmtv.lab.tables.experiment import stored_versions
    from irmtv.lab.tables.experiment_page import identifiability_content
    from irmtv.lab.tables.identifiability import report_identifiability

    made = report_identifiability(spec, out)
    if made is None:
        _no_result(out)
    _show_and_write(made, out, identifiability_content(made, stored_versions(out)), as_json)
    if trained.failed:
        raise typer.Exit(1)


def _running_times(
    out: Path, as_json: bool, columns: list[str] | None, steps: int | None, repetitions: int | None, device: str | None
) -> None:
    from irmtv.lab.experiments.running_times import measure_running_times
    from irmtv.lab.tables.experiment_page import running_times_content
    from irmtv.lab.tables.running_times import report_running_times

    given = {"steps": steps, "repetitions": repetitions, "device": device}
    known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    with progress(RUNNING_TIMES) as bar:
        measured = measure_running_times(columns, progress=bar.at, **known)
    made = report_running_times(measured)
    _show_and_write(made, out, running_times_content(made), as_json)


def _real(out: Path, as_json: bool, options: RunOptions) -> None:
    from irmtv.lab.real import RealReport, run_real
    from irmtv.lab.tables.experiment_page import real_content

    with progress(REAL, "stopped; what is finished is kept, and the same command continues.") as bar:
        run = run_real(
            out,
            tables=options.settings,
            families=options.methods,
            seeds=1 if options.repetitions is None else options.repetitions,
            jobs=options.jobs or 1,
            progress=lambda share, label: bar.at(share, escape(label)),
        )
    made = RealReport(run)
    note(made.done())
    if not made.results:
        _no_result(out)
    _show_and_write(made, out, real_content(made), as_json)
    if run.failed:
        raise typer.Exit(1)


def _show_and_write(
    made: Identifiability | RunningTimesReport | RealReport, out: Path, content: Content, as_json: bool
) -> None:
    from irmtv.html.page import write_page

    files = [*_write(made, out), write_page(content, out / PAGE)]  # first: a pipe may be closed meanwhile
    if as_json:
        tables = [{"title": t.title, "columns": t.columns, "rows": t.rows, "notes": t.notes} for t in made.tables()]
        print_json({"tables": tables, "written": list(map(str, files))})
    else:
        for table in made.tables():
            if not table.wide:
                table.show(terminal())
    written(*files)


def _write(made: Written, out: Path) -> list[Path]:
    with warnings.catch_warnings(record=True) as kept:  # files that others wrote
        warnings.simplefilter("always")
        files = made.write(out)
    notes(str(warning.message) for warning in kept)
    return files


def _theory(out: Path, as_json: bool, jobs: int) -> None:
    from irmtv.lab.theory import run_statements

    with progress(THEORY) as bar:
        report = run_statements(jobs=jobs, progress=lambda share, name: bar.at(share, escape(name)))
    files = _write(report, out)
    if as_json:
        verdicts = {name: found.verdict for name, found in report.found.items()}
        print_json({"verdicts": verdicts, "failed": dict(report.failed), "written": list(map(str, files))})
    else:
        _show_theory(report)
    written(*files)
    if not report.sound:
        raise typer.Exit(1)


def _show_theory(report: TheoryReport) -> None:
    console = terminal()
    for title, names in report.by_chapter().items():
        console.print(f"\n[bold]{escape(title)}[/bold]")
        for name in names:
            verdict = report.found[name].verdict if name in report.found else f"failed: {report.failed[name]}"
            console.print(f"  {name:30s} {escape(verdict)}")
    console.print(f"\n{len(report.found)} statements: {report.counted()}.")


def _done(report: Report) -> str:
    """What was trained, in a line or two."""
    lines = [f"{report.runs} runs: {report.found} were there, {report.trained} trained in {report.seconds:.0f} s."]
    if report.diverged:
        lines.append(f"{report.diverged} of them diverged and were frozen at their last finite state.")
    lines += [f"failed, and tried again next time: {text}" for text in report.failed]
    if report.failed:
        lines.append("The tracebacks are in the folder's store: irmtv.lab.experiments.Store.read(FOLDER).failures().")
    return "\n".join(lines)
