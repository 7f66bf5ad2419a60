"""Pieces of work on a Ray cluster: one of this process's own, or one that is there already.

The third way beside the two of `workers`, with the same outcomes. A piece whose process or machine is lost is tried
again elsewhere; an error in a piece is its outcome, and is not.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from irmtv.core.messages import did_you_mean
from irmtv.lab.workers import WAKE_SECONDS, Labelled, Outcome, attempt, failure

ENGINES = ("local", "ray")
RETRIES = 3  # of a piece whose process or machine was lost
STORE_BYTES = 1 << 30  # of an own cluster's object store, which writes to the disk beyond
ADDRESS_SECONDS = 10.0  # for a cluster to answer; Ray itself waits for minutes

W = TypeVar("W", bound=Labelled)
Key = Hashable
Fetch = Callable[[Key], Any]


def ray() -> Any:
    """The module; an ImportError that says what to install where there is none."""
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            "engine 'ray' needs Ray, which is not installed. Install it with pip install 'irmtv[ray]'."
        ) from error
    return ray


def check_engine(engine: str, address: str | None) -> None:
    """Raise where there is no such engine, it is not installed, or it cannot have this address."""
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {list(ENGINES)}. Got {engine!r}.{did_you_mean(engine, ENGINES)}")
    if engine == "local" and address is not None:
        raise ValueError(f"address is for engine 'ray'. Got {address!r} with engine 'local'. Leave it out.")
    if address is not None and address != "auto" and not re.fullmatch(r"[^\s/:]+:\d{1,5}", address):
        raise ValueError(
            f"address must be 'auto' or HOST:PORT of a Ray cluster, such as 10.0.0.1:6379. Got {address!r}. Leave it "
            "out for a cluster of this command's own, on this machine."
        )
    if engine == "ray":
        ray()


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster that this process is connected to."""

    most: int | None  # pieces at a time; None: as many as the cluster has room for

    def count(self, resource: str) -> float:
        """Number of "CPU" or "GPU" that the cluster has now."""
        return float(ray().cluster_resources().get(resource, 0.0))

    def gpu_share(self, bytes_each: int) -> float:
        """The share of a GPU that a piece takes which needs so much of its memory, by one of the cluster's GPUs."""
        memory = ray().remote(num_cpus=0, num_gpus=0.01, max_retries=RETRIES)(_gpu_memory)
        return 1.0 / max(1, int(_result(memory.remote())) // bytes_each)


def _gpu_memory() -> int:
    return int(torch.cuda.get_device_properties(0).total_memory)


@contextmanager
def connected(address: str | None, jobs: int | None) -> Iterator[Cluster]:
    """Connected to a cluster: that of the address, that of this process if it has one, or one for the time of this.

    Its own has `jobs` slots (default: one for every core); of another one `jobs` are used at most.
    """
    if ray().is_initialized():
        if address is not None:
            raise ValueError(
                f"address must be left out where Ray is connected already: that cluster is used. Got {address!r}. "
                "Or call ray.shutdown() first."
            )
        yield Cluster(jobs)
        return
    with ExitStack() as stack:
        options: dict[str, Any] = {"address": address}
        if address is None:
            # of its own, so that "auto" goes on meaning other clusters; paths of sockets are short
            folder = tempfile.TemporaryDirectory(
                prefix="ray-", dir="/tmp" if os.name == "posix" else None, ignore_cleanup_errors=True
            )
            options = {
                "address": "local",
                "num_cpus": jobs or os.cpu_count() or 1,
                "object_store_memory": STORE_BYTES,
                "include_dashboard": False,
                "_temp_dir": stack.enter_context(folder),
                "_system_config": {"task_oom_retries": RETRIES},
            }
        else:
            _knock(address)
        stack.callback(ray().shutdown)
        with _signals_and_environment_kept():
            try:
                ray().init(**options, log_to_driver=False, logging_level="ERROR")
            except SystemExit:  # Ray's way with SIGTERM
                raise KeyboardInterrupt from None
            except (OSError, RuntimeError, ValueError) as error:  # nobody there, another version of Ray or Python
                raise ValueError(
                    f"no connection to a Ray cluster (address={address!r}): {str(error).strip()} Start one with ray "
                    "start --head, or leave the address out for a cluster of this command's own."
                ) from error
        yield Cluster(None if address is None else jobs)


def _knock(address: str) -> None:
    """Raise where nobody answers. "auto" is where Ray looks: the environment, or the last cluster of this machine."""
    where = address
    if address == "auto":
        last = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
        where = os.environ.get("RAY_ADDRESS") or (last.read_text() if last.exists() else "")
    host, _, port = where.strip().rpartition(":")
    try:
        socket.create_connection((host, int(port or 0)), ADDRESS_SECONDS).close()
    except (OSError, OverflowError, ValueError) as error:
        raise ValueError(
            f"address={address!r}: no Ray cluster answers at {where.strip() or 'this machine'} ({error}). Start one "
            "with ray start --head, which prints its address; or leave it out for a cluster of this command's own."
        ) from None


@contextmanager
def _signals_and_environment_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself, and tells its makers what is used unless the environment says otherwise."""
    name = "RAY_USAGE_STATS_ENABLED"
    before, os.environ[name] = os.environ.get(name), "0"
    here = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if here and handler is not None:
            signal.signal(signal.SIGTERM, handler)
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


class _Shared(Generic[W]):
    """Data in the cluster's object store: put with the first piece that needs them, dropped with the last."""

    def __init__(self, pieces: Sequence[W], keys_of: Callable[[W], Sequence[Key]], load: Fetch) -> None:
        self._keys_of, self._load = keys_of, load
        self._left = Counter(key for piece in pieces for key in keys_of(piece))
        self._there: dict[Key, Any] = {}

    def needed(self, piece: W) -> dict[Key, Any]:
        """References by their keys."""
        for key in self._keys_of(piece):
            if key not in self._there:
                self._there[key] = ray().put(self._load(key))
        return {key: self._there[key] for key in self._keys_of(piece)}

    def drop(self, piece: W) -> None:
        for key in self._keys_of(piece):
            self._left[key] -= 1
            if not self._left[key]:
                del self._there[key]


def on_ray(
    pieces: Sequence[W],
    work: Callable[[W, Fetch], Any],
    cluster: Cluster,
    stage: Callable[[str], None] | None,
    *,
    gpus: Callable[[W], float] = lambda piece: 0.0,
    keys_of: Callable[[W], Sequence[Key]] = lambda piece: (),
    load: Fetch = lambda key: None,
) -> Generator[tuple[W, Outcome]]:
    """As they are finished. Each piece has one core and `gpus` of a GPU; twice as many as there are cores wait at most.

    `work` is called elsewhere with the piece and a function that fetches the data of a key; `keys_of` names the keys
    of a piece, and `load` makes their data here, once for all pieces.
    """
    task = ray().remote(num_cpus=1, max_retries=RETRIES)(_run)
    everywhere = ray().put(work)
    shared = _Shared(pieces, keys_of, load)
    waiting = list(reversed(pieces))
    running: dict[Any, W] = {}
    try:
        while waiting or running:
            most = cluster.most or max(1, int(2 * cluster.count("CPU")))  # machines come and go
            while waiting and len(running) < most:
                piece = waiting.pop()
                running[task.options(num_gpus=gpus(piece)).remote(everywhere, piece, shared.needed(piece))] = piece
                if stage is not None:
                    stage(piece.label)
            finished, _ = ray().wait(list(running), num_returns=1, timeout=WAKE_SECONDS)
            for reference in finished:
                piece = running.pop(reference)
                shared.drop(piece)
                yield piece, _outcome(reference)
    finally:
        for reference in running:  # after Ctrl-C or an error, where the cluster stays connected
            with suppress(Exception):
                ray().cancel(reference, force=True)


def _run(work: Callable[[W, Fetch], Any], piece: W, references: Mapping[Key, Any]) -> Outcome | ValueError:
    """In a process of the cluster."""
    torch.set_num_threads(1)
    try:
        return attempt(lambda piece: work(piece, lambda key: ray().get(references[key])), piece)
    except ValueError as error:  # raised where it is heard; Ray would put a traceback into it
        return error


def _outcome(reference: Any) -> Outcome:
    """The outcome of a piece that is finished or lost."""
    try:
        result = _result(reference)
    except ray().exceptions.RayError as error:
        return failure(
            f"the process that trained was lost {RETRIES + 1} times ({type(error).__name__}); its machine may have "
            "too little memory: try fewer jobs"
        )
    if isinstance(result, ValueError):
        raise result
    outcome: Outcome = result
    return outcome


def _result(reference: Any) -> Any:
    """What a task returned; errors that are not those of a piece say that its process cannot work at all."""
    try:
        return ray().get(reference)
    except ray().exceptions.RayTaskError as error:
        raise ImportError(
            f"the processes of the Ray cluster cannot begin: {str(error.cause or error).partition(chr(10))[0]}. Every "
            "machine of it needs the same Python and irmtv: install them there."
        ) from error
