"""Which scale turns weights into sampling probabilities p_i = min(1, scale * |w_i|)?

Elements that would exceed 1 are saturated: they are certain, and the rest of the budget is spread
over the others in proportion to their weights. That lifts others over 1, so the saturated set F
grows over a few rounds until it stays (or `rounds` are used up).

- For an expected number of k (`scale_for_count`): scale = (k - |F|) / sum_{not F} |w|, so that
  sum(p) = k; a little less when the rounds were used up. When fewer than k weights are not zero,
  all of them are saturated.
- For a second moment of (1 + eps) |w|^2 after division by p (`scale_for_variance`): scale =
  sum_{not F} |w| / (eps |w|^2 + sum_{not F} w^2). The scale grows as long as something exceeds 1,
  so the rounds end at the smallest F, the one of the closed form for sorted weights.

Sums are of float64 over blocks of 16 elements; a round reads n/16 of them and the elements of the
few blocks that may hold a saturated one.

Source: J. Wangni, J. Wang, J. Liu, T. Zhang, "Gradient Sparsification for Communication-Efficient
Distributed Optimization", NeurIPS 2018, arXiv:1710.09854 (greedy, and
closed form); the count is also that of L. Song et al., "Communication Efficient SGD via Gradient
Sampling with Bayes Prior", CVPR 2021, Alg. 1, with the saturated set read cumulatively.
"""

from __future__ import annotations

from gcsim.compressors.coding.selecting.sampling import Weights, saturation

LARGEST_SCALE = 1e300
"""A scale that saturates every weight that is not zero, however small."""


def scale_for_count(weights: Weights, k: float, rounds: int) -> float:
    """The scale with sum(p) = k after at most `rounds` rounds; 0 when all weights are zero."""
    total = float(weights.sums.sum())
    if total <= 0.0:
        return 0.0
    scale = min(k / total, LARGEST_SCALE)
    saturated = 0
    for _ in range(rounds):
        count, rest, _ = saturation(weights, scale)
        if count == saturated or count >= k:
            break  # in exact arithmetic count < k unless no other weight is left
        if rest <= 0.0:
            return LARGEST_SCALE
        saturated = count
        scale = min((k - count) / rest, LARGEST_SCALE)
    return scale


def scale_for_variance(weights: Weights, eps: float) -> float:
    """The scale with sum(w^2 / p) = (1 + eps) |w|^2, eps > 0; 0 when all weights are zero."""
    _, _, energy = saturation(weights, LARGEST_SCALE)
    if not energy:
        return 0.0
    scale = float(weights.sums.sum()) / ((1.0 + eps) * energy)
    saturated = 0
    while True:
        count, rest, squares = saturation(weights, scale)
        if count == saturated:
            return scale
        saturated = count
        # rounding must not let the scale fall: the set would not grow any more
        scale = max(scale, rest / (eps * energy + max(0.0, energy - squares)))
