"""Initial weights for training. Imports torch.

K. He et al., "Delving deep into rectifiers", arXiv:1502.01852: normal with a variance divided by
the fan-in (eq. 10: activations keep their size going forward) or the fan-out (eq. 14: gradients
keep theirs going back). Before batch normalisation a weight's scale does not change the network's
output, but gradients are inversely proportional to it. Draws come from torch's default generator,
which `build_model` keys.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from torch import nn

_OUTPUT = 0.01
"""Standard deviation for an output layer: the loss starts near ln(classes)."""


def draw_fan_in(model: nn.Module, outputs: Collection[nn.Module], *, variance: float) -> None:
    """Draw convolutions and linear layers: normal with `variance` / fan-in, biases zero; layers in
    `outputs` normal with standard deviation 0.01."""
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
    """Draw only convolutions: normal with variance 2 / fan-out of one group (9 for a 3 x 3
    depthwise convolution); the rest stays as torch draws it."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            fan_out = layer.weight[:, 0].numel() // layer.groups
            nn.init.normal_(layer.weight, std=math.sqrt(2) / math.sqrt(fan_out))
