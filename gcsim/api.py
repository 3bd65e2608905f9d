"""Results of `gcsim.run`, `gcsim.train`, ... that show themselves.

The values are those of `gcsim.scenarios`, which knows of no report; the methods here show them.
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
    """Predictions of a run, and ways to show them: `rows`, `to_frame()`, `summary()`, ..."""

    __slots__ = ()

    def summary(self, width: int = 120, *, full: bool = False) -> str:
        """Text of `gcsim run` (in full: `gcsim run -v`) on a terminal of `width` cells: the table,
        then the answer."""
        from gcsim.analysis.report.answer import parts, plain

        return plain(parts(self, width, full=full), width)

    def plot_speedup(self) -> Figure:
        """Throughput relative to one device against the number of workers (`speedup.png`)."""
        from gcsim.analysis.plots.speedup import speedup_figure

        return speedup_figure(self)

    def _repr_html_(self) -> str:
        from gcsim.analysis.report.answer import html

        return html(self)


class SweepResult(of_sweep.SweepResult):
    """Predictions of a sweep, and ways to show them: `rows`, `to_frame()`, `summary()`, ..."""

    __slots__ = ()

    def summary(self, width: int = 120) -> str:
        """Text of `gcsim sweep` on a terminal of `width` cells: the table, then the answer."""
        from gcsim.analysis.report.answer import plain
        from gcsim.analysis.report.sweep import parts

        return plain(parts(self, width), width)

    def plot_speedup(self) -> Figure:
        """Speedup of the method to use by point (`gcsim plot`)."""
        from gcsim.analysis.plots.sweep import gain_figure

        return gain_figure(self)

    def _repr_html_(self) -> str:
        from gcsim.analysis.report.sweep import html

        return html(self)


class TrainingResult(of_training.TrainingResult):
    """Outcome of training, and ways to show it: `rows`, `curves`, `summary()`, ..."""

    __slots__ = ()

    def summary(self, width: int = 120) -> str:
        """Text of `gcsim train` on a terminal of `width` cells: the table, then the answer."""
        from gcsim.analysis.report.answer import plain
        from gcsim.analysis.trained.table import parts

        return plain(parts(self, width), width)

    def plot_accuracy(self) -> Figure:
        """Accuracy or loss over simulated seconds, and where the target is reached
        (`accuracy.png`)."""
        from gcsim.analysis.trained.curves import curves_figure

        return curves_figure(self)

    def plot_speedup(self) -> Figure:
        """Speedup to the target on the largest cluster, with ranges (`speedup_to_target.png`)."""
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
    """Run the compressors where needed, simulate every size, and put the rows together.

    `scenario` is a YAML file, a shipped scenario's name, or a loaded one.
    `cache=False` runs every compressor again and stores nothing. Raises `InputError` for
    gradients that cannot be used, before anything is simulated.
    """
    from gcsim.analysis.advice.advice import advised_run
    from gcsim.scenarios.load import loaded

    return _shown(advised_run(loaded(scenario), cache=cache, progress=progress))


def record_scenario(
    scenario: str | os.PathLike[str] | Scenario, folder: Path, **options: Any
) -> Path:
    """Train the scenario's model as its `gradients` say and store the gradients in `folder`.

    `scenario` is a YAML file, a shipped scenario's name, or a loaded one; `options` are those of
    `gcsim.scenarios.running.gradients.record`, and so are the errors.
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
    """Say what to use on a cluster, and what to change first.

    `gcsim.advise(model="resnet50", device="v100", gpus=4, nodes=8, network="25 Gbit/s")` runs no
    compressor: the traffic of the shipped models comes with gcsim.

    Parameters
    ----------
    scenario
        A YAML file, a shipped scenario's name, a loaded scenario, or a folder of recorded
        gradients; None: what the words say. Words beside a scenario take the place of its settings.
    model, device, network
        Names of `gcsim list`; a network may be a rate alone ("25 Gbit/s"), a file, or a mapping as
        in a scenario.
    gpus, nodes, nics
        GPUs per node (1), machines, and NICs per node (1).
    groups
        Unlike nodes, in the place of device, gpus and nodes: `["4 x 8 a100 @ 100gbe", ...]`.
    parameters
        Size of the model in the place of its name: "110M".
    precision, loop, limited
        Of the passes; the framework that trains (ddp, horovod, paddle, deepspeed, own); whether
        `tc` or a provider sets the network's rate. What is not said and matters is in the answer.
    sequence, checkpointing
        Tokens of a sample, and what is computed again (none, selective, full), of a model by
        formula.
    batch_size
        Samples per GPU; 32, of sequences at most as many as hold 4,096 tokens.
    cost_per_hour
        Of a node, in any currency: what is saved is then told in money, too.
    overrides, seed
        As in `load_scenario`.
    per_bucket
        Look for plans that give each of DDP's buckets a method, too.
    cache
        False: simulate again, and store nothing.

    Raises
    ------
    InputError
        With every problem of the scenario and of the words; or, where no method fits in the
        devices' memory, by how much, and what would fit.
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
    """Train with every method as the scenario's `train` says, and lay that on its clusters' clocks.

    What was trained is kept: another cluster trains nothing again, and the same call goes on after
    an interrupt.

    Parameters
    ----------
    scenario
        A YAML file, a shipped scenario's name, or a loaded scenario.
    build_model, splits, loss
        Your own, in the place of what the scenario names: functions of a file, which other
        processes import. `build_model()` returns an `nn.Module`; `splits()` two map-style datasets
        of pairs, the second held out; `loss(output, labels)` the mean loss of a batch, or one for
        each sample, `[batch]`. Call from under `if __name__ == "__main__":`.
    jobs
        Processes that train side by side; as many as cores, or as have room in memory, when None.
    dask
        The address of a dask.distributed scheduler, in the place of processes here.
    fresh
        Train here what comes with gcsim, too.

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
    """Run a scenario at every combination of the grid's values.

    Parameters
    ----------
    scenario
        A YAML file, a shipped scenario's name, or a loaded scenario.
    grid
        Values by key, as in `{"cluster.nodes": [8, 16], "cluster.network": ["10gbe", "25gbe"]}`.
        Keys are those of `gcsim run --set`; a text is YAML (`"10 Gbit/s"`, `"[1, 2]"`).
    overrides, seed
        As in `load_scenario`: the same for all points.
    jobs
        Processes on this machine; as many as cores, or as have room in memory, when None.
    dask
        The address of a dask.distributed scheduler, in the place of processes here.
    output
        A folder for the results. Points that it holds already are not run again, so the same call
        goes on after an interrupt. Without one nothing is kept.

    Raises
    ------
    InputError
        With every problem of the scenario and of all values, before anything is run; or when
        `output` holds another sweep. A point that fails when it runs raises nothing: see
        `SweepResult.failed`.
    """
    from gcsim.scenarios.sweeps.sweep import execute, prepare
    from gcsim.scenarios.trained.known import TrainingJudge

    plan = prepare(scenario, grid, overrides=overrides, seed=seed, progress=progress)
    folder = None if output is None else Path(output)
    found = execute(plan, folder, jobs=jobs, dask=dask, judge=TrainingJudge, progress=progress)
    points = tuple(
        point if point.result is None else replace(point, result=_shown(point.result))
        for point in found.points
    )
    return SweepResult(**{**_values(found), "points": points})


def _shown(result: of_run.Result) -> Result:
    return Result(**_values(result))


def _values(result: Any) -> dict[str, Any]:
    return {entry.name: getattr(result, entry.name) for entry in fields(result)}
