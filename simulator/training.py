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
"""State that is divided among the workers (ZeRO, FSDP): nothing; the optimizer's, each part of
which updates that part of the weights, which all then gather (`as_trained.py`); gradients, too;
weights, too, which all gather before each pass (`as_sharded.py`). `hsdp`: all among the devices of
each node."""
Gathered = Literal["stored", "fp8", "int8"]
"""Type in which sharded weights travel between nodes: as passes read them, or in a byte (torchao's
float8 all-gather; ZeRO++'s qwZ)."""
PassPrecision = Literal["fp32", "tf32", "fp16", "bf16"]
GradientType = Literal["fp32", "fp16", "bf16"]
Batches = Annotated[int, fields.Limits(least=1, most=1_000)]
Tokens = Annotated[int, fields.Limits(least=1, most=1 << 20)]
Node = Annotated[int, fields.Index("node")]
Worker = Annotated[int, fields.Index("worker")]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLoading(fields.Setting):
    """Loader of each worker, one batch after the other."""

    batch: fields.Seconds  # seconds for a worker's batch; with accumulation, a micro-batch
    batch_range: fields.RangeOf[fields.Seconds] = None
    prefetch: Batches = 2  # finished batches that may wait before the loader stops


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise(fields.Setting):
    """Random factor of mean 1 on each worker's computation in each iteration, or, as `skew`, the
    expected longest factor on all workers', without draws."""

    distribution: Literal["lognormal", "gamma"] = "lognormal"
    variation: fields.Variation = Fraction(0)
    """Coefficient of variation: standard deviation over mean."""
    slow_probability: fields.Probability = Fraction(0)
    """Probability that a worker is also slow in an iteration."""
    slow_factor: fields.Factor = Fraction(1)
    skew: fields.Variation = Fraction(0)
    """Standard deviation over mean of a worker's passes, the longest of which counts."""
    skew_range: fields.RangeOf[fields.Variation] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(fields.Setting):
    """A node dies and comes back."""

    node: Annotated[int, fields.Limits(least=0)]
    at: fields.Seconds
    down: fields.PositiveSeconds | None = None  # seconds until it is back; None: never


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults(fields.Setting):
    """Deaths over a run."""

    horizon: fields.PositiveSeconds  # seconds of the whole run
    restart: fields.Seconds
    """Seconds that all workers lose when a process group forms anew (elastic restart)."""
    deaths: Annotated[tuple[Fault, ...], fields.Limits(least=1, most=1_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures(fields.Setting):
    """Failures of a long training, and the checkpoints against them (`goodput.py`)."""

    mtbf: fields.PositiveSeconds  # mean seconds between failures of one node
    restart: fields.Seconds  # seconds from a failure until the training runs again
    checkpoint: fields.PositiveSeconds  # seconds for which a checkpoint stops the training
    every: fields.PositiveSeconds | None = None
    """Seconds of training between two checkpoints; None: the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference(fields.Setting):
    """Slowdown of simultaneous computation and communication (`events/even_cluster.py`)."""

    computation: fields.Variation = Fraction(0)
    """Computation beside a collective takes 1 + this times as long."""
    computation_range: fields.RangeOf[fields.Variation] = None
    bus: fields.Variation = Fraction(0)
    """A collective's time on the bus of a node that computes is multiplied by 1 + this."""
    bus_range: fields.RangeOf[fields.Variation] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedNode(fields.Setting):
    """Contention between a node's devices: power, memory, processors."""

    slowdown: fields.Variation = Fraction(0)
    """On a node with several devices forward and backward take 1 + this times as long, before any
    network; not on a CPU or where ranks share cores (`on_host`)."""
    slowdown_range: fields.RangeOf[fields.Variation] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Code(fields.Setting):
    """Code of forward and backward, relative to the catalogue's."""

    slowdown: fields.Factor = Fraction(1)
    slowdown_range: fields.RangeOf[fields.Factor] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework(fields.Setting):
    """Cost per worker of the framework's code around an exchange, beside the method's kernels. Half
    comes before a bucket's first collective (hooks, copies into the bucket), half after the last
    (write back); a step without exchange costs nothing."""

    per_tensor: fields.Seconds = Fraction(0)  # seconds per tensor of a bucket
    per_tensor_range: fields.RangeOf[fields.Seconds] = None
    per_bucket: fields.Seconds = Fraction(0)
    per_bucket_range: fields.RangeOf[fields.Seconds] = None
    per_step: fields.Seconds = Fraction(0)  # seconds per step with an exchange between nodes
    per_step_range: fields.RangeOf[fields.Seconds] = None
    passes: fields.Variation = Fraction(0)
    """Reads and writes of each stored gradient element, at the rate of `streaming` kernels."""
    passes_range: fields.RangeOf[fields.Variation] = None

    @property
    def free(self) -> bool:
        """Whether everything is free."""
        return not (self.per_tensor or self.per_bucket or self.per_step or self.passes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(fields.Setting):
    """The step beside forward, backward and the exchange."""

    precision: PassPrecision = "fp32"
    """Precision of passes; bf16 (bfloat16 products, float32 weights) has the times of fp16."""
    gradients: GradientType = "fp32"
    """Type of stored gradients, and of those exchanged uncompressed (`as_trained.py`); fp16 or
    bf16 for codes in half precision throughout."""
    overlap: Overlap | None = None  # None: not stated; runs as `ddp`, delayed by `exposed`
    exposed: fields.Probability = Fraction(0)
    """Share of the time from a bucket's gradients to the end of backward that its exchange waits:
    from `ddp` (0) to `none` (1)."""
    exposed_range: fields.RangeOf[fields.Probability] = None
    interference: Interference = Interference()
    shared_node: SharedNode = SharedNode()
    code: Code = Code()
    reducer: Framework = Framework()  # around the dense exchange
    hook: Framework = Framework()
    """Around any other method's exchange, the framework's own work included."""
    between: Literal["workers", "nodes", "racks"] = "workers"
    """Ends of a compressed exchange: every worker, or every node or rack, whose devices first sum
    their gradients uncompressed (`as_trained.py`)."""
    strategy: Strategy = "ddp"
    gathered: Gathered = "stored"
    secondary: bool = False
    """Whether each node has a second copy of the weights, which it gathers for the backward pass
    (ZeRO++'s hpZ)."""
    others: Annotated[Mapping[str, Framework], fields.INTERNAL] = field(default_factory=dict)
    """Costs instead of `hook` and its checks, around exchanges by code that is not gcsim's."""
    encode_on: Literal["compute", "side", "communicator"] = "compute"
    """Stream on which a bucket's exchange computes; communicator: the collectives' own, so that
    exchanges of two buckets never overlap."""
    side_slowdown: fields.Factor = Fraction(1)  # factor on encoding and decoding on a side stream
    concurrent_collectives: Literal[1, 2] = 1
    """Collectives under way at a time: 1 as in NCCL, 2 as Gloo's two threads."""
    optimizer: fields.Seconds = Fraction(0)
    """Seconds after a worker's last bucket is decoded, of a sharded one of a worker's part; 0:
    included in backward."""
    accumulation: Batches = 1  # micro-batches per iteration; only the last exchanges
    checkpointing: Checkpointing = "none"
    """Activations that the backward pass computes again, of a model by formula."""
    flash_attention: bool = True  # whether attention keeps no scores
    sequence: Tokens | None = None  # tokens of a sample, of a model by formula; None: the model's
    optimizer_state: Literal["adam", "momentum", "none"] | None = None
    """State that the optimizer keeps; it affects no time. None: not stated; as much as Adam's."""
    device_memory: fields.Bytes | None = None  # memory of a device; None: the catalogue's
    local_steps: Batches = 1  # iterations per exchange
    input: InputLoading | None = None  # None: batches are always ready
    on_host: frozenset[Kind] = frozenset()
    """Kinds of jobs on the cores of the worker's machine (`Cluster.host`), one core per worker,
    shared by the machine's workers; others have a device of their own."""
    slow_nodes: Mapping[Node, fields.Factor] = field(default_factory=dict)
    """Factor on the computation of a node's devices, by node."""
    slow_workers: Mapping[Worker, fields.Factor] = field(default_factory=dict)
    """Factor on a rank's computation, on top of its node's."""
    noise: Noise | None = None
    iterations: Annotated[int, fields.Limits(least=1, most=100_000)] = 100
    """Consecutive iterations over which random times are averaged; memory limits them."""
    faults: Faults | None = None
    failures: Failures | None = None  # None: the training never fails, and writes no checkpoints

    @property
    def timed_as(self) -> Precision:
        """Precision of the catalogue's times."""
        return "fp16" if self.precision == "bf16" else self.precision

    def computed_again(self, network: Transformer | None, forward_flops: int) -> Fraction:
        """Share of `forward_flops`, a sample's, that the backward pass of a model by formula
        computes again."""
        if network is None:
            return Fraction(0)
        again = network.computed_again(self.checkpointing, flash=self.flash_attention)
        return Fraction(again, forward_flops)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of an element of the stored gradient."""
        return 4 if self.gradients == "fp32" else 2

    @property
    def sharded(self) -> bool:
        """Whether gradients are sharded, and perhaps weights."""
        return self.strategy in {"zero2", "zero3", "hsdp"}

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight that a pass reads."""
        return 2 if self.timed_as == "fp16" or self.gradients != "fp32" else 4

    @property
    def waits(self) -> Fraction:
        """`exposed`; 1 where `overlap` is `none`; 0 where gradients are sharded."""
        if self.sharded:
            return Fraction(0)
        return Fraction(1) if self.overlap == "none" else self.exposed

    def exchange_code(self, method: str) -> Framework:
        """Code around a method's exchange."""
        return self.reducer if method == DENSE else self.others.get(method, self.hook)

    def machines(self, cluster: Cluster) -> Machines | None:
        """Machines whose ranks share cores; None where there is a core for each stream."""
        return Machines.of(cluster, self.on_host, side_stream=self.encode_on != "compute")
