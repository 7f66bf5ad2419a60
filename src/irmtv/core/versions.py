"""The versions of the packages that numbers depend on."""

from __future__ import annotations

from contextlib import suppress
from importlib import metadata

from irmtv._version import __version__

PACKAGES = ("torch", "numpy", "pandas", "scikit-learn", "skrub")  # that the numbers depend on


def versions() -> dict[str, str]:
    """The versions of irmtv and of the packages that its numbers depend on."""
    installed = {"irmtv": __version__, **{name: metadata.version(name) for name in PACKAGES}}
    with suppress(metadata.PackageNotFoundError):
        installed["lightgbm"] = metadata.version("lightgbm")  # an extra
    return installed
