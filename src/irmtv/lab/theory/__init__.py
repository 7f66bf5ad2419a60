"""The paper's mathematics as something one can run.

Each function runs one statement and returns a `Finding`: both sides in numbers, their error, a verdict that follows
from them, and a figure. `STATEMENTS` has them all by name, in the paper's order; `run_statements` runs them and writes
one page, as `irmtv reproduce theory --out DIR` does.

>>> from irmtv.lab.theory import STATEMENTS
>>> found = STATEMENTS["l1-allows-more"]()
>>> found.verdict
'does not hold as printed'
>>> found.table().columns[0], found.draw().axes[0].get_xlabel()
('role', 'environments n')
"""

from irmtv.lab.theory.document import TheoryReport, run_statements
from irmtv.lab.theory.finding import Comparison, Finding
from irmtv.lab.theory.statements import CHAPTERS, STATEMENTS

__all__ = ["CHAPTERS", "STATEMENTS", "Comparison", "Finding", "TheoryReport", "run_statements"]
