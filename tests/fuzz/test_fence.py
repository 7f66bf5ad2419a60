"""The fence of the fuzzers itself: it sees what it should, in a process that it may end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="limits and signals of Linux")]

SCRIPT = """
import os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from fuzz import fence
fence.SECONDS = 0.2
up = fence.Fence(Path({folder!r}))
up.begin()
try:
    {code}
except (PermissionError, MemoryError) as error:
    print(type(error).__name__)
up.end()
print(up.crossed)
"""


def behind(folder, code):
    script = SCRIPT.format(tests=str(HERE.parent), folder=str(folder), code=code)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/hostname')",
        "open({other!r}, 'w')",
        "os.mkdir({other!r})",
        "import subprocess; subprocess.Popen(['true'])",
        "os.system('true')",
        "import socket; socket.socket()",
    ],
)
def test_what_is_refused(tmp_path, code):
    (tmp_path / "in").mkdir()
    ended = behind(tmp_path / "in", code.format(other=str(tmp_path / "out")))
    assert ended.stdout.startswith("PermissionError\n[") and "[]" not in ended.stdout, ended
    assert not (tmp_path / "out").exists()


def test_what_is_allowed_and_the_limits(tmp_path):
    ended = behind(tmp_path, "Path({!r}).write_text('a'); import wave".format(str(tmp_path / "a")))
    assert ended.stdout == "[]\n" and (tmp_path / "a").exists()
    assert behind(tmp_path, "b'a' * 3 * 10**9").stdout == "MemoryError\n[]\n"
    ended = behind(tmp_path, "exec('while True: pass')")
    assert ended.returncode < 0 and "most recent call first" in ended.stderr  # where it was
