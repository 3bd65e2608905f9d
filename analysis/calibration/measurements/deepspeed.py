"""DeepSpeed's communication log: `log_summary()`, or its verbose lines.

    Comm. Op            Message Size        Count               Total Latency(ms)   Avg ...
    all_reduce
                        678.86 MB           40                  602.29              9.69 ...

    [INFO] [logging.py:69:log_dist] [Rank 0] comm op: all_reduce | time (ms): 9.46 | msg size: ...

The last table counts, which includes earlier ones, with `show_straggler=True` its part without the
wait for the slowest rank; verbose lines where there is no table. Times have two decimals of a
millisecond, sizes two of a unit (of 1024): short messages are coarse. The number of ranks n follows
from busbw over algbw, (n - 1) / n in all versions, for the whole job even in a subgroup. Sizes are
one rank's input: an all-gather's is multiplied by n. Other operations are left out.

Source: DeepSpeed, deepspeed/utils/comms_logging.py (`append`, `log_all`, `convert_size`) and
deepspeed/comm/comm.py (`timed_op`), 0.7 to 0.18.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gcsim.analysis.calibration.measurements import collectives
from gcsim.errors import InputError

_COLLECTIVES: dict[str, collectives.Collective] = {
    "all_reduce": "all_reduce",
    "inference_all_reduce": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_gather": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all": "all_to_all",
    "all_to_all_single": "all_to_all",
}
"""Collectives by DeepSpeed's name of the operation."""
_WANTED = ("Comm. Op", "Message Size", "Count", "Avg Latency(ms)", "busbw_avg (Gbps)")
_SPLIT = ("Comm. Op", "Message Size", "Count", "Avg comm lat(ms)")
"""Headings of the part without the wait for the slowest rank."""
HEADINGS = re.compile(r"Comm\. Op[ \t]+Message Size\b")
_VERBOSE = re.compile(
    r"comm op: (\w+)(?: \| \[Caller Func: [^\]]*\])? \| time \(ms\): (\S+) \| "
    r"msg size: (.+?) \| algbw \(Gbps\): (\S+)\s+\| busbw \(Gbps\): (\S+)"
)
_ROW = re.compile(r" {20}\d")
_OPERATION = re.compile(
    r"(\w*(?:all_to_all|barrier|broadcast|gather|recv|reduce|scatter|send)\w*)"
    r"(?: \| \[Caller Func: [^\]]*\])?"
)
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGTP]?)B")
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}
_COARSE = 0.05  # milliseconds below which two decimals are off by a tenth and more


@dataclass(frozen=True, slots=True)
class _Row:
    """Operation of one size."""

    line: int
    operation: str
    nbytes: int
    milliseconds: float
    algbw: float = 0.0
    busbw: float = 0.0


def recognised(text: str) -> bool:
    """Whether the summary's headings or a verbose line are there."""
    return any(HEADINGS.search(line) or _VERBOSE.search(line) for line in text.splitlines())


def parse(name: str, text: str, stated: collectives.Stated) -> collectives.Reading:
    """Read a log; `InputError` with every wrong line, or unknown ranks."""
    mistakes = collectives.Mistakes(name)
    tables, verbose = _rows(name, text, mistakes)
    mistakes.raise_any()
    # the last summary, and where it was split, its second part
    last = max((place for place, rows in enumerate(tables) if rows), default=None)
    rows = verbose if last is None else tables[last]
    told = [row for table in tables for row in table] + verbose
    known = [row for row in rows if row.operation in _COLLECTIVES and row.nbytes]
    others = sorted({row.operation for row in rows} - _COLLECTIVES.keys())
    if not known:
        raise InputError(
            f"has no collective that gcsim simulates; found: {', '.join(others) or 'none'}",
            place=name,
            hint=f"known: {', '.join(_COLLECTIVES)}; prof_all: true logs all of them",
        )
    ranks = _ranks(name, told, stated)
    notes = [f"{name}: {ranks} ranks, from busbw / algbw"] if not stated.ranks else []
    if others:
        notes.append(f"{name}: left out: {', '.join(others)}")
    nothing = sum(row.milliseconds <= 0 for row in known)
    if nothing:
        notes.append(f"{name}: {nothing} lines with a time of 0.00 ms are left out")
    if any(0 < row.milliseconds < _COARSE for row in known):
        notes.append(f"{name}: times below {_COARSE} ms are off by up to a tenth: two decimals")
    return collectives.Reading(
        file=name,
        tool="DeepSpeed comms_logger",
        measurements=tuple(
            collectives.Measurement(
                collective=_COLLECTIVES[row.operation],
                ranks=ranks,
                nbytes=row.nbytes * (ranks if "all_gather" in row.operation else 1),
                seconds=row.milliseconds / 1e3,
                algorithm="nccl",
                place=f"{name}:{row.line}",
            )
            for row in known
            if row.milliseconds > 0
        ),
        notes=tuple(notes),
        placed=False,
    )


def _rows(
    name: str, text: str, mistakes: collectives.Mistakes
) -> tuple[list[list[_Row]], list[_Row]]:
    """Tables in order, and verbose lines; other ranks may print between."""
    tables: list[list[_Row]] = []
    verbose: list[_Row] = []
    headings: list[str] = []
    operation = ""
    for count, line in enumerate(text.splitlines(), 1):
        if found := _VERBOSE.search(line):
            numbers = [collectives.number(found[group]) for group in (2, 4, 5)]
            size = _bytes(found[3])
            if size is None or any(value is None or value < 0 for value in numbers):
                mistakes.add(
                    count, "a size or a number is wrong", "the line is cut off, or changed"
                )
            else:
                verbose.append(_Row(count, found[1], size, *(value or 0.0 for value in numbers)))
        elif heading := HEADINGS.search(line):
            headings = re.split(r"\s{2,}|(?<=\))\s*(?=[A-Z])", line[heading.start() :].strip())
            wanted = _SPLIT if "Avg comm lat(ms)" in headings else _WANTED
            if not set(wanted) <= set(headings):
                raise collectives.refused_table(f"{name}:{count}", wanted, headings)
            tables.append([])
            operation = ""
        elif headings and _ROW.match(line):
            row = _row(line, headings, count, operation, mistakes)
            if row is not None:
                tables[-1].append(row)
        elif headings and (begins := _OPERATION.fullmatch(line.strip())):
            operation = begins[1]
    return tables, verbose


def _row(
    line: str, headings: list[str], count: int, operation: str, mistakes: collectives.Mistakes
) -> _Row | None:
    cells = re.split(r"\s{2,}", line.strip())
    keys = headings[1:]
    size = _bytes(cells[0])
    values = [collectives.number(cell) for cell in cells[1:]]
    if len(cells) != len(keys) or size is None or any(v is None or v < 0 for v in values):
        mistakes.add(
            count, f"is not a line under {', '.join(keys)}", "the line is cut off, or changed"
        )
        return None
    row = dict(zip(keys[1:], values, strict=True))
    return _Row(
        line=count,
        operation=operation,
        nbytes=size,
        milliseconds=row.get("Avg comm lat(ms)", row.get("Avg Latency(ms)")) or 0.0,
        algbw=next((row[key] or 0.0 for key in row if key.startswith(("tput_avg", "algbw"))), 0.0),
        busbw=row.get("busbw_avg (Gbps)") or 0.0,
    )


def _bytes(text: str) -> int | None:
    """Bytes of `678.86 MB`, whose units are 1024s."""
    found = _SIZE.fullmatch(text.strip())
    return (
        round(float(found[1]) * (1 << _UNITS[found[2]])) if found and len(found[1]) < 12 else None
    )


def _ranks(name: str, rows: Sequence[_Row], stated: collectives.Stated) -> int:
    """Number of ranks, stated or from bandwidths: busbw is (n - 1) / n of algbw."""
    if len(stated.ranks) == 1:
        return stated.ranks[0]
    told = list(_counts(rows))
    if told:
        count = statistics.mode(told)
        # two decimals of the bandwidths must tell n from n + 1
        if count >= 2:
            return count
    raise InputError(
        "the number of ranks is missing and does not follow from busbw over algbw",
        place=name,
        hint="set it with --ranks",
    )


def _counts(rows: Sequence[_Row]) -> Iterator[int]:
    """Numbers of ranks by lines whose two decimals tell n from n + 1."""
    for row in rows:
        if row.operation not in _COLLECTIVES or not row.algbw > row.busbw > 0:
            continue
        share = 1 - row.busbw / row.algbw
        count = round(1 / share)
        if 0.01 / row.algbw < 0.25 / count**2 and abs(1 / share - count) < 0.25:
            yield count
