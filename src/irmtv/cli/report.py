"""`irmtv report`: the page of a model or of an experiment, made again from what is stored. Nothing is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from irmtv.cli.options import AsJson
from irmtv.cli.output import print_json, say

if TYPE_CHECKING:
    from irmtv.html.page import Content

NAME = "report.html"


def report(
    source: Annotated[
        Path,
        typer.Argument(metavar="RUNS_OR_MODEL", help="Model file, or folder of irmtv run or irmtv reproduce."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="HTML page to write (default: that of the model, with .html; report.html in a folder)."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the HTML page of a model or an experiment.

    It is made of what the model file or the experiment's folder holds, and opens offline. Nothing is trained.
    """
    from irmtv.html.page import check_page, page_beside, write_page

    path = out if out is not None else (source / NAME if source.is_dir() else page_beside(source))
    if not source.exists():
        raise FileNotFoundError(
            f"RUNS_OR_MODEL must be a model file or the folder of an experiment. There is no {str(source)!r}."
        )
    from irmtv.app.io.write import check_writable

    # a page may take the place of an older one, but not of what it is made of
    stored = [p for p in source.iterdir() if p.suffix != ".html"] if source.is_dir() else [source]
    check_writable(path, inputs=stored)
    check_page(path)
    content = _of_folder(source) if source.is_dir() else _of_model(source)
    write_page(content, path)
    if as_json:
        headline = content.get("headline")
        sections = [section["title"] for chapter in content["chapters"] for section in chapter["sections"]]
        print_json(
            {
                "report": str(path),
                "source": str(source),
                "title": content["title"],
                "headline": headline["text"] if headline else None,
                "sections": sections,
            }
        )
    else:
        say(str(path))


def _of_folder(folder: Path) -> Content:
    from irmtv.lab.experiments import StoreError
    from irmtv.lab.tables.experiment_page import folder_content

    try:
        return folder_content(folder)
    except StoreError as error:
        models = sorted(p.name for p in folder.glob("*.irmtv"))
        hint = f" It has the model {models[0]!r}: use irmtv report {folder / models[0]}." if models else ""
        raise ValueError(f"{error}{hint}") from None


def _of_model(path: Path) -> Content:
    from irmtv.app.pages.model import is_summary, model_content
    from irmtv.models.light import FILE_KINDS
    from irmtv.persistence import read_model, reading

    file = read_model(path, FILE_KINDS)
    about = file.about()
    if about is not None and is_summary(about):
        with reading(f"the summary in {str(path)!r}"):
            return model_content(about)
    from irmtv.app.pages.estimator import estimator_content
    from irmtv.estimators.files import loaded

    model = loaded(file)
    with reading(f"what the model in {str(path)!r} knows"):
        return estimator_content(model, path.name)
