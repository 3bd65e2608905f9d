"""What kind of arithmetic does a layer do? Kinds run at different shares of a device's peak.

A 3 x 3 convolution of stride 1 runs faster than its FLOPs say (Winograd: Lavin and Gray 2016,
arXiv:1509.09308), a depthwise one far slower, for it moves more bytes than it multiplies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

from gcsim.compressors.lazy_torch import nn

LayerKind = Literal[
    "conv3x3", "conv1x1", "conv", "grouped", "linear", "recurrent", "normalization", "embedding"
]
KINDS: tuple[LayerKind, ...] = get_args(LayerKind)
"""conv3x3: dense, stride 1, no other kernel; conv: dense, every other kernel or stride; grouped:
convolutions of several groups, depthwise ones too; linear: products of matrices, attention's too,
and whatever else has parameters."""


def kind_of(layer: nn.Module) -> LayerKind:
    """The kind of a module that owns parameters."""
    from torch import nn

    if isinstance(layer, nn.modules.conv._ConvNd):
        if layer.groups > 1:
            return "grouped"
        if set(layer.kernel_size) == {1}:
            return "conv1x1"
        plain = set(layer.kernel_size) == {3} and set(layer.stride) == {1}
        return "conv3x3" if plain and len(layer.kernel_size) == 2 else "conv"
    if isinstance(layer, nn.RNNBase | nn.RNNCellBase):
        return "recurrent"
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return "embedding"
    norms = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
    return "normalization" if isinstance(layer, norms) else "linear"


def kind_of_shape(shape: Sequence[int]) -> LayerKind:
    """The kind of a layer of which only the weight's shape is known.

    `[out, in, height, width]` is a convolution, of groups where it has a single input channel and
    several outputs (a first layer on grey images looks the same), `[n]` a normalization. Strides
    are not in a shape: every 3 x 3 convolution passes for one of stride 1.
    """
    if len(shape) == 4:
        if shape[1] == 1 and shape[0] > 1:
            return "grouped"
        if tuple(shape[2:]) == (1, 1):
            return "conv1x1"
        return "conv3x3" if tuple(shape[2:]) == (3, 3) else "conv"
    if len(shape) in (3, 5):
        return "conv"
    return "linear" if len(shape) == 2 else "normalization"


def outputs_of_shape(shape: Sequence[int], forward_flops: int) -> int:
    """Elements that a layer puts out, of its weight's shape and its FLOPs per sample: each output
    is a sum of as many products as the weight has elements for it. 0 for a vector."""
    if len(shape) < 2:
        return 0
    return forward_flops // (2 * math.prod(shape[1:]))
