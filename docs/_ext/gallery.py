"""The gallery: which examples run, how their pictures get alternative text, and what is shown of those that do not run.

An example runs where the files that it reads are there (`IRMTV_DATA`) and its packages are installed. Elsewhere its
page shows the picture of its last run, from `gallery_last/`, and says so. With IRMTV_KEEP_PICTURES=1 the build puts
the pictures there (`make gallery-last`).

Every example says in `alt_text` what its picture shows, for readers who cannot see it.
"""

from __future__ import annotations

import os
import re
import shutil
import textwrap
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
EXAMPLES = DOCS.parent / "examples" / "gallery"
LAST = DOCS / "gallery_last"
ORDER = (
    *("simulation", "minimax_time", "unit_tests", "colored_mnist", "heart", "gas", "bike", "king_county", "trees"),
    *("own_loss", "own_network", "lightning", "onnx", "theory", "experiment_file"),
)
FOLDER = re.compile(r'"IRMTV_DATA"\]\) / "(\w+)"')  # how an example names the folder of its files
PACKAGE = re.compile(r"^(?:import|from) (lightgbm|lightning|onnxruntime|onnx)\b", re.MULTILINE)


def scripts() -> list[Path]:
    """The examples, in the order of the gallery."""
    return [EXAMPLES / f"plot_{name}.py" for name in ORDER]


def lacks(script: Path) -> str | None:
    """What this machine lacks to run the example; None where it has all."""
    text = script.read_text(encoding="utf-8")
    data = os.environ.get("IRMTV_DATA")
    for folder in FOLDER.findall(text):
        if not data or not (Path(data) / folder).exists():
            return f"the files of `{folder}` (`IRMTV_DATA`)"
    for package in PACKAGE.findall(text):
        if find_spec(package) is None:
            return f"the package `{package}`"
    if "InvariantBoosting" in text and find_spec("lightgbm") is None:
        return "the package `lightgbm`"
    return None


def pattern() -> str:
    """The examples that run, as a pattern of file names."""
    running = [re.escape(script.name) for script in scripts() if lacks(script) is None]
    return f"({'|'.join(running)})$" if running else "(?!)"


class Order:
    """Examples in the order of the gallery."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, name: str) -> int:
        return ORDER.index(name.removeprefix("plot_").removesuffix(".py"))

    def __repr__(self) -> str:
        return "<the order of the gallery>"  # compared between builds


def pictures(block: Any, variables: dict[str, Any], settings: dict[str, Any]) -> str:
    """Save the open figures of an example; each with the example's `alt_text`."""
    import matplotlib.pyplot as plt

    lines = []
    script = Path(variables["src_file"])
    figures = [plt.figure(number) for number in plt.get_fignums()]
    own = variables["example_globals"].pop("fig", None)  # a figure that was made without pyplot
    if own is not None and own not in figures:
        figures.append(own)
    for figure, target in zip(figures, variables["image_path_iterator"], strict=False):
        alt = variables["example_globals"].get("alt_text")
        if not alt:
            raise ValueError(f"{script.name}: set alt_text to what the picture shows before the picture is drawn")
        figure.savefig(target, dpi=110, metadata={"Software": None})
        if os.environ.get("IRMTV_KEEP_PICTURES") and FOLDER.search(script.read_text(encoding="utf-8")):
            LAST.mkdir(exist_ok=True)
            shutil.copyfile(target, LAST / f"{script.stem}.png")
        path = Path(target).relative_to(settings["src_dir"]).as_posix()
        lines += [f".. image:: /{path}", f"   :alt: {' '.join(alt.split())}", "   :class: sphx-glr-single-img", ""]
    plt.close("all")
    return "\n".join(lines)


def plain_settings(settings: dict[str, Any], name: str) -> None:
    """Pictures and warnings of every example begin with the same settings."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    def without_path(message: Warning | str, category: type[Warning], *_: Any) -> str:
        return textwrap.fill(f"{category.__name__}: {message}", 88) + "\n"

    warnings.formatwarning = without_path
    mpl.use("agg")
    plt.rcdefaults()
    plt.rcParams.update(
        {"figure.figsize": (7, 3.8), "figure.constrained_layout.use": True, "axes.spines.top": False}
        | {"axes.spines.right": False, "legend.frameon": False, "font.size": 10}
    )


SETTINGS: dict[str, Any] = {
    "examples_dirs": [str(EXAMPLES)],
    "gallery_dirs": ["gallery"],
    "filename_pattern": pattern(),
    "ignore_pattern": r"(?!)",
    "within_subsection_order": "gallery.Order",
    "image_scrapers": ("gallery.pictures",),
    "reset_modules": ("gallery.plain_settings",),
    "download_all_examples": False,
    "show_signature": False,
    "remove_config_comments": True,
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "plot_gallery": True,
    "abort_on_example_error": True,
    "copyfile_regex": r"(?!)",
    "capture_repr": (),
    "show_memory": False,
}


def alternative(script: Path) -> str:
    """The example's `alt_text`."""
    found = re.search(r'^alt_text = \(?\s*((?:"[^"\n]*"\s*)+)', script.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise ValueError(f"{script.name} must set alt_text to what its picture shows, as a plain text")
    return "".join(re.findall(r'"([^"]*)"', found[1]))


def name_thumbnails(app: Any, name: str, source: list[str]) -> None:
    """The small pictures in the gallery's index have text alternatives, too."""
    if name == "gallery/index":
        for script in scripts():
            picture = rf"(image:: /gallery/images/thumb/sphx_glr_{script.stem}_thumb\.\w+\n\s+:alt:)[^\n]*"
            source[0] = re.sub(picture, lambda found, s=script: f"{found[1]} {alternative(s)}", source[0])


def say_what_is_missing(app: Any, name: str, source: list[str]) -> None:
    """The page of an example that did not run has the picture of its last run, and says why it did not run."""
    script = EXAMPLES / f"{name.removeprefix('gallery/')}.py"
    if not name.startswith("gallery/plot_") or (lacking := lacks(script)) is None:
        return
    lacking = lacking.replace("`", "``")
    text = f"\n.. note::\n\n   This example did not run when the site was built, which lacked {lacking}."
    picture = LAST / f"{script.stem}.png"
    if picture.exists():
        text += " The picture is that of its last run.\n\n"
        text += f".. image:: /gallery_last/{picture.name}\n   :alt: {alternative(script)}\n"
    source[0] += text + "\n"


def setup(app: Any) -> dict[str, Any]:
    app.connect("source-read", name_thumbnails)
    app.connect("source-read", say_what_is_missing)
    return {"parallel_read_safe": True}
