"""A small model, its data, and teams that train it: what tests of training share."""

import math
from typing import Any

import torch
from torch import nn

from gcsim.compressors.base import About, Compressor
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.lockstep import Reduction, in_rank_order
from gcsim.compressors.options.method import method_of
from gcsim.compressors.requests import AllReduce, Exchange
from gcsim.traces.models.registry import ModelEntry, own_model, trained_on
from gcsim.traces.tasks.registry import make_split
from gcsim.traces.training.plan import Optimizer, Partition
from gcsim.traces.training.team import Method, Team
from gcsim.traces.training.trajectory import Trajectory

BATCH = 8


def small() -> nn.Module:
    """1,210 parameters in two matrices and two biases."""
    return nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))


class Wild(Compressor):
    """Dense, and ten thousand times too much."""

    about = About(
        title="Wild", family="dense", collective="all-reduce", bits="32", paper="none: a test"
    )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        total: torch.Tensor = yield AllReduce(tensor=bucket.gradient / self.worker.count)
        return total.mul_(self.factor())

    def factor(self) -> float:
        return 1e4


class Stops(Wild):
    """An error in its first step."""

    def factor(self) -> float:
        raise RuntimeError("it stops")


class Nothing(Compressor):
    """The mean of each bucket's first element alone; a quantizer, whose horizon has no end."""

    about = About(
        title="Nothing", family="quantization", collective="all-reduce", bits="32 / n",
        paper="none: a test",
    )  # fmt: skip

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        first: torch.Tensor = yield AllReduce(tensor=bucket.gradient[:1] / self.worker.count)
        update = torch.zeros_like(bucket.gradient)
        update[:1] = first
        return update


class WildAtOddSeeds(Wild):
    """Dense with even seeds."""

    about = Wild.about

    def factor(self) -> float:
        return 1e4 if self.worker.seed % 2 else 1.0


class Undeclared(Compressor):
    """Half precision from step 38 on, of which it says nothing."""

    about = About(
        title="Undeclared", family="quantization", collective="all-reduce", bits="16",
        paper="none: a test",
    )  # fmt: skip

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        kind = torch.float32 if step < 38 else torch.float16
        mean: torch.Tensor = yield AllReduce(tensor=(bucket.gradient / self.worker.count).to(kind))
        return mean.float()


class NoNumber(Compressor):
    """Dense, and an update that is no number in the third step, the first after an evaluation."""

    about = Wild.about
    step = 2

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        total: torch.Tensor = yield AllReduce(tensor=bucket.gradient / self.worker.count)
        return total.fill_(math.nan) if step == self.step else total


class NoNumberLater(NoNumber):
    """In the fourth step, the last before an evaluation."""

    about = Wild.about
    step = 3


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Linear(16, 10))


class Centred(nn.Module):
    """Samples meet outside of any layer with parameters."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs - inputs.mean(0)


def mixing() -> nn.Module:
    return nn.Sequential(Centred(), nn.Linear(64, 10))


def halved(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A loss of one's own, `[batch]`."""
    return nn.functional.cross_entropy(output, labels, reduction="none") / 2


def naive(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy as people write it, `[batch]`: infinite where a probability underflows."""
    return -torch.softmax(output, 1).gather(1, labels[:, None])[:, 0].log()


def entry(build: str = "small") -> ModelEntry:
    return trained_on(own_model(f"{__name__}:{build}", (64,), 10), "digits")


def method(kind: str, **parameters: Any) -> Method:
    chosen = method_of(kind, parameters)
    return Method(kind=kind, compressor=chosen.compressor, parameters=chosen.parameters)


def team(
    chosen: Method,
    *,
    workers: int = 2,
    seed: int = 0,
    limits: tuple[int, int] = (4096, 4096),
    optimizer: Optimizer = Optimizer(),  # noqa: B008 (frozen)
    reduction: Reduction = in_rank_order,
    model: str = "small",
    batch: int = BATCH,
    accumulation: int = 1,
    at_once: bool = True,
    clip: float | None = None,
    autocast: bool = False,
    partition: Partition = Partition(),  # noqa: B008 (frozen)
) -> Team:
    """In two buckets."""
    made = entry(model)
    return Team(
        made, make_split(made, seed), chosen, workers=workers, batch=batch, optimizer=optimizer,
        accumulation=accumulation, limits=limits, seed=seed, reduction=reduction,
        at_once=at_once, clip=clip, autocast=autocast, partition=partition,
    )  # fmt: skip


def fresh(
    chosen: Method, of: Team, steps: int, *, rate: float = 0.05, workers: int = 2
) -> Trajectory:
    return Trajectory(
        compressor=chosen.kind,
        parameters=chosen.parameters.model_dump(mode="json"),
        seed=0,
        learning_rate=rate,
        workers=workers,
        steps=steps,
        data="digits",
        model=of.facts,
        buckets=of.layouts,
    )


def weights(of: Team) -> torch.Tensor:
    """Of each worker that has its own: `[replicas, n]`."""
    return torch.stack(of.state()["replicas"]).clone()
