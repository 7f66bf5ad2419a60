"""What a table says about shifts before any model is fitted to keep: is there one that hurts, what carries it, and
would invariance have something to work with.

>>> from irmtv.app.diagnose import diagnose, diagnose_table

To read it: `table` (the two ways in) and `diagnosis` (all parts together); then the parts, a question each:
`two_sample` (how different are the environments), `losses` (does the loss differ), `features` (whose relation to the
target changes), `found` (what environments are in aux), `informative` (is there anything in them), `loss_split` (change
in X or in y given X). They share `rows`, `plain_model` (plain risk minimisation, cross-fitted: linear, a network in
`network_model`, or trees in `tree_model`), `outputs`, `basis` and `words`.
"""

from __future__ import annotations

from irmtv.app.diagnose.diagnosis import Diagnosis
from irmtv.app.diagnose.table import diagnose, diagnose_table

__all__ = ["Diagnosis", "diagnose", "diagnose_table"]
