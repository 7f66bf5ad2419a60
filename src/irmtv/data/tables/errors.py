"""The one error of tables: a file that cannot be read, or columns that do not fit their role."""

from __future__ import annotations

__all__ = ["TableError", "TableNotFoundError"]


class TableError(ValueError):
    """A table cannot be used; the message says which file or column, what is wrong and what to do."""


class TableNotFoundError(TableError, FileNotFoundError):
    """There is no file at the path; also caught as FileNotFoundError."""

    def __str__(self) -> str:  # an OSError may show an error number instead of its text
        return str(self.args[0])
