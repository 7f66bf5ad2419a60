"""Model files: write and read what an estimator has learned, without pickle.

To read it: `model` (the front door and the layout), then what it is made of: `archive` (the zip and its checksum),
`encoding` (labels and settings as JSON), `parts` (fitted preprocessing) and `trusted` (what may be in it).
"""

from __future__ import annotations

from irmtv.persistence.errors import ModelFileError, ModelFileNotFoundError
from irmtv.persistence.model import FORMAT, ModelFile, load_model, read_model, write_model

__all__ = [
    "FORMAT",
    "ModelFile",
    "ModelFileError",
    "ModelFileNotFoundError",
    "load_model",
    "read_model",
    "write_model",
]
