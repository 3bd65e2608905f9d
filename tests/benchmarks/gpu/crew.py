"""Processes that work through a list of items, and tables that survive an interruption.

A worker process is forked from a server that has imported everything but never used the GPU, and
keeps its CUDA context from item to item. If an item exceeds its limit, fails or crashes its
process, only that process is lost: its rows are kept, and the next item gets a new process.
"""

from __future__ import annotations

import csv
import multiprocessing
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]
Task = Callable[..., Iterator[Row]]
_SPAWN = multiprocessing.get_context("forkserver")
_START = 60.0
"""Time limit for the start of a process, in seconds."""
_SHORTEST = 5.0
"""Remaining seconds required to begin another item."""


class Table:
    """CSV that writes each row to disk at once; the conditions precede its header."""

    def __init__(self, path: Path, conditions: str, columns: Sequence[str]) -> None:
        self._file = path.open("w", newline="", encoding="utf-8")
        self._file.write(f"# {conditions}\n")
        self._rows = csv.DictWriter(self._file, [*columns, "error"])
        self._rows.writeheader()
        self._file.flush()

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, row: Row) -> None:
        """Write one row."""
        self._rows.writerow(row)
        self._file.flush()


def read(path: Path) -> tuple[str, list[dict[str, str]]]:
    """Return (conditions, rows) of a `Table`."""
    with path.open(newline="", encoding="utf-8") as lines:
        conditions = next(lines)[2:].rstrip("\n")
        return conditions, list(csv.DictReader(lines))


def work(
    task: Task, items: Sequence[tuple[Any, ...]], *, processes: int, limit: float, seconds: float
) -> Iterator[tuple[tuple[Any, ...], Row]]:
    """Yield the rows of `task(*item)` for each item; `limit` seconds per item, `seconds` for all.

    The last row of an item that fails, or that gets no time, has only `error`.
    """
    _SPAWN.set_forkserver_preload([task.__module__, __name__])
    end = time.monotonic() + seconds
    waiting, done = iter(items), queue.SimpleQueue[Any]()
    one_at_a_time = threading.Lock()

    def hand_out() -> None:
        worker: _Worker | None = None
        while True:
            with one_at_a_time:
                item = next(waiting, None)
            if item is None:
                break
            left = end - time.monotonic()
            if left < min(_SHORTEST, seconds / 2):
                done.put((item, {"error": "no time was left"}))
                continue
            worker = worker or _Worker(task, min(_START, left))
            for row in worker.rows(item, min(limit, end - time.monotonic())):
                done.put((item, row))
            if worker.ended:
                worker = None
        if worker is not None:
            worker.end()
        done.put(None)

    threads = [threading.Thread(target=hand_out, daemon=True) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for _ in threads:
        yield from iter(done.get, None)


class _Worker:
    """Process with a pipe to it."""

    def __init__(self, task: Task, start: float) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(task, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.poll(start)  # its first word, an empty row
        self.ended = False

    def rows(self, item: tuple[Any, ...], limit: float) -> Iterator[Row]:
        """Yield the task's rows for the item, within `limit` seconds."""
        end = time.monotonic() + limit
        self._pipe.send(item)
        while self._pipe.poll(max(0.0, end - time.monotonic())):
            try:
                row: Row | None = self._pipe.recv()
            except EOFError:
                row = {"error": "the process died"}
            if row is None:
                return
            if row:
                yield row
            if "error" in row:
                self.end()
                return
        self.end()
        yield {"error": f"not done after {limit:.0f} s"}

    def end(self) -> None:
        """End the process."""
        self.ended = True
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(task: Task, pipe: Any) -> None:
    torch.set_num_threads(1)
    pipe.send({})
    while True:
        item = pipe.recv()
        try:
            for row in task(*item):
                pipe.send(row)
        except Exception as error:  # a kernel that does not compile, say: others go on
            pipe.send({"error": f"{type(error).__name__}: {error}".replace("\n", " ")[:2000]})
            return
        pipe.send(None)
