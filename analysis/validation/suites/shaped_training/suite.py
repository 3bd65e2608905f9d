"""Training steps of PyTorch DDP over Gloo on links shaped by tc: all ranks on one two-core machine.

One machine of two cores carries all ranks (`Host`, `Training.on_host`), one rank in each node of
the cluster, on links of the shaped rate. Forward, backward and optimiser are as measured without
any exchange: the median over the runs of that model with as many ranks (`solo`). All ranks were at
it at once, so that with more ranks than cores the time is a core's share of it, and is stretched
again where ranks share cores.

Traffic: `shaped_training/runs.py`. The fit:

What a user would measure before the training that is asked about:

- Links and host: with collectives alone. They are those that the suite of shaped collectives fits
  on its own subset (the same machine, the same shaper); no training step has a part in them. All
  collectives here are rings, whose data share the NICs with the acknowledgements of others'.
- Hooks: seconds of encoding and decoding at a bucket's size, on a core of its own, at which the
  simulated run spends as long on the stage as was measured (`_ROUNDS` rounds of measured over
  simulated). On two ranks at 100 Mbit/s, where each rank has a core to itself; and for sizes of
  buckets that are not met there, on Top-k's and the signs' runs of the CNN and of the phantom that
  does not sleep. Other sizes are on the line between.
- Variation of the ranks' computation, and what DDP does after the last bucket: the medians over
  those of these runs that compute.

Steps' times have no part in the fit.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from pathlib import Path
from typing import get_args

from gcsim.analysis.validation.drawn import in_worlds
from gcsim.analysis.validation.folder import suite_of
from gcsim.analysis.validation.suite import Factor, Findings, Point, given_step
from gcsim.analysis.validation.suites.shaped_collectives import fit as shaped_collectives_fit
from gcsim.analysis.validation.suites.shaped_training.runs import (
    GATHERS,
    Run,
    Stage,
    bytes_by_exchange,
    kernel,
    launches,
    profile,
    runs,
)
from gcsim.scenarios import catalog
from gcsim.scenarios.catalog import loops
from gcsim.scenarios.sections.transports import with_few_cores
from gcsim.simulator.clock import picoseconds
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.devices.device import Curve, Device
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.host import Host
from gcsim.simulator.network.links import Link
from gcsim.simulator.predict import Prediction, predict
from gcsim.simulator.steps.step_plan import Kind
from gcsim.simulator.training import Noise, Training

DENSE_SLOW = "dense and fp16, 100 Mbit/s"
DENSE_FAST = "dense and fp16, 1 Gbit/s"
COMPRESSED = "Top-k, signs, PowerSGD, both rates"
PHANTOM = "phantom compute, 1 Gbit/s"
_SOURCE = (
    "data/shaped_training.csv: PyTorch 2.13 DDP, Gloo, network name spaces and tc tbf; measured "
    "for this project, median of {run.repeats} steps, run {run.number}"
)
_RATE = {100: "100 Mbit/s", 1000: "1 Gbit/s"}
_HOOK = {
    "none": "dense",
    "fp16": "fp16",
    "topk": "Top-k 1 %",
    "signsgd": "signs",
    "powersgd": "PowerSGD rank 4",
}


def _model(run: Run) -> str:
    if run.phantom:
        return "sleeping phantom" if run.sleeps else "empty phantom"
    return run.model.upper()


def _setting(run: Run) -> str:
    return f"{_model(run)}, {run.ranks} ranks, {_RATE[run.rate_mbit]}, {run.bucket_mb}-MB buckets"


def _series(run: Run) -> str:
    if run.phantom:
        return PHANTOM
    if run.hook not in {"none", "fp16"}:
        return COMPRESSED
    return DENSE_SLOW if run.rate_mbit == 100 else DENSE_FAST


def points(measured: Sequence[Run], machine: Machine) -> Iterator[Point]:
    """One a run, in their order; a configuration that was run again counts again."""
    seen: dict[str, int] = {}
    for run in measured:
        name = f"{_HOOK[run.hook]}, {_setting(run)}"
        seen[name] = seen.get(name, 0) + 1
        again = seen[name] > 1
        yield Point(
            name=f"{name}, run again" if again else name,
            series=_series(run),
            unit="s",
            measured=run.step,
            predicted=fitted_step(run, machine).iteration,
            unfitted=bare_step(run).iteration,
            fitted=serves_fit(run),
            source=_SOURCE.format(run=run),
            workers=run.ranks,
            nbytes=run.payload / len(run.buckets),
            setting=_setting(run) + (", again" if again else ""),
            method=run.hook,
            panel=f"{_model(run)}, {_RATE[run.rate_mbit]}, {run.bucket_mb}-MB buckets",
            curve=_HOOK[run.hook],
            x=float(run.ranks),
            stated_worlds=_in_worlds(run),
        )


def _factors(machine: Machine) -> Iterator[Factor]:
    own = [run for run in runs() if serves_fit(run)]
    real = [run for run in own if not run.phantom]
    yield Factor(
        "all", "variation of a rank's computation", machine.variation, "", len(real), catalogue=0.0
    )
    yield Factor(
        series="all",
        name="DDP after the last bucket, on a core",
        value=machine.finish,
        unit="s",
        points=len(real),
        catalogue=0.0,
    )
    for name, curve in machine.kernels.items():
        for nbytes, seconds in curve:
            yield given_step(
                "all", f"{name} of a bucket of {nbytes / 1e6:.1f} MB, on a core", seconds
            )


def _find() -> Findings:
    machine = fit(runs())
    return Findings(points=tuple(points(runs(), machine)), factors=tuple(_factors(machine)))


SUITE = suite_of(Path(__file__).parent, "shaped-training", _find)


_ROUNDS = 2


def serves_fit(run: Run) -> bool:
    """Whether the machine is fitted on the run; a rule that knows configurations only."""
    if run.ranks == 2 and run.rate_mbit == 100:
        return True
    return run.hook in GATHERS and (run.model == "cnn" or (run.phantom and not run.sleeps))


def fit(runs: Sequence[Run]) -> Machine:
    """On those of the runs that serve it."""
    own = [run for run in runs if serves_fit(run)]
    real = [run for run in own if not run.phantom]
    alone = shaped_collectives_fit.fitted()
    cores = alone.host.cores
    found = Machine(
        links={
            rate: replace(
                alone.conditions.link,
                bandwidth=Fraction(rate * 125_000),
                efficiency=alone.conditions.link.efficiency
                / (1 + alone.conditions.acknowledged(rate)),
            )
            for rate in _LINKS
        },
        host=alone.host,
        finish=statistics.median(run.finish * _core(run, cores) for run in real),
        variation=statistics.median(run.entry_variation for run in real),
        kernels=_curves(own, lambda run, stage: measured(run, stage) * _core(run, cores)),
    )
    for _ in range(_ROUNDS):
        found = replace(found, kernels=_rescaled(own, found))
    return found


def _core(run: Run, cores: int) -> float:
    """Share of a core that each rank has while all compute."""
    return min(1.0, cores / run.ranks)


def measured(run: Run, stage: Stage) -> float:
    """Seconds of a stage in the run's step."""
    return run.encode if stage == "encode" else run.decode


def _size(run: Run) -> int:
    """Bytes of its buckets, which are about equal; their mean."""
    return sum(run.buckets) // len(run.buckets)


def _curves(own: Sequence[Run], seconds: Callable[[Run, Stage], float]) -> dict[str, Curve]:
    """Bytes of a bucket and seconds a launch by stage, the mean where a size is met again."""
    found: dict[str, dict[int, list[float]]] = {}
    for run in own:
        for stage in get_args(Stage):
            by_size = found.setdefault(kernel(run.hook, stage), {})
            by_size.setdefault(_size(run), []).append(seconds(run, stage) / launches(run, stage))
    return {
        name: tuple((nbytes, statistics.mean(by_size[nbytes])) for nbytes in sorted(by_size))
        for name, by_size in found.items()
    }


def _rescaled(own: Sequence[Run], found: Machine) -> dict[str, Curve]:
    """Each run's stages times measured over simulated."""
    simulated = {run: fitted_step(run, found) for run in own}

    def seconds(run: Run, stage: Stage) -> float:
        known = dict(found.kernels[kernel(run.hook, stage)])
        now = simulated[run].encode if stage == "encode" else simulated[run].decode
        return known[_size(run)] * launches(run, stage) * measured(run, stage) / now

    return _curves(own, seconds)


_DEVICE = "cpu_2core"
_LINKS = {100: "100mbit_ethernet", 1000: "1gbe"}
"""Links of the catalogue, by rate; both with the goodput that Ethernet's frames leave."""
_STEPS = 20
"""Iterations that are averaged where ranks vary: as many as were measured."""
_ON_HOST: frozenset[Kind] = frozenset({"encode", "decode", "optimizer"})
_PASSES: frozenset[Kind] = frozenset({"forward", "backward"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Fitted values of the machine."""

    links: Mapping[int, Link]
    """Links by rate, Mbit/s."""
    host: Host
    finish: float
    """Seconds from a step's last decoding to the end of its backward pass, on a core of its own."""
    variation: float
    """Variation of the ranks' computation, from step to step: standard deviation over mean."""
    kernels: Mapping[str, Curve]
    """Curves by stage of a hook: bytes of a bucket, and seconds on a core of its own."""


def fitted_step(run: Run, machine: Machine) -> Prediction:
    """The step on the fitted machine, whose ranks share its cores."""
    device = replace(catalog.device(_DEVICE), primitives=machine.kernels)
    cluster = _cluster(run, machine.links[run.rate_mbit], device, machine.host)
    cores = machine.host.cores
    share = Fraction(min(cores, run.ranks), run.ranks)
    passes, optimizer = _compute(run, Fraction(1) if run.phantom else share)
    varies = machine.variation > 0 and not run.phantom
    variation = Fraction(machine.variation).limit_denominator(10**6)
    training = Training(
        concurrent_collectives=2,
        optimizer=optimizer * share + Fraction(machine.finish),
        on_host=_ON_HOST if run.phantom else _ON_HOST | _PASSES,
        noise=Noise(distribution="gamma", variation=variation) if varies else None,
        iterations=_STEPS,
    )
    return predict(profile(run), cluster, passes, training=training, spans=False)


def bare_step(run: Run) -> Prediction:
    """From the catalogue alone: its link and what Gloo costs where ranks share cores, and our own
    compressors on its device, each rank with cores of its own, ranks that do not vary."""
    cluster, passes, training = _bare(run)
    return predict(profile(run, ours=True), cluster, passes, training=training, spans=False)


def _in_worlds(run: Run) -> tuple[float, ...]:
    """That step in drawn worlds."""
    cluster, passes, training = _bare(run)
    exact = bare_step(run).iteration
    drawn = in_worlds(cluster, training, profile(run, ours=True), {"stated": passes}, exact)
    return tuple(drawn.tolist())


def _bare(run: Run) -> tuple[Cluster, ComputeTimes, Training]:
    passes, optimizer = _compute(run, Fraction(1))
    reducer, hook = loops.framework("pytorch")
    training = Training(
        overlap="ddp",
        optimizer=optimizer,
        interference=loops.interference("gloo"),
        reducer=reducer,
        hook=hook,
        noise=loops.workers(),
    )
    host = with_few_cores("gloo", Host(cores=2, ranks="all"))
    link = catalog.link(_LINKS[run.rate_mbit])
    return _cluster(run, link, catalog.device(_DEVICE), host), passes, training


def _cluster(run: Run, link: Link, device: Device, host: Host | None = None) -> Cluster:
    """A rank a node; CPU tensors need no copies to be sent."""
    return Cluster(
        nodes=run.ranks,
        devices_per_node=1,
        device=device,
        network=link,
        intra_node=link,
        collectives=Collectives(transport="gloo", host_staging=False),
        host=host,
    )


def solo(run: Run) -> tuple[float, float, float]:
    """Seconds of forward, backward and optimiser without any exchange, all ranks at once."""
    same = [
        other
        for other in runs()
        if (other.model, other.sleeps, other.ranks) == (run.model, run.sleeps, run.ranks)
    ]
    return (
        statistics.median(other.forward for other in same),
        statistics.median(other.backward for other in same),
        statistics.median(other.optimizer for other in same),
    )


def _compute(run: Run, share: Fraction) -> tuple[ComputeTimes, Fraction]:
    """The passes on a core of its own, where it had that share of one, and the optimiser."""
    forward, backward, optimizer = (Fraction(seconds) for seconds in solo(run))
    total = picoseconds(backward * share)
    sizes = bytes_by_exchange(run)
    ready = [total * done // sum(sizes) for done in accumulate(sizes, initial=0)]
    passes = ComputeTimes(
        forward=picoseconds(forward * share),
        backward=total,
        parts=tuple(after - before for before, after in pairwise(ready)),
        provenance="measured without any exchange",
    )
    return passes, optimizer
