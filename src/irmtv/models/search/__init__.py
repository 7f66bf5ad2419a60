"""A grid of hyper-parameters trained as one batch, and the choice among all combinations and steps."""

from irmtv.models.search.checks import RULES, check_search
from irmtv.models.search.families import ENGINE, Candidate, Family, Searched
from irmtv.models.search.run import SNAPSHOTS, search

__all__ = ["ENGINE", "RULES", "SNAPSHOTS", "Candidate", "Family", "Searched", "check_search", "search"]
