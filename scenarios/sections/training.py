"""What may a scenario file say under `training`? How the job runs, beside its compressor."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from gcsim.errors import InputError
from gcsim.scenarios.catalog import loops as catalog_loops
from gcsim.scenarios.catalog.loop_fields import (
    FrameworkSection,
    InterferenceSection,
    Ranged,
    SharedNodeSection,
    Shares,
)
from gcsim.scenarios.reading.checking import (
    NAMED,
    SPELLED_OUT,
    Duration,
    PositiveDuration,
    Section,
    by_shape,
    refuse,
)
from gcsim.scenarios.reading.types import Factor, NodeNumber, Probability, Variation, WorkerNumber
from gcsim.simulator.steps.step_plan import Kind
from gcsim.simulator.training import Overlap

MOST_ITERATIONS = 100_000
"""Beyond it the times of all workers in all iterations fill the memory."""
MOST_BATCHES = 1_000
"""Micro-batches of an iteration, and batches in waiting."""
MOST_DEATHS = 1_000

_Batches = Annotated[int, Field(ge=1, le=MOST_BATCHES)]


class InputSection(Section):
    """A loader beside each worker."""

    batch: PositiveDuration
    prefetch: _Batches = 2


class NoiseSection(Ranged):
    """Computation that takes randomly longer or shorter."""

    distribution: Literal["lognormal", "gamma"] = "lognormal"
    variation: Variation = Fraction(0)
    slow_probability: Probability = Fraction(0)
    slow_factor: Factor = Fraction(1)
    skew: Variation = Fraction(0)
    skew_range: Shares | None = None


class DeathSection(Section):
    """A node dies, and comes back or not."""

    node: Annotated[int, Field(ge=0)]
    at: Duration
    down: PositiveDuration | None = None


class FaultsSection(Section):
    """Deaths over a run of some length."""

    horizon: PositiveDuration
    restart: Duration
    deaths: Annotated[list[DeathSection], Field(min_length=1, max_length=MOST_DEATHS)]


def _once(kinds: list[Kind]) -> list[Kind]:
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise refuse(f"{kind!r} stands there {kinds.count(kind)} times", "name it once")
    return kinds


def _framework(name: str) -> str:
    try:
        catalog_loops.framework(name)
    except InputError as error:
        raise refuse(error.problems[0].message, error.problems[0].hint) from error
    return name


class TrainingSection(Section):
    """The step beside forward, backward and the exchange."""

    precision: Literal["fp32", "tf32", "fp16"] = "fp32"
    overlap: Overlap | None = None
    interference: InterferenceSection | None = None
    shared_node: SharedNodeSection | None = None
    framework: Annotated[
        Annotated[str, AfterValidator(_framework), Tag(NAMED)]
        | Annotated[FrameworkSection, Tag(SPELLED_OUT)],
        Discriminator(by_shape),
    ] = "pytorch"
    encode_on: Literal["compute", "side", "communicator"] = "compute"
    side_slowdown: Factor = Fraction(1)
    concurrent_collectives: Annotated[int, Field(ge=1, le=2)] = 1
    optimizer: Duration = Fraction(0)
    accumulation: _Batches = 1
    input: InputSection | None = None
    on_host: Annotated[list[Kind], AfterValidator(_once)] = []  # noqa: RUF012
    slow_nodes: dict[NodeNumber, Factor] = {}  # noqa: RUF012
    slow_workers: dict[WorkerNumber, Factor] = {}  # noqa: RUF012
    noise: NoiseSection | None = None
    iterations: Annotated[int, Field(ge=1, le=MOST_ITERATIONS)] = 100
    faults: FaultsSection | None = None
