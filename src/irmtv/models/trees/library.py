"""LightGBM, which is an extra: imported when it is first needed, with a word on how to get it."""

from __future__ import annotations

from typing import Any


def lightgbm() -> Any:
    """The module; an ImportError that says what to install where there is none."""
    try:
        import lightgbm
    except ImportError as error:
        raise ImportError(
            "boosting needs LightGBM, which is not installed. Install it with pip install 'irmtv[boosting]'."
        ) from error
    return lightgbm
