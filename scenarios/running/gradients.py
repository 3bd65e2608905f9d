"""Gradients that a scenario asks for: trained here, read from a trace, or synthetic."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gcsim.compressors.registry import compressor_class
from gcsim.errors import InputError, Problem, TraceError
from gcsim.files import cache_folder, in_use, remove_left, remove_unused, temporary_folder
from gcsim.scenarios.progress import Progress, SilentProgress
from gcsim.scenarios.running.keys import gradients_key
from gcsim.scenarios.scenario import LiveGradients, RecordedGradients, Scenario, SyntheticGradients
from gcsim.scenarios.sections.file import RECORDED
from gcsim.scenarios.sections.model_table import misfit
from gcsim.scenarios.sections.passes import check_passes
from gcsim.traces.models.registry import MODELS
from gcsim.traces.models.table import facts_and_parameters, table_parameters
from gcsim.traces.storage.store import Trace
from gcsim.traces.synthetic.fit_file import open_fits
from gcsim.traces.synthetic.fit_mapping import check_shapes

if TYPE_CHECKING:
    from gcsim.traces.storage.held import HeldTrace
    from gcsim.traces.synthetic.gradients import SyntheticTrace


_GRADIENTS = "gradients-"  # prefix of a run's gradients in the cache folder
_KEPT = "gradients"
KEPT_BYTES = 4 << 30
"""Bytes of all gradients kept after their runs."""


def record(
    scenario: Scenario,
    folder: Path,
    *,
    iterations: int | None = None,
    workers: int | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    max_bytes: int | None = None,
    second_moments: bool = False,
    times: bool = False,
    held: HeldTrace | None = None,
    progress: Progress | None = None,
) -> Path:
    """Train the scenario's model as its `gradients` section says and store the gradients in
    `folder`, or keep them in `held`.

    `times` also records the durations of forward and backward and when each gradient is ready, for
    `compute: {recorded: true}`. Raises `InputError`, and leaves no files behind, when the scenario
    replays a trace, the folder exists, or the disk is full.
    """
    from gcsim.traces.recording.model_traces import record_live

    live = scenario.gradients
    if not isinstance(live, LiveGradients):
        raise InputError(
            f"{scenario.name} trains nothing here: its gradients are stored or synthetic; "
            "recording needs gradients: {source: live}"
        )
    watcher = progress or SilentProgress()
    live = replace(live, iterations=iterations or live.iterations, workers=workers or live.workers)
    with watcher.task("gradients", live.warmup_steps + live.iterations * live.workers) as task:
        reported = 0

        def advance(description: str, done: int, _total: int) -> None:
            nonlocal reported
            task.advance(done - reported, note=description)
            reported = done

        return record_live(
            model=scenario.model,
            batch_size=scenario.batch_size,
            **asdict(live),
            seed=scenario.seed,
            second_moments=second_moments,
            times=times,
            dtype=dtype,
            folder=folder,
            held=held,
            max_bytes=max_bytes,
            progress=advance,
        )


def check_trace(scenario: Scenario) -> None:
    """Raise `InputError` when the scenario cannot replay its trace or measured times, or draw from
    its fit: for a damaged or edited trace alone, else for every mismatch. Every run calls this,
    even with all profiles cached: a result must not claim a trace that no longer exists."""
    source = scenario.gradients
    if isinstance(source, RecordedGradients):
        problems = [
            Problem(place=str(source.trace), message=message, hint=hint)
            for message, hint in _misfits(scenario, source, Trace.open(source.trace))
        ]
        if problems:
            raise TraceError(problems)
    _check_synthetic(scenario)
    check_passes(scenario)


def _misfits(
    scenario: Scenario, source: RecordedGradients, trace: Trace
) -> Iterator[tuple[str, str]]:
    """Yield mismatches of scenario and trace, with remedies; model and batch must be the same."""
    facts = trace.facts
    if not scenario.model.layers and facts.name != scenario.model.name:
        yield (
            f"holds gradients of {facts.name!r}, but the scenario trains {scenario.model.name!r}",
            f"set model: {facts.name if facts.name in MODELS else RECORDED} or record another "
            "trace",
        )
    elif differs := misfit(scenario.model, trace.parameters):
        owner = "table" if scenario.model.layers else "model"
        yield (
            f"is a trace of {facts.name!r}, not of the scenario's {owner}: {differs}",
            "give the table the trace's tensors, or set model: recorded"
            if scenario.model.layers
            else "record it under its own name",
        )
    if facts.samples_per_worker != scenario.batch_size:
        yield (
            f"was recorded with {facts.samples_per_worker} samples per worker, but the scenario "
            f"has batch_size {scenario.batch_size}",
            f"set batch_size: {facts.samples_per_worker} or record again",
        )
    if source.workers is not None and source.workers > trace.workers:
        yield (
            f"holds gradients of {trace.workers} workers, but the scenario asks for "
            f"{source.workers}",
            f"set gradients.workers to at most {trace.workers} or record more",
        )
    needing = [
        choice.label
        for choice in scenario.compressors
        if "second_moments" in compressor_class(choice.kind).requires
    ]
    if needing and not trace.has_second_moments:
        yield (
            f"holds no second moments, which are needed by {', '.join(map(repr, needing))}",
            "record again with --second-moments or leave that compressor out",
        )


@contextmanager
def open_gradients(
    scenario: Scenario, *, second_moments: bool, progress: Progress, keep: bool = False
) -> Iterator[Trace | SyntheticTrace | HeldTrace]:
    """Open the scenario's gradients as a trace. Gradients of a live training stay on the GPU that
    trained them if it has room, and stage 1 runs there. Otherwise they go to a temporary folder, or
    with `keep` to the cache, within `KEPT_BYTES`."""
    source = scenario.gradients
    if isinstance(source, RecordedGradients):
        yield Trace.open(source.trace, verify=False)  # `check_trace` has verified it
        return
    if isinstance(source, SyntheticGradients):
        yield open_synthetic(scenario, source)
        return
    with ExitStack() as stack:
        known = None
        if keep:
            names = [gradients_key(scenario, second_moments=each) for each in (False, True)]
            paths = [cache_folder() / _KEPT / name for name in names]
            path = paths[second_moments]
            known = _kept(paths[True], stack) or (None if second_moments else _kept(path, stack))
        if known is None and (held := _held(scenario, source, second_moments)) is not None:
            path = Path()  # no folder: nothing is cached
            record(scenario, path, second_moments=second_moments, held=held, progress=progress)
            yield held
            return
        if known is None:
            folder = stack.enter_context(temporary_folder(*_room())) / "trace"
            record(scenario, folder, second_moments=second_moments, progress=progress)
            if keep:
                folder = _keep(folder, path, stack)
            known = Trace.open(folder, verify=False)
        yield known


def _held(scenario: Scenario, source: LiveGradients, second_moments: bool) -> HeldTrace | None:
    """Return an in-memory trace on the training GPU; None without a GPU, or if the gradients need
    more than half of its free memory."""
    from gcsim.compressors.lazy_torch import torch
    from gcsim.traces.live import pick_device
    from gcsim.traces.storage.held import HeldTrace

    if pick_device(source.device) == "cpu":
        return None
    facts, _ = facts_and_parameters(scenario.model, scenario.batch_size)
    tensors = source.workers * source.iterations * (1 + second_moments)
    free, _ = torch.cuda.mem_get_info()
    return HeldTrace() if 4 * facts.parameters * tensors <= free // 2 else None


def _kept(path: Path, stack: ExitStack) -> Trace | None:
    """Open and lock the cached gradients of an earlier run; None if missing or damaged."""
    with suppress(OSError):
        stack.enter_context(in_use(path))
        os.utime(path)  # marks the entry as just used
        try:
            return Trace.open(path)
        except TraceError:
            shutil.rmtree(path, ignore_errors=True)
    return None


def _keep(folder: Path, path: Path, stack: ExitStack) -> Path:
    """Move gradients to the cache, if there is room; return the folder that now has them."""
    size = _nbytes(folder)
    if size > KEPT_BYTES:
        return folder
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        stack.enter_context(in_use(folder))
        folder.rename(path)  # fails if the disk is full or another run was faster
        _make_room(path)
        return path
    return folder


def _make_room(newest: Path) -> None:
    """Remove the least recently used gradients that no run is reading."""
    others = [path for path in newest.parent.iterdir() if path != newest]
    others.sort(key=lambda path: path.stat().st_mtime_ns)
    left = sum(map(_nbytes, [newest, *others])) - KEPT_BYTES
    for path in others:
        if left <= 0:
            break
        size = _nbytes(path)
        if remove_unused(path):
            left -= size


def _nbytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))


def remove_left_gradients() -> None:
    """Remove the gradients that killed runs left behind; these can be gigabytes."""
    remove_left(cache_folder(), _GRADIENTS)


def _room() -> tuple[str, Path | None]:
    """Return prefix and parent of a run's gradient folder; None: the system's temporary folder."""
    with suppress(OSError):
        cache_folder().mkdir(parents=True, exist_ok=True)
    if os.access(cache_folder(), os.W_OK):
        return _GRADIENTS, cache_folder()
    return f"gcsim-{_GRADIENTS}", None


def _check_synthetic(scenario: Scenario) -> None:
    """Raise `InputError` for an unreadable fit, or a fit of this model with other tensors. Does not
    import torch; if the user's code builds the model, only the fit's file is checked."""
    source = scenario.gradients
    if not isinstance(source, SyntheticGradients):
        return
    fits, title = open_fits(source.fit)
    if not scenario.model.layers:
        return
    try:
        check_shapes(fits, scenario.model.name, table_parameters(scenario.model))
    except InputError as error:
        raise InputError(
            [
                Problem(place=title, message=f"{p.place} {p.message}", hint=p.hint)
                for p in error.problems
            ]
        ) from error


def open_synthetic(scenario: Scenario, source: SyntheticGradients) -> SyntheticTrace:
    """Return the gradients to draw; errors as `_check_synthetic`, and for an unbuildable model."""
    from gcsim.traces.synthetic.gradients import SyntheticTrace

    fits, title = open_fits(source.fit)
    facts, parameters = facts_and_parameters(scenario.model, scenario.batch_size)
    return SyntheticTrace(
        facts,
        parameters,
        fits,
        workers=source.workers,
        iterations=source.iterations,
        seed=scenario.seed,
        title=title,
    )
