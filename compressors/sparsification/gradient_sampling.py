"""What if workers sample coordinates by the last gradient that all of them saw? GS and GSB.

Every tau steps the dense gradient is all-reduced in float16 and used as the update
("synchronisation"). Its squares, normalised to probabilities p_GS with sum k, are the sampling
distribution of the steps that follow ("sampled"): each worker draws the same coordinates,
    p = normalise(p_GS * prior, k),    S = {i : U_i < p_i},    prior_S *= alpha,
and the values g_S travel as one short float16 all-reduce, without indices. The prior lowers the
chance of what was sampled already; alpha = 1 is plain Gradient Sampling.

Where the paper leaves a choice:
- the input of the normalisation is the weight itself (g^2), not squared again, and saturated
  elements form a growing set that is taken out once (its Algorithm 1, run literally, subtracts
  them in every round and ends below k);
- the prior falls for what was sampled in the last step, so it is alpha^(times sampled);
  `prior_scope: ever` lowers in each step whatever was sampled at any time since the prior began;
- the prior is kept across synchronisations unless `reset_prior`;
- kept values are not divided by p: E = p * g, biased; `unbiased` divides by p on arrival;
- each tensor has its own distribution and its own k = max(1, round(n * ratio)).
A tensor whose synchronised gradient is zero everywhere is sampled uniformly.

Assumes that all workers start at the same synchronisation step; nothing else is shared but the
seed. Elements that are not sampled are lost (no residual).

Source: L. Song, K. Zhao, P. Pan, Y. Liu, Y. Zhang, Y. Xu, R. Jin, "Communication Efficient SGD via
Gradient Sampling with Bayes Prior", CVPR 2021, sections 3.2 (Alg. 1) and 3.3 (Eq. 12-14).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Ratio, Worker
from gcsim.compressors.bucket import Bucket, TensorSlice
from gcsim.compressors.coding.selection import count_kept
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.random import bernoulli_indices, stream
from gcsim.compressors.requests import AllReduce, Exchange
from gcsim.compressors.sparsification.sampling_normalisation import normalising_scale
from gcsim.errors import InputError, InternalError, Problem

if TYPE_CHECKING:
    from torch import Tensor

_PRIOR_LOW = 1e-3
_PRIOR_FLOOR = 1e-30
"""Keeps a prior above the smallest float32 numbers, where alpha would no longer act."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Distribution:
    """One tensor's sampling state; equal on all workers."""

    weight: Tensor
    """p_GS * prior, float32 `[n]`."""
    prior: Tensor
    """float32 `[n]`."""
    sampled: Tensor | None
    """Scope "ever": what was sampled since the prior began, bool `[n]`."""


class GradientSamplingBayes(Compressor):
    """Importance sampling of coordinates under a decaying prior, without indices on the wire."""

    class Parameters(CompressorParameters):
        """Hyper-parameters of gradient sampling."""

        ratio: Ratio = Field(0.01, description="expected fraction sampled of each tensor")
        tau: int = Field(100, ge=1, description="steps between dense synchronisations")
        alpha: float = Field(0.9, gt=0.0, le=1.0, description="prior's factor where sampled")
        rounds: int = Field(5, ge=1, description="at most so many rounds of normalisation")
        prior_scope: Literal["last", "ever"] = Field(
            "last", description="lower the prior of what the last step sampled, or any step"
        )
        reset_prior: bool = Field(False, description="set the prior to 1 at synchronisations")
        unbiased: bool = Field(False, description="divide received values by their probability")

    about = About(
        title="Gradient Sampling with Bayes prior (GSB)",
        family="sparsification",
        collective="all-reduce (dense every tau steps, short between)",
        bits="16 * (1/tau + (1 - 1/tau) * ratio)",
        unbiased=False,  # unless `unbiased`
        state="weight (n), prior (n)",
        paper="Song et al., Gradient Sampling with Bayes Prior, CVPR 2021, Alg. 1, Eq. 3-14",
    )

    def __init__(self, worker: Worker, parameters: GradientSamplingBayes.Parameters) -> None:
        super().__init__(worker, parameters)
        self.parameters = parameters
        self.distributions: dict[int, _Distribution] = {}
        """By tensor."""

    @classmethod
    def period(cls, parameters: CompressorParameters) -> int:
        """See `Compressor.period`."""
        assert isinstance(parameters, cls.Parameters)
        return parameters.tau

    @classmethod
    def phase(cls, parameters: CompressorParameters, step: int) -> str:
        """See `Compressor.phase`."""
        return "sampled" if step % cls.period(parameters) else "synchronisation"

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """The mean gradient, dense or at the sampled coordinates, float32 `[n]`.

        Raises `InternalError` at a sampled step that no synchronisation came before.
        """
        if step % self.parameters.tau == 0:
            half = bucket.gradient.half().div_(self.worker.count)
            total: Tensor = yield AllReduce(tensor=half)
            mean = total.float()
            for piece, part in bucket.layout.views(mean):
                self._synchronise(piece, part)
            return mean

        drawn = [self._sample(piece, step) for piece in bucket.layout.slices if piece.numel]
        positions = torch.cat([indices for indices, _ in drawn])
        half = bucket.gradient[positions].half().div_(self.worker.count)
        total = yield AllReduce(tensor=half)
        values = total.float()
        if self.parameters.unbiased:
            values /= torch.cat([probability for _, probability in drawn])
        update = torch.zeros_like(bucket.gradient)
        update[positions] = values
        return update

    def _synchronise(self, piece: TensorSlice, mean: Tensor) -> None:
        """p_GS from the mean gradient (weights g^2, relative to the largest), times the prior."""
        if not mean.numel():
            return
        low, high = mean.aminmax()
        largest = float(torch.maximum(-low, high))
        if not math.isfinite(largest):
            raise InputError(
                Problem(
                    message="the mean gradient overflowed float16 at a synchronisation step",
                    place=piece.name,
                    hint="scale the loss down; float16 ends at 65504",
                )
            )
        weight = (mean / largest).square_() if largest else torch.ones_like(mean)
        k = count_kept(piece.numel, self.parameters.ratio)
        weight.mul_(normalising_scale(weight, k, self.parameters.rounds)).clamp_(max=1.0)

        before = self.distributions.get(piece.index)
        if before is None or self.parameters.reset_prior:
            prior = torch.ones_like(mean)
            ever = self.parameters.prior_scope == "ever"
            sampled = torch.zeros_like(mean, dtype=torch.bool) if ever else None
        else:
            prior, sampled = before.prior, before.sampled
            if float(prior.max()) < _PRIOR_LOW:
                prior.div_(prior.mean())
            prior.clamp_(min=_PRIOR_FLOOR)
            weight.mul_(prior)
        self.distributions[piece.index] = _Distribution(weight=weight, prior=prior, sampled=sampled)

    def _sample(self, piece: TensorSlice, step: int) -> tuple[Tensor, Tensor]:
        """Positions in the bucket drawn for one tensor, and (if needed) their probabilities."""
        distribution = self.distributions.get(piece.index)
        if distribution is None:
            raise InternalError(
                f"step {step} samples tensor {piece.name!r} before any synchronisation step"
            )
        weight = distribution.weight
        k = count_kept(piece.numel, self.parameters.ratio)
        scale = normalising_scale(weight, k, self.parameters.rounds)
        generator = stream(self.worker.seed, step, piece.index, "gradient_sampling")
        indices = bernoulli_indices(generator, weight, scale)
        probability = indices
        if self.parameters.unbiased:
            probability = weight[indices].mul_(scale).clamp_(max=1.0)
        self._lower_prior(distribution, indices)
        return indices + piece.offset, probability

    def _lower_prior(self, distribution: _Distribution, indices: Tensor) -> None:
        alpha = self.parameters.alpha
        if distribution.sampled is None:
            for tensor in (distribution.weight, distribution.prior):
                tensor[indices] = tensor[indices].mul_(alpha)
        else:
            distribution.sampled[indices] = True
            factor = torch.where(distribution.sampled, alpha, 1.0)
            distribution.weight.mul_(factor)
            distribution.prior.mul_(factor)
