"""Reader of collectives in a JSON dump of PyTorch's flight recorder.

    {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
     "entries": [{"process_group": ["0", "default_pg"], "profiling_name": "nccl:all_reduce",
     "input_sizes": [[6553600]], "input_dtypes": ["Float"], "output_sizes": [[6553600]],
     "state": "completed", "is_p2p": false, "duration_ms": 5.31, ...}, ...], ...}

`duration_ms` exists if NCCL was timed (TORCH_NCCL_ENABLE_TIMING=1): the kernel's time on its
stream, including the wait for later ranks, so of several ranks' dumps the shortest counts
(`reading.py`). The watchdog's times are those of its polling, a tenth of a second apart, and
useless; Gloo's entries have neither. Only JSON is read, as the recorder's own files are pickles.

Source: pytorch/pytorch, torch/csrc/distributed/c10d/FlightRecorder.hpp, FlightRecorderDetail.hpp
(`dump_json`), ProcessGroupNCCL.cpp (names), dump versions 2.4 to 2.10.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

from gcsim.analysis.calibration.measurements import collectives
from gcsim.analysis.calibration.measurements.json_text import EVENTS, at, entries, whole
from gcsim.analysis.report.numbers import plural, size
from gcsim.errors import InputError
from gcsim.json_file import finite

_SHOWN = 6


def recognised(body: Any) -> bool:
    """Whether it has the keys of a dump but not those of a profile."""
    return isinstance(at(body, "pg_config"), dict) and at(body, EVENTS) is None


def parse(name: str, body: Any, stated: collectives.Stated) -> collectives.Reading:
    """Read a dump; raises `InputError` without any time, or for an unknown number of ranks."""
    listed = entries(body, "entries")
    mistakes = collectives.Mistakes(name)
    points: list[collectives.Measurement] = []
    left_out: Counter[str] = Counter()
    sizes: Counter[tuple[str, int]] = Counter()
    untimed = 0
    for number, entry in enumerate(listed):
        called = str(at(entry, "profiling_name"))
        library, _, kind = called.partition(":")
        known = collectives.C10_COLLECTIVES.get(kind)
        nbytes, dtype = _size(entry, known[1] if known else "input")
        if known is None or dtype is None or at(entry, "is_p2p") is True or not nbytes:
            left_out[called[:40]] += 1
            continue
        sizes[known[0], nbytes] += 1
        lasted = finite(at(entry, "duration_ms"))
        if lasted is None or at(entry, "state") not in {"completed", None}:
            untimed += 1
            continue
        place = f"{name}: entries[{number}]"
        ranks = stated.ranks[0] if len(stated.ranks) == 1 else _ranks(body, entry)
        if lasted <= 0:
            mistakes.at(place, f"a duration of {lasted} ms", "times are positive")
        elif ranks is None:
            message = "the number of ranks is missing: pg_config does not list them"
            mistakes.at(place, message, "set it with --ranks")
        elif ranks > 1:
            points.append(
                collectives.Measurement(
                    collective=known[0],
                    ranks=ranks,
                    nbytes=nbytes,
                    seconds=lasted / 1e3,
                    element=collectives.C10_TYPES[dtype][1],
                    dtype=collectives.C10_TYPES[dtype][0],
                    algorithm=library,
                    place=place,
                    call=_call(entry),
                )
            )
    mistakes.raise_any()
    seen = ", ".join(
        f"{count} {kind} of {size(nbytes)}" for (kind, nbytes), count in sizes.most_common(_SHOWN)
    )
    if not points:
        raise _untimed(name, seen, body)
    notes = [
        f"{name}: {seen}",
        f"{name}: a duration includes the wait for later ranks; of several ranks' dumps, the "
        "shortest counts",
    ]
    if untimed:
        notes.append(f"{name}: {plural(untimed, 'collective')} without a duration left out")
    if left_out:
        notes.append(f"{name}: left out: {', '.join(left_out)}")
    return collectives.Reading(
        file=name, tool="PyTorch flight recorder", measurements=tuple(points), notes=tuple(notes),
        placed=False,
    )  # fmt: skip


def _untimed(name: str, seen: str, body: Any) -> InputError:
    gloo = any(
        str(at(entry, "profiling_name")).startswith("gloo:") for entry in entries(body, "entries")
    )
    if not seen:
        message = "has no collective of two ranks or more with a size"
        return InputError(message, place=name, hint="dump it with includecollectives=true")
    hint = (
        "it does not time Gloo: measure with torchrun -m gcsim.calibrate_link"
        if gloo
        else "train with TORCH_NCCL_ENABLE_TIMING=1 and TORCH_NCCL_TRACE_BUFFER_SIZE=2000"
    )
    message = f"has the sizes of collectives ({seen}) but not their times (duration_ms)"
    return InputError(message, place=name, hint=hint)


def _size(entry: Any, which: str) -> tuple[int, str | None]:
    """Return the bytes of all input or output tensors, and c10's name of their common type."""
    types = {one for one in entries(entry, f"{which}_dtypes") if isinstance(one, str)}
    dtype = types.pop() if len(types) == 1 else None
    if dtype not in collectives.C10_TYPES:
        return 0, None
    elements = 0
    for shape in entries(entry, f"{which}_sizes"):
        dims = [whole(each) for each in shape] if isinstance(shape, list) else [None]
        if any(each is None for each in dims):
            return 0, None
        elements += math.prod(each or 0 for each in dims)
    return elements * collectives.C10_TYPES[dtype][1], dtype


def _call(entry: Any) -> str:
    """Return process group and sequence number, which are equal on all ranks."""
    told = (at(entry, "process_group", 0), at(entry, "collective_seq_id"), at(entry, "op_id"))
    return "" if None in told else " ".join(map(str, told))


def _ranks(body: Any, entry: Any) -> int | None:
    """Return the number of ranks in the entry's process group: `"ranks": "[0, 1]"`."""
    groups = at(body, "pg_config")
    if not isinstance(groups, dict):
        return None
    group = at(groups, str(at(entry, "process_group", 0)))
    if group is None and len(groups) == 1:
        group = next(iter(groups.values()))
    try:
        ranks = json.loads(str(at(group, "ranks")))
    except (ValueError, RecursionError):
        return None
    return len(ranks) if isinstance(ranks, list) and ranks else None
