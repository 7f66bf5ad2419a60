"""How much memory may be used: what the user says, else half of what there is."""

from __future__ import annotations

import ctypes
import gc
import os
import re
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from irmtv.data.tables.errors import TableError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("KMGT", start=1)}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]i?)?B?\s*", re.IGNORECASE)
_UNKNOWN = 4 * 10**9  # where the system does not say


def memory_limit(given: str | int | None) -> int:
    """Bytes, of "2GB", "500 MB", "1.5GiB" or a number of bytes; None is half of what is available.

    >>> memory_limit("2GB"), memory_limit("1.5 GiB"), memory_limit(1000)
    (2000000000, 1610612736, 1000)
    """
    if given is None:
        return available_memory() // 2
    found = _SIZE.fullmatch(str(given)) if not isinstance(given, bool) else None
    bytes_ = 0
    if found is not None:
        number, unit = found.groups()
        unit = (unit or "").upper().replace("I", "i")
        bytes_ = int(float(number) * _UNITS[unit])
    if bytes_ <= 0:
        raise TableError(f"memory must be a size such as 2GB, 500MB or 1.5GiB. Got {given!r}.")
    return bytes_


def available_memory() -> int:
    """Bytes that are free or can be made free, within the share of a container."""
    return min(_of_system(Path("/proc/meminfo")), _of_container(Path("/sys/fs/cgroup")))


def give_back_memory() -> None:
    """Hand what is not used any more back to the system: objects in cycles, and what the allocators keep of them."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError, TypeError):  # not of the GNU C library
        ctypes.CDLL(None).malloc_trim(0)


def _of_system(meminfo: Path) -> int:
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (OSError, ValueError, AttributeError):  # other systems
        return _UNKNOWN


def _of_container(folder: Path) -> int:
    """What a container may still take; as good as no limit where nothing says so."""
    try:
        most, taken = (folder.joinpath(name).read_text().strip() for name in ("memory.max", "memory.current"))
        if most == "max":
            return 1 << 62
        about = dict(line.split() for line in folder.joinpath("memory.stat").read_text().splitlines())
        cached = int(about.get("inactive_file", 0))  # files that were read, which make room
        return max(0, int(most) - int(taken) + cached)
    except (OSError, ValueError):
        return 1 << 62
