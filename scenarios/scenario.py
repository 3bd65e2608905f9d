"""A scenario: the checked input of a run, in the simulator's and the traces' types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from gcsim.compressors.options.method import method_of
from gcsim.fields import POSITIVE, Bytes, Key, Limits
from gcsim.simulator.cluster import Cluster, NodeGroup
from gcsim.simulator.memory import Memory, memory
from gcsim.simulator.training import DENSE, Strategy, Training
from gcsim.traces.models.registry import ModelEntry
from gcsim.traces.profile import PassTimes
from gcsim.traces.training.plan import Plan

MOST_WORKERS = 1024  # most workers whose gradients are compressed; a cluster may have more


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGradients:
    """Gradients of a training on this machine."""

    workers: Annotated[int, Limits(least=1, most=MOST_WORKERS)] = 2
    """Number of virtual workers, with their own mini-batches and shared weights."""
    warmup_steps: Annotated[int, Limits(least=0)] = 20  # dense SGD steps before the first gradient
    iterations: Annotated[int, Limits(least=1, most=100_000)] = 4
    """Number of consecutive iterations whose gradients are used."""
    learning_rate: Annotated[float, POSITIVE] = 0.01
    momentum: Annotated[float, Limits(least=0, below=1)] = 0.9
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: the GPU if any


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGradients:
    """Replay of a stored trace."""

    trace: Path
    workers: int | None  # workers of the trace to use; None: all


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticGradients:
    """Gradients drawn from distributions fitted to recorded ones."""

    fit: Path | None  # file of the fit; None: gcsim's
    workers: int
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressorChoice:
    """A method of the comparison."""

    kind: str
    label: str
    parameters: dict[str, object]  # checked, defaults filled in
    implementation: str = ""
    """Implementation that carries it out (`catalog/implementations.py`); "": gcsim's."""
    via: str = ""
    """Ways in which a run carries its push-pulls (`WAYS`), and other collectives by servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpBuckets:
    """PyTorch DDP's bucket limits; in a file, `bucket` alone also limits the first one."""

    first: Annotated[Bytes, Key("first_bucket")] = 1 << 20
    cap: Annotated[Bytes, Key("bucket")] = 25 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledCompute:
    """Times of passes and gradients from a PyTorch profiler's trace."""

    profile: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCompute:
    """Times stored in the replayed trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Input of a run."""

    name: str
    model: ModelEntry  # model, with the task that it is trained on
    batch_size: int  # samples per worker and micro-batch
    gradients: LiveGradients | RecordedGradients | SyntheticGradients
    cluster: Cluster  # at its largest: `max(node_counts)` nodes
    training: Training  # on that cluster
    node_counts: tuple[int, ...]  # the sweep, ascending
    compressors: tuple[CompressorChoice, ...]
    buckets: DdpBuckets
    compute: PassTimes | ProfiledCompute | RecordedCompute | None  # None: the catalogue's
    draws: int  # number of worlds drawn from the uncertain inputs; 0: stated figures only
    discrepancy: bool  # whether steps get random factors (`uncertainty/discrepancy.py`)
    seed: int
    train: Plan | None = None  # plan of `gcsim train`, if any
    train_task: str = ""  # task of `gcsim train`; "" for the model's own
    train_loss: str = ""  # loss of `gcsim train`, `package.module:function`; "": cross-entropy
    by_speed: bool = False
    """Whether groups' batches follow their devices' speeds (`running/simulate.py`)."""
    cost_per_hour: float | None = None  # of a node, the mean of all; in any currency
    resolved: dict[str, object]
    """The file with every default filled in, in plain values with units; it can be run again."""
    left_out: tuple[str, ...] = ()
    """Methods that do not fit in the devices' memory, and by how much, or beside the strategy."""
    files: Mapping[str, str] = field(default_factory=dict)
    """File, outside the catalogue, of a link or device, by setting."""

    @property
    def dense(self) -> int | None:
        """Number of the first uncompressed compressor, the base of speedups."""
        kinds = [choice.kind for choice in self.compressors]
        return kinds.index(DENSE) if DENSE in kinds else None

    def tightest(
        self,
        choice: CompressorChoice,
        largest: int = 0,
        *,
        stage: Strategy | None = None,
        workers: int = 0,
    ) -> tuple[str, Memory | None]:
        """Return the device that a worker with this method fills most, and the memory there; None
        if unknown. `largest`: elements of the largest bucket (0: unknown); `stage`: of ZeRO (None:
        the training's), over `workers` (0: the cluster's)."""
        method, parameters = method_of(choice.kind, choice.parameters)
        cluster = self.cluster
        inside = (stage or self.training.strategy) == "hsdp"
        sharing = cluster.devices_per_node if inside else cluster.workers
        alike = NodeGroup(nodes=cluster.nodes, device=cluster.device)
        training = self.training
        if method.momentum(parameters)[0]:  # the method is the optimizer
            training = replace(training, optimizer_state="none")
        found = [
            (
                group.device.name,
                memory(
                    self.model,
                    round(self.batch_size * group.batch),
                    training,
                    workers=workers or sharing,
                    stage=stage,
                    devices=cluster.devices_per_node,
                    device=training.device_memory or group.device.memory,
                    dense=choice.kind == DENSE,
                    state=method.memory(parameters),
                    largest=largest,
                ),
            )
            for group in cluster.groups or (alike,)
        ]
        return max(found, key=lambda one: 0.0 if one[1] is None else one[1].share)

    def cluster_at(self, nodes: int) -> Cluster:
        """Return the cluster with `nodes` nodes."""
        return with_nodes(self.cluster, nodes)

    def training_at(self, nodes: int) -> Training:
        """Return the training on `nodes` nodes, without settings of absent nodes."""
        workers = self.cluster_at(nodes).workers
        slow = {node: factor for node, factor in self.training.slow_nodes.items() if node < nodes}
        ranks = {r: factor for r, factor in self.training.slow_workers.items() if r < workers}
        faults = self.training.faults
        if faults is not None:
            deaths = tuple(death for death in faults.deaths if death.node < nodes)
            faults = replace(faults, deaths=deaths)
        return replace(self.training, slow_nodes=slow, slow_workers=ranks, faults=faults)


def with_nodes(cluster: Cluster, nodes: int) -> Cluster:
    """Return the cluster with `nodes` nodes."""
    if nodes == cluster.nodes:
        return cluster
    nics = {node: nic for node, nic in cluster.nics.items() if node < nodes}
    buses = {node: bus for node, bus in cluster.buses.items() if node < nodes}
    groups, left = list[NodeGroup](), nodes
    for group in cluster.groups:
        if left > 0:
            groups.append(replace(group, nodes=min(left, group.nodes)))
        left -= group.nodes
    sizes = cluster.sizes[:nodes]
    return replace(cluster, nodes=nodes, sizes=sizes, nics=nics, buses=buses, groups=tuple(groups))
