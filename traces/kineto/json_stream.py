"""How is a profiler's trace read, whose hundreds of megabytes would fill the memory as objects?

One event at a time, through a window on the file: what nobody keeps is gone before the next one.
Two formats are told by the list that an object holds, among other keys in any order: `traceEvents`
of Chrome's Trace Event Format, as PyTorch's Kineto and the legacy profiler export it (there a bare
list, too), and `nodes` of an execution trace (`execution_trace.py`). Plain or gzip, told by content
and not by name. Plain JSON: nothing in the file is run.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from gcsim.errors import InputError
from gcsim.files import open_file
from gcsim.traces.kineto.execution_trace import as_events
from gcsim.traces.kineto.refused import (
    FLIGHT_RECORDER_JSON,
    LINK_IT,
    NAME_THE_JSON,
    NO_PASSES,
    NO_TIMES,
    PROTOBUF,
    TAKE_IT_TO_LINK,
    is_chakra_protobuf,
    is_pickle,
)

Event = dict[str, Any]
_Bytes = gzip.GzipFile | BufferedReader

EXPORT_AGAIN = "export it again with torch.profiler's export_chrome_trace, after the last step"

_KINETO, _CHAKRA, _RECORDER = "traceEvents", "nodes", "entries"
"""Keys of the list that tells a format."""
_HEAD = 256
_CHUNK = 1 << 22
"""Characters read at a time."""
_LONGEST = 1 << 24
"""A single value longer than this is no value of a profile but an error in the JSON."""
_BLANK = re.compile(r"[ \t\r\n]*")


def events(path: Path) -> Iterator[Event]:
    """The events of a profile in the file's order; entries that are no objects are left out.

    Raises `InputError` that names the file, and the number of the event and the byte where it
    stops, when it cannot be read, is cut short, is no JSON, or holds no `traceEvents` and no nodes
    with times.
    """
    try:
        with open_file(path) as raw:
            head = raw.read(_HEAD)
            zipped = head[:2] == b"\x1f\x8b"
            if is_pickle(head):
                raise InputError("is a pickle", place=str(path), hint=FLIGHT_RECORDER_JSON)
            if is_chakra_protobuf(head):
                raise InputError(PROTOBUF, place=str(path), hint=NAME_THE_JSON)
            raw.seek(0)
            file: _Bytes = gzip.GzipFile(fileobj=raw) if zipped else raw
            yield from _Reader(path, file).events()
    except (EOFError, zlib.error) as error:
        raise unreadable(path, "its gzip data are cut short or damaged") from error
    except OSError as error:
        raise unreadable(path, f"cannot be read: {error.strerror or error}") from error


def unreadable(path: Path, what: str, hint: str = EXPORT_AGAIN) -> InputError:
    """The error for a file that is no profile that can be used."""
    return InputError(f"profiler's trace {what}", place=str(path), hint=hint)


class _Reader:
    """A window on the file's text, and the position in it."""

    def __init__(self, path: Path, file: _Bytes) -> None:
        self._path = path
        self._file = file
        self._decoder = json.JSONDecoder()
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._text = ""
        self._at = 0
        self._behind = 0
        """Characters that have left the window."""
        self._count = 0
        """Events that were read."""

    def events(self) -> Iterator[Event]:
        first = self._next()
        if first == "[":
            yield from self._list()
            return
        if first != "{":
            raise unreadable(self._path, "is empty" if not first else "is no JSON object")
        self._at += 1
        found = False
        while self._next() != "}":
            key = self._value()
            self._expect(":")
            listed = self._next() == "["
            if key == _KINETO and listed:
                found = True
                yield from self._list()
            elif key == _CHAKRA and listed:
                timed = False
                for event in as_events(self._list()):
                    timed = True
                    yield event
                if not timed:
                    raise InputError(NO_TIMES, place=str(self._path), hint=LINK_IT)
                found = True
            elif key in {_RECORDER, "pg_config"}:
                raise InputError(NO_PASSES, place=str(self._path), hint=TAKE_IT_TO_LINK)
            else:
                self._value()
            if self._next() != "}":
                self._expect(",")
        if not found:
            raise unreadable(
                self._path,
                "holds no traceEvents",
                "name the JSON that torch.profiler's export_chrome_trace wrote, or that of "
                "chakra_trace_link",
            )

    def _list(self) -> Iterator[Event]:
        self._at += 1
        while self._next() != "]":
            value = self._value()
            self._count += 1
            if isinstance(value, dict):
                yield value
            if self._next() != "]":
                self._expect(",")
        self._at += 1

    def _next(self) -> str:
        """The next character that is not blank, which is not consumed; "" at the end."""
        blanks = 0
        while True:
            blank = _BLANK.match(self._text, self._at)
            assert blank is not None
            blanks += blank.end() - self._at
            self._at = blank.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if blanks > _LONGEST:  # a small gzip file may hold billions
                raise self._stops("is no JSON")
            if not self._more():
                return ""

    def _expect(self, character: str) -> None:
        found = self._next()
        if found != character:
            raise self._stops("is cut short" if not found else "is no JSON")
        self._at += 1

    def _value(self) -> Any:
        """The JSON value that begins at the next character."""
        if not self._next():
            raise self._stops("is cut short")
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                if isinstance(error, RecursionError) or len(self._text) - self._at > _LONGEST:
                    raise self._stops("is no JSON") from error
                if not self._more():
                    raise self._stops("is cut short") from error
                continue
            # A number at the window's end may go on behind it.
            if end == len(self._text) and isinstance(value, int | float) and self._more():
                continue
            self._at = end
            return value

    def _more(self) -> bool:
        """Move the window on; False at the end of the file."""
        raw = self._file.read(_CHUNK)
        if not raw:
            return False
        self._behind += self._at
        self._text = self._text[self._at :] + self._characters.decode(raw)
        self._at = 0
        return True

    def _stops(self, what: str) -> InputError:
        where = f"{what} at event {self._count:,}, character {self._behind + self._at:,}"
        return unreadable(self._path, where)
