"""The one error of model files, and how its messages begin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["ModelFileError", "ModelFileNotFoundError", "reading"]


class ModelFileError(ValueError):
    """A model file cannot be written or read; the message says which file, what is wrong and what to do."""


class ModelFileNotFoundError(ModelFileError, FileNotFoundError):
    """There is no file at the path; also caught as FileNotFoundError."""

    def __str__(self) -> str:  # an OSError may show an error number instead of its text
        return str(self.args[0])


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Anything that goes wrong inside is a ModelFileError that names the place; a package that is missing is not.

    Parsers of dates, types and arrays fail on hostile content in ways that nobody can list: SyntaxError, TokenError,
    NotImplementedError were seen.
    """
    try:
        yield
    except (ModelFileError, ImportError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ModelFileError(f"{where} is not as irmtv writes it ({type(error).__name__}: {reason}).") from error
