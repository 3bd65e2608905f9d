"""PyTorch's post-local SGD hook and its model averager: local steps after a dense start.

`post_localSGD_hook` all-reduces gradients until step `start`; from then on every worker uses its
own gradient, and PeriodicModelAverager averages the parameters of all workers after the steps
start, start + period, …. An averaging step sends 32 n bits, other steps nothing.

A compressor returns updates, not parameters: with a constant learning rate and an optimiser that is
linear in its updates (SGD, whose momentum is part of the update here), parameters are the sum of
the updates, and the update mean(S) - S' leads to their mean, where S is the sum of a worker's own
steps since the last averaging including the current one, and S' excludes it. Equal up to rounding.

Assumes that one worker is one node: by default the hook also averages gradients within a node at
each step (`post_local_gradient_allreduce` with intra-node subgroups), which is not compressed.
Momentum buffers stay local, as with PyTorch's PostLocalSGDOptimizer.

Source: torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook and
torch.distributed.algorithms.model_averaging.averagers.PeriodicModelAverager, PyTorch 2.13; T. Lin
et al., "Don't Use Large Mini-batches, Use Local SGD", ICLR 2020, arXiv:1808.07217.
"""

from __future__ import annotations

from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Properties
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.requests import AllReduce, Exchange


class TorchPostLocalSgdParameters(CompressorParameters):
    start: int = Field(
        100, ge=0, description="steps of dense all-reduce before local steps (start_localSGD_iter)"
    )
    interval: int = Field(4, ge=1, description="steps between averagings of the models (period)")
    momentum: float = Field(0.9, ge=0, lt=1, description="heavy-ball momentum on each worker")


class TorchPostLocalSgd(Compressor[TorchPostLocalSgdParameters]):
    about = About(
        title="PyTorch post_localSGD_hook",
        family="reference",
        collective="all-reduce every interval steps, nothing between; dense before start",
        bits="32 / interval",
        state="momentum (n), steps since the last averaging (n)",
        paper="torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook",
    )

    @classmethod
    def properties(cls, parameters: TorchPostLocalSgdParameters) -> Properties:
        """Return the properties: nothing is lost; on average workers follow the mean."""
        return Properties(
            conserves=True, replicas="meet" if parameters.interval > 1 else "identical"
        )

    @classmethod
    def warmup_steps(cls, parameters: TorchPostLocalSgdParameters) -> int:
        """Return the step after the first averaging."""
        return parameters.start + 1

    @classmethod
    def period(cls, parameters: TorchPostLocalSgdParameters) -> int:
        return parameters.interval

    @classmethod
    def phase(cls, parameters: TorchPostLocalSgdParameters, step: int) -> str:
        if step < parameters.start:
            return "dense"
        return "local" if (step - parameters.start) % parameters.interval else "averaging"

    @classmethod
    def momentum(cls, parameters: TorchPostLocalSgdParameters) -> tuple[float, bool]:
        return parameters.momentum, False

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        direction = self.kept("momentum", bucket).mul_(self.parameters.momentum)
        phase = self.phase(self.parameters, step)
        if phase == "dense":
            mean: Tensor = yield AllReduce(tensor=bucket.gradient / self.worker.count)
            direction.add_(mean)
            return direction.clone()
        direction.add_(bucket.gradient)
        applied = self.kept("applied", bucket)
        if phase == "local":
            applied.add_(direction)
            return direction.clone()
        total = torch.add(applied, direction).div_(self.worker.count)
        update: Tensor = yield AllReduce(tensor=total)
        update.sub_(applied)
        applied.zero_()
        return update
