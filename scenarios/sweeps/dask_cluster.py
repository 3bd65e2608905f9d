"""A sweep on many machines: tasks go to a running dask.distributed cluster.

Start it as dask documents: a scheduler, and workers in environments with the same gcsim, best with
one thread each, since a point keeps Python busy. No shared disk is needed: profiles are sent with
points, and results come back to the sweep, which writes all files. Traces and the user's modules
must be on every machine; machines that train need equal numbers of cores (`sweep_tasks`).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import logging
import queue
import uuid
from asyncio import CancelledError
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gcsim.errors import InputError, Problem
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.sweeps.processes import Work
from gcsim.scenarios.sweeps.tasks import Failure, code_here, failure

PATIENCE = 10  # seconds within which a scheduler must answer
FIRST_WORKER = 60  # seconds within which it must have a worker; some are started on demand
AHEAD = 2  # tasks per thread of the cluster, running or queued


class ClusterWorkers:
    """Workers of a running cluster, by its scheduler's address or file. Raises `InputError` without
    workers, or if their results would differ: all must have the same profile key (`key`), and with
    `here` the same as this machine."""

    def __init__(self, address: str, key: Callable[[], str], *, here: bool = False) -> None:
        with ExitStack() as stack:
            self._client = _connected(address, stack)
            self._check(key, [key()] if here else [])
            threads: dict[str, int] = self._client.nthreads()
            self._open = stack.pop_all()
        self._capacity = AHEAD * sum(threads.values())
        self._futures: dict[int, Any] = {}
        self._done: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._name = f"gcsim-{uuid.uuid4().hex[:8]}"

    def _check(self, key: Callable[[], str], wanted: list[str]) -> None:
        here = code_here()
        try:
            there = self._client.run(code_here)
            keys = self._client.run(key)
        except Exception as error:  # any error of an import or a missing trace on a worker
            message = f"a worker of the cluster cannot start: {error}"
            hint = "gcsim, your own modules and traces must be installed there too"
            raise InputError(message, place="--dask", hint=hint) from error
        problems = []
        for worker, code in there.items():
            other = [f"{name} differs" for name in here if code.get(name) != here[name]]
            if other:
                message = f"on worker {worker} {' and '.join(other)} from here"
                hint = "install the same versions there"
                problems.append(Problem(place="--dask", message=message, hint=hint))
        if problems:
            raise InputError(problems)
        if len({*keys.values(), *wanted}) > 1:
            message = "the workers' cores, processors, GPUs or copies of your own modules differ"
            message += " from those here" if wanted else ""
            hint = "gradients and updates would differ, too: use identical machines"
            raise InputError(message, place="--dask", hint=hint)

    @property
    def capacity(self) -> int:
        """Tasks that keep all threads busy while results travel."""
        return self._capacity

    def start(self, number: int, task: Work) -> None:
        """Send a task to the scheduler."""
        name = f"{self._name}-{number}-{uuid.uuid4().hex[:8]}"
        future = self._client.submit(_performed, task, key=name, pure=False)
        self._futures[number] = future
        future.add_done_callback(lambda _: self._done.put(number))

    def finished(self, note: Callable[[str], None]) -> list[tuple[int, Any]]:
        """Wait for outcomes, without notes; `InputError` when the scheduler has stopped."""
        numbers = [self._done.get()]
        while not self._done.empty():
            numbers.append(self._done.get())
        return [(number, self._outcome(self._futures.pop(number))) for number in numbers]

    def _outcome(self, future: Any) -> Any:
        if future.status == "finished":
            # else it is lost with its worker, and no other worker can repeat it
            with contextlib.suppress(OSError, CancelledError, concurrent.futures.CancelledError):
                return future.result()
        if future.status == "error":
            error = future.exception()
            if type(error).__name__ != "KilledWorker":
                return failure(error)
            message = "its worker was lost repeatedly"
            hint = "if memory was short, start fewer workers per machine"
            return Failure(problems=(Problem(message=message, hint=hint),))
        message = "the cluster has dropped its tasks or cannot be reached any more"
        hint = "finished points are kept: repeat the command to continue"
        raise InputError(message, place="--dask", hint=hint)

    def close(self) -> None:
        """Cancel the running tasks."""
        # tasks of a stopped cluster cannot be cancelled
        with self._open, contextlib.suppress(OSError, RuntimeError):
            self._client.cancel(list(self._futures.values()), force=True)


def _performed(task: Work) -> Any:
    return task.perform(SilentProgress())


def _connected(address: str, stack: ExitStack) -> Any:
    """Return a client that `stack` closes."""
    try:
        distributed = importlib.import_module("distributed")
    except ModuleNotFoundError as error:
        hint = "pip install 'gcsim[cluster]'"
        raise InputError("needs dask.distributed", place="--dask", hint=hint) from error
    # the error that is raised here replaces its log of a lost connection
    for handler in logging.getLogger("distributed").handlers:
        stack.callback(handler.setLevel, handler.level)
        handler.setLevel(logging.CRITICAL)
    place = f"--dask {address}"
    where = {"scheduler_file": address} if Path(address).is_file() else {"address": address}
    try:
        if "address" in where:  # with a bad address, closing a client takes a minute
            distributed.comm.get_address_host_port(address)
        client = stack.enter_context(
            distributed.Client(**where, timeout=PATIENCE, set_as_default=False)
        )
    except ValueError as error:
        hint = "write host:port, or the path of a scheduler file"
        raise InputError(str(error), place=place, hint=hint) from error
    except OSError as error:  # a TimeoutError is one
        raise InputError(f"no dask scheduler answers there: {error}", place=place) from error
    try:
        client.wait_for_workers(1, timeout=FIRST_WORKER)
    except TimeoutError as error:
        raise InputError("the cluster has no workers", place=place) from error
    return client
