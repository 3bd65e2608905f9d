"""Profiles of PyTorch's profiler and execution traces, of a CPU and of a GPU, and a flight
recorder's dump: plain and gzipped, changed as JSON or as bytes, before or after packing."""

import gzip
import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.case import Kind, Try, choose, write
from tests.fuzz.mutation import as_json, damaged, tree
from tests.fuzz.small import written
from tests.traces.kineto.linked import linked, of_gpu
from tests.traces.kineto.test_passes import cuda_trace, profiled

_RUN = 0.1
_LISTS = ("traceEvents", "nodes", "entries")
_LOGS = Path(__file__).parents[2] / "analysis" / "calibration" / "data"


def _make(rng: Random, one: Try) -> None:
    body = rng.choice(_bodies(one.material))
    body = tree(rng, body) if choose(rng, 0.6) else body
    if choose(rng, 0.5):
        events = _events(body)
        for number in rng.sample(range(len(events)), min(len(events), rng.choice((1, 5, 50)))):
            events[number] = tree(rng, events[number], 1)
    content = as_json(body)
    content = damaged(rng, content) if choose(rng, 0.3) else content
    if choose(rng, 0.3):
        content = gzip.compress(content, 1)
        content = damaged(rng, content) if choose(rng, 0.5) else content
    write(one.folder / "p.json", content)
    written(one.folder, compute={"profile": "p.json"})
    done = one.gcsim("check", "s.yaml")
    if done is not None and done.returncode == 0 and choose(rng, _RUN):
        one.run("s.yaml")


def _events(body: Any) -> list[Any]:
    """Of a profile whatever it has become; copies are not needed: it is read afresh."""
    found = body
    if isinstance(body, dict):
        found = next((body[key] for key in _LISTS if key in body), None)
    return found if isinstance(found, list) else []


def _bodies(material: Path) -> tuple[Any, ...]:
    return tuple(map(json.loads, _texts(material)))


@cache
def _texts(material: Path) -> tuple[str, ...]:
    files = ("cpu.json", "linked.json", "et.json")
    recorder = _LOGS / "flight_recorder_4_ranks.json"
    return (
        *((material / name).read_text() for name in files),
        json.dumps(cuda_trace()),
        json.dumps(of_gpu(cuda_trace())),
        recorder.read_text(),
    )


def _prepare(folder: Path) -> None:
    profiled(folder / "cpu.json", "lenet", shapes=True)
    linked(folder, "lenet")


PROFILES = Kind(name="profiles", make=_make, prepare=_prepare)
