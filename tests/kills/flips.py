"""A store with one flipped bit is read as it was, or its damage is named."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

from irmtv.lab.experiments import Store, StoreError, repair_store
from lab.experiments.comparison import content

DATABASE = "experiment.sqlite"


def flip(flips: int, seed: int, whole: Path, folder: Path) -> Counter[str]:
    """Flip so many bits of a store, one at a time. Every tenth that is named is repaired."""
    random_, counts = random.Random(seed), Counter[str]()
    one = folder / "flipped"
    before, bits = content(whole), bytearray((whole / DATABASE).read_bytes())
    with Store.read(whole) as store:
        runs = {run.key for run in store.runs()}
    for _ in range(flips):
        one.mkdir()
        place, bit = random_.randrange(len(bits)), 1 << random_.randrange(8)
        bits[place] ^= bit
        (one / DATABASE).write_bytes(bits)
        bits[place] ^= bit
        try:
            now = content(one)
        except StoreError as error:
            counts["named"] += 1
            _one_line(error, one)
            if "is damaged" in str(error) and counts["named"] % 10 == 0:
                _repair(one, runs)
                counts["  repaired"] += 1
        else:
            assert repr(now) == repr(before), f"byte {place}, bit {bit} changed what is read, without an error"
            counts["without effect"] += 1
        shutil.rmtree(one)
    return counts


def _repair(folder: Path, runs: set[str]) -> None:
    """What is kept is undamaged and was there before."""
    try:
        repair_store(folder)
    except StoreError as error:  # nothing of it can be read
        _one_line(error, folder)
        return
    with Store.read(folder) as store:
        store.check()
        assert store.finished() <= runs


def _one_line(error: StoreError, folder: Path) -> None:
    assert str(folder) in str(error) and "\n" not in str(error), error
