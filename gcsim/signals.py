"""Signals as exceptions, or deferred, so that a stopped run still tidies up.

SIGINT is one already. The others that ask a process to end would end it on the spot, and leave
behind what it made outside of itself.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ASKING = (signal.SIGTERM, signal.SIGHUP)
_ALL = (signal.SIGINT, *_ASKING)


@contextmanager
def stoppable() -> Iterator[None]:
    """While it lasts, SIGTERM and SIGHUP (a closed terminal) raise `KeyboardInterrupt` as Ctrl-C
    does, so that contexts are left. Outside of the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _ASKING}
    try:
        for number in _ASKING:
            if before[number] is not signal.SIG_IGN:  # nohup
                signal.signal(number, leave)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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

    before = {number: signal.getsignal(number) for number in _ALL}
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
