"""Values of a large file one at a time: JSON through a window on it, plain or gzip.

What the caller does not keep is gone before the next value is read, so that a file of hundreds of
megabytes needs no more memory than what is wanted of it. Gzip is told by content and not by name.
Plain JSON: nothing in the file is run.
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
_LONGEST = 1 << 24  # a single value longer than this is no value of a log but an error in the JSON
_SIGN = re.compile(r"[^ \t\r\n]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A place in the file; line and column count from 1, characters and items from 0."""

    line: int
    column: int
    character: int
    item: int  # entries of lists that were read before


@contextmanager
def opened(path: Path, refuse: Callable[[str], InputError]) -> Iterator[tuple[Source, bytes]]:
    """The file, unpacked, and how it begins: a few hundred bytes.

    Raises what `refuse` makes of the message, where the file cannot be read or unpacked.
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

    Methods raise what `refuse` makes of a fault and its place.
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
        """Characters that were read."""
        return self._behind + self._at

    def keys(self) -> Iterator[str]:
        """The keys of the object that begins here; the caller reads the value of each."""
        self._at += 1
        while self.next() != "}":
            key = self.value()
            self._expect(":")
            yield str(key)
            if self.next() != "}":
                self._expect(",")
        self._at += 1

    def items(self, *, unfinished: bool = False) -> Iterator[Any]:
        """The entries of the list that begins here; `unfinished`: its end may be missing."""
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
        """The next character that is not blank, which is not consumed; "" at the end."""
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
        """The JSON value that begins at the next character."""
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
            # A number at the window's end may go on behind it.
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
        """Move the window on; False at the end of the file."""
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
