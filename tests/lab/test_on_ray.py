"""Work on a Ray cluster gives what work in this process gives, whoever is killed meanwhile."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from house_files import TINY, tiny_houses, write
from irmtv.datasets import house_prices
from irmtv.lab import on_ray as module
from irmtv.lab.experiments import Store, load_spec, parse_spec, run_experiment
from irmtv.lab.experiments import run as run_module
from irmtv.lab.on_ray import Cluster, check_engine, connected, on_ray
from lab.experiments.comparison import store_differences
from lab.experiments.small import ERM, MINIMAX, TV, small, small_text

pytestmark = pytest.mark.time_limit(600)


def needs_ray(test: Callable[..., None]) -> Callable[..., None]:
    installed = pytest.mark.skipif(find_spec("ray") is None, reason="extra `ray` is not installed")
    return pytest.mark.slow(installed(test))


# --- what is refused: without Ray ----------------------------------------------------------------------------------


def test_without_ray_it_is_said_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'irmtv\[ray\]'"):
        run_experiment(small(ERM), tmp_path / "x", engine="ray")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("engine", "address", "match"),
    [
        ("rya", None, r"engine must be one of \['local', 'ray'\]. Got 'rya'. Did you mean 'ray'"),
        ("local", "auto", "address is for engine 'ray'"),
        ("ray", "ray://head:10001", r"address must be 'auto' or HOST:PORT .* Got 'ray://head:10001'"),
        ("ray", "head", "address must be 'auto' or HOST:PORT"),
    ],
)
def test_engines_and_addresses_that_are_none(engine, address, match):
    with pytest.raises(ValueError, match=match):
        check_engine(engine, address)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "auto"])
@pytest.mark.parametrize("there_was_one", [True, False])
def test_nobody_at_an_address_is_said_at_once(address, there_was_one, monkeypatch, tmp_path):
    """Ray waits for minutes; "auto" is the last cluster of this machine, which may have been killed."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if there_was_one:
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    where = "this machine" if address == "auto" and not there_was_one else "127.0.0.1:1"
    with pytest.raises(ValueError, match=rf"^address='{address}': no Ray cluster answers at {where} "):
        connected(address, None).__enter__()


@pytest.mark.parametrize(
    ("asked", "gpus", "expected"),
    [
        ("cpu", 2, "cpu"),
        ("auto", 2, "cuda"),
        ("auto", 0, "cpu"),
        ("cuda", 1, "cuda"),
        ("cuda", 0, None),
        ("cuda:1", 2, None),
    ],
)
def test_the_cluster_says_which_device_there_is(asked, gpus, expected):
    cluster = SimpleNamespace(count=lambda resource: {"GPU": gpus}[resource])
    if expected is not None:
        assert str(run_module._device_there(asked, cluster)) == expected
        return
    with pytest.raises(ValueError, match=f"'cuda' on a Ray cluster. Got '{asked}', and the cluster has {gpus} GPUs"):
        run_module._device_there(asked, cluster)


def test_a_machine_with_another_irmtv_is_refused():
    with pytest.raises(ValueError, match=r"and 0\.0\.1 where the command runs.* Install the same version"):
        run_module._train_in_cluster(small(ERM), "cpu", "0.0.1", False, None, None)


# --- pieces of work ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    number: int
    marks: str = ""  # a folder

    @property
    def label(self) -> str:
        return f"piece {self.number}"


def square(piece, fetch):
    if piece.number == 3:
        raise RuntimeError("three is too many")
    if piece.number == 13:
        raise ValueError("thirteen cannot be")
    if piece.number in (98, 99):
        tries = len(list(Path(piece.marks).iterdir()))
        Path(piece.marks, f"{piece.number}-{tries}").touch()
        if piece.number == 99 or tries == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    if piece.number >= 1000:
        Path(piece.marks, str(os.getpid())).touch()
        time.sleep(120)
    return piece.number**2 + fetch("a") + fetch(piece.number % 2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "STORE_BYTES", 200 << 20)
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # for this file's functions
        patch.delenv("IRMTV_DATA", raising=False)  # so that its processes have no files
        with connected(None, 2) as cluster:
            yield cluster


def outcomes(pieces, cluster, loaded=None, stage=None):
    def load(key):
        if loaded is not None:
            loaded.append(key)
        return 1000 if key == "a" else 10 * key

    return on_ray(pieces, square, cluster, stage, keys_of=lambda piece: ("a", piece.number % 2), load=load)


@needs_ray
def test_every_piece_has_an_outcome_and_data_are_loaded_once(cluster):
    pieces, told, loaded = [Piece(i) for i in range(9)], [], []
    found = {piece.number: outcome for piece, outcome in outcomes(pieces, cluster, loaded, told.append)}
    assert sorted(found) == list(range(9)) and told == [p.label for p in pieces]
    assert all(found[i].result == i**2 + 1000 + 10 * (i % 2) for i in range(9) if i != 3)
    assert found[3].error == "RuntimeError: three is too many" and "in square" in found[3].traceback
    assert sorted(loaded, key=str) == [0, 1, "a"]
    assert cluster.count("CPU") == 2


@needs_ray
def test_what_cannot_be_ends_it(cluster):
    with pytest.raises(ValueError, match=r"^thirteen cannot be$"):
        list(outcomes([Piece(i) for i in (1, 13, 2, 4)], cluster))


@needs_ray
def test_a_piece_whose_process_is_killed_is_tried_again_but_not_for_ever(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "RETRIES", 1)
    once, always = tmp_path / "once", tmp_path / "always"
    once.mkdir()
    always.mkdir()
    pieces = [Piece(98, str(once)), Piece(99, str(always)), Piece(1), Piece(2)]
    found = {piece.number: outcome for piece, outcome in outcomes(pieces, cluster)}
    assert found[98].result == 98**2 + 1000 and len(list(once.iterdir())) == 2
    assert "was lost 2 times" in found[99].error and len(list(always.iterdir())) == 2
    assert found[1].error is None and found[2].error is None


@needs_ray
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
def test_who_stops_listening_stops_the_processes(cluster, tmp_path):
    pieces = [Piece(1), *(Piece(1000 + i, str(tmp_path)) for i in range(9))]
    listening = outcomes(pieces, cluster)
    next(listening)
    assert until(lambda: list(tmp_path.iterdir()))
    listening.close()
    assert until(lambda: not any(alive(int(path.name)) for path in tmp_path.iterdir()))


@needs_ray
def test_one_cluster_at_a_time(cluster):
    with pytest.raises(ValueError, match="address must be left out where Ray is connected"), connected("auto", None):
        pass


# --- experiments ---------------------------------------------------------------------------------------------------


def same(one: Path, two: Path) -> bool:
    with Store.read(one) as a, Store.read(two) as b:
        assert store_differences(a, b) == []
        assert len(a) == len(a.finished()) == len(b) and a.failures() == []
    return True


@needs_ray
def test_an_experiment_is_the_same_and_only_this_process_needs_files(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(house_prices, "ROWS", TINY)
    write(tmp_path / "data", tiny_houses())
    monkeypatch.setenv("IRMTV_DATA", str(tmp_path / "data"))
    spec = parse_spec(re.sub(r"\narguments = .*", "", small_text(ERM, TV, data="house-prices", repetitions=2)))
    there = run_experiment(spec, tmp_path / "ray", engine="ray")
    assert there.failed == () and run_experiment(spec, tmp_path / "local").trained == there.trained
    assert same(tmp_path / "ray", tmp_path / "local")


GROUPS = 60  # ten settings, three methods, on all rows and on folds


@needs_ray
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
def test_a_sweep_whose_worker_is_killed_and_then_its_driver_has_what_an_undisturbed_one_has(tmp_path):
    """No run is lost and none is there twice; nothing that the driver started goes on without it."""
    settings = {f"setting {i}": {"p_v": 0.6 + 0.03 * i} for i in range(10)}
    path, out = tmp_path / "sweep.toml", tmp_path / "ray"
    path.write_text(small_text(ERM, TV, MINIMAX, rules=["invariance"], settings=settings))
    command = [sys.executable, "-m", "irmtv", "run", str(path), "--out", str(out), "--engine", "ray", "-j", "2"]
    first = subprocess.Popen(command)
    try:
        assert until(lambda: groups(out) >= GROUPS // 6)
        assert until(lambda: bool(training(first.pid)))
        os.kill(training(first.pid)[-1], signal.SIGKILL)
        reached = groups(out)
        assert until(lambda: groups(out) >= reached + GROUPS // 6)
        started = below(first.pid)
        left = re.search(r"/tmp/ray-\w+", " ".join(_read(pid, "cmdline") for pid in started))
    finally:
        first.kill()
        assert first.wait() == -signal.SIGKILL
    assert 0 < groups(out) < GROUPS
    assert until(lambda: not any(map(alive, started)))
    assert left is not None
    shutil.rmtree(left.group())
    assert subprocess.run(command, check=False).returncode == 0
    run_experiment(load_spec(path).with_(), tmp_path / "local")
    assert same(out, tmp_path / "local") and groups(out) == GROUPS


def groups(folder: Path) -> int:
    if not (folder / "experiment.sqlite").exists():
        return 0
    with Store.read(folder) as store:
        return int(next(iter(store._select("SELECT COUNT(*) FROM groups")))[0])


def training(driver: int) -> list[int]:
    """Processes of Ray that are at work."""
    return [pid for pid in below(driver) if "ray::_run" in _read(pid, "cmdline")]


def below(pid: int) -> list[int]:
    """All processes that descend from this one."""
    parents = {
        int(path.name): int(_read(int(path.name), "stat").rpartition(")")[2].split()[1] or 0)
        for path in Path("/proc").iterdir()
        if path.name.isdigit() and _read(int(path.name), "stat")
    }
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def alive(pid: int) -> bool:
    return _read(pid, "stat").rpartition(")")[2].split()[:1] not in ([], ["Z"])


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def until(true: Callable[[], object]) -> bool:
    """Whether it comes true within the time of a busy machine."""
    end = time.monotonic() + 180
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.2)
    return False
