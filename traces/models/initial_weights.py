"""Initial weights of a training. Imports torch.

Two rules of K. He et al., "Delving deep into rectifiers", arXiv:1502.01852: normal with a variance
over the fan-in (eq. 10: the activations keep their size on the way forward), or over the fan-out
(eq. 14: the gradients keep theirs on the way back). In front of batch normalisation the scale of a
weight does not change what the network computes, but it does change the gradients: they are
inversely proportional to it.

The draws come from torch's default generator, as any module's do; `build_model` keys it.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from torch import nn

_OUTPUT = 0.01
"""Standard deviation of an output layer: the loss starts near ln(classes)."""


def draw_fan_in(model: nn.Module, outputs: Collection[nn.Module], *, variance: float) -> None:
    """Convolutions and full connections: normal with `variance` / fan-in, biases at zero.

    Layers in `outputs` are normal with standard deviation 0.01.
    """
    for layer in model.modules():
        if not isinstance(layer, (nn.Conv2d, nn.Linear)):
            continue
        if layer in outputs:
            nn.init.normal_(layer.weight, std=_OUTPUT)
        else:
            nn.init.normal_(layer.weight, std=math.sqrt(variance / layer.weight[0].numel()))
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def draw_fan_out(model: nn.Module) -> None:
    """Convolutions alone: normal with variance 2 / fan-out; everything else as torch draws it.

    The fan-out is that of one group, so 9 for a 3 x 3 depthwise convolution.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            fan_out = layer.weight[:, 0].numel() // layer.groups
            nn.init.normal_(layer.weight, std=math.sqrt(2) / math.sqrt(fan_out))
