"""A grid of hyper-parameters trained as one batch, and the choice among all combinations and steps."""

from irmtv.search.checks import RULES, check_search
from irmtv.search.families import ENGINE, Candidate, Family, Searched
from irmtv.search.run import SNAPSHOTS, search

__all__ = ["ENGINE", "RULES", "SNAPSHOTS", "Candidate", "Family", "Searched", "check_search", "search"]
