"""A sweep on this machine: worker processes that end with the sweep, however it ends.

Each worker is a new Python process with this one's search path (so that it finds the user's
modules, and scripts need no `if __name__ == "__main__"`), a connection for tasks and outcomes, and
a pipe on stdin that is never written to: when the sweep ends, killed or not, the pipe closes, and
the worker removes its temporary files and exits. If a worker dies (out of memory), one point fails
and the worker is replaced.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

from gcsim.errors import InputError, InternalError, Problem
from gcsim.scenarios.catalog.this_machine import free_memory
from gcsim.scenarios.progress import Task as Stage
from gcsim.scenarios.sweeps.tasks import Failure
from gcsim.traces.stage1.machine import usable

MEMORY_OF_A_WORKER = 512 << 20
"""Bytes of an interpreter and a point with hundreds of workers and ten compressors, rounded up."""

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""Limits numpy, whose busy-waiting threads took half of a point's time on small matrices; not
torch, whose number of threads is part of profiles' keys."""
_START = (
    "import gc, json, sys; sys.path[:], young = json.loads(sys.argv[1]); gc.set_threshold(young); "
    "from gcsim.scenarios.sweeps.processes import serve; serve(int(sys.argv[2]))"
)


Work = Any  # picklable, with a method `perform(progress)` that returns errors as `Failure`


class Workers(Protocol):
    """Workers that perform tasks."""

    @property
    def capacity(self) -> int:
        """Number of tasks to keep running."""

    def start(self, number: int, task: Work) -> None:
        """Start a task, which `finished` returns by `number`."""

    def finished(self, note: Callable[[str], None]) -> list[tuple[int, Any]]:
        """Wait for tasks and return the finished ones; `note` is called with what is running."""

    def close(self) -> None:
        """Stop the running tasks."""


def drive(
    workers: Workers,
    waiting: deque[tuple[int, Work]],
    done: Callable[[int, Any], None],
    note: Callable[[str], None] = lambda text: None,
) -> None:
    """Run all tasks, including those that `done` adds to `waiting`."""
    under_way = 0
    while waiting or under_way:
        while waiting and under_way < workers.capacity:
            workers.start(*waiting.popleft())
            under_way += 1
        for number, outcome in workers.finished(note):
            under_way -= 1
            done(number, outcome)


def check_jobs(jobs: int | None, dask: str | None) -> None:
    """Raise `InputError` for an impossible number of processes."""
    if jobs is not None and (jobs < 1 or dask is not None):
        message = "must be at least 1" if jobs < 1 else "has no effect with --dask"
        raise InputError(message, place="--jobs")


def default_jobs(memory: int = MEMORY_OF_A_WORKER) -> int:
    """Return the number of processes: one per core, or as many as fit with `memory` bytes each."""
    return max(1, min(len(usable()), free_memory() // memory))


class _Worker:
    def __init__(self, environment: dict[str, str]) -> None:
        here, there = socket.socketpair()
        self.task: int | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        path = [folder or str(Path.cwd()) for folder in sys.path]
        like_here = json.dumps([path, gc.get_threshold()[0]])
        with there:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
                [sys.executable, "-P", "-c", _START, like_here, str(there.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                pass_fds=[there.fileno()],
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C reaches only the sweep
            )
        self.connection = Connection(here.detach())

    def ask_to_leave(self) -> None:
        """Ask the process to exit."""
        self.connection.close()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def end(self, deadline: float) -> None:
        """Wait until the process has exited; kill it at the deadline."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()

    def failure_reason(self) -> Failure:
        """Return why the process died, by exit code and stderr."""
        code = self._process.wait()
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip()
        if code in (-signal.SIGKILL, -signal.SIGTERM):
            name = signal.Signals(-code).name
            hint = "if memory was short, repeat the command with fewer --jobs"
            return Failure(problems=(Problem(message=f"its process got {name}", hint=hint),))
        how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        why = said.rpartition("\n")[2]
        message = f"its process {how}" + (f": {why}" if why else "")
        return Failure(problems=(Problem(message=message),), traceback=said or message)


class LocalWorkers:
    """Processes of this machine, one core each if `side_by_side`."""

    def __init__(self, jobs: int, *, side_by_side: bool = False) -> None:
        self._jobs = jobs
        self._environment = _ONE_THREAD if side_by_side else {}
        self._workers: list[_Worker] = []

    @property
    def capacity(self) -> int:
        """One task per process."""
        return self._jobs

    def start(self, number: int, task: Work) -> None:
        """Give the task to an idle process."""
        worker = next((worker for worker in self._workers if worker.task is None), None)
        if worker is None:
            if len(self._workers) >= self._jobs:
                raise InternalError("more tasks than worker processes")
            worker = _Worker(self._environment)
            self._workers.append(worker)
        worker.task = number
        with contextlib.suppress(OSError):  # the process has died: `finished` reports it
            worker.connection.send(task)

    def finished(self, note: Callable[[str], None]) -> list[tuple[int, Any]]:
        """Wait for outcomes, including those of dead processes."""
        outcomes: list[tuple[int, Any]] = []
        while not outcomes:
            busy = {
                worker.connection: worker for worker in self._workers if worker.task is not None
            }
            for ready in wait(list(busy)):
                worker = busy[ready]  # type: ignore[index]  # only connections were given
                number = worker.task
                if number is None:
                    raise InternalError("an outcome of no task")
                try:
                    text, outcome = worker.connection.recv()
                except (EOFError, OSError):
                    text, outcome = "", worker.failure_reason()
                    self._workers.remove(worker)
                    worker.ask_to_leave()
                    worker.end(0)
                if outcome is None:
                    note(text)
                else:
                    worker.task = None
                    outcomes.append((number, outcome))
        return outcomes

    def close(self) -> None:
        """Ask all processes to exit; kill those that do not."""
        for worker in self._workers:
            worker.ask_to_leave()
        deadline = time.monotonic() + GRACE
        for worker in self._workers:
            worker.end(deadline)
        self._workers = []


GRACE = 10.0  # seconds for a worker to remove its temporary files
NOTES_EVERY = 0.2  # seconds between reports of a stage


def serve(descriptor: int) -> None:
    """Perform tasks from the connection until it ends."""
    atexit.register(gc.freeze)  # exits 0.7 s sooner, without garbage collection
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_leave_with_the_sweep, daemon=True).start()
    with Connection(descriptor) as connection, contextlib.suppress(EOFError, OSError):
        while True:
            task = connection.recv()
            outcome = task.perform(_PipeProgress(connection))
            connection.send(("", outcome))


def _leave(signum: int, frame: object) -> None:
    raise SystemExit(128 + signum)  # temporary folders are removed on exit


def _leave_with_the_sweep() -> None:
    with contextlib.suppress(OSError):
        os.read(0, 1)  # returns when the sweep has closed the pipe or ended
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)


class _PipeProgress:
    """Progress that is sent to the sweep as text."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._last = connection, 0.0

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Stage]:
        """Open a stage whose steps are reported at intervals."""
        yield _PipeStage(self._tell, description, total)

    def _tell(self, text: str) -> None:
        if time.monotonic() - self._last >= NOTES_EVERY:
            self._last = time.monotonic()
            self._connection.send((text, None))


class _PipeStage:
    def __init__(self, tell: Callable[[str], None], description: str, total: int) -> None:
        self._tell, self._description, self._total = tell, description, total
        self._done = Fraction(0)

    def advance(self, n: int | Fraction = 1, note: str = "") -> None:
        self._done += n
        self._tell(f"{self._description} {int(self._done)} of {self._total}")
