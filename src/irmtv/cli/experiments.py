"""`irmtv run` and `irmtv reproduce`: experiments, the paper's and one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from irmtv.cli.output import AsJson, note, print_json
from irmtv.cli.report import NAME as PAGE

if TYPE_CHECKING:
    import pandas as pd

    from irmtv.html.page import Content
    from irmtv.lab.experiments import Report, Spec
    from irmtv.lab.tables.identifiability import Identifiability
    from irmtv.lab.tables.running_times import RunningTimesReport
    from irmtv.lab.theory import TheoryReport

THEORY, IDENTIFIABILITY, RUNNING_TIMES = "theory", "identifiability", "running-times"  # no tables of scores
THEORY_DESCRIPTION = "Every statement of the paper's mathematics, run: one page with numbers, figures and verdicts."
RUNNING_TIMES_DESCRIPTION = "The paper's running times on its five data sets beside ours, and the ratio of l1 to l2."


def register(app: typer.Typer) -> None:
    app.command("run")(run_spec)
    app.command("reproduce")(reproduce)


Out = Annotated[Path, typer.Option("--out", help="Folder of the experiment: made if new, continued if not.")]
Repetitions = Annotated[int | None, typer.Option(help="So many repetitions, in place of the spec's.")]
Settings = Annotated[
    list[str] | None, typer.Option(help="Only these settings: label, or number in the spec's order. Repeat for more.")
]
Methods = Annotated[list[str] | None, typer.Option(help="Only these methods: label or objective. Repeat for more.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or auto, in place of the spec's.")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", help="Processes that train side by side, on the CPU.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait if another process writes to the folder.")]


def run_spec(
    spec: Annotated[Path, typer.Argument(help="A spec in TOML.")],
    out: Out,
    repetitions: Repetitions = None,
    settings: Settings = None,
    methods: Methods = None,
    device: Device = None,
    jobs: Jobs = 1,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Train what a spec asks for and the folder does not have yet; print and write the tables.

    Stop it at any time: finished runs are kept, and the same command goes on.
    """
    _run(spec, out, as_json, repetitions, settings, methods, device, jobs, wait)


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A table; without a name: which there are.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the experiment.")] = None,
    repetitions: Repetitions = None,
    settings: Settings = None,
    methods: Methods = None,
    device: Device = None,
    jobs: Jobs = 1,
    wait: Wait = False,
    steps: Annotated[int | None, typer.Option(help="For running-times: steps of each phase that are timed.")] = None,
    as_json: AsJson = False,
) -> None:
    """A table that comes with the package: the paper's, beside the published numbers, or one of our own."""
    from irmtv.lab.experiments.papers import paper_spec, paper_specs

    if name is None:
        import tomllib

        known = {
            spec: tomllib.loads(path.read_text(encoding="utf-8")).get("description", "")
            for spec, path in paper_specs().items()
        }
        known |= {THEORY: THEORY_DESCRIPTION, RUNNING_TIMES: RUNNING_TIMES_DESCRIPTION}
        if as_json:
            print_json([{"name": n, "description": " ".join(d.split())} for n, d in sorted(known.items())])
            return
        for title, description in sorted(known.items()):
            Console(highlight=False).print(f"[bold]{title:20s}[/bold] {escape(' '.join(description.split()))}")
        return
    if out is None:
        raise ValueError(f"--out is missing: give the folder for the experiment, irmtv reproduce {name} --out DIR.")
    if steps is not None and name != RUNNING_TIMES:
        raise ValueError(f"--steps is for {RUNNING_TIMES}; {name} trains as its settings say. Leave it out.")
    if name == RUNNING_TIMES:
        of_tables = ["--methods"] * (methods is not None) + ["--jobs"] * (jobs != 1) + ["--wait"] * wait
        if of_tables:
            raise ValueError(f"{of_tables[0]} is for tables of scores; times are measured one by one. Leave it out.")
        _running_times(out, as_json, settings, steps, repetitions, device)
        return
    if name == THEORY:
        for_tables = {"repetitions": repetitions, "settings": settings, "methods": methods, "device": device}
        given = [f"--{option}" for option, value in for_tables.items() if value is not None] + ["--wait"] * wait
        if given:
            raise ValueError(f"{given[0]} is for tables; the theory has statements. Leave it out, or see --jobs.")
        _theory(out, as_json, jobs)
        return
    spec = paper_spec(name, (RUNNING_TIMES, THEORY))
    run = _identifiability if name.startswith(IDENTIFIABILITY) else _run
    run(spec, out, as_json, repetitions, settings, methods, device, jobs, wait)


def _train(
    path: Path,
    out: Path,
    repetitions: int | None,
    settings: list[str] | None,
    methods: list[str] | None,
    device: str | None,
    jobs: int,
    wait: bool,
) -> tuple[Spec, Report]:
    """The spec as asked for, trained into the folder; Ctrl-C ends the command."""
    from irmtv.engine.progress_bar import ProgressBar
    from irmtv.lab.experiments import ExperimentInterrupted, load_spec, run_experiment

    spec = load_spec(path)
    if settings is not None:
        labels = list(spec.data.settings)
        numbers = {str(i + 1): label for i, label in enumerate(labels) if str(i + 1) not in labels}
        settings = [numbers.get(s, s) for s in settings]
    spec = spec.with_(repetitions=repetitions, settings=settings, methods=methods, device=device)
    try:
        with ProgressBar(escape(spec.name), console=Console(stderr=True, highlight=False)) as bar:
            report = run_experiment(
                spec,
                out,
                progress=bar,
                stage=lambda label: bar.rename(escape(label)),
                wait=wait,
                on_wait=note,
                jobs=jobs,
            )
    except KeyboardInterrupt as stopped:
        before = "stopped before anything was trained; the same command continues."
        note(f"irmtv: {stopped if isinstance(stopped, ExperimentInterrupted) else before}")
        raise typer.Exit(130) from None
    note(_told(report))
    return spec, report


def _run(path: Path, out: Path, as_json: bool, *asked: Any) -> None:
    from irmtv.html.page import write_page
    from irmtv.lab.tables import report_experiment, to_terminal
    from irmtv.lab.tables.experiment_page import experiment_content, stored_versions

    spec, trained = _train(path, out, *asked)
    made = report_experiment(spec, out)
    if made.results.empty:
        _nothing(out)
    written = made.write(out)  # first: a pipe may be closed while the tables are printed
    written.append(write_page(experiment_content(made, spec, stored_versions(out)), out / PAGE))
    if as_json:
        records = {"summary": _records(made.summary), "tests": _records(made.tests)}
        print_json({"name": made.name, **records, "written": list(map(str, written))})
    else:
        to_terminal(made.summary, Console(highlight=False), made.tests)
    note("written: " + ", ".join(map(str, written)))
    if trained.failed:
        raise typer.Exit(1)


def _nothing(out: Path) -> NoReturn:
    note(f"irmtv: {out} has no result to make a table of.")
    raise typer.Exit(1)


def _identifiability(path: Path, out: Path, as_json: bool, *asked: Any) -> None:
    from irmtv.lab.tables.experiment_page import identifiability_content, stored_versions
    from irmtv.lab.tables.identifiability import report_identifiability

    spec, trained = _train(path, out, *asked)
    made = report_identifiability(spec, out)
    if made is None:
        _nothing(out)
    _show_and_write(made, out, identifiability_content(made, stored_versions(out)), as_json)
    if trained.failed:
        raise typer.Exit(1)


def _running_times(
    out: Path, as_json: bool, columns: list[str] | None, steps: int | None, repetitions: int | None, device: str | None
) -> None:
    from irmtv.engine.progress_bar import ProgressBar
    from irmtv.lab.experiments.running_times import measure_running_times
    from irmtv.lab.tables.experiment_page import running_times_content
    from irmtv.lab.tables.running_times import report_running_times

    _check_folder(out)
    given: dict[str, Any] = {"steps": steps, "repetitions": repetitions, "device": device}
    try:
        with ProgressBar(RUNNING_TIMES, console=Console(stderr=True, highlight=False)) as bar:
            measured = measure_running_times(
                columns, progress=bar.at, **{name: value for name, value in given.items() if value is not None}
            )
    except KeyboardInterrupt:
        note("irmtv: stopped; nothing was written. The same command starts again.")
        raise typer.Exit(130) from None
    made = report_running_times(measured)
    _show_and_write(made, out, running_times_content(made), as_json)


def _show_and_write(made: Identifiability | RunningTimesReport, out: Path, content: Content, as_json: bool) -> None:
    from irmtv.html.page import write_page

    written = [*made.write(out), write_page(content, out / PAGE)]  # first: a pipe may be closed meanwhile
    if as_json:
        tables = [{"title": t.title, "columns": t.columns, "rows": t.rows, "notes": t.notes} for t in made.tables()]
        print_json({"tables": tables, "written": list(map(str, written))})
    else:
        for table in made.tables():
            if not table.wide:
                table.show(Console(highlight=False))
    note("written: " + ", ".join(map(str, written)))


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table of results as JSON: nothing that is missing is a number."""
    records: list[dict[str, Any]] = json.loads(frame.to_json(orient="records"))
    return records


def _check_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():  # before minutes of work rather than after
        raise ValueError(f"--out must be a folder. Got {str(out)!r}, which is a file. Name another one.")


def _theory(out: Path, as_json: bool, jobs: int) -> None:
    from irmtv.engine.progress_bar import ProgressBar
    from irmtv.lab.theory import run_statements

    notes = Console(stderr=True, highlight=False)
    _check_folder(out)
    try:
        with ProgressBar(THEORY, console=notes) as bar:
            report = run_statements(jobs=jobs, progress=lambda share, name: bar.at(share, escape(name)))
    except KeyboardInterrupt:
        notes.print("irmtv: stopped; nothing was written. The same command starts again.")
        raise typer.Exit(130) from None
    written = report.write(out)
    if as_json:
        verdicts = {name: found.verdict for name, found in report.found.items()}
        print_json({"verdicts": verdicts, "failed": dict(report.failed), "written": list(map(str, written))})
    else:
        _show_theory(report)
    notes.print("written: " + ", ".join(map(str, written)), markup=False, soft_wrap=True)
    if not report.sound:
        raise typer.Exit(1)


def _show_theory(report: TheoryReport) -> None:
    console = Console(highlight=False)
    for title, names in report.by_chapter().items():
        console.print(f"\n[bold]{escape(title)}[/bold]")
        for name in names:
            verdict = report.found[name].verdict if name in report.found else f"failed: {report.failed[name]}"
            console.print(f"  {name:30s} {escape(verdict)}")
    console.print(f"\n{len(report.found)} statements: {report.counted()}.")


def _told(report: Report) -> str:
    """What was done, in a line or two."""
    lines = [f"{report.runs} runs: {report.found} were there, {report.trained} trained in {report.seconds:.0f} s."]
    if report.diverged:
        lines.append(f"{report.diverged} of them diverged and were frozen at their last finite state.")
    lines += [f"failed, and tried again next time: {text}" for text in report.failed]
    if report.failed:
        lines.append("The tracebacks are in the folder's store: irmtv.lab.experiments.Store.read(FOLDER).failures().")
    return "\n".join(lines)
