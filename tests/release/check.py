"""What a release needs, apart from the tests: `make release-check`.

    python tests/release/check.py                        all of it (downloads several GB: torch brings CUDA from PyPI)
    python tests/release/check.py --draft                an unclean tree or a version without a date is a note
    python tests/release/check.py --only build newest    some steps
    python tests/release/check.py --python python3.13    the newest dependencies on this interpreter too

The tree is clean; versions agree; wheel and sdist are built and pass `twine check`; the wheel, without extras, is
installed into empty environments with the newest and with the oldest dependencies that pyproject.toml allows, and fits
a small CSV there. Sizes are printed: docs/installation.md has them.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
STEPS = ("tree", "versions", "build", "twine", "newest", "oldest")
SIZES = """
import importlib.metadata, pathlib, sys
total = {}
for d in importlib.metadata.distributions():
    files = [pathlib.Path(d.locate_file(f)) for f in d.files or ()]
    total[d.metadata["Name"] + " " + d.version] = sum(f.stat().st_size for f in files if f.is_file())
cuda = sum(v for k, v in total.items() if k.startswith(("nvidia", "cuda", "triton")))
rows = sorted(((v, k) for k, v in total.items() if not k.startswith(("nvidia", "cuda", "triton"))), reverse=True)
print(f"{len(total)} packages, {sum(total.values()) / 1e6:,.0f} MB, of which CUDA and Triton {cuda / 1e6:,.0f} MB")
print(", ".join(f"{k} {v / 1e6:,.1f}" for v, k in rows[:9]) + " MB")
print("".join(f"{k} {v / 1e6:.1f} MB" for v, k in rows if k.startswith("irmtv ")))
"""


class Failed(Exception):
    """A step that failed, with what to do."""


def run(*words: str | Path, folder: Path = ROOT, **environment: str) -> str:
    """A command's output; what it wrote where it fails."""
    command = [str(word) for word in words]
    # not the repository's own source in place of the wheel
    there = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=there)
    if result.returncode:
        raise Failed(f"{' '.join(command)}:\n{(result.stdout + result.stderr)[-3000:]}")
    return result.stdout


def tree() -> str:
    """Nothing is uncommitted."""
    changed = run("git", "status", "--porcelain").strip()
    if changed:
        raise Failed(f"commit or remove what is not committed:\n{changed}")
    return f"clean, {run('git', 'describe', '--always').strip()}"


def versions() -> str:
    """The package, CITATION.cff and the changelog name one version, and the changelog has its date."""
    version = re.search(r'"(.+)"', (ROOT / "src/irmtv/_version.py").read_text(encoding="utf-8"))[1]
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)[1]
    noted, date = re.search(
        r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    ).groups()
    if not version == cited == noted:
        raise Failed(f"src/irmtv/_version.py has {version}, CITATION.cff {cited}, CHANGELOG.md {noted}; make them one")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        raise Failed(f"CHANGELOG.md has {noted} ({date}); write its date, as 2026-01-31")
    return version


def build() -> str:
    """dist/ has a wheel with types, TOML files of the papers and the templates of pages, and an sdist."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", "dist")
    wheel, sdist = the_wheel(), next((ROOT / "dist").glob("*.tar.gz"))
    names = zipfile.ZipFile(wheel).namelist()
    wanted = ("irmtv/py.typed", "irmtv/papers/irm_tv/simulation.toml", "irmtv/html/templates/")
    lacking = [name for name in wanted if not any(n.startswith(name) for n in names)]
    if lacking:
        raise Failed(f"{wheel.name} lacks {', '.join(lacking)}")
    if tests := [name for name in names if name.startswith(("tests/", "docs/", "examples/"))]:
        raise Failed(f"{wheel.name} has {tests[0]}, which is not for users")
    return f"{wheel.name} {wheel.stat().st_size / 1e6:.2f} MB, {sdist.name} {sdist.stat().st_size / 1e6:.2f} MB"


def the_wheel() -> Path:
    found = sorted((ROOT / "dist").glob("*.whl"))
    if not found:
        raise Failed("no wheel in dist/: run the step build")
    return found[-1]


def twine() -> str:
    """PyPI would take both files."""
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted((ROOT / "dist").iterdir()))
    return "both files pass"


def requirements() -> list[str]:
    """The dependencies as pyproject.toml has them."""
    return list(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"])


def oldest_of(requirement: str) -> str:
    """The lowest version that a requirement allows.

    >>> oldest_of("pandas>=2.1")
    'pandas==2.1'
    """
    name, version = re.fullmatch(r"([\w-]+)>=([\w.]+)", requirement).groups()
    return f"{name}=={version}"


def installed(python: str, pins: list[str]) -> str:
    """The wheel and these pins in an empty environment; its versions, what it fits, and its sizes."""
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        run(python, "-m", "venv", there / "venv")
        inside = there / "venv" / "bin"
        began = time.perf_counter()
        run(inside / "python", "-m", "pip", "install", "--quiet", "--only-binary", ":all:", the_wheel(), *pins)
        seconds = time.perf_counter() - began
        run(inside / "python", "-m", "pip", "check")
        answer = smoke(there, inside)
        sizes = run(inside / "python", "-c", SIZES).strip()
        version = run(inside / "python", "--version").strip()
        return f"{version}, installed in {seconds:.0f} s; {answer}\n  " + sizes.replace("\n", "\n  ")


def smoke(there: Path, inside: Path) -> str:
    """The commands of README on a small CSV; what `fit` found."""
    write_table(there / "small.csv")
    run(inside / "irmtv", "diagnose", "small.csv", "--target", "sick", "--environment", "site", folder=there)
    words = ("fit", "small.csv", "--target", "sick", "--environment", "site", "--out", "small.irmtv")
    run(inside / "irmtv", *words, folder=there)
    run(inside / "irmtv", "predict", "small.irmtv", "small.csv", "--out", "predicted.csv", folder=there)
    run(inside / "irmtv", "evaluate", "small.irmtv", "small.csv", "--environment", "site", folder=there)
    run(inside / "irmtv", "verify", "small.irmtv", folder=there)
    rows = len((there / "predicted.csv").read_text().splitlines()) - 1
    if rows != 600 or not (there / "small.html").exists():
        raise Failed(f"irmtv predict wrote {rows} rows of 600, or irmtv fit wrote no page")
    score = run(
        inside / "python",
        "-W",
        "error::FutureWarning:irmtv",
        "-c",
        "import irmtv, pandas as pd; t = pd.read_csv('small.csv'); m = irmtv.load('small.irmtv'); "
        "p = m.predict(t.drop(columns=['sick', 'site'])); print(round((p == t['sick']).mean(), 2))",
        folder=there,
    )
    return f"diagnose, fit, predict, evaluate and verify work (accuracy {score.strip()} on the rows of training)"


def write_table(path: Path) -> None:
    """600 rows from three sites: an age, a marker, a word."""
    rng = random.Random(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("age", "marker", "ward", "site", "sick"))
        for i in range(600):
            sick = rng.random() < 0.5
            marker = "" if i % 17 == 0 else f"{rng.gauss(1.5 * sick, 1):.3f}"
            rows.writerow((rng.randint(20, 90), marker, rng.choice("abc"), "xyz"[i % 3], "yes" if sick else "no"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", action="store_true", help="the steps tree and versions only warn")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=STEPS, metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters for the step newest")
    asked = parser.parse_args()
    steps: list[tuple[str, Callable[[], str]]] = [("tree", tree), ("versions", versions), ("build", build)]
    steps += [("twine", twine)]
    steps += [("newest", lambda python=python: installed(python, [])) for python in asked.python]
    pins = [oldest_of(requirement) for requirement in requirements()]
    steps += [("oldest", lambda: installed(sys.executable, pins))]
    failed = []
    for name, step in steps:
        if name not in asked.only:
            continue
        try:
            print(f"{name}: {step()}", flush=True)
        except Failed as error:
            note = asked.draft and name in ("tree", "versions")
            print(f"{name}: {'note' if note else 'FAILED'}: {error}", flush=True)
            failed += [] if note else [name]
    sys.exit(f"not ready: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
