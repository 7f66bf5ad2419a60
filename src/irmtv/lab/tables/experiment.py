"""The report of an experiment folder: results, their summary, the paired tests, and the files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from irmtv.core.files import write_text
from irmtv.datasets import DATASETS
from irmtv.lab.experiments import Spec, read_results
from irmtv.lab.tables.compare import paired_tests, summarise
from irmtv.lab.tables.tables import write_all

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
            choices[column] = [json.dumps(v) if isinstance(v, dict) else None for v in choices[column]]
        return [*written, write_text(Path(folder) / f"{self.name}-choices.csv", choices.to_csv(index=False))]


def report_experiment(spec: Spec, folder: str | Path) -> ExperimentReport:
    """Choose by the spec's rules among what the folder has, and compare. Nothing is trained."""
    results = read_results(spec, folder)
    if results.empty:  # nothing is finished yet
        return ExperimentReport(spec.name, results, pd.DataFrame(), pd.DataFrame())
    published = spec.published and {"metric": spec.published.metric, "results": spec.published.results}
    limit = DATASETS[spec.data.name].limit
    limits = None
    if limit is not None and POPULATION in set(results["metric"]):
        limits = {label: limit(spec.data.arguments_of(label)) for label in spec.data.settings}
    summary = summarise(results, published or None, limits=limits, limits_metric=POPULATION if limits else None)
    there = spec.compare_with in set(results["method"])  # not where all of its runs failed
    compared = spec.compare_with if there else None
    return ExperimentReport(spec.name, results, summary, paired_tests(results, reference=compared))
