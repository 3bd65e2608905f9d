"""Ranks of a process group, forked: torch is imported once for all."""

import multiprocessing
import sys
from collections.abc import Callable
from typing import Any, NoReturn


def ranks(work: Callable[..., object], count: int, *arguments: Any) -> NoReturn:
    """Run `work(rank, *arguments)` in `count` processes and exit; where one fails, all end, since
    the others would wait for it."""
    fork = multiprocessing.get_context("fork")
    running = [
        fork.Process(target=work, args=(rank, *arguments), daemon=True) for rank in range(count)
    ]
    for process in running:
        process.start()
    while any(process.is_alive() for process in running):
        if any(process.exitcode for process in running):
            break
        running[0].join(0.05)
    codes = [process.exitcode for process in running]
    sys.exit(0 if codes == [0] * count else f"exit codes {codes}")
