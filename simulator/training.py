"""Settings of a training job: a scenario's `training` section, except the compressor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Literal

from gcsim import fields
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.devices.training_rates import Precision
from gcsim.simulator.steps.step_plan import Kind, Machines
from gcsim.traces.models.transformer import Checkpointing, Transformer

DENSE = "none"  # registered name of the uncompressed exchange
Overlap = Literal["ddp", "none", "by_tensor"]
"""Overlap of the exchange with the backward pass.

- `ddp`: each bucket's exchange begins when its gradients are ready (DistributedDataParallel).
- `none`: the same buckets, in order, after the backward pass (a loop that exchanges after
  `loss.backward()`, as many published set-ups and compressed optimisers do).
- `by_tensor`: one bucket per tensor (wait-free backpropagation; Horovod without fusion), as in the
  recorded traffic; a step runs as `ddp`.
"""


Strategy = Literal["ddp", "zero1", "zero2", "hsdp", "zero3"]
"""State that is sharded over the workers (ZeRO, FSDP). ddp: none. zero1: the optimizer's; each
worker updates its part of the weights, which all then gather (`as_trained.py`). zero2: also
gradients. zero3: also weights, gathered before each pass (`as_sharded.py`). hsdp: everything, over
the devices of each node."""
Gathered = Literal["stored", "fp8", "int8"]
"""Type in which sharded weights travel between nodes: the type that the passes read, or one byte
per element (torchao's float8 all-gather; ZeRO++'s qwZ)."""
PassPrecision = Literal["fp32", "tf32", "fp16", "bf16"]
GradientType = Literal["fp32", "fp16", "bf16"]
Batches = Annotated[int, fields.Limits(least=1, most=1_000)]
Tokens = Annotated[int, fields.Limits(least=1, most=1 << 20)]
Node = Annotated[int, fields.Index("node")]
Worker = Annotated[int, fields.Index("worker")]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLoading(fields.Setting):
    """Input loader of each worker, which makes one batch after the other."""

    batch: fields.Seconds  # seconds for a worker's batch; with accumulation, a micro-batch
    batch_range: fields.RangeOf[fields.Seconds] = None
    prefetch: Batches = 2  # finished batches that may wait before the loader stops


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise(fields.Setting):
    """Random factor of mean 1 on each worker's computation in each iteration; or, with `skew`, the
    expected maximum of the workers' factors, the same in every iteration."""

    distribution: Literal["lognormal", "gamma"] = "lognormal"
    variation: fields.Variation = Fraction(0)
    """Coefficient of variation: standard deviation over mean."""
    slow_probability: fields.Probability = Fraction(0)
    """Probability that a worker is slower by `slow_factor` in an iteration."""
    slow_factor: fields.Factor = Fraction(1)
    skew: fields.Variation = Fraction(0)
    """Standard deviation over mean of the workers' passes; all workers wait for the longest."""
    skew_range: fields.RangeOf[fields.Variation] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(fields.Setting):
    """Failure and return of a node."""

    node: Annotated[int, fields.Limits(least=0)]
    at: fields.Seconds
    down: fields.PositiveSeconds | None = None  # seconds until it is back; None: never


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults(fields.Setting):
    """Node failures during a run."""

    horizon: fields.PositiveSeconds  # seconds of the whole run
    restart: fields.Seconds
    """Seconds that all workers lose when a process group forms anew (elastic restart)."""
    deaths: Annotated[tuple[Fault, ...], fields.Limits(least=1, most=1_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures(fields.Setting):
    """Failure rate and checkpoints of a long training (`goodput.py`)."""

    mtbf: fields.PositiveSeconds  # mean seconds between failures of one node
    restart: fields.Seconds  # seconds from a failure until the training runs again
    checkpoint: fields.PositiveSeconds  # seconds for which a checkpoint stops the training
    every: fields.PositiveSeconds | None = None
    """Seconds of training between two checkpoints; None: the optimal interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference(fields.Setting):
    """Slowdown of simultaneous computation and communication (`events/even_cluster.py`)."""

    computation: fields.Variation = Fraction(0)
    """Computation during a collective takes 1 + this times as long."""
    computation_range: fields.RangeOf[fields.Variation] = None
    bus: fields.Variation = Fraction(0)
    """A collective's time on a node's bus is multiplied by 1 + this while the node computes."""
    bus_range: fields.RangeOf[fields.Variation] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedNode(fields.Setting):
    """Contention between a node's devices: power, memory, processors."""

    slowdown: fields.Variation = Fraction(0)
    """Forward and backward take 1 + this times as long with several devices per node, even without
    communication; not on a CPU or where ranks share cores (`on_host`)."""
    slowdown_range: fields.RangeOf[fields.Variation] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Code(fields.Setting):
    """Speed of the code of forward and backward, relative to the catalogue's."""

    slowdown: fields.Factor = Fraction(1)
    slowdown_range: fields.RangeOf[fields.Factor] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework(fields.Setting):
    """Cost per worker of the framework's code around an exchange, in addition to the method's
    kernels. Half is spent before a bucket's first collective (hooks, copies into the bucket), half
    after the last one (write back); a step without an exchange costs nothing."""

    per_tensor: fields.Seconds = Fraction(0)  # seconds per tensor of a bucket
    per_tensor_range: fields.RangeOf[fields.Seconds] = None
    per_bucket: fields.Seconds = Fraction(0)
    per_bucket_range: fields.RangeOf[fields.Seconds] = None
    per_step: fields.Seconds = Fraction(0)  # seconds per step with an exchange between nodes
    per_step_range: fields.RangeOf[fields.Seconds] = None
    passes: fields.Passes = Fraction(0)
    """Number of reads and writes of each stored gradient, at the rate of `streaming` kernels."""
    passes_range: fields.RangeOf[fields.Passes] = None

    @property
    def free(self) -> bool:
        """Whether all costs are zero."""
        return not (self.per_tensor or self.per_bucket or self.per_step or self.passes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(fields.Setting):
    """Settings of a training step, except the compressor."""

    precision: PassPrecision = "fp32"
    """Precision of the passes; bf16 (bfloat16 products, float32 weights) has the times of fp16."""
    gradients: GradientType = "fp32"
    """Type of stored gradients, and of uncompressed exchanges (`as_trained.py`); fp16 or bf16 for
    trainings entirely in half precision."""
    overlap: Overlap | None = None  # None: not stated; runs as `ddp`, delayed by `exposed`
    exposed: fields.Probability = Fraction(0)
    """Delay of each bucket's exchange, as a share of the time from its gradients to the end of
    backward: 0 is `ddp`, 1 is `none`."""
    exposed_range: fields.RangeOf[fields.Probability] = None
    interference: Interference = Interference()
    shared_node: SharedNode = SharedNode()
    code: Code = Code()
    reducer: Framework = Framework()  # around the dense exchange
    hook: Framework = Framework()
    """Cost around any other method's exchange, including the framework's own work."""
    between: Literal["workers", "nodes", "racks"] = "workers"
    """Participants of a compressed exchange: every worker, or every node or rack, whose devices
    first all-reduce their gradients uncompressed (`as_trained.py`)."""
    strategy: Strategy = "ddp"
    gathered: Gathered = "stored"
    secondary: bool = False
    """Whether each node shards a second copy of the weights among its devices, which they gather
    for the backward pass (ZeRO++'s hpZ)."""
    others: Annotated[Mapping[str, Framework], fields.INTERNAL] = field(default_factory=dict)
    """Costs that replace `hook` and its checks for methods carried out by other code, by method."""
    encode_on: Literal["compute", "side", "communicator"] = "compute"
    """Stream on which a bucket is encoded and decoded; communicator: that of the collectives, so
    that exchanges of two buckets never overlap."""
    side_slowdown: fields.Factor = Fraction(1)  # factor on encoding and decoding on a side stream
    concurrent_collectives: Literal[1, 2] = 1
    """Collectives that may run at the same time: 1 in NCCL, 2 in Gloo, which has two threads."""
    optimizer: fields.Seconds = Fraction(0)
    """Seconds of a worker's optimizer step, after its last bucket is decoded; if sharded, of its
    part. 0: included in backward."""
    accumulation: Batches = 1  # micro-batches per iteration; only the last exchanges
    checkpointing: Checkpointing = "none"
    """Activations that the backward pass computes again, for a model by formula."""
    flash_attention: bool = True  # attention scores are not stored for the backward pass
    sequence: Tokens | None = None  # tokens per sample of a model by formula; None: the model's own
    optimizer_state: Literal["adam", "momentum", "none"] | None = None
    """State that the optimizer keeps; affects only memory. None: not stated, counted as Adam's."""
    device_memory: fields.Bytes | None = None  # memory of a device; None: the catalogue's
    local_steps: Batches = 1  # iterations per exchange
    input: InputLoading | None = None  # None: batches are always ready
    on_host: frozenset[Kind] = frozenset()
    """Kinds of jobs that run on the cores of the worker's machine (`Cluster.host`), one core each,
    shared by the machine's workers; other jobs run on the worker's own device."""
    slow_nodes: Mapping[Node, fields.Factor] = field(default_factory=dict)
    """Factor on the computation of a node's devices, by node."""
    slow_workers: Mapping[Worker, fields.Factor] = field(default_factory=dict)
    """Factor on a rank's computation, on top of its node's."""
    noise: Noise | None = None
    iterations: Annotated[int, fields.Limits(least=1, most=100_000)] = 100
    """Number of consecutive iterations over which random times are averaged; limited by memory."""
    faults: Faults | None = None
    failures: Failures | None = None  # None: the training never fails, and writes no checkpoints

    @property
    def timed_as(self) -> Precision:
        """Precision whose times the catalogue has."""
        return "fp16" if self.precision == "bf16" else self.precision

    def computed_again(self, network: Transformer | None, forward_flops: int) -> Fraction:
        """Return the share of a sample's `forward_flops` that the backward pass computes again; 0
        for models that are not by formula."""
        if network is None:
            return Fraction(0)
        again = network.computed_again(self.checkpointing, flash=self.flash_attention)
        return Fraction(again, forward_flops)

    @property
    def gradient_bytes(self) -> int:
        """Bytes per element of the stored gradient."""
        return 4 if self.gradients == "fp32" else 2

    @property
    def sharded(self) -> bool:
        """Whether gradients, or gradients and weights, are sharded."""
        return self.strategy in {"zero2", "zero3", "hsdp"}

    @property
    def weight_bytes(self) -> int:
        """Bytes per weight that the passes read."""
        return 2 if self.timed_as == "fp16" or self.gradients != "fp32" else 4

    @property
    def waits(self) -> Fraction:
        """`exposed`; 1 if `overlap` is `none`, 0 if gradients are sharded."""
        if self.sharded:
            return Fraction(0)
        return Fraction(1) if self.overlap == "none" else self.exposed

    def exchange_code(self, method: str) -> Framework:
        """Return the cost of the code around a method's exchange."""
        return self.reducer if method == DENSE else self.others.get(method, self.hook)

    def machines(self, cluster: Cluster) -> Machines | None:
        """Return the machines whose ranks share cores; None if each stream has a core."""
        return Machines.of(cluster, self.on_host, side_stream=self.encode_on != "compute")
