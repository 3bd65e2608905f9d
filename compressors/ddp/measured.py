"""Measured bytes and times of a deployed hook, by bucket, in its compressed steps.

    hook.measured().write("measured.json")          # on one rank, when training has ended
    gcsim compare runs/my_scenario measured.json    # beside the prediction

Times are measured by the exchanging thread's clock, on a GPU by events in its stream; a
collective's time includes waiting for the slowest rank. Times are means over a bucket's last
`TIMED` steps, bytes over all. Events are read only when times are requested: no step waits.
"""

from __future__ import annotations

import json
import statistics
from array import array
from collections import deque
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from gcsim.errors import InputError
from gcsim.fields import Count, Limits, Text, Whole
from gcsim.files import write_text
from gcsim.json_file import broken, read_object

SCHEMA = 1
TIMED = 256
_HINT = "DdpHook.measured().write(FILE) writes it"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBucket:
    """Means over the steps, for one bucket."""

    elements: Whole
    sent_bytes: Annotated[float, Limits(least=0)]
    """Bytes that this rank handed to its collectives."""
    computed_s: Annotated[float, Limits(least=0)]
    """Seconds of encoding, decoding and a server's work."""
    exchanged_s: Annotated[float, Limits(least=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False
    )

    compressor: Text
    parameters: dict[str, object]
    other_buckets: dict[str, list[int]]
    """Bucket numbers exchanged by other compressors, by compressor."""
    workers: Count
    rank: Whole
    steps: Count
    """Number of compressed steps."""
    iteration_s: Annotated[float, Limits(least=0)] | None
    """Median seconds from the first bucket of a step to that of the next; None for one step."""
    buckets: Annotated[list[MeasuredBucket], Limits(least=1)]
    ranks_per_part: Count = 1
    """Ranks of a node or rack that exchange as one worker (`between`)."""

    @property
    def sent_bytes(self) -> float:
        return sum(bucket.sent_bytes for bucket in self.buckets)

    @property
    def computed_s(self) -> float:
        return sum(bucket.computed_s for bucket in self.buckets)

    @property
    def exchanged_s(self) -> float:
        return sum(bucket.exchanged_s for bucket in self.buckets)

    def write(self, path: str | PathLike[str]) -> None:
        """Write JSON, which `gcsim compare` reads."""
        write_text(Path(path), json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n")


_MEASURED = TypeAdapter(Measured)


def measured_in(path: Path) -> Measured | None:
    """Read measurements of a hook; None for the folder of a run or for its results. `InputError`
    names a fault's key, value and rule."""
    if not path.is_file():
        return None
    body = read_object(path, str(path), "result", _HINT)
    if "rows" in body:
        return None
    if body.pop("schema", None) != SCHEMA:
        raise InputError(f"is not a measurement of schema {SCHEMA}", place=str(path), hint=_HINT)
    try:
        return _MEASURED.validate_json(json.dumps(body))
    except ValidationError as error:
        raise InputError(list(broken(error, body, str(path), _HINT))) from error


@dataclass(slots=True)
class Sums:
    """Sums over the steps of one bucket, written by the exchanging thread."""

    elements: int = 0
    steps: int = 0
    sent_bytes: int = 0
    instants: deque[list[Any]] = field(default_factory=lambda: deque(maxlen=TIMED))
    """One list per step: its start, start and end of each collective, its end."""

    def mean(self) -> MeasuredBucket:
        """Return the means over steps; waits for the device."""
        whole = sum(each[-1] - each[0] for each in self.instants)
        exchanged = sum(
            end - begin
            for each in self.instants
            for begin, end in zip(each[1:-1:2], each[2:-1:2], strict=True)
        )
        timed = max(1, len(self.instants))
        return MeasuredBucket(
            elements=self.elements,
            sent_bytes=self.sent_bytes / self.steps,
            computed_s=(whole - exchanged) / timed,
            exchanged_s=exchanged / timed,
        )


def median_gap(starts: array[float]) -> float | None:
    """Return the median gap between instants; None for fewer than two."""
    return statistics.median(b - a for a, b in pairwise(starts)) if len(starts) > 1 else None
