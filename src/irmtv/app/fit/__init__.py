"""From a table to an answer: does the environment matter, does invariance help, and a model to use tomorrow."""

from irmtv.app.fit.summary import FitSummary
from irmtv.app.fit.workflow import Answer, fit_table

__all__ = ["Answer", "FitSummary", "fit_table"]
