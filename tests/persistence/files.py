"""Files for the tests: a good one, and how to make wrong ones whose checksum is right."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile

import numpy as np

from irmtv.persistence import write_model
from irmtv.persistence.archive import seal

MIMETYPE = b"application/vnd.irmtv.model"


def small(path):
    return write_model(path, "demo", {"w": np.arange(2.0), "classes": np.array(["no", "yes"])}, {"a": (1, None)})


def entries(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def reseal(path, changed):
    """The file with other entries (None: without), with its right checksum: as somebody who means harm would."""
    content = {**entries(path), **changed}
    del content["mimetype"]
    path.write_bytes(seal({name: data for name, data in content.items() if data is not None}))
    return path


def reheader(path, **changed):
    header = {**json.loads(entries(path)["irmtv.json"]), **changed}
    return reseal(path, {"irmtv.json": json.dumps({k: v for k, v in header.items() if v is not ...}).encode()})


def by_hand(path, listed, compression=zipfile.ZIP_STORED):
    """A zip of any (name, data), duplicates too, with mimetype and a right checksum."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr(zipfile.ZipInfo("mimetype"), MIMETYPE)
        for name, data in listed:
            archive.writestr(name, data)
        archive.comment = b"irmtv sha256 " + b"0" * 64
    return resum(path, buffer.getvalue())


def resum(path, data):
    body = data[:-64]
    path.write_bytes(body + hashlib.sha256(body).hexdigest().encode())
    return path
