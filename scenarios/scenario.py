"""A scenario: what is simulated, resolved and checked, composed of the other rooms' own values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from gcsim.fields import POSITIVE, Bytes, Key, Limits
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.training import Training
from gcsim.traces.models.registry import ModelEntry
from gcsim.traces.profile import PassTimes
from gcsim.traces.training.plan import Plan

MOST_WORKERS = 1024
"""Workers whose gradients are compressed here; a cluster may have more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGradients:
    """Train the model here and take its gradients as they come."""

    workers: Annotated[int, Limits(least=1, most=MOST_WORKERS)] = 2
    """Virtual workers: each has its own mini-batches; all share the weights."""
    warmup_steps: Annotated[int, Limits(least=0)] = 20
    """Dense SGD steps before the first gradient is taken."""
    iterations: Annotated[int, Limits(least=1, most=100_000)] = 4
    """Consecutive iterations whose gradients are taken."""
    learning_rate: Annotated[float, POSITIVE] = 0.01
    momentum: Annotated[float, Limits(least=0, below=1)] = 0.9
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPU where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGradients:
    """Replay a stored trace."""

    trace: Path
    workers: int | None
    """Number of the trace's workers to use; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticGradients:
    """Draw gradients from distributions that were fitted to recorded ones."""

    fit: Path | None
    """The file of the fit; None: the one that comes with gcsim."""
    workers: int
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressorChoice:
    """One row of the comparison."""

    kind: str
    label: str
    parameters: dict[str, object]
    """Checked, defaults filled in."""
    via: str = ""
    """In a run: what carries its push-pulls, and parameter servers that carry more (`WAYS`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpBuckets:
    """PyTorch DDP's bucket limits; in a file, `bucket` alone is the limit of the first one too."""

    first: Annotated[Bytes, Key("first_bucket")] = 1 << 20
    cap: Annotated[Bytes, Key("bucket")] = 25 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledCompute:
    """Forward, backward and gradient-ready times from a PyTorch profiler's trace."""

    profile: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCompute:
    """The times that stand in the trace whose gradients are replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that a run depends on."""

    name: str
    model: ModelEntry
    """Model, with the task that it is trained on."""
    batch_size: int
    """Samples a worker and micro-batch."""
    gradients: LiveGradients | RecordedGradients | SyntheticGradients
    cluster: Cluster
    """At its largest: `max(node_counts)` nodes."""
    training: Training
    """On that cluster."""
    node_counts: tuple[int, ...]
    """The sweep, ascending."""
    compressors: tuple[CompressorChoice, ...]
    buckets: DdpBuckets
    compute: PassTimes | ProfiledCompute | RecordedCompute | None
    """None: what the catalogue says of the model and the device."""
    draws: int
    """Worlds that are drawn from what is not known; 0: the figures are taken as stated."""
    discrepancy: bool
    """Whether steps of the worlds have factors of their own (`uncertainty/discrepancy.py`)."""
    seed: int
    train: Plan | None = None
    """Plan of `gcsim train`; None where the file has none."""
    train_task: str = ""
    """Task of `gcsim train`; "" for the model's own."""
    train_loss: str = ""
    """`package.module:function` that it minimises there; "": cross-entropy."""
    cost_per_hour: float | None = None
    """Cost of a node per hour, in any currency; None where the file has none."""
    resolved: dict[str, object]
    """The scenario file with every default filled in, in plain values with units: what is
    written beside the results and can be run again."""
    files: Mapping[str, str] = field(default_factory=dict)
    """File that a link or the device comes from, not the catalogue, by setting."""

    @property
    def dense(self) -> int | None:
        """Number of the compressor that speedups are against: the first uncompressed one."""
        kinds = [choice.kind for choice in self.compressors]
        return kinds.index("none") if "none" in kinds else None

    def cluster_at(self, nodes: int) -> Cluster:
        """The cluster with that many machines: one point of the sweep."""
        return with_nodes(self.cluster, nodes)

    def training_at(self, nodes: int) -> Training:
        """The training on that many machines: nothing is said of those that are not there."""
        workers = nodes * self.cluster.devices_per_node
        slow = {node: factor for node, factor in self.training.slow_nodes.items() if node < nodes}
        ranks = {r: factor for r, factor in self.training.slow_workers.items() if r < workers}
        faults = self.training.faults
        if faults is not None:
            deaths = tuple(death for death in faults.deaths if death.node < nodes)
            faults = replace(faults, deaths=deaths)
        return replace(self.training, slow_nodes=slow, slow_workers=ranks, faults=faults)


def with_nodes(cluster: Cluster, nodes: int) -> Cluster:
    """A cluster with that many machines."""
    nics = {node: nic for node, nic in cluster.nics.items() if node < nodes}
    return replace(cluster, nodes=nodes, nics=nics)
