"""With which probability does gradient sampling take each element, and how does sampling lower it?

The weight of an element is p_GS * prior; a sample of expected size k is drawn with probabilities
min(1, scale * weight) that add up to k, and what was drawn has its weight (and prior) multiplied by
alpha. See `gradient_sampling.py` for the method and its source.
"""

from __future__ import annotations

import numpy as np

from gcsim.compressors.coding.selecting.sampling import Weights, block_sums, draw
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.sparsification.by_chance.normalisation import scale_for_count
from gcsim.errors import InternalError

_PRIOR_LOW = 1e-3
_PRIOR_FLOOR = 1e-30
"""Keeps a prior above the smallest float32 numbers, where alpha would no longer act."""


class Distribution:
    """One tensor's sampling state, where its weights are; equal on all workers."""

    def __init__(self, weights: Weights, prior: Tensor | None, *, ever: bool) -> None:
        self.weights = weights
        """p_GS * prior."""
        self.prior = prior
        """float32 `[n]`; None when nobody will ask for it (or it is the weight)."""
        n = weights.values.numel()
        device = weights.values.device
        self.ever = torch.zeros(n, dtype=torch.bool, device=device) if ever else None
        """What was sampled since the prior began, bool `[n]`; None: only the last step counts."""

    def sample(
        self, key: np.uint64, k: int, *, alpha: float, rounds: int, chances: bool
    ) -> tuple[Tensor, Tensor]:
        """Positions, int64 `[m]`, of about k elements, and their probabilities if `chances`.

        `key` is that of the uniforms, `rounds` bounds the normalisation. With alpha below 1 the
        weights of what was drawn fall.
        """
        scale = 1.0  # without a prior the weights are the probabilities already
        if alpha < 1.0:
            scale = scale_for_count(self.weights, k, rounds)
        factor = alpha if self.ever is None else 1.0
        positions, probabilities = draw(
            self.weights, scale, key, expected=k, factor=factor, prior=self.prior, chances=chances
        )
        if self.ever is not None:
            self._lower_all_seen(self.ever, positions, alpha)
        elif scale > 1.0 / _PRIOR_LOW and self.prior is None:
            self.weights = Weights(self.weights.values.mul_(min(scale, 1.0 / _PRIOR_FLOOR)))
        return positions, probabilities

    def renew(self, chances: Tensor) -> None:
        """Another p_GS, float32 `[n]` (then overwritten), under the prior as it is."""
        if self.prior is None:
            raise InternalError("a distribution without a prior cannot be renewed")
        if float(self.prior.max()) < _PRIOR_LOW:
            self.prior.div_(self.prior.mean())
        self.weights = Weights(chances.mul_(self.prior.clamp_(min=_PRIOR_FLOOR)))

    def _lower_all_seen(self, ever: Tensor, positions: Tensor, alpha: float) -> None:
        ever[positions] = True
        prior = self.weights.values if self.prior is None else self.prior
        factor = torch.where(ever & (prior > _PRIOR_FLOOR / alpha), alpha, 1.0)
        self.weights.values.mul_(factor)
        self.weights.sums = block_sums(self.weights.values)
        if self.prior is not None:
            self.prior.mul_(factor)
