"""Reader of files that nccl-tests writes with `-J FILE`.

    {"version":2,"start_time":"2025-11-03 10:12:01","args":["./build/all_reduce_perf", ...],
     "env":[...],"nccl_version":22809,
     "config":{"nthreads":1,"ngpus":1, ...,"devices":[{"rank":0,"group":0,"pid":1,"hostname":"a",
     "device":0,"device_hex":"0000:07:00","device_info":"NVIDIA H100"}, ...]},
     "results":[{"size":1048576,"count":262144,"type":"float","redop":"sum","root":"    -1",
     "out_of_place":{"time":48.1,"alg_bw":21.8,"bus_bw":38.1,"nwrong":0.0},"in_place":{...},
     "actual_iterations":20,"experiment_name":"all_reduce_perf"}, ...], ...}

Times are in microseconds, out of place if measured. Each process, which has nthreads * ngpus ranks,
lists one device.

Source: NVIDIA/nccl-tests, src/util.cu (JSON_FILE_VERSION 1 and 2), 2.17 to 2.18.
"""

from __future__ import annotations

from typing import Any

from gcsim.analysis.calibration.measurements import collectives
from gcsim.analysis.calibration.measurements.json_text import at, entries, whole
from gcsim.analysis.calibration.measurements.nccl_tests import places, point
from gcsim.errors import InputError
from gcsim.json_file import finite

_PLACES = ("out_of_place", "in_place")
_WANTED = ("size", "type", "out_of_place or in_place with a time")


def recognised(body: Any) -> bool:
    """Whether its keys are present."""
    return isinstance(at(body, "results"), list) and at(body, "nccl_version") is not None


def parse(name: str, body: Any, stated: collectives.Stated) -> collectives.Reading:
    """Read the file; raises `InputError` with every wrong entry (the first few)."""
    results = entries(body, "results")
    if not results:
        had = map(str, body) if isinstance(body, dict) else ()
        raise collectives.refused_table(name, ("config", "results"), had)
    ranks = _ranks(name, body, stated)
    mistakes = collectives.Mistakes(name)
    points: list[collectives.Measurement] = []
    skipped = 0
    for number, entry in enumerate(results):
        if at(entry, "size") == 0:
            skipped += 1
            continue
        place, row = f"{name}: results[{number}]", _row(entry)
        try:
            if row is None:
                keys = map(str, entry) if isinstance(entry, dict) else ()
                raise collectives.refused_table(place, _WANTED, keys)
            points.append(point(row, _program(body, entry), ranks, stated, place))
        except InputError as wrong:
            mistakes.found += wrong.problems
    outside = finite(at(body, "out_of_bounds", "count"))
    if outside:
        message = f"{collectives.FAILED}: {outside:,.0f} values are out of bounds"
        mistakes.at(f"{name}: out_of_bounds", message, collectives.MEASURE_AGAIN)
    mistakes.raise_any()
    version = whole(at(body, "nccl_version"))
    return collectives.Reading(
        file=name,
        tool="nccl-tests" + (f", NCCL {_dotted(version)}" if version else ""),
        measurements=tuple(points),
        device=str(at(body, "config", "devices", 0, "device_info") or ""),
        notes=(f"{name}: {skipped} results of size 0 are left out",) if skipped else (),
    )


def _row(entry: Any) -> dict[str, str] | None:
    """Return a result by the headings of the tool's tables; None if a value is missing."""
    nbytes, kind = whole(at(entry, "size")), at(entry, "type")
    times = [
        time
        for where in _PLACES
        for key in ("time", "cpu_time")
        if (time := finite(at(entry, where, key))) is not None
    ]
    if not nbytes or not isinstance(kind, str) or not times:
        return None
    wrong = ((where, finite(at(entry, where, "nwrong"))) for where in _PLACES)
    return {
        "size": str(nbytes),
        "count": str(whole(at(entry, "count")) or 0),
        "type": kind,
        "redop": str(at(entry, "redop")),
        "root": str(at(entry, "root")).strip(),
        "time": str(times[0]),
        "wrong": next((f"nwrong is {count:g} {where}" for where, count in wrong if count), ""),
    }


def _program(body: Any, entry: Any) -> str:
    """Return `all_reduce` for `./build/all_reduce_perf`."""
    for told in (at(body, "args", 0), at(entry, "experiment_name")):
        if isinstance(told, str) and "_perf" in told:
            return told.rpartition("/")[2].partition("_perf")[0]
    return ""


def _ranks(name: str, body: Any, stated: collectives.Stated) -> tuple[int, int]:
    """Return the number of ranks in all and per machine."""
    each = (whole(at(body, "config", "nthreads")) or 1) * (whole(at(body, "config", "ngpus")) or 1)
    devices = entries(body, "config", "devices")
    hosts = enumerate(str(at(one, "hostname")) for one in devices for _ in range(each))
    groups = len({str(at(device, "group")) for device in devices})
    return places(f"{name}: config", dict(hosts), groups, each, stated)


def _dotted(version: int) -> str:
    """Format 22809 as 2.28.9 (`NCCL_VERSION`, from 2.9 on)."""
    return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"
