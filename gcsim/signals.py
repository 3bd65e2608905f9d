"""Signals as exceptions, or deferred, so that a stopped run still tidies up.

Most signals that ask a process to end would end it on the spot, and leave behind what it made
outside of itself. An exception can be lost: C code that looks an attribute up drops whatever the
lookup raises. Loops therefore call `raise_if_asked` at each step.
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
    """Let SIGTERM and SIGHUP (a closed terminal) raise `KeyboardInterrupt` as Ctrl-C does, while
    it lasts, so that contexts are left. Outside of the main thread nothing changes."""
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
    """Raise `KeyboardInterrupt` again where the first one was lost."""
    if _asked.is_set():
        _asked.clear()
        raise KeyboardInterrupt


@contextmanager
def shielded() -> Iterator[None]:
    """Signals that arrive while it lasts take effect when it is over.

    To block them for this thread would not do: they would go to another (torch has some), and
    Python would run their handlers in this one all the same.
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
