"""Where gcsim keeps its files, and writing them so that a reader never meets half of one.

Every file is written under a temporary name in the destination's own folder and renamed when
it is whole; an interrupt or a full disk leaves the earlier file as it was.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import hashlib
import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs

from gcsim.errors import InputError


def cache_folder() -> Path:
    """The user's cache folder for gcsim, or `GCSIM_CACHE_DIR`; it may not exist."""
    chosen = os.environ.get("GCSIM_CACHE_DIR")
    found = Path(chosen or platformdirs.user_cache_dir("gcsim", False))
    return Path("/nonexistent") / found if found.parts[:1] == ("~",) else found  # no home is known


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it becomes `path`.

    Raises `InputError` that names the destination when the disk is full or not writable.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent
        )
        os.close(handle)
        temporary = Path(name)
        temporary.chmod(0o666 & ~_umask())
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
        if temporary is not None:
            temporary.unlink(missing_ok=True)


@contextmanager
def waiting_for(path: Path) -> Iterator[None]:
    """Wait until no other process is inside; `path` is the lock's file.

    Where a file system has no locks, two may be inside. Raises `OSError` when there can be no file.
    """
    with path.open("w") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sealed(body: bytes) -> bytes:
    """`body` behind its checksum, for a file whose damage is to be noticed."""
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def unsealed(data: bytes) -> bytes | None:
    """What was `sealed`; None where it is damaged."""
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


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
