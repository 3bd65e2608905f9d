"""Can a command write where it is told to? Asked before hours of work, not after them."""

from __future__ import annotations

import os
from pathlib import Path

from gcsim.errors import InputError


def check_writable(folder: Path, option: str = "-o") -> None:
    """Raise `InputError` when no files can be created in `folder`, which `option` names; create
    nothing."""
    folder.absolute()  # raises where the working folder is gone
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        message = f"{existing} is a file, not a folder"
    elif not os.access(existing, os.W_OK | os.X_OK):
        message = f"no permission to write in {existing}"
    else:
        return
    raise InputError(message, place=str(folder), hint=f"choose another folder with {option}")
