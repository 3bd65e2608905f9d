"""Compilation of loops in a second process while the first one trains the model.

Loops are compiled once per machine, which takes half a minute on one core. The second process runs
the same methods on the same cluster for a small model, and compiles the same loops. A loop that
both need is compiled by one of them; the other waits and loads it (`loop_cache.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gcsim.compressors.registry import REGISTRY
from gcsim.files import cache_folder
from gcsim.scenarios.scenario import LiveGradients, Scenario, SyntheticGradients
from gcsim.scenarios.sweeps.processes import LocalWorkers
from gcsim.scenarios.sweeps.tasks import Task
from gcsim.traces.models.registry import MODELS
from gcsim.traces.stage1.machine import usable

_SMALL = "lenet"
_WORTH = 1_000_000
"""Least parameters of a model whose gradients take longer than starting a process."""


@contextmanager
def compiling_ahead(scenario: Scenario) -> Iterator[None]:
    """Compile the scenario's loops in another process until the block ends, if this machine has
    none yet and a core to spare. If that fails, each loop is compiled when it is needed."""
    loops = Path(os.environ.get("NUMBA_CACHE_DIR") or cache_folder() / "loops")
    small = None if loops.exists() or len(usable()) == 1 else small_like(scenario)
    if small is None:
        yield
        return
    workers = LocalWorkers(1, side_by_side=True)
    try:
        workers.start(0, Task(scenario=small))
        yield
    finally:
        workers.close()


def small_like(scenario: Scenario) -> Scenario | None:
    """Return the scenario with a small model and gcsim's own methods; None if its model is small or
    has its gradients cut (`stage1/alike.py`)."""
    model = scenario.model
    if (model.parameters or _WORTH) < _WORTH or model.transformer is not None:
        return None
    own = tuple(choice for choice in scenario.compressors if choice.kind in REGISTRY)
    gradients = scenario.gradients
    if isinstance(gradients, LiveGradients):
        gradients = replace(gradients, warmup_steps=1, iterations=1)
    else:
        gradients = SyntheticGradients(fit=None, workers=2, iterations=1)
    return replace(
        scenario,
        model=MODELS[_SMALL],
        gradients=gradients,
        node_counts=scenario.node_counts[-1:],
        compressors=own,
        compute=None,
        train=None,
    )
