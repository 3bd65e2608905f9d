"""How a training job runs on the cluster, beside its compressor: what a scenario says under
`training`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from gcsim.simulator.devices.training_rates import Precision
from gcsim.simulator.steps.step_plan import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLoading:
    """A loader beside each worker that makes one batch after the other."""

    batch: Fraction
    """Seconds that the loader needs for a worker's batch (of one micro-batch, with
    accumulation)."""
    prefetch: int = 2
    """Finished batches that may wait; the loader stops when so many do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Each worker's computation in each iteration takes a random factor as long, mean 1."""

    distribution: Literal["lognormal", "gamma"] = "lognormal"
    variation: Fraction = Fraction(0)
    """Coefficient of variation: standard deviation over mean."""
    slow_probability: Fraction = Fraction(0)
    """That a worker is slow in an iteration, on top."""
    slow_factor: Fraction = Fraction(1)
    """How many times as long it then computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A node dies and comes back."""

    node: int
    at: Fraction
    """Seconds after the start."""
    down: Fraction | None = None
    """Seconds until it is back; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Deaths over a run of some length."""

    horizon: Fraction
    """Seconds, of the whole run."""
    restart: Fraction
    """Seconds that all workers lose whenever a process group forms anew (elastic restart)."""
    deaths: tuple[Fault, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The step beside forward, backward and the exchange."""

    precision: Precision = "fp32"
    """Of forward and backward; gradients are exchanged as float32 whatever it is."""
    encode_on: Literal["compute", "side"] = "compute"
    """The stream on which a bucket's exchange computes."""
    side_slowdown: Fraction = Fraction(1)
    """How many times as long that takes on a side stream, beside the backward pass."""
    concurrent_collectives: Literal[1, 2] = 1
    """Collectives under way at a time: 1 as NCCL, 2 as Gloo's two threads."""
    optimizer: Fraction = Fraction(0)
    """Seconds after a worker's last bucket is decoded; 0: in the backward time."""
    accumulation: int = 1
    """Micro-batches an iteration; the gradient is exchanged after the last."""
    input: InputLoading | None = None
    """None: batches are always ready."""
    on_host: frozenset[Kind] = frozenset()
    """What is computed on the cores of the worker's machine (`Cluster.host`), one core a worker,
    which workers of one machine share; everything else has a device of its own."""
    slow_nodes: Mapping[int, Fraction] = field(default_factory=dict)
    """By number of the node: how many times as long its devices compute."""
    slow_workers: Mapping[int, Fraction] = field(default_factory=dict)
    """By rank: how many times as long it computes, on top of its node's slowness."""
    noise: Noise | None = None
    iterations: int = 100
    """Consecutive iterations over which random times are averaged."""
    faults: Faults | None = None
