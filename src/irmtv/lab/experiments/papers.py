"""The specs of published tables that come with the package."""

from __future__ import annotations

from pathlib import Path

from irmtv.core.messages import did_you_mean


def papers_folder() -> Path:
    """Where they are: inside an installed package, or at the root of a checkout."""
    here = Path(__file__).resolve()
    for folder in (here.parents[2] / "papers", here.parents[4] / "papers"):
        if (folder / "irm_tv").is_dir():
            return folder / "irm_tv"
    raise ValueError(
        f"the specs of the paper's tables are neither in {here.parents[2]} nor in {here.parents[4]}. Reinstall irmtv."
    )


def paper_specs() -> dict[str, Path]:
    """Name to spec file, for `irmtv reproduce NAME`."""
    return {path.stem: path for path in sorted(papers_folder().glob("*.toml"))}


def paper_spec(name: str, besides: tuple[str, ...] = ()) -> Path:
    """The spec file of a table; `besides` are names that would have been right too, for the message."""
    known = paper_specs()
    if name not in known:
        names = [*known, *besides]
        raise ValueError(f"NAME must be one of {names}. Got {name!r}.{did_you_mean(name, names)}")
    return known[name]
