"""Second moments of a model as the product takes them, and as a loop over the samples does."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gcsim.traces.models.building import trainable
from gcsim.traces.moments import Moments, second_moments

Losses = Callable[[Tensor, Tensor], Tensor]
"""Of outputs and labels, a loss a sample."""


def of_classes(output: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(output, labels, reduction="none")


def loop_over_samples(
    model: nn.Module, inputs: Tensor, labels: Tensor, losses: Losses = of_classes
) -> list[Tensor]:
    """The definition: sum over z of (g_z / B)^2, one forward and backward pass a sample."""
    parameters = [p for _, p in trainable(model)]
    sums = [torch.zeros_like(p) for p in parameters]
    for one, label in zip(inputs, labels, strict=True):
        loss = losses(model(one[None]), label[None]).sum() / len(inputs)
        found = torch.autograd.grad(loss, parameters)
        sums = [total + gradient**2 for total, gradient in zip(sums, found, strict=True)]
    return sums


def watched_moments(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    losses: Losses = of_classes,
    *,
    metered: bool = False,
    slow: list[int] | None = None,
) -> Moments:
    """`slow` gets the parameters that took a backward pass a sample."""
    with second_moments(model) as watched:
        watched.backward(losses(model(inputs), labels) / len(inputs))
        moments = watched.accumulate(metered=metered)
        if slow is not None:
            slow += watched._slow
        return moments
