"""Tracking of files that a user's code opens while gcsim imports or calls it.

An audit hook sees each file that Python opens and each folder that it lists. An event counts if the
user's code caused it, directly or through a library. An import inside a library does not count.
Files opened by compiled code (safetensors, HDF5) are not seen.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any


@dataclass(slots=True)
class Notes:
    """Files that a module's code has opened in this process, as absolute paths."""

    files: set[str] = field(default_factory=set)  # opened for reading; some may not exist
    written: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)  # folders whose names were listed
    modules: set[str] = field(default_factory=set)
    """Files of modules imported meanwhile that do not belong to a library."""
    unseen: bool = False
    """Whether it started a program or used a network, whose answers are not tracked."""


_notes: dict[str, Notes] = {}
_active: list[str] = []
_LISTINGS = ("os.listdir", "os.scandir")
_ELSEWHERE = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect")
_NOT_FILES = ("/proc/", "/sys/", "/dev/")
_CREATES = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


@contextmanager
def noting(module: str) -> Iterator[Notes]:
    """Track files opened by the code of `module`, or of modules that it uses; yield everything
    tracked for it in this process."""
    _hear_from_now_on()
    notes = _notes.setdefault(module, Notes())
    before = set(sys.modules)
    _active.append(module)
    try:
        yield notes
    finally:
        _active.remove(module)
        for name in sys.modules.keys() - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and not name.startswith("gcsim.") and not is_library(file):
                notes.modules.add(file)


@cache
def is_library(path: str) -> bool:
    """Whether a file belongs to Python or to an installed package."""
    return path.startswith(("<", *_libraries()))


@cache
def _libraries() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = [*map(sysconfig.get_path, names), *site.getsitepackages(), site.getusersitepackages()]
    return tuple({f"{Path(folder)}{os.sep}" for folder in found})


@cache
def _hear_from_now_on() -> None:
    sys.addaudithook(_hear)  # for as long as the process lives


def _hear(event: str, given: tuple[Any, ...]) -> None:
    if not _active or not (event == "open" or event in _LISTINGS or event in _ELSEWHERE):
        return
    module = _active[-1]
    if not _is_asked_by_user(sys._getframe(1), module.partition(".")[0]):
        return
    notes = _notes[module]
    if event in _ELSEWHERE:
        notes.unseen = True
        return
    path = "." if given[0] is None else given[0]
    if not isinstance(path, str | bytes):
        return  # an open file
    name = os.path.abspath(os.fsdecode(path))
    if event in _LISTINGS:
        notes.folders.add(name)
    elif isinstance(given[2], int) and given[2] & _CREATES:
        notes.written.add(name)
    elif not name.startswith(_NOT_FILES):
        notes.files.add(name)


def _is_asked_by_user(frame: FrameType | None, top: str) -> bool:
    """Whether the innermost frame outside libraries is the user's; `top` is the user's package,
    which may be installed."""
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        file = frame.f_code.co_filename
        if package == "gcsim" or file.startswith("<frozen importlib"):
            return False
        if package == top or not is_library(file):
            return True
        frame = frame.f_back
    return False
