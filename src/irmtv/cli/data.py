"""`irmtv data`: the data sets, where their files are looked for, and whether the files are complete."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irmtv.cli.options import AsJson
from irmtv.cli.output import note, print_json, progress, say, written

if TYPE_CHECKING:
    from irmtv.datasets.sources import CheckResult, LocalFiles, Source

app = typer.Typer(help="Data sets: list them, locate their files, check these.", no_args_is_help=True)

DataHome = Annotated[
    Path | None,
    typer.Option("--data-home", help="Folder of the files (default: IRMTV_DATA, else the download cache)."),
]


@app.command("list")
def list_data(data_home: DataHome = None, as_json: AsJson = False) -> None:
    """List the data sets: rows, licence, where they are."""
    from irmtv.datasets.sources import SOURCES, look  # here, so that --help need not load torch

    found = [look(source, data_home) for source in SOURCES.values()]
    if as_json:
        print_json([_summary(f) for f in found])
        return
    for f in found:
        s = f.source
        rows = "rows vary" if s.rows is None else f"{s.rows:,} rows"
        say(f"{s.name:18s} {rows:14s} {f.where}")
        say(f"{'':18s} {s.title}")
        say(f"{'':18s} licence: {s.licence}")
    say("\nirmtv data path NAME: where its files belong; irmtv data check: whether the files are complete")


@app.command("path")
def path_of_data(
    name: Annotated[str | None, typer.Argument(help="Data set (default: all).")] = None,
    data_home: DataHome = None,
    as_json: AsJson = False,
) -> None:
    """Print the folder of the files, and which are there."""
    from irmtv.datasets.sources import data_folder, look

    folder = data_folder(data_home)
    found = [look(source, data_home) for source in _chosen([name] if name is not None else [])]
    if as_json:
        where = {"folder": str(folder.path), "said_by": folder.said_by}
        print_json({**where, "data_sets": [_summary(f) for f in found]})
        return
    say(f"{folder.path} ({folder.said_by})")
    for f in found:
        say(f.source.name)
        for file, path in zip(f.files, f.paths, strict=True):
            say(f"    {file.name}: {path if path is not None else 'not here'}")
        if not f.here:
            say(f"    {f.advice}")


@app.command("check")
def check_data(
    names: Annotated[list[str] | None, typer.Argument(help="Data sets (default: all that are here).")] = None,
    data_home: DataHome = None,
    as_json: AsJson = False,
) -> None:
    """Check the files: are they complete and original?

    Nothing is downloaded. Exit code 1 if one is not.
    """
    from irmtv.datasets.sources import check, data_folder, look

    folder, chosen = data_folder(data_home), _chosen(names or [])
    done: list[CheckResult] = []
    for source in chosen:
        if names or any(path is not None for path in look(source, data_home).paths):
            note(f"reading {source.name} ...")
            done.append(check(source, data_home))
    if as_json:
        print_json([_verdict(c) for c in done])
    else:
        for c in done:
            _print_check(c)
    if not done:
        note(
            f"irmtv: no data set is in {folder.path} ({folder.said_by}), so there was nothing to check. "
            "irmtv data path says which files belong there."
        )
    if not done or not all(c.good for c in done):
        raise typer.Exit(1)


@app.command("celeba-features")
def celeba_features(
    images: Annotated[Path, typer.Option(help="Folder of the aligned images, 000001.jpg and so on.")],
    attributes: Annotated[Path, typer.Option(help="CelebA's attribute table: list_attr_celeba.txt, or as CSV.")],
    out: Annotated[Path, typer.Option("--out", help="CSV file to write.")],
    network: Annotated[
        Path | None, typer.Option(help="ResNet18 without its last layer, as ONNX (default: torchvision's).")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Number of images per batch.")] = 64,
) -> None:
    """Make the file of CelebA features from images."""
    from irmtv.datasets.celeba_builder import build_celeba_features

    with progress("celeba-features", stopped="stopped; the same command goes on from there.") as bar:
        rows = build_celeba_features(
            images,
            attributes,
            network,
            out,
            batch_size=batch_size,
            progress=lambda done, total: bar.at(done / max(total, 1), f"{done:,} of {total:,} images"),
        )
    note(f"{rows:,} rows")
    written(out)


def _chosen(names: list[str]) -> list[Source]:
    from irmtv.datasets.sources import SOURCES, get_source

    return [get_source(name) for name in dict.fromkeys(names)] or list(SOURCES.values())


def _summary(found: LocalFiles) -> dict[str, Any]:
    source = found.source
    return {
        **{key: getattr(source, key) for key in ("name", "title", "rows", "licence", "source", "citation")},
        "loader": f"irmtv.datasets.{source.loader}",
        "here": found.here,
        "files": [
            {"name": file.name, "path": None if path is None else str(path), "url": file.url, "sha256": file.sha256}
            for file, path in zip(found.files, found.paths, strict=True)
        ],
    }


def _verdict(checked: CheckResult) -> dict[str, Any]:
    return {
        "name": checked.found.source.name,
        **{key: getattr(checked, key) for key in ("good", "problem", "n_train", "n_test")},
        "files": [
            {"name": f.file.name, "path": str(f.path), "original": f.original, "note": f.note} for f in checked.files
        ],
    }


def _print_check(checked: CheckResult) -> None:
    name = checked.found.source.name
    if checked.problem is not None:
        say(f"{name}: WRONG. {checked.problem}")
    else:
        say(f"{name}: good, {checked.n_train:,} training rows and {checked.n_test:,} test rows")
    for f in checked.files:
        say(f"    {f.path}: {f.note}")
