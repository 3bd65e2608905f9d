"""Gradient sampling (GS, GSB, RSB): the last dense gradient determines which coordinates are drawn.

Every tau steps the dense gradient is all-reduced and used as the update ("synchronisation"). Its
squares, normalised to probabilities p_GS with sum k, are the sampling distribution of the following
steps ("sampled"), in which all workers draw the same coordinates,
    p = normalise(p_GS * prior, k),    S = {i : U_i < p_i},    prior_S *= alpha,
and all-reduce only the values g_S, without indices. That is GSB; alpha = 1 is plain gradient
sampling (GS); with a constant k/n in place of p_GS no synchronisation is needed (RSB; with alpha =
1 plain random sampling).

Choices where the paper is open:
- the input of the normalisation is the weight itself (g^2), not squared again, and saturated
  elements form a growing set that is taken out once (its Algorithm 1, run literally, subtracts them
  in every round and ends below k);
- the prior falls for the last step's samples, so it is alpha^(times sampled); it is kept across
  synchronisations and not normalised, which the normalisation of p makes up for, but lifted to mean
  1 before float32 ends;
- kept values are not divided by p: E = p * g, biased, E|Q - g|^2 = sum (1 - p) g^2, at most (1 -
  k/n) |g|^2 when p was made of the same g. `unbiased` divides by p on arrival;
- elements that are not sampled are lost; `residual` adds them to the next step instead, and a
  synchronisation then delivers all that is owed (p_GS follows from that delivery);
- each tensor has its own distribution and its own k = max(1, round(n * ratio)); one whose
  synchronised gradient is zero everywhere is sampled uniformly. The number of samples is random,
  with mean k.

Assumes that all workers start at the same synchronisation step and share the seed. In float16 the
sum of the workers' values is rounded too, which no residual includes.

Source: L. Song, K. Zhao, P. Pan, Y. Liu, Y. Zhang, Y. Xu, R. Jin, "Communication Efficient SGD via
Gradient Sampling with Bayes Prior", CVPR 2021, sections 3.2 (Alg. 1) and 3.3 (Eq. 12-14).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from gcsim.compressors.base import (
    About,
    CompressorParameters,
    ErrorFeedback,
    Properties,
    Ratio,
    Worker,
)
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.rounding.norms import cell_norms
from gcsim.compressors.coding.selecting.sampling import Weights, draw_poisson, lift
from gcsim.compressors.coding.selecting.scales import scales_for_count
from gcsim.compressors.coding.selecting.selection import counts_kept, share_kept
from gcsim.compressors.coding.sparse import ValueFormat, energy
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.requests import AllReduce, Exchange
from gcsim.compressors.segments import Column, Segments, keys_of, spread
from gcsim.compressors.sparsification.by_chance.mean_shares import rounding_error, share_of_mean
from gcsim.errors import InternalError

_PRIOR_LOW = 1e-3
_PRIOR_FLOOR = 1e-30
"""Least prior in normal use: nearer to the smallest float32 numbers alpha would have no effect."""
_MOST = 3e38
"""A scale close to the largest float32."""


class RandomSamplingParameters(CompressorParameters):
    """Hyper-parameters common to all sampling methods."""

    ratio: Ratio = Field(0.01, description="expected fraction of a tensor's elements to sample")
    rounds: int = Field(5, ge=1, description="maximum rounds to normalise the probabilities")
    unbiased: bool = Field(False, description="divide values by their sampling probability")
    residual: bool = Field(False, description="add the compression error to the next gradient")
    values: ValueFormat = Field("fp16", description="format of the values on the wire")

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.unbiased and self.residual:
            raise ValueError("unbiased and residual exclude each other: a memory needs no 1/p")
        return self


class RandomSamplingBayesParameters(RandomSamplingParameters):
    alpha: float = Field(0.9, gt=0.0, le=1.0, description="factor on the prior of sampled elements")


class GradientSamplingParameters(RandomSamplingParameters):
    tau: int = Field(100, ge=1, description="steps between dense synchronisations")


class GradientSamplingBayesParameters(GradientSamplingParameters, RandomSamplingBayesParameters):
    """Hyper-parameters of gradient sampling with a prior."""


@dataclass(slots=True, kw_only=True, eq=False)
class Distribution:
    """A bucket's sampling distribution, equal on all workers."""

    weights: Weights
    """p_GS * prior."""
    prior: Tensor | None
    """Float32 `[n]`; None if it is not needed (or equals the weight)."""


class RandomSamplingBayes(ErrorFeedback[RandomSamplingParameters]):
    Parameters: ClassVar[type[CompressorParameters]] = RandomSamplingBayesParameters
    about = About(
        title="Random sampling with Bayes prior (RSB)",
        family="sparsification",
        collective="all-reduce",
        bits="16 * ratio",
        unbiased=False,  # unless `unbiased` in float32
        state="prior (n)",
        paper="Song et al., Gradient Sampling with Bayes Prior, CVPR 2021, section 4.3",
    )

    def __init__(self, worker: Worker, parameters: RandomSamplingParameters) -> None:
        super().__init__(worker, parameters)
        self.alpha: float = getattr(parameters, "alpha", 1.0)
        self.distributions: dict[int, Distribution] = {}

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        if bucket.layout.index not in self.distributions:
            segments = Segments.of(bucket.layout)
            shares = self._counts(segments) / np.maximum(1, segments.length)
            chances = spread(torch.from_numpy(shares.astype(np.float32)), segments.length)
            weights = Weights.of(chances.to(bucket.gradient.device), segments)
            self.distributions[bucket.layout.index] = Distribution(weights=weights, prior=None)
        return (yield from self._sampled(bucket, step))

    def _sampled(self, bucket: Bucket, step: int) -> Exchange:
        source = self.corrected(bucket)
        positions, chances = self._draw(bucket, step)
        own = source[positions]  # [m] of [n]
        sent = self._travelling(own)
        if self.parameters.residual:  # only a share of the mean was sent
            source[positions] = own.sub_(sent.float(), alpha=self.worker.count)
        total: Tensor = yield AllReduce(tensor=sent)
        values = total.float()
        if self.parameters.unbiased:
            values /= chances
        update = torch.zeros_like(bucket.gradient)  # [n]
        update[positions] = values
        return update

    def _draw(self, bucket: Bucket, step: int) -> tuple[Tensor, Tensor]:
        """Return the positions in the bucket, and their probabilities if needed."""
        layout, chosen = bucket.layout, self.parameters
        if layout.index not in self.distributions:
            raise InternalError(
                f"step {step} samples tensor {layout.slices[0].name!r} before any synchronisation"
                " step"
            )
        state = self.distributions[layout.index]
        weights, prior = state.weights, state.prior
        given = weights.values, weights.sums, weights.segments
        k = self._counts(weights.segments)  # [tensors]
        if self.alpha < 1.0:
            scales, _ = scales_for_count(*given, k.astype(np.float64), chosen.rounds)
        else:  # without a prior the weights are already the probabilities
            scales = torch.ones(len(k), dtype=torch.float64, device=bucket.gradient.device)
        positions, chances, _ = draw_poisson(
            *given, scales, keys_of(layout, self.worker.seed, step, "gradient sampling", None),
            expected=k, factor=self.alpha, prior=prior, chances=chosen.unbiased,
        )  # fmt: skip
        if self.alpha < 1.0 and prior is None:
            lift(*given, scales, 1.0 / _PRIOR_LOW, 1.0 / _PRIOR_FLOOR)
        return positions, chances

    def _counts(self, segments: Segments) -> Column:
        return counts_kept(segments.length, self.parameters.ratio)

    def _travelling(self, values: Tensor) -> Tensor:
        return share_of_mean(values, self.worker.count, self.parameters.values)

    @classmethod
    def properties(cls, parameters: RandomSamplingParameters) -> Properties:
        float32 = parameters.values == "fp32"
        return Properties(
            unbiased=parameters.unbiased and float32,
            error_bound=cls._error_bound(parameters),
            error_is_exact=not issubclass(cls, GradientSampling),
            conserves=parameters.residual and float32,
        )

    @classmethod
    def _error_bound(cls, parameters: RandomSamplingParameters) -> Callable[[Tensor], float]:
        """Return the error of a first step with p = k/n: sum (1 - p) v^2, or sum (1/p - 1) v^2."""

        def bound(vector: Tensor) -> float:
            p = share_kept(vector.numel(), parameters.ratio)
            lost = 1.0 / p - 1.0 if parameters.unbiased else 1.0 - p
            return lost * energy(vector)

        return bound


class GradientSampling(RandomSamplingBayes):
    Parameters: ClassVar[type[CompressorParameters]] = GradientSamplingParameters
    about = About(
        title="Gradient Sampling (GS)",
        family="sparsification",
        collective="all-reduce (dense every tau steps, short between)",
        bits="16 * (1/tau + (1 - 1/tau) * ratio)",
        state="probabilities (n)",
        paper="Song et al., Gradient Sampling with Bayes Prior, CVPR 2021, Alg. 1, Eq. 3-9",
    )

    @classmethod
    def period(cls, parameters: CompressorParameters) -> int:
        assert isinstance(parameters, GradientSamplingParameters)
        return parameters.tau

    @classmethod
    def phase(cls, parameters: CompressorParameters, step: int) -> str:
        return "sampled" if step % cls.period(parameters) else "synchronisation"

    @classmethod
    def _error_bound(cls, parameters: RandomSamplingParameters) -> Callable[[Tensor], float]:
        """Return the error of the first step, a synchronisation: the rounding to float16."""
        return rounding_error(parameters.values)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """Return the mean gradient, dense or at the sampled coordinates, float32 `[n]`. Raises
        `InternalError` at a sampled step before any synchronisation."""
        if self.phase(self.parameters, step) == "sampled":
            return (yield from self._sampled(bucket, step))
        source = self.corrected(bucket)
        sent = self._travelling(source)
        if self.parameters.residual:
            source.sub_(sent.float(), alpha=self.worker.count)
        total: Tensor = yield AllReduce(tensor=sent)
        mean = total.float()
        self._synchronise(bucket, mean)
        return mean

    def _synchronise(self, bucket: Bucket, mean: Tensor) -> None:
        """Set p_GS from the mean gradient (weights g^2, relative to the largest), and the prior."""
        segments = Segments.of(bucket.layout)
        largest = cell_norms(mean, segments.whole, "max")  # [tensors]
        weights = Weights.of(mean, segments, largest)
        values, sums = weights.values, weights.sums
        k = self._counts(segments).astype(np.float64)
        scales, _ = scales_for_count(values, sums, segments, k, self.parameters.rounds)
        before = self.distributions.get(bucket.layout.index)
        if before is None or self.alpha == 1.0:
            lift(values, sums, segments, scales, -1.0, _MOST, top=1.0)
            prior = torch.ones_like(mean) if self.alpha < 1.0 else None
            self.distributions[bucket.layout.index] = Distribution(weights=weights, prior=prior)
            return
        if before.prior is None:
            raise InternalError("a distribution without a prior cannot be renewed")
        highest = cell_norms(before.prior, segments.whole, "max").tolist()
        for piece, most in zip(bucket.layout.slices, highest, strict=True):
            if most < _PRIOR_LOW and piece.numel:
                part = piece.of(before.prior)
                part.div_(part.mean())
        lift(values, sums, segments, scales, -1.0, _MOST, top=1.0, prior=before.prior)
        before.weights = weights


class GradientSamplingBayes(GradientSampling):
    Parameters = GradientSamplingBayesParameters
    about = replace(
        GradientSampling.about,
        title="Gradient Sampling with Bayes prior (GSB)",
        state="weight (n), prior (n)",
        paper="Song et al., Gradient Sampling with Bayes Prior, CVPR 2021, Alg. 1, Eq. 3-14",
    )
