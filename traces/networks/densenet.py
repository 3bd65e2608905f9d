"""DenseNets as plain torch modules; imports torch.

G. Huang et al., "Densely connected convolutional networks", arXiv:1608.06993, table 1 (DenseNet-BC
for ImageNet: bottlenecks of 4 k channels, transitions that halve the channels); torchvision's order
and names of parameters. DenseNet-161 has growth k = 48 and starts with 96 channels. Convolutions
start with variance 2 / fan-in (K. He et al., arXiv:1502.01852, eq. 10, as the paper), the output
layer as torch draws it.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import torch
from torch import Tensor, nn

from gcsim.traces.models.initial_weights import draw_fan_in


class DenseLayer(nn.Sequential):
    """`[batch, inputs, h, w]` to `[batch, growth, h, w]`."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__(
            OrderedDict[str, nn.Module](
                norm1=nn.BatchNorm2d(inputs),
                relu1=nn.ReLU(inplace=True),
                conv1=nn.Conv2d(inputs, 4 * growth, 1, bias=False),
                norm2=nn.BatchNorm2d(4 * growth),
                relu2=nn.ReLU(inplace=True),
                conv2=nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            )
        )


class DenseBlock(nn.Sequential):
    """Block in which each layer takes all earlier outputs; it returns all of them."""

    def __init__(self, inputs: int, growth: int, layers: int) -> None:
        super().__init__(
            OrderedDict(
                (f"denselayer{number + 1}", DenseLayer(inputs + number * growth, growth))
                for number in range(layers)
            )
        )

    def forward(self, maps: Tensor) -> Tensor:
        """`[batch, inputs, h, w]` to `[batch, inputs + layers * growth, h, w]`."""
        for layer in self:
            maps = torch.cat((maps, layer(maps)), 1)
        return maps


def _transition(inputs: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            norm=nn.BatchNorm2d(inputs),
            relu=nn.ReLU(inplace=True),
            conv=nn.Conv2d(inputs, inputs // 2, 1, bias=False),
            pool=nn.AvgPool2d(2),
        )
    )


class DenseNet(nn.Module):
    """Images to logits."""

    def __init__(self, growth: int, layers: tuple[int, ...]) -> None:
        super().__init__()
        channels = 2 * growth
        self.features = nn.Sequential(
            OrderedDict[str, nn.Module](
                conv0=nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
                norm0=nn.BatchNorm2d(channels),
                relu0=nn.ReLU(inplace=True),
                pool0=nn.MaxPool2d(3, stride=2, padding=1),
            )
        )
        for number, count in enumerate(layers, start=1):
            self.features.add_module(f"denseblock{number}", DenseBlock(channels, growth, count))
            channels += count * growth
            if number < len(layers):
                self.features.add_module(f"transition{number}", _transition(channels))
                channels //= 2
        self.features.add_module("norm5", nn.BatchNorm2d(channels))
        self.classifier = nn.Linear(channels, 1000)
        draw_fan_in(self.features, [], variance=2.0)

    def forward(self, images: Tensor) -> Tensor:
        """`[batch, 3, 224, 224]` to logits `[batch, 1000]`."""
        maps = torch.relu(self.features(images))
        logits: Tensor = self.classifier(maps.mean((2, 3)))
        return logits


densenet121 = partial(DenseNet, 32, (6, 12, 24, 16))
"""7,978,856 parameters in 364 tensors; `[batch, 3, 224, 224]` to `[batch, 1000]`."""
densenet161 = partial(DenseNet, 48, (6, 12, 36, 24))
"""28,681,000 parameters in 484 tensors; `[batch, 3, 224, 224]` to `[batch, 1000]`."""
