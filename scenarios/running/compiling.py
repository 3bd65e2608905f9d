"""Compile the loops of a scenario's methods in another process while this one uses the model.

Both processes keep what they compile in the cache folder and wait for each other loop by loop
(`compressors/loops.py`). The other process runs the cluster first and then the methods from the
last to the first, on a small bucket: the order opposite to this one's.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.options.method import method_of
from gcsim.compressors.registry import REGISTRY
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.running.simulate import as_carried, compute_times, simulate
from gcsim.scenarios.scenario import CompressorChoice, Scenario
from gcsim.simulator.devices.pricing import PriceList
from gcsim.traces.profile import Layer, ModelFacts, TrafficProfile
from gcsim.traces.stage1.machine import threads

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from gcsim.scenarios.running.compiling import serve; serve()"
)
_SHAPES = {"conv": (64, 3, 11, 11), "conv.bias": (64,), "linear": (500, 400), "linear.bias": (500,)}
_LAYOUT = BucketLayout.behind(0, ((name, at, _SHAPES[name]) for at, name in enumerate(_SHAPES)))
_DRAWS = 2
"""Drawn worlds of the small simulation."""


@contextmanager
def compiled_beside(scenario: Scenario) -> Iterator[None]:
    """While the context lasts another process compiles, where it would not take this one's core and
    there is something to compile."""
    child: Any = None
    if threads() > 1 and not all(path.exists() for path in _marks(scenario)):
        path = json.dumps([folder or str(Path.cwd()) for folder in sys.path])
        with suppress(OSError, pickle.PicklingError, TypeError, AttributeError):  # it does without
            task = pickle.dumps(scenario)
            child = subprocess.Popen(  # noqa: S603 - our own interpreter and code
                [sys.executable, "-P", "-c", _START, path],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C reaches this process alone
            )
            child.stdin.write(task)
            child.stdin.flush()
    try:
        yield
    finally:
        if child is not None:
            child.kill()  # files in the cache are whole or temporary
            with suppress(OSError):
                child.stdin.close()
            child.wait()


def _marks(scenario: Scenario) -> list[Path]:
    """Files that say for each method, and for the cluster, that its loops were compiled."""
    from gcsim.compressors.loops import loops_folder

    folder = loops_folder()
    names = [*_own(scenario), f"cluster {scenario.cluster.collectives.transport}"]
    return [] if folder is None else [folder / f"{name}.mark" for name in names]


def _own(scenario: Scenario) -> dict[str, CompressorChoice]:
    """The scenario's methods that are gcsim's, by kind."""
    return {each.kind: each for each in scenario.compressors if each.kind in REGISTRY}


def serve() -> None:
    """Compile for the scenario that comes through stdin, until that ends."""
    scenario: Scenario = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the process that started this
    threading.Thread(target=_leave_with_the_run, daemon=True).start()
    *methods, cluster = _marks(scenario)
    own = list(_own(scenario).values())
    with suppress(Exception):
        _simulate(scenario, [own[0], own[-1]])
        cluster.touch()
    for choice, mark in zip(reversed(own), reversed(methods), strict=True):
        with suppress(Exception):  # the run itself says what is wrong
            _profiles([choice])
            mark.touch()


def _leave_with_the_run() -> None:
    sys.stdin.buffer.read()  # nothing more comes: it returns when the run is over
    os._exit(0)


class _Noise:
    """Gradients of two workers: one small bucket."""

    facts = ModelFacts(
        name="small",
        parameters=_LAYOUT.numel,
        layers=(Layer(name="all", parameters=(0, 1, 2, 3), forward_flops=1),),
        samples_per_worker=1,
    )
    workers = 2
    iterations = 1
    moment_costs: dict[int, tuple[()]] = {}  # noqa: RUF012 - nobody changes it

    def bucket(
        self, layout: BucketLayout, iteration: int, worker: int, second_moments: bool = False
    ) -> Bucket:
        """Random numbers."""
        import torch

        generator = torch.Generator().manual_seed(worker)
        gradient = 0.1 * torch.randn(layout.numel, generator=generator)
        moment = 2 * gradient.square() if second_moments else None
        return Bucket(layout=layout, gradient=gradient, second_moment=moment, loss=1.0)


def _profiles(choices: Sequence[CompressorChoice]) -> list[TrafficProfile]:
    """Stage 1 on the small bucket."""
    from gcsim.traces.stage1.measure import Subject, measure

    methods = [method_of(choice.kind, choice.parameters) for choice in choices]
    subjects = [
        Subject(kind=choice.kind, compressor=method.compressor, parameters=method.parameters)
        for choice, method in zip(choices, methods, strict=True)
    ]
    return measure(subjects, _Noise(), [_LAYOUT], workers=2, seed=0, provenance={})


def _simulate(scenario: Scenario, choices: Sequence[CompressorChoice]) -> None:
    """Stage 2 of some methods at the largest size."""
    small = replace(
        scenario,
        compressors=tuple(choices),
        node_counts=scenario.node_counts[-1:],
        draws=min(scenario.draws, _DRAWS),
    )
    small, _, profiles = as_carried(small, [""] * len(choices), _profiles(choices))
    compute, prices = compute_times(small, profiles[0], None), PriceList(small.cluster.device)
    simulate(small, profiles, compute, prices, SilentProgress())
