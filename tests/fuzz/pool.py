"""How are thousands of tries run? In a few processes, each of which is ended when a try hangs."""

import contextlib
import multiprocessing
import resource
import shutil
import signal
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.case import PATIENCE, tried

_MEMORY = 6 << 30
_FILE = 256 << 20
"""Bytes: a try neither fills the memory nor the disk."""
PREPARE = -1
"""The number of the job that prepares a kind."""


class Job(NamedTuple):
    """A try, by its coordinates."""

    kind: str
    seed: int
    number: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.kind}-{self.seed}-{self.number}"


class Outcome(NamedTuple):
    """What came of a job."""

    found: list[str]
    ends: Sequence[str] = ()
    """Command and exit code of each command that was run."""


@dataclass(slots=True)
class _Worker:
    """A process that does one job after the other."""

    build: Path
    process: multiprocessing.process.BaseProcess = field(init=False)
    connection: Connection = field(init=False)
    job: Job | None = None
    until: float = 0.0
    ready: bool = False

    def __post_init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.build), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, job: Job, patience: float) -> None:
        if not self.ready:  # what it takes to start is no try's time
            self.ready = self.connection.recv()
        self.job, self.until = job, time.monotonic() + patience
        self.connection.send(job)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def run(
    jobs: Iterable[Job], build: Path, *, processes: int, patience: float = PATIENCE
) -> Iterator[tuple[Job, Outcome]]:
    """Each job and what came of it, as they end."""
    waiting = iter(jobs)
    workers = [_Worker(build) for _ in range(processes)]
    try:
        for worker in workers:
            _next(worker, waiting, patience)
        while busy := [worker for worker in workers if worker.job is not None]:
            first = min(worker.until for worker in busy)
            ready = wait([w.connection for w in busy], max(0.0, first - time.monotonic()))
            for worker in busy:
                job = worker.job
                assert job is not None
                if worker.connection in ready:
                    try:
                        outcome = worker.connection.recv()
                    except EOFError:
                        worker.process.join()
                        code = worker.process.exitcode
                        outcome = Outcome([f"the process died: exit code {code}"])
                        workers.remove(worker)
                elif time.monotonic() > worker.until:
                    outcome = Outcome([f"hang: more than {patience:g} s"])
                    workers.remove(worker)
                else:
                    continue
                yield job, outcome
                if worker not in workers:
                    worker.end()
                    worker = _Worker(build)  # noqa: PLW2901
                    workers.append(worker)
                _next(worker, waiting, patience)
    finally:
        for worker in workers:
            worker.end()


def _next(worker: _Worker, waiting: Iterator[Job], patience: float) -> None:
    job = next(waiting, None)
    if job is None:
        worker.job = None
        return
    worker.begin(job, patience)


def do(job: Job, build: Path) -> Outcome:
    """One job in this process. What a try leaves is kept where something was found."""
    from tests.fuzz.registry import KINDS

    kind = KINDS[job.kind]
    material = build / f"material-{job.kind}"
    if job.number == PREPARE:
        shutil.rmtree(material, ignore_errors=True)
        material.mkdir(parents=True)
        kind.prepare(material)
        return Outcome([])
    folder = build / job.name
    shutil.rmtree(folder, ignore_errors=True)
    one = tried(kind, job.seed, job.number, folder, material)
    if not one.found:
        shutil.rmtree(folder)
    return Outcome(one.found, one.ends)


def _serve(connection: Connection, build: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    for what, limit in (
        (resource.RLIMIT_DATA, _MEMORY), (resource.RLIMIT_FSIZE, _FILE), (resource.RLIMIT_CORE, 0),
    ):  # fmt: skip
        resource.setrlimit(what, (limit, limit))
    import torch

    import tests.fuzz.registry  # noqa: F401 (so that the first try need not)

    torch.set_num_threads(1)
    connection.send(True)
    with contextlib.suppress(EOFError):
        while True:
            job = connection.recv()
            try:
                outcome = do(job, build)
            except Exception:
                outcome = Outcome([f"the fuzzer itself: {traceback.format_exc()}"])
            connection.send(outcome)
