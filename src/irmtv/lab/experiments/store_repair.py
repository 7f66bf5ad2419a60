"""A damaged store made anew from what is undamaged in it; the damaged file stays beside it."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from irmtv.core.numbers import several
from irmtv.lab.experiments.store import Store
from irmtv.lab.experiments.store_files import DATABASE, StoreError, check_source, explaining, take_lock

NEW = "repairing"  # a folder beside the database while it is made anew


def repair_store(folder: str | Path) -> str | None:
    """Take damaged groups out of the store in a folder; they count as not done. What was done, in words.

    None where nothing is damaged. Specs and undamaged groups are copied into a new database, which then takes the place
    of the old one; the old one is renamed. Stopped half-way, it changes nothing.
    """
    folder = Path(folder)
    path, new = folder / DATABASE, folder / NEW
    with explaining(path):
        check_source(folder)
        lock = take_lock(folder, wait=False, on_wait=None)
        try:
            with Store.read(folder) as old:
                with suppress(StoreError):
                    old.check()
                    return None
                shutil.rmtree(new, ignore_errors=True)
                runs = _copy(old, new)
            aside = next(p for k in range(1, 1000) if not (p := folder / f"{DATABASE}.damaged-{k}").exists())
            for end in ("-wal", "-shm", ""):  # a log without its database would be taken for that of the next one
                if (part := path.with_name(path.name + end)).exists():
                    part.replace(aside.with_name(aside.name + end))
            (new / DATABASE).replace(path)
            shutil.rmtree(new, ignore_errors=True)
        finally:
            lock.release()
    return f"{path} was damaged: {several(runs, 'run')} kept, the others will be trained again. It is now {aside.name}."


def _copy(old: Store, new: Path) -> int:
    """What is undamaged, into a new store; how many runs."""
    runs = 0
    with Store.create_or_open(new) as store:
        for hash, text in old.undamaged_specs():
            store.add_spec(hash, text)
        for group in old.undamaged_groups():
            store.add_group(group)
            runs += len(group.runs)
    return runs
