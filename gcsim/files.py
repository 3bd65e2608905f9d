"""Folders of gcsim, and files written so that a reader never meets half of one.

Every file is written under a temporary name in the destination's own folder and renamed when
it is whole; an interrupt or a full disk leaves the earlier file as it was. What is temporary is
locked by the process that makes it: an unheld lock is a killed process's, and what it
left behind is removed by the next one.

CSV text is what a spreadsheet reads as it is meant: no cell is a formula.
"""

from __future__ import annotations

import csv
import errno
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

try:
    import fcntl
except ImportError:  # not on every system
    fcntl = None  # type: ignore[assignment]

_MINE = ".gcsim-"  # in the names of what is temporary, beside the file or folder that it becomes

_MIXED = f"{_MINE}mixed"  # in a folder of results, while its files are replaced


def cache_folder() -> Path:
    """The user's cache folder for gcsim, or `GCSIM_CACHE_DIR`; it may not exist."""
    chosen = os.environ.get("GCSIM_CACHE_DIR")
    found = Path(chosen or platformdirs.user_cache_dir("gcsim", False))
    with suppress(RuntimeError):
        found = found.expanduser()
    return Path("/nonexistent") / found if found.parts[:1] == ("~",) else found  # no home is known


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it becomes `path`.

    Raises `InputError` that names the destination when the disk is full or not writable, or the
    destination is no file's name.
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
            if _is_at(held[1], held[0]):  # else the name is free, or another process's by now
                held[0].unlink()
            os.close(held[1])


@contextmanager
def replacing_together(folder: Path) -> Iterator[Callable[[str], Path]]:
    """Yield a function from a file's name to a temporary path; on success all of these become
    files of `folder`.

    A process that is killed between two files leaves a mark, and `require_one_run` refuses the
    folder until the next success. Raises `InputError` as `replacing`.
    """
    mark = folder / _MIXED
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(replacing(folder / name))
        with replacing(mark) as temporary:
            temporary.write_text("Another run's files were being replaced.\n")
    mark.unlink()


def require_one_run(folder: Path) -> None:
    """Raise `InputError` when the files of `folder` are of two runs."""
    if (folder / _MIXED).exists():
        message = "a command was killed while it replaced these files: they come from two runs"
        hint = f"run it again or, if the files are right, remove {_MIXED}"
        raise InputError(message, place=str(folder), hint=hint)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process is in this context for `folder`, which is made when missing and
    is no `temporary_folder`, which its process locks.

    Two may be in it where a file system has no locks. Raises `InputError`.
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
    """Hold the lock of an open file or folder where there are locks, and close it."""
    try:
        with suppress(OSError):
            lock(handle, wait=True)
        yield
    finally:
        os.close(handle)


@contextmanager
def temporary_folder(prefix: str, inside: Path | None = None) -> Iterator[Path]:
    """A folder of this process alone, in `inside` or among the system's temporary files.

    It is removed at the end; those of the same prefix that killed processes left there are removed
    first. `prefix` must be gcsim's own. It may be renamed. Raises `OSError`.
    """
    where = inside or Path(tempfile.gettempdir())
    remove_left(where, prefix)
    path = where / f"{prefix}{secrets.token_hex(8)}"  # known before it is there
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
    """A `temporary_folder` beside `folder`, which it may become by being renamed."""
    with temporary_folder(f".{folder.name}{_MINE}", folder.parent) as temporary:
        temporary.chmod(0o777 & ~_umask())
        yield temporary


def remove_left(folder: Path, prefix: str) -> None:
    """Remove what is temporary there, this user's and no living process's, as far as possible."""
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
        if not _is_at(handle, path):  # it was whole, and has its own name now
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
    """Result of `make`, and the open file that locks it while this process lives."""
    while True:
        path = make()
        with suppress(FileNotFoundError):  # another process took it for one that was left
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
    """New file next to `path`; names are counted, so that a leftover is found without a listing."""
    number = 0
    while True:
        temporary = path.with_name(f".{path.name}{_MINE}{number}{path.suffix}")
        _remove_if_left(temporary)
        with suppress(FileExistsError):  # a living process's, or somebody else's
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
    """Lock an open file until it is closed or the process is gone; `shared`: beside others that do.

    Raises `BlockingIOError` when another process has it, and `OSError` where there are no locks.
    """
    if fcntl is None:
        raise OSError(errno.ENOTSUP, "this system has no locks")
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    fcntl.flock(file, kind | (0 if wait else fcntl.LOCK_NB))


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Mark a file or folder as in use while the context lasts: `remove_unused` leaves it alone,
    under whatever name it has by then. Raises `OSError` where there is none."""
    with _opened(path) as handle:
        with suppress(OSError):
            lock(handle, wait=True, shared=True)
        if not _is_at(handle, path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        yield


def remove_unused(path: Path) -> bool:
    """Remove a file or folder of this user's that no process holds; whether it is gone."""
    _remove_if_left(path)
    return not path.exists()


@contextmanager
def waiting_for(path: Path) -> Iterator[None]:
    """Wait until no other process is inside; `path` is the lock's file.

    Where a file system has no locks, two may be inside. Raises `OSError` when there can be no file.
    """
    with _locked(open_lock(path, os.O_RDONLY)):
        yield


def open_lock(path: Path, access: int) -> int:
    """Open a lock's file, which is made where it is missing: no link is followed, and what stands
    in it stays."""
    return os.open(path, access | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def open_file(path: Path) -> BufferedReader:
    """Open a user's file for reading. Raises `OSError`, also for a pipe or a device, which might
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
    """`body` behind its checksum, for a file whose damage is to be noticed."""
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def unsealed(data: bytes) -> bytes | None:
    """Contents of `sealed` data; None where they are damaged."""
    _, _, body = data.partition(b"\n")
    return body if sealed(body) == data else None


def others_write(status: os.stat_result) -> bool:
    """Whether somebody else than this user and root can write to a file or a folder.

    A group that has the user's own name is the user, as where the umask is 002.
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
    """Write `text` as UTF-8, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def json_text(value: Any) -> str:
    """Plain values as JSON for files and stdout; raises `ValueError` for one that is not finite."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters from which a spreadsheet calculates or runs a cell (OWASP, "CSV injection")."""


def csv_text(columns: Sequence[str], records: Iterable[Mapping[str, Any]]) -> str:
    """Records under their headings, one line each; keys that are no column are left out.

    Numbers have full precision. A text that a spreadsheet would run has an apostrophe in front.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_cell, columns))
    writer.writerows([_cell(record.get(name)) for name in columns] for record in records)
    return text.getvalue()


def markdown_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True
) -> Iterator[str]:
    """Lines of a table in Markdown, where `numbers` are all columns but the first."""
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
