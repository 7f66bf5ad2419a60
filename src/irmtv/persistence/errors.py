"""The one error of model files, and how its messages begin."""

from __future__ import annotations

__all__ = ["ModelFileError", "ModelFileNotFoundError"]


class ModelFileError(ValueError):
    """A model file cannot be written or read; the message says which file, what is wrong and what to do."""


class ModelFileNotFoundError(ModelFileError, FileNotFoundError):
    """There is no file at the path; also caught as FileNotFoundError."""

    def __str__(self) -> str:  # an OSError may show an error number instead of its text
        return str(self.args[0])
