"""Python interface: `gcsim.run`, `gcsim.train`, ... and their results, which can show themselves.

The values come from `gcsim.scenarios`, which knows no reports; the methods here show them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcsim.scenarios import result as of_run
from gcsim.scenarios.sweeps import result as of_sweep
from gcsim.scenarios.trained import result as of_training

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gcsim.analysis.advice.advice import Advice
    from gcsim.scenarios.progress import Progress
    from gcsim.scenarios.scenario import Scenario


class Result(of_run.Result):
    """Predictions of a run, with methods to show them: `rows`, `to_frame()`, `summary()`, ..."""

    __slots__ = ()

    def summary(self, width: int = 120, *, full: bool = False) -> str:
        """Return the text of `gcsim run` (`full`: of `gcsim run -v`) on a terminal of `width`
        cells: the table, then the answer."""
        from gcsim.analysis.report.answer import parts, plain

        return plain(parts(self, width, full=full), width)

    def plot_speedup(self) -> Figure:
        """Plot throughput relative to one device against the number of workers (`speedup.png`)."""
        from gcsim.analysis.plots.speedup import speedup_figure

        return speedup_figure(self)

    def _repr_html_(self) -> str:
        from gcsim.analysis.report.answer import html

        return html(self)


class SweepResult(of_sweep.SweepResult):
    """Predictions of a sweep, with methods to show them: `rows`, `to_frame()`, `summary()`, ..."""

    __slots__ = ()

    def summary(self, width: int = 120) -> str:
        """Return the text of `gcsim sweep` on a terminal of `width` cells: table, then answer."""
        from gcsim.analysis.report.answer import plain
        from gcsim.analysis.report.sweep import parts

        return plain(parts(self, width), width)

    def plot_speedup(self) -> Figure:
        """Plot the speedup of the method to use at each point (`gcsim plot`)."""
        from gcsim.analysis.plots.sweep import gain_figure

        return gain_figure(self)

    def _repr_html_(self) -> str:
        from gcsim.analysis.report.sweep import html

        return html(self)


class TrainingResult(of_training.TrainingResult):
    """Outcome of training, with methods to show it: `rows`, `curves`, `summary()`, ..."""

    __slots__ = ()

    def summary(self, width: int = 120) -> str:
        """Return the text of `gcsim train` on a terminal of `width` cells: table, then answer."""
        from gcsim.analysis.report.answer import plain
        from gcsim.analysis.trained.table import parts

        return plain(parts(self, width), width)

    def plot_accuracy(self) -> Figure:
        """Plot accuracy or loss over simulated seconds, with the points where methods reach the
        target (`accuracy.png`)."""
        from gcsim.analysis.trained.curves import curves_figure

        return curves_figure(self)

    def plot_speedup(self) -> Figure:
        """Plot speedups to the target on the largest cluster (`speedup_to_target.png`)."""
        from gcsim.analysis.trained.intervals import gains_figure

        return gains_figure(self)

    def _repr_html_(self) -> str:
        from gcsim.analysis.trained.table import html

        return html(self)


def run(
    scenario: str | os.PathLike[str] | Scenario,
    *,
    cache: bool = True,
    progress: Progress | None = None,
) -> Result:
    """Run the compressors that are not cached, simulate every size, and assemble the rows.

    `scenario` is a YAML file, a shipped scenario's name, or a loaded one.
    `cache=False` runs every compressor again and stores nothing. Raises `InputError` for gradients
    that cannot be used, before any simulation.
    """
    from gcsim.analysis.advice.advice import advised_run
    from gcsim.scenarios.load import loaded

    return _with_methods(advised_run(loaded(scenario), cache=cache, progress=progress))


def record_scenario(
    scenario: str | os.PathLike[str] | Scenario, folder: Path, **options: Any
) -> Path:
    """Train the scenario's model as its `gradients` state and store the gradients in `folder`.

    `scenario` is a YAML file, a shipped scenario's name, or a loaded one; `options` and errors are
    those of `gcsim.scenarios.running.gradients.record`.
    """
    from gcsim.scenarios.load import loaded
    from gcsim.scenarios.running.gradients import record

    return record(loaded(scenario), folder, **options)


def advise(
    scenario: str | os.PathLike[str] | Scenario | None = None,
    *,
    model: str | None = None,
    device: str | None = None,
    gpus: int | None = None,
    nodes: int | None = None,
    nics: int | None = None,
    groups: Sequence[str] | None = None,
    network: str | Mapping[str, Any] | None = None,
    parameters: str | None = None,
    batch_size: int | None = None,
    precision: str | None = None,
    sequence: int | None = None,
    checkpointing: str | None = None,
    loop: str | None = None,
    limited: bool | None = None,
    cost_per_hour: float | None = None,
    overrides: Mapping[str, str] | Sequence[str] = (),
    seed: int | None = None,
    per_bucket: bool = False,
    cache: bool = True,
    progress: Progress | None = None,
) -> Advice:
    """Advise which method to use on a cluster, and what to change first.

    `gcsim.advise(model="resnet50", device="v100", gpus=4, nodes=8, network="25 Gbit/s")` runs no
    compressor, as the traffic profiles of the shipped models come with gcsim.

    Parameters
    ----------
    scenario
        A YAML file, a shipped scenario's name, a loaded scenario, or a folder of recorded
        gradients; None: see the other arguments, which otherwise override the scenario's settings.
    model, device, network
        Names from `gcsim list`; a network may also be a rate ("25 Gbit/s"), a file, or a mapping as
        in a scenario.
    gpus, nodes, nics
        GPUs per node (1), machines, and NICs per node (1).
    groups
        Groups of unlike nodes instead of device, gpus and nodes: `["4 x 8 a100 @ 100gbe", ...]`.
    parameters
        Size of the model instead of its name: "110M".
    precision, loop, limited
        Precision of the passes; training framework (ddp, horovod, paddle, deepspeed, own); whether
        `tc` or a provider caps the bandwidth. The answer names omitted facts that matter.
    sequence, checkpointing
        Tokens per sample, and activation checkpointing (none, selective, full), for a model by
        formula.
    batch_size
        Samples per GPU; 32 by default, or as many sequences as hold at most 4,096 tokens.
    cost_per_hour
        Cost of a node, in any currency: savings are then also given in money.
    overrides, seed
        As in `load_scenario`.
    per_bucket
        Also search for plans that give each DDP bucket its own method.
    cache
        False: simulate again and store nothing.

    Raises
    ------
    InputError
        With every problem of the scenario and the arguments; or, if no method fits in the devices'
        memory, with the missing amount and with what would fit.
    """
    from gcsim.analysis.advice.advice import advice
    from gcsim.scenarios.advice.question import Words, ask, question_about
    from gcsim.scenarios.scenario import Scenario

    words = Words(
        model=model, device=device, gpus=gpus, nodes=nodes, nics=nics, group=groups,
        network=network, parameters=parameters, batch_size=batch_size, precision=precision,
        loop=loop, limited=limited, cost_per_hour=cost_per_hour, sequence=sequence,
        checkpointing=checkpointing,
    )  # fmt: skip
    if isinstance(overrides, Mapping):
        overrides = [f"{key}={value}" for key, value in overrides.items()]
    if isinstance(scenario, Scenario):
        question = question_about(scenario, words, overrides, seed)
    else:
        source = None if scenario is None else os.fspath(scenario)
        question = ask(source, words, overrides, seed)
    return advice(question, cache=cache, progress=progress, per_bucket=per_bucket)


def train(
    scenario: str | os.PathLike[str] | Scenario,
    *,
    build_model: Callable[[], Any] | None = None,
    splits: Callable[[], tuple[Any, Any]] | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    jobs: int | None = None,
    dask: str | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> TrainingResult:
    """Train with every method as `train` in the scenario states, and add each cluster's time.

    Trained runs are stored: another cluster needs no training, and after an interrupt the same call
    continues.

    Parameters
    ----------
    scenario
        A YAML file, a shipped scenario's name, or a loaded scenario.
    build_model, splits, loss
        Your own functions instead of what the scenario names, from a file, as other processes
        import it. `build_model()` returns an `nn.Module`; `splits()` two map-style datasets of
        pairs, the second held out; `loss(output, labels)` the mean loss of a batch, or one per
        sample, `[batch]`. Call `train` under `if __name__ == "__main__":`.
    jobs
        Number of training processes; by default one per core, or as many as fit in memory.
    dask
        Address of a dask.distributed scheduler, instead of processes on this machine.
    fresh
        Also train here the methods whose trajectories come with gcsim.

    Raises
    ------
    InputError
        For a scenario that cannot be trained, or a target that dense training does not reach.
    """
    from gcsim.scenarios.load import loaded
    from gcsim.scenarios.trained.own import with_user_code
    from gcsim.scenarios.trained.study import train as train_all

    found = loaded(scenario)
    if build_model or splits or loss:
        found = with_user_code(found, build_model=build_model, splits=splits, loss=loss)
    return TrainingResult(
        **_values(train_all(found, jobs=jobs, dask=dask, fresh=fresh, progress=progress))
    )


def sweep(
    scenario: str | os.PathLike[str] | Scenario,
    grid: Mapping[str, Sequence[Any]] | Sequence[str],
    *,
    overrides: Mapping[str, str] | Sequence[str] = (),
    seed: int | None = None,
    jobs: int | None = None,
    dask: str | None = None,
    output: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> SweepResult:
    """Run a scenario for every combination of the grid's values.

    Parameters
    ----------
    scenario
        A YAML file, a shipped scenario's name, or a loaded scenario.
    grid
        Values by key: `{"cluster.nodes": [8, 16], "cluster.network": ["10gbe", "25gbe"]}`. Keys are
        those of `gcsim run --set`; a text is YAML (`"10 Gbit/s"`, `"[1, 2]"`).
    overrides, seed
        As in `load_scenario`: the same for all points.
    jobs
        Processes on this machine; by default one per core, or as many as fit in memory.
    dask
        Address of a dask.distributed scheduler, instead of processes on this machine.
    output
        Folder for the results. Points already stored in it are not run again, so the same call
        continues after an interrupt. Without a folder nothing is stored.

    Raises
    ------
    InputError
        With every problem of the scenario and of all values, before any run; or if `output` holds
        another sweep. A point that fails while it runs raises nothing (`SweepResult.failed`).
    """
    from gcsim.scenarios.sweeps.sweep import execute, prepare
    from gcsim.scenarios.trained.known import TrainingJudge

    plan = prepare(scenario, grid, overrides=overrides, seed=seed, progress=progress)
    folder = None if output is None else Path(output)
    found = execute(plan, folder, jobs=jobs, dask=dask, judge=TrainingJudge, progress=progress)
    points = tuple(
        point if point.result is None else replace(point, result=_with_methods(point.result))
        for point in found.points
    )
    return SweepResult(**{**_values(found), "points": points})


def _with_methods(result: of_run.Result) -> Result:
    return Result(**_values(result))


def _values(result: Any) -> dict[str, Any]:
    return {entry.name: getattr(result, entry.name) for entry in fields(result)}
