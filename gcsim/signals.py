"""Signals turned into exceptions or deferred, so that a stopped run cleans up.

Most signals that ask a process to end would end it at once and leave its files behind. An exception
can get lost: C code that looks up an attribute drops whatever the lookup raises. Loops therefore
call `raise_if_asked` at each step.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_asked = threading.Event()


@contextmanager
def stoppable() -> Iterator[None]:
    """Make SIGTERM and SIGHUP (a closed terminal) raise `KeyboardInterrupt` as Ctrl-C does, so that
    contexts are left. Outside the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        _asked.set()
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _ASKING}
    try:
        for number in _ASKING:
            if before[number] is not signal.SIG_IGN:  # nohup
                signal.signal(number, leave)
        yield
    finally:
        _asked.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_if_asked() -> None:
    """Raise `KeyboardInterrupt` again if the first one got lost."""
    if _asked.is_set():
        _asked.clear()
        raise KeyboardInterrupt


@contextmanager
def shielded() -> Iterator[None]:
    """Delay signals until the end of the context.

    Blocking them in this thread would not suffice: another thread (torch has some) would get them,
    and Python would still run the handlers in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    before = {number: signal.getsignal(number) for number in _ASKING}
    before = {number: handler for number, handler in before.items() if handler != signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, note)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])
