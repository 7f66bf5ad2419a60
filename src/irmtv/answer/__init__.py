"""From a table to an answer: does the environment matter, does invariance help, and a model to use tomorrow."""

from irmtv.answer.fit import Answer, fit_table
from irmtv.answer.summary import FitSummary

__all__ = ["Answer", "FitSummary", "fit_table"]
