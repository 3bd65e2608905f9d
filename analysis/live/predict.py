"""Predictions of the live suite, written to disk before the measurements.

Each task has a name, a series and two predicted times: with this machine as calibrated, and with
the catalogue alone (`Predicted.unfitted`): Ethernet's goodput and latency, no host, the catalogue's
kernels. A rank's passes are measured for both, as a user would measure them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import numpy as np

from gcsim.analysis.live.calibrate import Passes
from gcsim.analysis.live.namespaces import Shape
from gcsim.analysis.live.plan import CollectiveTask, Plan, Round, TrainingTask
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InternalError
from gcsim.files import json_text, write_text
from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.collectives.dispatch import execute
from gcsim.simulator.devices.device import Device
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.devices.training_time import training_times
from gcsim.simulator.host import Host
from gcsim.simulator.network.links import Link
from gcsim.simulator.predict import predict
from gcsim.simulator.steps.step_plan import Kind
from gcsim.simulator.training import Framework, Noise, Training
from gcsim.traces.profile import PassTimes, TrafficProfile, weighted

PREDICTIONS = "predictions.json"
LARGE = 1_000_000  # bytes per rank from which a collective is large
SLOW = 100 * 10**6  # bits per second up to which collectives wait for the link
ON_HOST: frozenset[Kind] = frozenset({"forward", "backward", "encode", "decode", "optimizer"})
"""All kinds of work, since all of it runs on the ranks' processors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """A number that will be measured."""

    name: str
    series: str
    ranks: int
    rate: int
    nbytes: int | None  # for collectives: bytes per rank
    method: str  # for training: the compressor's label
    seconds: float
    unfitted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """Figures of this machine, or those of the catalogue."""

    link: Link | None  # for any bandwidth; None: the shaped link
    host: Host | None
    device: Device
    goodput: Mapping[int, float] = field(default_factory=dict)
    """Measured bytes per second of shaped links, by rate; default: the intended rate."""

    def cluster(self, ranks: int, rate: int) -> Cluster:
        """Return a cluster of nodes with one rank each, at a switch."""
        meant = Shape.of(rate).efficiency
        seen = Fraction(f"{8 * self.goodput.get(rate, rate) / rate:.4g}")
        link = self.link or shaped_link(min(meant, seen))
        link = replace(link, bandwidth=Fraction(rate, 8))
        return Cluster(
            nodes=ranks,
            devices_per_node=1,
            device=self.device,
            network=link,
            intra_node=link,  # not used
            collectives=Collectives(transport="gloo", host_staging=False),
            host=self.host,
        )


def shaped_link(efficiency: Fraction) -> Link:
    """Return a link of which the shaper leaves this share to data; all latency is the host's."""
    return Link(
        name="shaped", bandwidth=Fraction(1), latency=Fraction(0), efficiency=efficiency,
        source="tc tbf, which charges Ethernet, IP and TCP headers",
    )  # fmt: skip


def record_of(task: CollectiveTask, ranks: int) -> CollectiveRecord:
    """Return the simulator's record of a task, with float32 elements."""
    element = 4 if task.kind == "all_reduce" else 1
    return CollectiveRecord(kind=task.kind, sent=(task.nbytes,) * ranks, element=element)


def series_of(one: Round, task: object) -> str:
    """Return the report's series for a task."""
    rate = "1 Gbit/s" if one.rate > SLOW else "50, 100 Mbit/s"
    if isinstance(task, CollectiveTask):
        size = ">= 1 MB" if task.nbytes >= LARGE else "< 1 MB"
        return f"{task.kind.replace('_', '-')} {size}, {rate}"
    return f"training steps, {'1 Gbit/s' if one.rate > SLOW else '100 Mbit/s'}"


def predictions(
    plan: Plan,
    here: Knowledge,
    catalogue: Knowledge,
    passes: Passes,
    profiles: Mapping[str, TrafficProfile],
) -> list[Predicted]:
    """Predict all numbers of a plan; `profiles`: the methods' traffic by label."""
    found = []
    for one in plan.rounds:
        clusters = [known.cluster(one.ranks, one.rate) for known in (here, catalogue)]
        for task in one.tasks:
            if isinstance(task, CollectiveTask):
                times = [collective_seconds(task, cluster) for cluster in clusters]
            elif isinstance(task, TrainingTask):
                hook = passes.hooks.get(task.label, 0.0)
                times = [step_seconds(profiles[task.label], c, passes, hook) for c in clusters]
            else:
                raise InternalError(f"nothing is predicted of {task.name}")
            found.append(
                Predicted(
                    name=f"{task.name}, {one.name}",
                    series=series_of(one, task),
                    ranks=one.ranks,
                    rate=one.rate,
                    nbytes=task.nbytes if isinstance(task, CollectiveTask) else None,
                    method=task.label if isinstance(task, TrainingTask) else "",
                    seconds=times[0],
                    unfitted=times[1],
                )
            )
    return found


def collective_seconds(task: CollectiveTask, cluster: Cluster) -> float:
    """Return the seconds from the common start until the last rank ends."""
    starts = np.zeros(cluster.workers, dtype=np.int64)
    finishes = execute(record_of(task, cluster.workers), starts, cluster)
    return int(finishes.max()) / PS_PER_SECOND


def step_seconds(
    profile: TrafficProfile, cluster: Cluster, passes: Passes, hook: float = 0.0
) -> float:
    """Return the seconds of a training step in the long run. `hook`: measured extra time of one
    rank's step without exchange. The framework accounts for what kernels do not explain of it; if
    kernels alone take longer than it, they are made faster by that ratio."""
    alone = kernels_alone(profile, cluster.device)
    if 0 < hook < alone:
        cluster = replace(cluster, device=cluster.device.faster(alone / Fraction(hook)))
    compute = training_times(
        profile.model,
        profile.buckets,
        cluster.device,
        PassTimes(
            forward=passes.forward, backward=passes.backward, processor="cpu",
            source="ranks without exchange",
        ),
    )  # fmt: skip
    around = max(Fraction(0), Fraction(hook) - alone)
    code = Framework(per_bucket=around / max(1, len(profile.buckets)))  # dense also has a hook
    training = Training(
        hook=code,
        reducer=code,
        encode_on="communicator",  # the hook's thread exchanges one bucket at a time
        optimizer=Fraction(passes.optimizer),
        noise=Noise(variation=Fraction(f"{passes.variation:.3g}")),
        on_host=ON_HOST if cluster.host is not None else frozenset(),
    )
    return predict(profile, cluster, compute, training=training, spans=False).iteration


def kernels_alone(profile: TrafficProfile, device: Device) -> Fraction:
    """Return the seconds of a method's kernels in a mean step, with only one rank's payload."""
    prices = PriceList(device)
    total = Fraction(0)
    for share, _, exchange in weighted(profile):
        times = (prices.compute_time(compute, payloads=1) for compute in exchange.computes)
        total += share * sum(times)
    return total / PS_PER_SECOND


def write_predictions(found: Sequence[Predicted], path: Path, known: Mapping[str, object]) -> None:
    """Write the predictions, their time and their basis (`known`) durably."""
    document = {
        "made": datetime.now(UTC).isoformat(timespec="microseconds"),
        "known": dict(known),
        "predictions": [asdict(one) for one in found],
    }
    write_text(path, json_text(document))


def read_predictions(path: Path) -> list[Predicted]:
    """Read the predictions in a file from `write_predictions`."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return [Predicted(**one) for one in document["predictions"]]
