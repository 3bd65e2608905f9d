"""Settings of a training job on the cluster, beside its compressor: a scenario's `training`
section."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Literal

from gcsim import fields
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.devices.training_rates import Precision
from gcsim.simulator.steps.step_plan import Kind, Machines

Overlap = Literal["ddp", "none", "by_tensor"]
"""Part of the exchange that overlaps with the backward pass.

- `ddp`: each bucket's, from when its gradients are there (PyTorch's DistributedDataParallel).
- `none`: nothing; the same buckets, in order, from the end of the backward pass on (a loop that
  exchanges after `loss.backward()`, as many published set-ups and compressed optimisers do).
- `by_tensor`: each tensor's (wait-free backpropagation; Horovod without fusion). That is a rule for
  buckets, one a tensor, which the recorded traffic follows; a step of it runs as `ddp`.
"""


GradientType = Literal["fp32", "fp16", "bf16"]
Batches = Annotated[int, fields.Limits(least=1, most=1_000)]
Node = Annotated[int, fields.Index("node")]
Worker = Annotated[int, fields.Index("worker")]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLoading(fields.Setting):
    """A loader beside each worker that makes one batch after the other."""

    batch: fields.Seconds
    """Seconds that the loader needs for a worker's batch (of one micro-batch, with
    accumulation)."""
    batch_range: fields.RangeOf[fields.Seconds] = None
    prefetch: Batches = 2
    """Finished batches that may wait; the loader stops when so many do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise(fields.Setting):
    """Each worker's computation in each iteration takes a random factor as long, mean 1; or all
    take as long as the longest is expected to, which nothing needs to be drawn for (`skew`)."""

    distribution: Literal["lognormal", "gamma"] = "lognormal"
    variation: fields.Variation = Fraction(0)
    """Coefficient of variation: standard deviation over mean."""
    slow_probability: fields.Probability = Fraction(0)
    """Probability that a worker is slow in an iteration, on top."""
    slow_factor: fields.Factor = Fraction(1)
    """Factor on its computation then."""
    skew: fields.Variation = Fraction(0)
    """Standard deviation over mean of a worker's passes, of which the expected longest of all
    workers' counts (`noise.longest`): nothing is random."""
    skew_range: fields.RangeOf[fields.Variation] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(fields.Setting):
    """A node dies and comes back."""

    node: Annotated[int, fields.Limits(least=0)]
    at: fields.Seconds
    """Seconds after the start."""
    down: fields.PositiveSeconds | None = None
    """Seconds until it is back; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults(fields.Setting):
    """Deaths over a run of some length."""

    horizon: fields.PositiveSeconds
    """Seconds, of the whole run."""
    restart: fields.Seconds
    """Seconds that all workers lose whenever a process group forms anew (elastic restart)."""
    deaths: Annotated[tuple[Fault, ...], fields.Limits(least=1, most=1_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference(fields.Setting):
    """Slowdown of computation and communication that run at the same time on a device
    (`events/even_cluster.py`)."""

    computation: fields.Variation = Fraction(0)
    """A computation beside a collective takes 1 + this times as long."""
    computation_range: fields.RangeOf[fields.Variation] = None
    bus: fields.Variation = Fraction(0)
    """A collective's time on a node's bus while the node's devices compute is multiplied by 1 +
    this; its time on the network stays as it is."""
    bus_range: fields.RangeOf[fields.Variation] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedNode(fields.Setting):
    """Contention between the devices of a node: power, memory, its processors."""

    slowdown: fields.Variation = Fraction(0)
    """On a node with several devices forward and backward take 1 + this times as long as on one by
    itself, before any network; not where ranks share cores (`on_host`), nor on a CPU."""
    slowdown_range: fields.RangeOf[fields.Variation] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Code(fields.Setting):
    """Code of forward and backward, beside that whose times the catalogue has."""

    slowdown: fields.Factor = Fraction(1)
    """Factor on the passes of every device."""
    slowdown_range: fields.RangeOf[fields.Factor] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework(fields.Setting):
    """Cost of the code around an exchange for a worker, beside the method's kernels.

    Half of it before a bucket's first collective (hooks, copies into the bucket), half after the
    last (write back); nothing in a step without exchange.
    """

    per_tensor: fields.Seconds = Fraction(0)
    """Seconds a tensor of a bucket."""
    per_tensor_range: fields.RangeOf[fields.Seconds] = None
    per_bucket: fields.Seconds = Fraction(0)
    """Seconds a bucket."""
    per_bucket_range: fields.RangeOf[fields.Seconds] = None
    per_step: fields.Seconds = Fraction(0)
    """Seconds a step with an exchange between nodes, whatever it sends."""
    per_step_range: fields.RangeOf[fields.Seconds] = None
    passes: fields.Variation = Fraction(0)
    """Number of times that an element of the stored gradient is read or written, at the rate of
    the device's `streaming` kernels."""
    passes_range: fields.RangeOf[fields.Variation] = None

    @property
    def free(self) -> bool:
        """Nothing costs anything."""
        return not (self.per_tensor or self.per_bucket or self.per_step or self.passes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(fields.Setting):
    """The step beside forward, backward and the exchange."""

    precision: Precision = "fp32"
    """Precision of forward and backward, whatever the type of the gradients."""
    gradients: GradientType = "fp32"
    """Type in which the framework stores gradients, and exchanges them where nothing compresses
    them (`half_gradients.py`): of codes in half precision throughout fp16 or bf16."""
    overlap: Overlap | None = None
    """None: nobody has said; simulated as `ddp`, but for what is `exposed`."""
    exposed: fields.Probability = Fraction(0)
    """Share of the way from when a bucket's gradients are there to the end of the backward pass for
    which its exchange waits: between `ddp` (0) and `none` (1)."""
    exposed_range: fields.RangeOf[fields.Probability] = None
    interference: Interference = Interference()
    shared_node: SharedNode = SharedNode()
    code: Code = Code()
    reducer: Framework = Framework()
    """Around the dense exchange, which the framework carries out itself."""
    hook: Framework = Framework()
    """Around any other method's, the framework's own work included."""
    encode_on: Literal["compute", "side", "communicator"] = "compute"
    """The stream on which a bucket's exchange computes. communicator: that of the collectives, so
    that the exchanges of two buckets never overlap."""
    side_slowdown: fields.Factor = Fraction(1)
    """Factor on encoding and decoding on a side stream, beside the backward pass."""
    concurrent_collectives: Literal[1, 2] = 1
    """Collectives under way at a time: 1 as NCCL, 2 as Gloo's two threads."""
    optimizer: fields.Seconds = Fraction(0)
    """Seconds after a worker's last bucket is decoded; 0: in the backward time."""
    accumulation: Batches = 1
    """Micro-batches an iteration; the gradient is exchanged after the last."""
    local_steps: Batches = 1
    """Iterations between two exchanges, the one with the exchange included."""
    input: InputLoading | None = None
    """None: batches are always ready."""
    on_host: frozenset[Kind] = frozenset()
    """Kinds of jobs that are computed on the cores of the worker's machine (`Cluster.host`), one
    core per worker, which workers of one machine share; everything else has a device of its own."""
    slow_nodes: Mapping[Node, fields.Factor] = field(default_factory=dict)
    """Factor on the computation of a node's devices, by number of the node."""
    slow_workers: Mapping[Worker, fields.Factor] = field(default_factory=dict)
    """Factor on a rank's computation, on top of its node's slowness."""
    noise: Noise | None = None
    iterations: Annotated[int, fields.Limits(least=1, most=100_000)] = 100
    """Consecutive iterations over which random times are averaged. Beyond the limit the times of
    all workers in all of them fill the memory."""
    faults: Faults | None = None

    @property
    def gradient_bytes(self) -> int:
        """Bytes of an element of the stored gradient."""
        return 4 if self.gradients == "fp32" else 2

    @property
    def waits(self) -> Fraction:
        """`exposed`, as far as nobody has said that nothing overlaps."""
        return Fraction(1) if self.overlap == "none" else self.exposed

    def machines(self, cluster: Cluster) -> Machines | None:
        """Machines whose ranks share cores; None where there is a core for each stream."""
        return Machines.of(cluster, self.on_host, side_stream=self.encode_on != "compute")
