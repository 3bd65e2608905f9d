"""Reader of the output of nccl-tests.

Tables have a line per size below the headings `size count type`, in some versions with `redop` and
`root` before the time. Times are in microseconds, out of place if available, else in place. A size
is that of the largest buffer: for `all_gather` and `reduce_scatter` all ranks' data, while `count`
is one rank's. NCCL's own log lines are skipped. Lines `# Rank  0 ...` show ranks and machines; the
program's name, or else the columns, shows the collective.

Source: NVIDIA/nccl-tests, src/common.cu, src/util.cu and doc/PERFORMANCE.md; logs of versions from
2019 to 2.20 in its issues and in those of NVIDIA/nccl.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from gcsim.analysis.calibration.measurements import collectives
from gcsim.errors import InputError

_OPTIONS = re.compile(r"#?\s*nThread\s+(\d+)\s+nGpus\s+(\d+)\s+minBytes")
_RANK = re.compile(
    r"#?\s*Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+"
    r"(?:\s+\[[^\]]*\]\s+(.*))?"
)
HEADINGS = re.compile(r"#?[ \t]*size[ \t]+count[ \t]+type[ \t]+.*\balgbw\b")
_UNITS = re.compile(r"#?\s*\(B\)\s+\(elements\)\s")
_PROGRAM = re.compile(
    r"\b(all_?reduce|all_?gather|all_?to_?allv?|reduce_?scatter|broadcast|reduce|gather|scatter|"
    r"sendrecv|hypercube)_perf(?:_\w+)?\b"
)
_VERSION = re.compile(r"#\s*nccl-tests version (\S+)")
_LIBRARY = re.compile(r"NCCL version (\d[\w.+]*)")
_ROW = re.compile(r"\d+(\s|$)")
_WANTED = ("size", "count", "type", "time")
_CHECKED = re.compile(r"#\s*Out of bounds values\s*:\s*(\d+)\s+FAILED")
_CONCLUDED = re.compile(r"#\s*Avg bus bandwidth")

ELEMENTS = {
    "int8": 1, "uint8": 1, "char": 1, "f8e4m3": 1, "f8e5m2": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
    "half": 2, "bfloat16": 2, "float": 4, "int32": 4, "uint32": 4, "int": 4,
    "double": 8, "int64": 8, "uint64": 8,
}  # fmt: skip
"""Bytes per element, by the tool's name of the type."""
TORCH = {"char": "int8", "half": "float16", "float": "float32", "int": "int32", "double": "float64"}
"""torch's names of types, where they differ."""


@dataclass(slots=True)
class _Run:
    """A run: ranks, headings, lines."""

    line: int
    program: str = ""
    per_process: int = 1
    ranks: list[tuple[int, str]] = field(default_factory=list)  # number and machine of each rank
    groups: set[str] = field(default_factory=set)
    device: str = ""
    headings: list[str] = field(default_factory=list)
    table: int = 0  # line of the headings
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
    failed: tuple[int, str] | None = None  # line and number of values out of bounds


def recognised(text: str) -> bool:
    """Whether the tool's options or headings are present."""
    return any(_OPTIONS.search(line) or HEADINGS.search(line) for line in text.splitlines())


def parse(name: str, text: str, stated: collectives.Stated) -> collectives.Reading:
    """Read a log of one or several runs; raises `InputError` with every wrong line."""
    mistakes = collectives.Mistakes(name)
    runs, tool = _runs(text, mistakes)
    if not any(run.rows for run in runs):
        mistakes.raise_any()
        raise InputError("has no line with a size and a time", place=name)
    points: list[collectives.Measurement] = []
    skipped = 0
    for run in runs:
        if not run.rows:
            continue
        if not set(_WANTED) <= set(run.headings):
            raise collectives.refused_table(f"{name}:{run.table}", _WANTED, run.headings)
        where = _places(name, run, stated)
        for line, tokens in run.rows:
            row = _by_heading(tokens, run.headings)
            if row is not None and row["size"] == "0":
                skipped += 1
                continue
            try:
                points.append(point(row, run.program, where, stated, f"{name}:{line}"))
            except InputError as wrong:
                mistakes.found += wrong.problems
        if run.failed is not None:
            line, values = run.failed
            mistakes.add(
                line,
                f"{collectives.FAILED}: {values} values are out of bounds",
                collectives.MEASURE_AGAIN,
            )
    mistakes.raise_any()
    notes = (f"{name}: {skipped} lines of size 0 are left out",) if skipped else ()
    device = next((run.device for run in runs if run.device), "")
    return collectives.Reading(
        file=name, tool=tool, measurements=tuple(points), device=device, notes=notes
    )


# --- lines ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Log:
    """Facts from the lines read so far."""

    runs: list[_Run] = field(default_factory=list)
    program: str = ""
    tests: str = ""
    library: str = ""

    def note(self, line: str) -> None:
        """Record a name or version from anywhere in a line."""
        if found := _VERSION.match(line):
            self.tests = found[1]
        if found := _LIBRARY.search(line):
            self.library = found[1]
        if programs := _PROGRAM.findall(line):
            self.program = programs[-1]

    def run_at(self, line: int) -> _Run:
        """Return the current run, or a new one."""
        if not self.runs:
            self.runs.append(_Run(line=line, program=self.program))
        return self.runs[-1]

    @property
    def tool(self) -> str:
        """Name and version of the tool and of NCCL."""
        tool = "nccl-tests" + (f" {self.tests}" if self.tests else "")
        return tool + (f", NCCL {self.library}" if self.library else "")


def _runs(text: str, mistakes: collectives.Mistakes) -> tuple[list[_Run], str]:
    log = _Log()
    for count, line in enumerate(map(str.strip, text.splitlines()), 1):
        log.note(line)
        if options := _OPTIONS.match(line):
            # processes that do not know of each other print the options once each
            if not log.runs or log.runs[-1].rows or log.runs[-1].headings:
                log.runs.append(_Run(line=count))
            log.runs[-1].per_process = int(options[1]) * int(options[2])
            log.runs[-1].program = log.program
        elif HEADINGS.match(line):
            log.run_at(count).headings = line.lstrip("# ").split()
            log.runs[-1].table = count
        elif rank := _RANK.match(line):
            log.run_at(count).ranks.append((int(rank[1]), rank[3]))
            log.runs[-1].groups.add(rank[2] or "0")
            log.runs[-1].device = rank[4] or ""
        elif _UNITS.match(line) and "(us)" not in line:
            mistakes.add(count, "times are not in microseconds", "this version is not known")
        elif log.runs and log.runs[-1].headings and _ROW.match(line):
            log.runs[-1].rows.append((count, line.split()))
        elif log.runs and (failed := _CHECKED.match(line)):
            log.runs[-1].failed = count, failed[1]
        elif _CONCLUDED.match(line):
            log.program = ""
    return log.runs, log.tool


def places(
    place: str, hosts: Mapping[int, str], groups: int, per_process: int, stated: collectives.Stated
) -> tuple[int, int]:
    """Return ranks in all and per machine, given each rank's host; `InputError` if unknown."""
    each = Counter(hosts.values())
    wrong: tuple[str, str] | None = None
    if groups > 1:
        wrong = (
            f"the ranks are split into {groups} groups that run at the same time",
            "measure without NCCL_TESTS_SPLIT",
        )
    elif set(hosts) != set(range(len(hosts) or 1)):
        if len(stated.ranks) == 1:
            return stated.ranks[0], per_process
        wrong = "the number of ranks is missing", "set it with --ranks"
    elif len(hosts) == 1:
        wrong = "one rank alone sends nothing", "measure two or more"
    elif len(set(each.values())) > 1 and not stated.devices_per_node:
        wrong = "the machines have different numbers of ranks", "--devices-per-node N"
    if wrong is not None:
        raise InputError(wrong[0], place=place, hint=wrong[1])
    return len(hosts), next(iter(each.values()))


def _places(name: str, run: _Run, stated: collectives.Stated) -> tuple[int, int]:
    place, hosts = f"{name}:{run.line}", dict(run.ranks)
    if len(hosts) < len(run.ranks) and len(run.groups) == 1:
        raise InputError(
            "two lines have the same rank: the processes ran separately",
            place=place,
            hint="build nccl-tests with MPI=1 to measure several machines",
        )
    return places(place, hosts, len(run.groups), run.per_process, stated)


# --- measurements --------------------------------------------------------------------------------


def point(
    row: dict[str, str] | None,
    program: str,
    where: tuple[int, int],
    stated: collectives.Stated,
    place: str,
) -> collectives.Measurement:
    """Return the measurement in a line by heading, on `where` ranks in all and per machine; raises
    `InputError`."""
    clean = "run the test again with NCCL_DEBUG=WARN, or remove the line"
    if row is None:
        message = "the line is cut off, or another one runs into it"
        raise InputError(message, place=place, hint=clean)
    time, nbytes, count = (collectives.number(row[key]) for key in ("time", "size", "count"))
    if time is None or nbytes is None or count is None or nbytes != int(nbytes):
        message = f"{row['time']!r:.30} is not a time in microseconds"
        raise InputError(message, place=place, hint=clean)
    if time <= 0:
        raise InputError(f"a time of {row['time']} us", place=place, hint="times are positive")
    if row["wrong"]:
        message = f"{collectives.FAILED}: {row['wrong']}"
        raise InputError(message, place=place, hint=collectives.MEASURE_AGAIN)
    element = ELEMENTS.get(row["type"])
    if element is None:
        message = f"{row['type']!r:.30} is not a type of nccl-tests"
        raise InputError(message, place=place, hint=clean)
    return collectives.Measurement(
        collective=_collective(row, program, int(nbytes) == int(count) * element, stated, place),
        ranks=where[0],
        devices_per_node=where[1],
        nbytes=int(nbytes),
        seconds=time / 1e6,
        element=element,
        dtype=TORCH.get(row["type"], row["type"]),
        algorithm="nccl",
        place=place,
    )


def _by_heading(tokens: list[str], headings: list[str]) -> dict[str, str] | None:
    """Return values by heading, the first of two equal headings; None if values are missing.
    Without a reduction, some versions leave `redop` empty."""
    keys = list(headings)
    short = 3 < len(tokens) < len(keys)
    if short and "redop" in keys and collectives.number(tokens[3]) is not None:
        keys.remove("redop")
    if len(tokens) < len(keys):
        return None
    found: dict[str, str] = {}
    for key, value in zip(keys, tokens, strict=False):
        found.setdefault(key, value)
    times = [value for key, value in zip(keys, tokens, strict=False) if key == "time"]
    if not times:
        return None
    found["time"] = next((value for value in times if value != "N/A"), "N/A")
    checks = (value for key, value in zip(keys, tokens, strict=False) if key == "#wrong")
    wrong = (value for value in checks if value != "N/A" and collectives.number(value) != 0)
    found["wrong"] = next((f"#wrong is {value}" for value in wrong), "")
    return found


def _collective(
    row: dict[str, str], program: str, whole: bool, stated: collectives.Stated, place: str
) -> collectives.Collective:
    """Return a row's collective; `whole`: `count` covers the whole size. Raises `InputError`."""
    if stated.collective is not None:
        return stated.collective
    if program:
        known = collectives.as_collective(program)
        if known is None:
            message, hint = collectives.unknown_collective(program)
            raise InputError(message, place=place, hint=hint)
        return known
    reduces = row.get("redop", "none") not in {"none", ""}
    rooted = row.get("root", "-1") != "-1"
    if reduces and not rooted:
        return "all_reduce" if whole else "reduce_scatter"
    message = "this is neither an all-reduce nor a reduce-scatter, and the program is not named"
    if not reduces and not rooted and not whole:
        message = "this may be an all-gather or an all-to-all: the log does not name the program"
    raise InputError(message, place=place, hint="name it with --collective")
