"""Where the repository is."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
