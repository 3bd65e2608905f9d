"""The inside of a worker process: tasks come over a connection, outcomes and progress go back.

It ends when the sweep does: on an end of the connection, or of stdin while a task is under way.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from multiprocessing.connection import Connection

from gcsim.scenarios.progress import Task as Stage

GRACE = 10.0
"""Seconds that a worker has to remove its temporary files."""
NOTES_EVERY = 0.2
"""Seconds between two reports of a stage."""


def serve(descriptor: int) -> None:
    """Do tasks from the connection until it ends."""
    atexit.register(gc.freeze)  # leaves 0.7 s sooner: nothing is collected on the way out
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_leave_with_the_sweep, daemon=True).start()
    with Connection(descriptor) as connection, contextlib.suppress(EOFError, OSError):
        while True:
            task = connection.recv()
            outcome = task.perform(_Telling(connection))
            connection.send(("", outcome))


def _leave(signum: int, frame: object) -> None:
    raise SystemExit(128 + signum)  # temporary folders are removed on the way out


def _leave_with_the_sweep() -> None:
    with contextlib.suppress(OSError):
        os.read(0, 1)  # nothing ever comes: it returns when the sweep has let go, or is gone
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)


class _Telling:
    """Progress that is sent to the sweep as text."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._last = connection, 0.0

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Stage]:
        """A stage whose steps are told now and then."""
        yield _ToldStage(self._tell, description, total)

    def _tell(self, text: str) -> None:
        if time.monotonic() - self._last >= NOTES_EVERY:
            self._last = time.monotonic()
            self._connection.send((text, None))


class _ToldStage:
    def __init__(self, tell: Callable[[str], None], description: str, total: int) -> None:
        self._tell, self._description, self._total = tell, description, total
        self._done = Fraction(0)

    def advance(self, n: int | Fraction = 1, note: str = "") -> None:
        self._done += n
        self._tell(f"{self._description} {int(self._done)} of {self._total}")
