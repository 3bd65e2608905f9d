"""CSER: each worker applies its own compression error at once; errors are averaged later.

Partial synchronisation of a vector v that each worker has, with a compressor C:
    PSync(v, C) = (mean over workers of C(v) + r, r),    r = v - C(v),
so each worker keeps the rest of its own v. C is GRBS: a tensor is cut into R blocks of consecutive
elements, of which one is chosen at random, the same on all workers; it is all-reduced without
indices. Each step, p being the Nesterov momentum direction,
    p', r = PSync(p, C2);    x -= lr p';    e -= lr r,
and after every H-th step the errors are averaged on the block of C1 ("reset"):
    e', e = PSync(e, C1);    x += e' - (e before).

| method    | R2 (gradients) | R1 (errors) | H  | overall compression 1 / (1/R2 + 1/(R1 H)) |
|-----------|----------------|-------------|----|-------------------------------------------|
| `cser`    | 192            | 8           | 24 | 96                                        |
| `csea`    | none           | 96          | 1  | 96                                        |
| `cser_pl` | none           | 8           | 12 | 96                                        |

Without gradient synchronisation all of p is error: CSEA averages a block of the models in every
step, CSER-PL in every H-th step. x_i - e_i is always equal on all workers, and the mean of x_i
follows SGD on the mean gradient exactly, since PSync keeps the mean.

Here the update replaces p, in units of the gradient, and the state is E = -e / lr, so E += r; a
reset adds mean C1(E) - C1(E) to the update, with both slices in one all-reduce. **The learning rate
must be constant**, and the optimiser plain SGD without momentum.

GRBS: E|C(v) - v|^2 = (1 - 1/R) |v|^2 over the choice of the block. Block i of n elements is i n //
R … (i + 1) n // R; some are empty when n < R. Bits per step: 32 n / R2, plus 32 n / R1 at a reset.
Replicas differ, unless R1 = 1: then they become equal at each reset.

The public code swaps the names R1 and R2, averages parameters instead of gradients and chooses rows
and columns. Its scripts have H R1 = R2, as here.

Source: C. Xie, S. Zheng, O. Koyejo, I. Gupta, M. Li, H. Lin, "CSER: Communication-efficient SGD
with Error Reset", NeurIPS 2020, arXiv:2007.13221.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Properties, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.momentum import local_step
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.random import stream
from gcsim.compressors.requests import AllReduce, Exchange


class ErrorAveragingParameters(CompressorParameters):
    error_blocks: int = Field(96, ge=1, description="blocks of the error, one averaged (R1)")
    momentum: float = Field(0.9, ge=0, lt=1, description="Nesterov momentum on each worker (m)")


class PartialLocalParameters(ErrorAveragingParameters):
    error_blocks: int = Field(8, ge=1, description="blocks of the error, one averaged (R1)")
    interval: int = Field(12, ge=1, description="steps between resets of the errors (H)")


class CserParameters(PartialLocalParameters):
    gradient_blocks: int = Field(192, ge=1, description="blocks of the gradient, one averaged (R2)")
    interval: int = Field(24, ge=1, description="steps between resets of the errors (H)")


class Csea(Compressor[ErrorAveragingParameters]):
    """Local momentum SGD that averages a block of the models in every step."""

    Parameters: ClassVar[type[CompressorParameters]] = ErrorAveragingParameters
    about = About(
        title="Communication-efficient SGD with error averaging (CSEA)",
        family="local updates",
        collective="all-reduce of a slice",
        bits="32 / error_blocks",
        state="momentum (n), error (n)",
        paper="Xie et al., CSER, NeurIPS 2020, arXiv:2007.13221",
    )

    def __init__(self, worker: Worker, parameters: ErrorAveragingParameters) -> None:
        super().__init__(worker, parameters)
        self.gradient_blocks: int | None = getattr(parameters, "gradient_blocks", None)

    @classmethod
    def period(cls, parameters: ErrorAveragingParameters) -> int:
        interval: int = getattr(parameters, "interval", 1)
        return interval

    @classmethod
    def phase(cls, parameters: ErrorAveragingParameters, step: int) -> str:
        if (step + 1) % cls.period(parameters) == 0:
            return "reset"
        return "partial" if hasattr(parameters, "gradient_blocks") else "local"

    @classmethod
    def momentum(cls, parameters: ErrorAveragingParameters) -> tuple[float, bool]:
        return parameters.momentum, True

    @classmethod
    def properties(cls, parameters: ErrorAveragingParameters) -> Properties:
        """Return the properties: PSync keeps the mean of the updates, so nothing is lost."""
        if parameters.error_blocks > 1:
            return Properties(conserves=True, replicas="differ")
        return Properties(conserves=True, replicas="meet")

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """Return this worker's update, float32 `[n]`; only the mean over workers follows SGD."""
        gradients = self._chosen(bucket.layout, step, self.gradient_blocks, "cser gradients")
        resets = self.phase(self.parameters, step) == "reset"
        blocks = self.parameters.error_blocks if resets else None
        errors = self._chosen(bucket.layout, step, blocks, "cser errors")

        error = self.kept("error", bucket)
        before = [error[part].clone() for part in gradients]  # one slice per tensor
        momentum = self.kept("momentum", bucket)
        m = self.parameters.momentum
        update = local_step(bucket.gradient, momentum, error, m, nesterov=True)
        for part, values in zip(gradients, before, strict=True):
            error[part] = values  # r = 0 on the averaged blocks
        if not (gradients or errors):
            return update
        # One all-reduce: a block of all tensors' gradients, then (at a reset) of their errors.
        own = [update[part] for part in gradients] + [error[part] for part in errors]
        total: Tensor = yield AllReduce(tensor=torch.cat(own))

        sizes = [values.numel() for values in own]
        means = list(torch.split(total.div_(self.worker.count), sizes))
        for part in gradients:
            update[part] = means.pop(0)
        for part in errors:  # replace the worker's own error by the mean error
            update[part] += means.pop(0) - error[part]
            error[part] = 0.0
        return update

    def _chosen(
        self, layout: BucketLayout, step: int, blocks: int | None, purpose: str
    ) -> list[slice]:
        """Return each tensor's chosen block as a slice of the bucket; none if `blocks` is None."""
        if blocks is None:
            return []
        found = []
        for piece in layout.slices:
            generator = stream(self.worker.seed, step, piece.index, purpose)
            block = int(generator.integers(blocks))
            start, stop = (piece.numel * (block + end) // blocks for end in (0, 1))
            found.append(slice(piece.offset + start, piece.offset + stop))
        return found


class CserPl(Csea):
    """Local momentum SGD that averages a block of the models after each interval."""

    Parameters = PartialLocalParameters
    about = replace(
        Csea.about,
        title="Partial local SGD (CSER-PL)",
        collective="all-reduce of a slice every interval steps, nothing between",
        bits="32 / (error_blocks interval)",
    )


class Cser(Csea):
    """Averages a block of the gradients in every step, and one of the errors per interval."""

    Parameters = CserParameters
    about = replace(
        Csea.about,
        title="Communication-efficient SGD with error reset (CSER)",
        collective="all-reduce of slices",
        bits="32 / gradient_blocks + 32 / (error_blocks interval)",
    )
