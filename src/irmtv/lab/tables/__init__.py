"""From the results of an experiment to tables: summaries, published numbers, paired tests, four formats.

Nothing here trains or reads data sets. To read it: `compare` (numbers, ours and published), `layout` and `overview` (a
summary as tables of text, per setting and over them), `formats` (these as terminal output, Markdown, LaTeX, CSV) and
`experiment_page` (all of it as a page).

>>> import pandas as pd
>>> results = pd.DataFrame(
...     {"setting": "toy", "method": "erm", "rule": "fixed", "repetition": [0, 1], "metric": "accuracy",
...      "summary": "worst", "value": [0.58, 0.62]}
... )
>>> summary = summarise(results)
>>> print(to_markdown(summary).splitlines()[-1])
| erm | 60.0 ± 2.8 |
"""

from __future__ import annotations

from irmtv.lab.tables.compare import paired_tests, summarise
from irmtv.lab.tables.experiment import ExperimentReport, report_experiment
from irmtv.lab.tables.formats import tables, to_csv, to_latex, to_markdown, to_terminal, write_all
from irmtv.lab.tables.layout import Cell, Column, Row, Table
from irmtv.lab.tables.overview import overview
from irmtv.selection.equality import holm

__all__ = [
    "Cell",
    "Column",
    "ExperimentReport",
    "Row",
    "Table",
    "holm",
    "overview",
    "paired_tests",
    "report_experiment",
    "summarise",
    "tables",
    "to_csv",
    "to_latex",
    "to_markdown",
    "to_terminal",
    "write_all",
]
