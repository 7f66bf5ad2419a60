"""A fence around a process that reads hostile files: what it opens, writes and starts is seen, and refused outside.

Python tells an audit hook of every file that is opened, folder that is made and process that is started; compiled code
(Arrow) opens files unseen, but only the table it was given. The processor time and the memory of each input have limits
that end the process: a signal in the first case, MemoryError or death in the second.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import sys
import sysconfig
from pathlib import Path
from typing import Any

SECONDS = 5  # of processor time for one input
BYTES = 10**9  # of memory at most, all in all
# what Python and its packages read as they work: code, time zones, how many processors there are
READABLE = (
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    *(sys.prefix, sys.base_prefix, "/usr/share/zoneinfo", "/usr/lib", "/lib", "/sys/", "/proc/self", "/proc/cpuinfo"),
    *("/proc/meminfo", "/dev/null", "/dev/urandom", str(Path(__file__).resolve().parents[2])),
)
WRITES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
NEVER = ("subprocess", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn", "pty", "socket", "webbrowser")
NO_CONNECTION = ("socket.gethostname",)


class Fence:
    """Watches from the moment it is made. `crossed`: what was tried that is not allowed."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder.resolve())
        self._readable = (self._folder, *(str(Path(place).resolve()) for place in READABLE))
        self._up = True
        self.crossed: list[str] = []
        faulthandler.register(signal.SIGPROF, chain=True)  # where it was; then the signal ends the process
        sys.addaudithook(self._saw)
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + BYTES, most))

    def _saw(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._up:
            return
        if event == "open":
            path, _, flags = arguments
            writes = bool(int(flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
            self._check(event, path, (self._folder,) if writes else self._readable)
        elif event in WRITES:
            for path in arguments[: 2 if event in ("os.rename", "os.link", "os.symlink") else 1]:
                self._check(event, path, (self._folder,))
        elif event.startswith(NEVER) and event not in NO_CONNECTION:
            self._refuse(f"{event} {arguments!r:.300}")

    def _check(self, event: str, path: Any, allowed: tuple[str, ...]) -> None:
        if isinstance(path, int):  # a file that is open already
            return
        text = os.path.realpath(os.fsdecode(path))
        if not text.startswith(allowed) and text != os.devnull:
            self._refuse(f"{event} {text:.300}")

    def _refuse(self, what: str) -> None:
        self.crossed.append(what)
        raise PermissionError(f"the fence: {what}")

    def begin(self) -> None:
        """One input: its time runs from here."""
        self.crossed.clear()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)

    def end(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)


def memory() -> int:
    """The most bytes that this process has had in use."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def seconds() -> float:
    """Of processor time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
