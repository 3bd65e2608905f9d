"""Reader of collectives in a trace of PyTorch's profiler (Kineto), from NCCL's kernels.

    {"traceEvents": [{"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
     "ts": 5041.2, "dur": 5310.0, "args": {"Collective name": "allreduce", "dtype": "Float",
     "In msg nelems": 6553600, "Out msg nelems": 6553600, "Group size": 16,
     "Process Group Name": "0", "Seq": 12, ...}}, ...], ...}

`dur` is the kernel's time on its stream in microseconds, with the wait for later ranks, while other
kernels compute. `In msg nelems` and `Out msg nelems` are this rank's elements; an all-gather's
output and a reduce-scatter's input are the whole vector. If several ranks' traces number
collectives (`Seq`, since 2026), the shortest time counts (`reading.py`). Coalesced collectives,
which have no sizes, and unequal parts (`all_to_allv`) are skipped.

Source: pytorch/kineto, libkineto/src/output_json.cpp (what a kernel takes from
`record_param_comms`); pytorch/pytorch, torch/csrc/profiler/util.cpp (`saveNcclMeta`),
torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (names, `inNelems`, `outNelems`).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from gcsim.analysis.calibration.measurements import collectives
from gcsim.analysis.calibration.measurements.json_text import EVENTS, at, entries, whole
from gcsim.errors import InputError
from gcsim.json_file import finite

_ELEMENTS = {"input": "In msg nelems", "output": "Out msg nelems"}


def recognised(body: Any) -> bool:
    """Whether it is an object with events."""
    return isinstance(at(body, EVENTS), list)


def is_nccl_kernel(event: Any) -> bool:
    """Whether an event is a kernel of NCCL."""
    return at(event, "cat") == "kernel" and str(at(event, "name")).startswith("nccl")


def parse(name: str, body: Any, stated: collectives.Stated) -> collectives.Reading:
    """Read a trace; raises `InputError` without an NCCL kernel of known size."""
    del stated  # the trace has the ranks
    mistakes = collectives.Mistakes(name)
    points: list[collectives.Measurement] = []
    left_out: Counter[str] = Counter()
    for number, event in enumerate(entries(body, EVENTS)):
        if not is_nccl_kernel(event):
            continue
        kernel = at(event, "name")
        called, dtype = (str(at(event, "args", key)) for key in ("Collective name", "dtype"))
        known = collectives.C10_COLLECTIVES.get(called)
        elements = whole(at(event, "args", _ELEMENTS[known[1]])) if known else None
        ranks = whole(at(event, "args", "Group size"))
        if known is None or not elements or ranks is None or dtype not in collectives.C10_TYPES:
            left_out[(kernel if called == "None" else called)[:40]] += 1
            continue
        place, lasted = f"{name}: traceEvents[{number}]", finite(at(event, "dur"))
        if lasted is None or lasted <= 0:
            mistakes.at(place, f"a duration of {at(event, 'dur')!r:.40} us", "times are positive")
        elif ranks > 1:
            torch_name, nbytes = collectives.C10_TYPES[dtype]
            group, turn = (at(event, "args", key) for key in ("Process Group Name", "Seq"))
            points.append(
                collectives.Measurement(
                    collective=known[0],
                    ranks=ranks,
                    nbytes=elements * nbytes,
                    seconds=lasted / 1e6,
                    element=nbytes,
                    dtype=torch_name,
                    algorithm="nccl",
                    place=place,
                    call="" if None in (group, turn) else f"{group} {turn}",
                )
            )
    mistakes.raise_any()
    if not points:
        raise InputError(
            "has no NCCL kernel with its collective's name, size, type and group",
            place=name,
            hint="profile with ProfilerActivity.CUDA, and a newer PyTorch; Gloo has no kernels: "
            "measure with torchrun -m gcsim.calibrate_link; for passes, name the profile in a "
            "scenario, `compute: {profile: FILE}`",
        )
    notes = [
        f"{name}: a kernel's time includes the wait for later ranks and the slow-down by "
        "concurrent kernels"
    ]
    if not any(point.call for point in points):
        notes.append(f"{name}: collectives are not numbered, so each rank's own time counts")
    if left_out:
        notes.append(f"{name}: left out: {', '.join(left_out)}")
    return collectives.Reading(
        file=name,
        tool="PyTorch profiler",
        measurements=tuple(points),
        device=str(at(body, "deviceProperties", 0, "name") or ""),
        notes=tuple(notes),
        placed=False,
    )
