"""All statements, run once: they take a minute."""

from __future__ import annotations

import os
import pickle
import time

import pytest

from irmtv.lab.theory import run_statements


@pytest.fixture(scope="session")
def report(tmp_path_factory, request):
    """What every statement gives with its defaults. Processes of pytest-xdist share it: the first computes it."""
    if not hasattr(request.config, "workerinput"):
        return run_statements(jobs=2)
    file = tmp_path_factory.getbasetemp().parent / "statements.pickle"
    begun = file.with_suffix(".begun")
    while not file.exists():
        try:
            begun.touch(exist_ok=False)
        except FileExistsError:
            time.sleep(0.2)
            continue
        try:
            made = file.with_suffix(f".{os.getpid()}")
            made.write_bytes(pickle.dumps(run_statements(jobs=2)))
            made.rename(file)  # whole, or not there
        except BaseException:
            begun.unlink()  # the other process tries it
            raise
    return pickle.loads(file.read_bytes())
