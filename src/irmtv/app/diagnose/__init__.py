"""Diagnose a table before fitting: is there a shift that hurts, what carries it, and can invariance help?

>>> from irmtv.app.diagnose import diagnose, diagnose_table

Start with `table` (tables and arrays as rows of numbers) and `diagnosis` (all parts together). Each part answers a
question: `two_sample` (how different are the environments?), `losses` (does the loss of ERM differ?), `features` (whose
relation to the target changes?), `inferred_environments` (which environments are in aux?), `informative` (do they say
anything?), `loss_split` (a change in X, or in y given X?). They share `rows`, `erm_model` (ERM, cross-fitted, of one of
the families in `irmtv.models.erm`) and `words`.
"""

from __future__ import annotations

from irmtv.app.diagnose.diagnosis import Diagnosis
from irmtv.app.diagnose.table import diagnose, diagnose_table

__all__ = ["Diagnosis", "diagnose", "diagnose_table"]
