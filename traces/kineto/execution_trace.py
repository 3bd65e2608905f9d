"""What would a profiler's events be, of an execution trace in Chakra's JSON?

PyTorch's ExecutionTraceObserver writes operators in their order, with shapes and without times.
`chakra_trace_link` puts beside each node what Kineto measured in the same steps (`ts`,
`inclusive_dur`), and the kernels that it launched as nodes with `cat` and `stream`. Those are read
here. A kernel's `ts` is the end of its launch there, and not its start: it is taken to run when it
is launched or when its stream has done what was launched before, whichever is later.

Source: pytorch/pytorch, torch/csrc/profiler/standalone/execution_trace_observer.cpp (schema
1.0.2-chakra.0.0.4 to 1.1.1); mlcommons/chakra, src/trace_link/trace_linker.py
(`process_op_and_dependents`, `get_start_timestamp_for_gpu_op`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from gcsim.json_file import finite

Event = dict[str, Any]

_BEFORE = 1e-3
"""Microseconds: a launch that ends where the next operator begins belongs to the one before."""
KIND = "chakra"
"""Category of the host's events that come from here."""


def as_events(nodes: Iterable[Event]) -> Iterator[Event]:
    """The events of a trace's nodes; none, where no node has a time."""
    launched: list[tuple[float, float, Event]] = []
    forwards: dict[float, float] = {}
    for node in nodes:
        start, lasted = finite(node.get("ts")), finite(node.get("inclusive_dur"))
        if start is None or lasted is None:
            continue
        if node.get("cat") is not None:
            launched.append((start, lasted, node))
            continue
        inputs = node.get("inputs")
        shapes = inputs.get("shapes") if isinstance(inputs, dict) else None
        yield {
            "ph": "X",
            "cat": KIND,
            "name": node.get("name"),
            "ts": start,
            "dur": lasted,
            "args": {"Input Dims": shapes},
        }
        if (sequence := _sequence(node)) is not None:  # the innermost operator, as in Kineto
            forwards[sequence] = max(start, forwards.get(sequence, start))
    for start in forwards.values():
        yield {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "ts": start}
    yield from _kernels(launched)


def _kernels(launched: list[tuple[float, float, Event]]) -> Iterator[Event]:
    """Each with its launch; a stream runs one after the other."""
    free: defaultdict[str, float] = defaultdict(lambda: float("-inf"))
    launched.sort(key=lambda kernel: kernel[0])
    for number, (asked, lasted, node) in enumerate(launched):
        stream = str(node.get("stream"))
        start = max(asked, free[stream])
        free[stream] = start + lasted
        correlation = {"correlation": number}
        yield {
            "ph": "X", "cat": "cuda_runtime", "name": "launch", "ts": asked - _BEFORE, "dur": 0,
            "args": correlation,
        }  # fmt: skip
        yield {
            "ph": "X", "cat": node.get("cat"), "name": node.get("name"), "ts": start,
            "dur": lasted, "args": {**correlation, "stream": stream},
        }  # fmt: skip


def _sequence(node: Event) -> float | None:
    """Of a forward operator that a backward operator belongs to: the number that both have."""
    attributes = node.get("attrs")
    told = {
        one.get("name"): one.get("value")
        for one in (attributes if isinstance(attributes, list) else ())
        if isinstance(one, dict) and isinstance(one.get("name"), str)
    }
    number = finite(told.get("seq_id"))
    forward = told.get("scope") == 0 == told.get("fw_parent")
    return number if forward and number is not None and number >= 0 else None
