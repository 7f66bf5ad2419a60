"""irmtv: predictors that keep working when the environment changes."""

from irmtv._version import __version__

__all__ = ["__version__"]
