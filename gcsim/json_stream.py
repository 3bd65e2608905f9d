"""Reading of large JSON files, plain or gzip, one value at a time through a window.

A value that the caller does not keep is freed before the next is read, so a file of hundreds of
megabytes needs only the memory of the values in use. Gzip is recognized by content, not by name.
The JSON is plain data: nothing in the file is executed.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal

from gcsim.errors import InputError
from gcsim.files import open_file

Source = gzip.GzipFile | BufferedReader
Fault = Literal["is cut short", "is no JSON", "is nested too deeply"]

_HEAD = 512
_CHUNK = 1 << 22  # bytes read at a time
_LONGEST = 1 << 24  # a longer value is not a log's value but a mistake in the JSON
_SIGN = re.compile(r"[^ \t\r\n]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A position in the file; line and column count from 1, characters and items from 0."""

    line: int
    column: int
    character: int
    item: int  # list entries read before this one


@contextmanager
def opened(path: Path, refuse: Callable[[str], InputError]) -> Iterator[tuple[Source, bytes]]:
    """Open a file, decompress it if needed, and yield it with its first few hundred bytes.

    Raises `refuse(message)` if the file cannot be read or decompressed.
    """
    try:
        with open_file(path) as raw:
            zipped = raw.peek(2)[:2] == b"\x1f\x8b"
            file: Source = gzip.GzipFile(fileobj=raw) if zipped else raw
            yield file, file.peek(_HEAD)[:_HEAD]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise refuse("its gzip data are cut short or damaged") from error
    except OSError as error:
        raise refuse(f"cannot be read: {error.strerror or error}") from error


class JsonStream:
    """A window on a JSON text, and the position in it.

    Methods raise `refuse(fault, position)`.
    """

    def __init__(self, file: Source, refuse: Callable[[Fault, Where], InputError]) -> None:
        self._file = file
        self._refuse = refuse
        self._decoder = json.JSONDecoder()
        self._characters = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._text = ""
        self._at = 0
        self._behind = self._lines = self._column = 0
        """Text that has left the window: characters, lines, characters of its first line."""
        self._items = 0

    @property
    def position(self) -> int:
        """Number of characters read so far."""
        return self._behind + self._at

    def keys(self) -> Iterator[str]:
        """Yield the keys of the object that begins here; the caller must read each value."""
        self._at += 1
        while self.next() != "}":
            key = self.value()
            self._expect(":")
            yield str(key)
            if self.next() != "}":
                self._expect(",")
        self._at += 1

    def items(self, *, unfinished: bool = False) -> Iterator[Any]:
        """Yield the entries of the list that begins here; `unfinished`: its end may be missing."""
        self._at += 1
        while (begins := self.next()) != "]":
            if unfinished and not begins:
                return
            value = self.value()
            self._items += 1
            yield value
            if (ends := self.next()) != "]":
                if unfinished and not ends:
                    return
                self._expect(",")
        self._at += 1

    def next(self) -> str:
        """Return the next non-blank character without consuming it; "" at the end."""
        blanks = 0
        while True:
            found = _SIGN.search(self._text, self._at)
            at = found.start() if found else len(self._text)
            blanks += at - self._at
            self._at = at
            if self._at < len(self._text):
                return self._text[self._at]
            if blanks > _LONGEST:  # a small gzip file may hold billions
                raise self._stops("is no JSON")
            if not self._more():
                return ""

    def value(self) -> Any:
        """Return the JSON value that begins at the next character."""
        if not self.next():
            raise self._stops("is cut short")
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except RecursionError as error:
                raise self._stops("is nested too deeply") from error
            except ValueError as error:
                at = error.pos if isinstance(error, json.JSONDecodeError) else None
                if len(self._text) - self._at > _LONGEST:
                    raise self._stops("is no JSON", at) from error
                if not self._more():
                    raise self._stops("is cut short", at) from error
                continue
            # A number at the window's end may continue after it.
            if end == len(self._text) and isinstance(value, int | float) and self._more():
                continue
            self._at = end
            return value

    def _expect(self, character: str) -> None:
        found = self.next()
        if found != character:
            raise self._stops("is cut short" if not found else "is no JSON")
        self._at += 1

    def _more(self) -> bool:
        """Advance the window; returns False at the end of the file."""
        raw = self._file.read(_CHUNK)
        if not raw:
            return False
        gone = self._text[: self._at]
        last = gone.rfind("\n")
        self._lines += gone.count("\n")
        self._column = len(gone) - last - 1 if last >= 0 else self._column + len(gone)
        self._behind += self._at
        self._text = self._text[self._at :] + self._characters.decode(raw)
        self._at = 0
        return True

    def _stops(self, what: Fault, at: int | None = None) -> InputError:
        before = self._text[: self._at if at is None else at]
        last = before.rfind("\n")
        where = Where(
            line=self._lines + before.count("\n") + 1,
            column=len(before) - last if last >= 0 else self._column + len(before) + 1,
            character=self.position,
            item=self._items,
        )
        return self._refuse(what, where)
