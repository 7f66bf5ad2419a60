"""Model files: write and read what an estimator has learned, without pickle.

Start with `model` (`write_model`, `read_model` and the layout of a file). It uses `archive` (the zip and its checksum),
`encoding` (labels and settings as JSON), `parts` (fitted preprocessing) and `trusted` (types that a file may contain).
"""

from __future__ import annotations

from irmtv.persistence.errors import ModelFileError, ModelFileNotFoundError
from irmtv.persistence.model import FORMAT, ModelFile, read_model, write_model

__all__ = [
    "FORMAT",
    "ModelFile",
    "ModelFileError",
    "ModelFileNotFoundError",
    "read_model",
    "write_model",
]
