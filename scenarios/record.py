"""Making the gradients that a scenario asks for: trained here, or read from a trace."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gcsim.errors import InputError
from gcsim.scenarios.progress import Progress, SilentProgress
from gcsim.scenarios.scenario import LiveGradients, RecordedGradients, Scenario
from gcsim.traces import cache

if TYPE_CHECKING:
    from gcsim.traces.store import Trace


def record(
    scenario: Scenario,
    folder: Path,
    *,
    iterations: int | None = None,
    workers: int | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    max_bytes: int | None = None,
    second_moments: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Train the scenario's model as its `gradients` say and store the gradients in `folder`.

    Raises `InputError` when the scenario replays a trace, the folder exists, or the disk is full;
    nothing is left behind then.
    """
    from gcsim.traces.record import record_live

    live = scenario.gradients
    if not isinstance(live, LiveGradients):
        raise InputError(
            f"{scenario.name} replays a stored trace; recording needs gradients: {{source: live}}"
        )
    watcher = progress or SilentProgress()
    live_iterations = iterations or live.iterations
    live_workers = workers or live.workers
    with watcher.task("gradients", live.warmup_steps + live_iterations * live_workers) as task:
        reported = 0

        def advance(_description: str, done: int, _total: int) -> None:
            nonlocal reported
            task.advance(done - reported)
            reported = done

        return record_live(
            model=scenario.model,
            input_shape=scenario.input_shape,
            classes=scenario.classes,
            batch_size=scenario.batch_size,
            workers=live_workers,
            warmup_steps=live.warmup_steps,
            iterations=live_iterations,
            learning_rate=live.learning_rate,
            momentum=live.momentum,
            device=live.device,
            seed=scenario.seed,
            second_moments=second_moments,
            dtype=dtype,
            folder=folder,
            max_bytes=max_bytes,
            progress=advance,
        )


def check_trace(scenario: Scenario) -> None:
    """Raise `TraceError` when the scenario replays a trace that is damaged or edited.

    Done on every run, also when all profiles are cached: a result must not claim a trace that is
    no longer there.
    """
    if isinstance(scenario.gradients, RecordedGradients):
        from gcsim.traces.store import Trace

        Trace.open(scenario.gradients.trace)


@contextmanager
def open_gradients(
    scenario: Scenario, *, second_moments: bool, progress: Progress
) -> Iterator[Trace]:
    """The scenario's gradients as a trace; live ones lie in a temporary folder until the end."""
    from gcsim.traces.store import Trace

    source = scenario.gradients
    if isinstance(source, RecordedGradients):
        yield Trace.open(source.trace, verify=False)  # `check_trace` has verified it
        return
    cache.folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gradients-", dir=cache.folder()) as temporary:
        folder = Path(temporary) / "trace"
        record(scenario, folder, second_moments=second_moments, progress=progress)
        yield Trace.open(folder, verify=False)
