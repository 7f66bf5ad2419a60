"""The report of an experiment's folder: results, their summary, the paired tests, the files, and the stored spec."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from irmtv.core.files import write_files
from irmtv.core.plain_json import json_text
from irmtv.datasets import DATASETS
from irmtv.html.text_table import frame_csv
from irmtv.lab.experiments import Spec, SpecError, Store, papers, parse_spec, read_results
from irmtv.lab.tables.compare import WORST, paired_tests, summarise
from irmtv.lab.tables.formats import write_all

POPULATION = "population accuracy"


@dataclass(frozen=True)
class ExperimentReport:
    """What `irmtv run` prints and writes."""

    name: str
    results: pd.DataFrame  # every choice: see `irmtv.lab.experiments.read_results`
    summary: pd.DataFrame  # over repetitions, beside published numbers: see `irmtv.lab.tables.summarise`
    tests: pd.DataFrame  # see `irmtv.lab.tables.paired_tests`

    def write(self, folder: str | Path) -> list[Path]:
        """Markdown, CSV and LaTeX tables, the tests, and NAME-choices.csv with what each rule chose and why."""
        written = write_all(folder, self.name, self.summary, self.tests)
        choices = self.results.copy()
        for column in ("hyperparameters", "figures"):
            # rows of one choice share what was chosen, and why
            texts = {id(v): json_text(v) if isinstance(v, dict) else None for v in choices[column]}
            choices[column] = [texts[id(v)] for v in choices[column]]
        return [*written, *write_files(folder, {f"{self.name}-choices.csv": frame_csv(choices)})]


def report_experiment(spec: Spec, folder: str | Path, jobs: int = 1) -> ExperimentReport:
    """Choose by the spec's rules among what the folder has, in `jobs` processes, and compare. Nothing is trained."""
    results = read_results(spec, folder, jobs)
    if results.empty:  # nothing is finished yet
        return ExperimentReport(spec.name, results, pd.DataFrame(), pd.DataFrame())
    columns = list(results["summary"].unique())  # the spec may leave the worst environment out
    published = spec.published and {"metric": spec.published.metric, "results": spec.published.results}
    limit = DATASETS[spec.data.name].limit
    limits = None
    if limit is not None and POPULATION in set(results["metric"]) and WORST in columns:
        limits = {label: limit(spec.data.arguments_of(label)) for label in spec.data.settings}
    summary = summarise(results, published or None, limits=limits, limits_metric=POPULATION if limits else None)
    there = spec.compare_with in set(results["method"])  # not where all of its runs failed
    compared = spec.compare_with if there else None
    tested = WORST if WORST in columns else columns[-1]
    return ExperimentReport(spec.name, results, summary, paired_tests(results, reference=compared, summary=tested))


# --- an experiment's folder ---------------------------------------------------------------------------------


def stored_spec(source: str, folder: Path) -> tuple[Spec, list[str]]:
    """A spec from the text in a store, and what is to be said of it.

    The file of published numbers stands beside the spec file, which is not in the store: it is looked for among the
    specs that come with the package and in the folder; where it is not found, the page goes without.
    """
    problem: SpecError | None = None
    for place in (papers.papers_folder(), folder, folder.parent, Path()):
        try:
            return parse_spec(source, place, str(folder)), []
        except SpecError as error:
            problem = problem or error
    raw = tomllib.loads(source)
    if "published" not in raw:
        assert problem is not None
        raise problem
    spec = parse_spec(_without_published(source), folder, str(folder))
    file = raw["published"].get("file")
    return spec, [f"The published numbers ({file}) were not found beside {folder}; copy the file there to see them."]


def _without_published(source: str) -> str:
    """The text without its table [published] and without the keys that refer to it."""
    kept, inside = [], False
    for line in source.splitlines():
        bare = line.strip()
        if bare.startswith("["):
            inside = bare.startswith("[published")
        if not inside and not bare.replace(" ", "").startswith(("published=", "published.")):
            kept.append(line)
    return "\n".join(kept) + "\n"


def is_identifiability(spec: Spec) -> bool:
    """Whether it is a spec of the paper's feature weights: these have a report of their own."""
    return spec.name.startswith("identifiability") and spec.name in papers.paper_specs()


def stored_versions(folder: str | os.PathLike[str]) -> list[dict[str, str]]:
    """The versions of packages that the runs of a folder were computed with."""
    with Store.read(Path(folder)) as store:
        return store.versions()
