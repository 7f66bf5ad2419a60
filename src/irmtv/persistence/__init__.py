"""Model files: write and read what an estimator has learned, without pickle.

Start with `model` (`write_model`, `read_model` and the layout of a file). It uses `archive` (the zip and its checksum),
`encoding` (labels and settings as JSON) and `parts` (fitted preprocessing). What preprocessing may be stands in `tree`
(how large), `trusted` (of which types) and `parameters` (with which settings, by the rules in `rules`; `state` checks
them).
"""

from __future__ import annotations

from irmtv.persistence.errors import ModelFileError, ModelFileNotFoundError, reading
from irmtv.persistence.model import FORMAT, ModelFile, file_errors, read_model, write_model

__all__ = [
    "FORMAT",
    "ModelFile",
    "ModelFileError",
    "ModelFileNotFoundError",
    "file_errors",
    "read_model",
    "reading",
    "write_model",
]
