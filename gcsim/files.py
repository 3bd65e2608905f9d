"""Folders of gcsim, and writing of files that no reader ever sees half-written.

A file is written under a temporary name in the destination's folder and renamed when complete, so
an interrupt or a full disk leaves the earlier file intact. The process that makes a temporary file
or folder locks it: if the lock is free, that process was killed, and the next process removes what
it left.

CSV text is safe to open in a spreadsheet: no cell is read as a formula.
"""

from __future__ import annotations

import csv
import errno
import fcntl
import grp
import hashlib
import io
import json
import os
import pwd
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

import platformdirs

from gcsim.errors import InputError

_MINE = ".gcsim-"  # in names of temporary files and folders, which are next to their destinations

_MIXED = f"{_MINE}mixed"  # exists in a folder of results while its files are replaced


def cache_folder() -> Path:
    """Return the user's cache folder for gcsim, or `GCSIM_CACHE_DIR`; it may not exist."""
    chosen = os.environ.get("GCSIM_CACHE_DIR")
    found = Path(chosen or platformdirs.user_cache_dir("gcsim", False))
    with suppress(RuntimeError):
        found = found.expanduser()
    return Path("/nonexistent") / found if found.parts[:1] == ("~",) else found  # no home is known


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`, which becomes `path` on success.

    Raises `InputError` with the destination if the disk is full or not writable, or if `path` is
    not a file name.
    """
    if not path.name:
        raise InputError("is a folder", place=str(path), hint="name a file in it")
    held: tuple[Path, int] | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = _claimed(lambda: _new_file(path))
        temporary = held[0]
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(
            f"cannot write: {error.strerror or error}",
            place=str(path),
            hint="free some space; earlier files are unchanged"
            if error.errno == errno.ENOSPC
            else "choose another folder; earlier files are unchanged",
        ) from error
    finally:
        if held is not None:
            if _is_at(held[1], held[0]):  # else the name is free, or another process took it
                held[0].unlink()
            os.close(held[1])


@contextmanager
def replacing_together(folder: Path) -> Iterator[Callable[[str], Path]]:
    """Yield a function from file names to temporary paths, all of which become files of `folder` on
    success.

    A process that is killed between two files leaves a mark, and `require_one_run` refuses the
    folder until the next success. Raises `InputError` as `replacing` does.
    """
    mark = folder / _MIXED
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(replacing(folder / name))
        with replacing(mark) as temporary:
            temporary.write_text("Another run's files were being replaced.\n")
    mark.unlink()


def require_one_run(folder: Path) -> None:
    """Raise `InputError` if the files of `folder` may come from two runs."""
    if (folder / _MIXED).exists():
        message = "a command was killed while it replaced these files: they come from two runs"
        hint = f"run it again or, if the files are right, remove {_MIXED}"
        raise InputError(message, place=str(folder), hint=hint)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a lock on `folder`, which is created if missing; waits for other processes.

    `folder` must not be a `temporary_folder`, since its process has locked it. On a file system
    without locks two processes may enter. Raises `InputError`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        message, hint = f"cannot write: {error.strerror or error}", "choose another folder"
        raise InputError(message, place=str(folder), hint=hint) from error
    with _locked(handle):
        yield


@contextmanager
def _locked(handle: int) -> Iterator[None]:
    """Hold the lock of an open file or folder if locks are supported, then close it."""
    try:
        with suppress(OSError):
            lock(handle, wait=True)
        yield
    finally:
        os.close(handle)


@contextmanager
def temporary_folder(prefix: str, inside: Path | None = None) -> Iterator[Path]:
    """Yield a folder for this process alone, in `inside` or the system's temporary folder.

    It is removed at the end, and folders of the same prefix that killed processes left are removed
    first. `prefix` must be unique to gcsim. The folder may be renamed. Raises `OSError`.
    """
    where = inside or Path(tempfile.gettempdir())
    remove_left(where, prefix)
    path = where / f"{prefix}{secrets.token_hex(8)}"  # known before the folder exists
    handle: int | None = None
    try:
        _, handle = _claimed(lambda: _new_folder(path))
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if handle is not None:
            os.close(handle)


@contextmanager
def becoming(folder: Path) -> Iterator[Path]:
    """Yield a `temporary_folder` next to `folder`, to be renamed to `folder`."""
    with temporary_folder(f".{folder.name}{_MINE}", folder.parent) as temporary:
        temporary.chmod(0o777 & ~_umask())
        yield temporary


def remove_left(folder: Path, prefix: str) -> None:
    """Remove temporary files of this user in `folder` that no living process holds, if possible."""
    try:
        left = [folder / name for name in os.listdir(folder) if name.startswith(prefix)]
    except OSError:
        return
    for path in left:
        _remove_if_left(path)


def _remove_if_left(path: Path) -> None:
    with suppress(OSError), _opened(path) as handle:
        status = os.fstat(handle)
        if status.st_uid != os.geteuid():
            return
        lock(handle)
        if not _is_at(handle, path):  # it was complete and has its final name now
            return
        if stat.S_ISDIR(status.st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _is_at(handle: int, path: Path) -> bool:
    """Whether an open file or folder is the one that has this name now."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), path.stat())
    return False


def _claimed(make: Callable[[], Path]) -> tuple[Path, int]:
    """Return the result of `make` and the open file that locks it while this process lives."""
    while True:
        path = make()
        with suppress(FileNotFoundError):  # another process removed it as a leftover
            handle = os.open(path, os.O_RDONLY)
            with suppress(OSError):
                lock(handle, wait=True)
            if _is_at(handle, path):
                return path, handle
            os.close(handle)


def _new_folder(path: Path) -> Path:
    path.mkdir(mode=0o700)
    return path


def _new_file(path: Path) -> Path:
    """Create a file next to `path`; names are numbered: leftovers are found without a listing."""
    number = 0
    while True:
        temporary = path.with_name(f".{path.name}{_MINE}{number}{path.suffix}")
        _remove_if_left(temporary)
        with suppress(FileExistsError):  # a living process or another user has it
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL, 0o666))
            return temporary
        number += 1


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        yield handle
    finally:
        os.close(handle)


def lock(file: IO[str] | int, *, wait: bool = False, shared: bool = False) -> None:
    """Lock an open file until it is closed or the process ends; `shared` locks can coexist.

    Raises `BlockingIOError` if another process has the lock, `OSError` if locks are unsupported.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    fcntl.flock(file, kind | (0 if wait else fcntl.LOCK_NB))


@contextmanager
def in_use(path: Path) -> Iterator[None]:
    """Mark a file or folder as in use, so that `remove_unused` leaves it alone even if it is
    renamed meanwhile. Raises `OSError` if it does not exist."""
    with _opened(path) as handle:
        with suppress(OSError):
            lock(handle, wait=True, shared=True)
        if not _is_at(handle, path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        yield


def remove_unused(path: Path) -> bool:
    """Remove a file or folder of this user unless a process holds it; return whether it is gone."""
    _remove_if_left(path)
    return not path.exists()


@contextmanager
def waiting_for(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; waits for other processes.

    Without locks in the file system two may enter. Raises `OSError` if the file cannot exist.
    """
    with _locked(open_lock(path, os.O_RDONLY)):
        yield


def open_lock(path: Path, access: int) -> int:
    """Open a lock's file, created if missing; follows no link and keeps the content."""
    return os.open(path, access | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def open_file(path: Path) -> BufferedReader:
    """Open a user's file for reading. Raises `OSError`, also for a pipe or device, which might
    never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "is a pipe or a device, not a file", str(path))


def sealed(body: bytes) -> bytes:
    """Prefix `body` with its checksum, so that damage is detected."""
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def unsealed(data: bytes) -> bytes | None:
    """Return the content of `sealed` data; None if it is damaged."""
    _, _, body = data.partition(b"\n")
    return body if sealed(body) == data else None


def others_write(status: os.stat_result) -> bool:
    """Whether others than this user and root can write to a file or folder.

    A group with the user's own name counts as the user, as is usual with umask 002.
    """
    if status.st_uid not in (os.geteuid(), 0):
        return True
    group = status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid)
    return bool(group or status.st_mode & stat.S_IWOTH)


def _is_own_group(number: int) -> bool:
    with suppress(KeyError):  # neither needs to have a name
        return grp.getgrgid(number).gr_name == pwd.getpwuid(os.geteuid()).pw_name
    return False


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def json_text(value: Any) -> str:
    """Return plain values as JSON for files and stdout; raises `ValueError` for inf and nan."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters that make a spreadsheet evaluate or run a cell (OWASP, "CSV injection")."""


def csv_text(columns: Sequence[str], records: Iterable[Mapping[str, Any]]) -> str:
    """Return records as lines below the column names; keys that are not columns are omitted.

    Numbers have full precision. Text that a spreadsheet would run gets a leading apostrophe.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_cell, columns))
    writer.writerows([_cell(record.get(name)) for name in columns] for record in records)
    return text.getvalue()


def markdown_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True
) -> Iterator[str]:
    """Yield the lines of a Markdown table; with `numbers` all columns but the first align right."""
    for number, cells in enumerate((headings, *rows)):
        escaped = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
        yield f"| {' | '.join(escaped)} |"
        if not number:
            yield "|---" + ("|---:" if numbers else "|---") * (len(headings) - 1) + "|"


def _cell(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
