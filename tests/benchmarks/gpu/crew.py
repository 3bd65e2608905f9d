"""Processes that work through a list of items, and tables that survive being cut off.

A worker process is forked from a server that has imported everything and never touched the GPU,
and keeps its CUDA context from item to item. An item that outlasts its limit, fails or takes its
process down costs that process alone: rows that it has made are kept, and the next item gets a new
one.
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
"""Seconds in which a process must start."""
_SHORTEST = 5.0
"""Seconds that must be left for another item to begin."""


class Table:
    """A CSV whose rows are on disk as soon as they are made; above its head, the conditions."""

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
    """(conditions, rows) of a `Table`."""
    with path.open(newline="", encoding="utf-8") as lines:
        conditions = next(lines)[2:].rstrip("\n")
        return conditions, list(csv.DictReader(lines))


def work(
    task: Task, items: Sequence[tuple[Any, ...]], *, processes: int, limit: float, seconds: float
) -> Iterator[tuple[tuple[Any, ...], Row]]:
    """The rows of `task(*item)` for each item; `limit` seconds an item, `seconds` for all.

    An item that fails has a last row with `error` alone; so has each that found no time.
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
    """A process, and the pipe to it."""

    def __init__(self, task: Task, start: float) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(task, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.poll(start)  # its first word, an empty row
        self.ended = False

    def rows(self, item: tuple[Any, ...], limit: float) -> Iterator[Row]:
        """What the task makes of the item, within `limit` seconds."""
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
