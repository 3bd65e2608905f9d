"""How long does gcsim say that a training step on shaped links takes?

One machine of two cores carries all ranks (`Host`, `Training.on_host`), one rank in each node of
the cluster, on links of the shaped rate. Forward, backward and optimiser are as measured without
any exchange: the median over the runs of that model with as many ranks (`solo`). All ranks were at
it at once, so that with more ranks than cores the time is a core's share of it, and is stretched
again where ranks share cores.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise

from gcsim.analysis.validation.interval import Interval, StepIntervals
from gcsim.analysis.validation.suites.shaped_training.runs import (
    Run,
    bytes_by_exchange,
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

DEVICE = "cpu_2core"
LINKS = {100: "100mbit_ethernet", 1000: "1gbe"}
"""Of the catalogue, by rate; both with the goodput that Ethernet's frames leave."""
STEPS = 20
"""Iterations that are averaged where ranks vary: as many as were measured."""
_ON_HOST: frozenset[Kind] = frozenset({"encode", "decode", "optimizer"})
_PASSES: frozenset[Kind] = frozenset({"forward", "backward"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What was fitted of the machine."""

    links: Mapping[int, Link]
    """By rate, Mbit/s."""
    host: Host
    finish: float
    """Seconds from a step's last decoding to the end of its backward pass, on a core of its own."""
    variation: float
    """Of the ranks' computation, from step to step: standard deviation over mean."""
    kernels: Mapping[str, Curve]
    """By stage of a hook: bytes of a bucket, and seconds on a core of its own."""


def fitted_step(run: Run, machine: Machine) -> Prediction:
    """With the fitted machine, whose ranks share its cores."""
    device = replace(catalog.device(DEVICE), primitives=machine.kernels)
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
        iterations=STEPS,
    )
    return predict(profile(run), cluster, passes, training=training, spans=False)


def bare_step(run: Run) -> Prediction:
    """From the catalogue alone: its link and what Gloo costs where ranks share cores, and our own
    compressors on its device, each rank with cores of its own, ranks that do not vary."""
    cluster, passes, training = _bare(run)
    return predict(profile(run, ours=True), cluster, passes, training=training, spans=False)


def bare_interval(run: Run) -> Interval | None:
    """Of that step."""
    cluster, passes, training = _bare(run)
    traffic = profile(run, ours=True)
    drawn = StepIntervals(cluster, training, [traffic])
    return drawn.draw(traffic, {"stated": passes}, bare_step(run).iteration).interval()


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
    link = catalog.link(LINKS[run.rate_mbit])
    return _cluster(run, link, catalog.device(DEVICE), host), passes, training


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
