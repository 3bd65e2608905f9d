"""Reader of the output of Gloo's benchmark.

    Device:      tcp, pci=0000:04:00.0, iface=enp4s0, speed=40000, addr=[10.10.10.1]
    Algorithm:   new_allreduce_ring
    Options:     processes=4, inputs=1, threads=1

       elements   min (us)   p50 (us)   p99 (us)   max (us)   avg (GB/s)    samples
        1048576       4040       4698       6128      12366        0.823       1000

The median (p50) is used. `speed` is the NIC's line rate in Mbit/s, -1 if unknown. GB/s are 2^30
bytes of the vector per second, which distinguishes float32 from float16 elements. `allgather_ring`
counts the elements of one rank.

| algorithm                  | carried out as                                              |
|----------------------------|-------------------------------------------------------------|
| new_allreduce_ring         | Gloo's ring, `gloo_ring`: what PyTorch uses                 |
| allreduce_ring_chunked     | the same; its two segments a chunk have no limit of 1 MiB   |
| allreduce_halving_doubling | recursive halving and doubling, without its pieces in flight |
| allgather_ring             | the textbook's ring                                         |

Source: pytorch/gloo, gloo/benchmark/runner.cc (`printHeader`, `printDistribution`), main.cc.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gcsim.analysis.calibration.measurements import collectives
from gcsim.errors import InputError

HEADINGS = re.compile(r"[ \t]*(?:size \(B\)[ \t]+)?elements[ \t]+min \((?:us|ns)\)")
_HEADING = re.compile(r"\S+(?: \([^)]*\))?")
_MISMATCH = re.compile(r"Mismatch at index: *(\d+)")
_OPTION = re.compile(r"(\w+)=([^,\s]*)")
_GIB = 1 << 30
_MEGABIT = 1e6 / 8
_DEFAULT_ELEMENT = 4

ALGORITHMS: dict[str, tuple[collectives.Collective, str]] = {
    "new_allreduce_ring": ("all_reduce", "gloo_ring"),
    "allreduce_ring_chunked": ("all_reduce", "gloo_ring"),
    "cuda_allreduce_ring_chunked": ("all_reduce", "gloo_ring"),
    "allreduce_halving_doubling": ("all_reduce", "halving_doubling"),
    "cuda_allreduce_halving_doubling": ("all_reduce", "halving_doubling"),
    "allgather_ring": ("all_gather", "ring"),
}
"""Collective and gcsim's algorithm, by the benchmark's name."""


@dataclass(slots=True)
class _Run:
    """A run of the benchmark."""

    line: int
    device: str = ""
    algorithm: str = ""
    options: dict[str, str] = field(default_factory=dict)
    headings: list[str] = field(default_factory=list)
    table: int = 0  # line of the headings
    rows: list[tuple[int, list[str]]] = field(default_factory=list)


def recognised(text: str) -> bool:
    """Whether the headings of its table are present."""
    return any(HEADINGS.match(line) for line in text.splitlines())


def parse(name: str, text: str, stated: collectives.Stated) -> collectives.Reading:
    """Read a log of one or several runs; raises `InputError` with every wrong line."""
    mistakes = collectives.Mistakes(name)
    runs = [run for run in _runs(text) if run.headings]
    points: list[collectives.Measurement] = []
    notes: list[str] = []
    for run in runs:
        if not any(heading.startswith("p50 (") for heading in run.headings):
            raise collectives.refused_table(
                f"{name}:{run.table}", ("elements", "p50 (us)"), run.headings
            )
        points += _points(name, run, stated, mistakes, notes)
    for count, line in enumerate(text.splitlines(), 1):
        if wrong := _MISMATCH.search(line):
            mistakes.add(
                count,
                f"{collectives.FAILED}: mismatch at index {wrong[1]}",
                collectives.MEASURE_AGAIN,
            )
    mistakes.raise_any()
    if not points:
        raise InputError("has no line with elements and times", place=name)
    speeds = {float(value) for run in runs if (value := _speed(run.device))}
    return collectives.Reading(
        file=name,
        tool="Gloo benchmark",
        measurements=tuple(points),
        line_rate=min(speeds) * _MEGABIT if speeds else None,
        notes=tuple(dict.fromkeys(notes)),
    )


def _runs(text: str) -> list[_Run]:
    runs: list[_Run] = []
    for count, line in enumerate(text.splitlines(), 1):
        word, colon, rest = line.strip().partition(":")
        if colon and word in {"Device", "Devices"}:
            runs.append(_Run(line=count, device=rest.strip()))
        elif colon and word in {"Algorithm", "Options"} and (not runs or runs[-1].rows):
            runs.append(_Run(line=count))
        if colon and word == "Algorithm":
            runs[-1].algorithm = rest.strip()
        elif colon and word == "Options":
            runs[-1].options = dict(_OPTION.findall(rest))
        elif HEADINGS.match(line):
            if not runs:
                runs.append(_Run(line=count))
            runs[-1].headings = _HEADING.findall(line)
            runs[-1].table = count
        elif runs and runs[-1].headings and line.strip()[:1].isdigit():
            runs[-1].rows.append((count, line.split()))
    return runs


def _points(
    name: str,
    run: _Run,
    stated: collectives.Stated,
    mistakes: collectives.Mistakes,
    notes: list[str],
) -> list[collectives.Measurement]:
    told = run.options.get("processes", "")
    ranks = int(told) if told.isdigit() else (stated.ranks[0] if len(stated.ranks) == 1 else 0)
    if ranks < 2:
        message = "the number of processes is missing: there is no line 'Options:'"
        mistakes.add(run.line, message, "set it with --ranks")
        return []
    if run.options.get("threads", "1") != "1":
        message = f"{run.options['threads']} threads measured at the same time and share the link"
        mistakes.add(run.line, message, "measure with --threads 1")
        return []
    known = ALGORITHMS.get(run.algorithm)
    if known is None and stated.algorithm is None:
        message = f"algorithm {run.algorithm!r:.50} is not one that gcsim simulates"
        hint = f"known: {', '.join(ALGORITHMS)}; or name a similar one with --algorithm"
        mistakes.add(run.line, message, hint)
        return []
    collective: collectives.Collective = known[0] if known else (stated.collective or "all_reduce")
    if run.options.get("inputs", "1") != "1":
        notes.append(f"{name}: each process added up {run.options['inputs']} inputs of its own")
    rows = [row for row in (_row(run, line, tokens, mistakes) for line, tokens in run.rows) if row]
    element = _element(rows)
    found = []
    for line, row in rows:
        whole = int(row.get("size (B)", 0)) or int(row["elements"]) * element
        if collective == "all_gather":
            whole *= ranks * int(run.options.get("inputs", "1"))
        found.append(
            collectives.Measurement(
                collective=collective,
                ranks=ranks,
                nbytes=whole,
                seconds=row["p50"],
                element=element,
                dtype="float16" if element == 2 else "float32",
                algorithm=known[1] if known else "textbook",
                place=f"{name}:{line}",
            )
        )
    return found


def _row(
    run: _Run, line: int, tokens: list[str], mistakes: collectives.Mistakes
) -> tuple[int, dict[str, float]] | None:
    """Return numbers by heading, with `p50` in seconds."""
    if len(tokens) < len(run.headings):
        mistakes.add(line, f"has {len(tokens)} values, the headings {len(run.headings)}",
                     "the line is cut off")  # fmt: skip
        return None
    values = {
        key: collectives.number(token) for key, token in zip(run.headings, tokens, strict=False)
    }
    row = {key: value for key, value in values.items() if value is not None}
    if len(row) < len(run.headings) or not row["elements"]:
        mistakes.add(line, "a value is not a number, or there are no elements")
        return None
    heading = next(key for key in row if key.startswith("p50 ("))
    if row[heading] <= 0:
        hint = "times are positive; --nanos shows those below a microsecond"
        mistakes.add(line, f"a median of {row[heading]:g}", hint)
        return None
    row["p50"] = row[heading] * (1e-9 if "(ns)" in heading else 1e-6)
    return line, row


def _element(rows: list[tuple[int, dict[str, float]]]) -> int:
    """Return the bytes per element, 2 or 4, from the bandwidth of the largest line."""
    told = [row for _, row in rows if row.get("avg (GB/s)", 0) >= 0.05]
    if not told:
        return _DEFAULT_ELEMENT
    largest = max(told, key=lambda row: row["elements"])
    each = largest["avg (GB/s)"] * _GIB * largest["p50"] / largest["elements"]
    return 2 if each < 2 * 2**0.5 else 4


def _speed(device: str) -> str:
    """Return `speed=40000` of a device, if known."""
    value = dict(_OPTION.findall(device)).get("speed", "")
    return value if value.isdigit() and int(value) > 0 else ""
