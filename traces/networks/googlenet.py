"""GoogLeNet as plain torch modules; imports torch.

C. Szegedy et al., "Going deeper with convolutions", arXiv:1409.4842, table 1, in torchvision's
form, with its order and names of parameters: batch norm behind every convolution (the paper had
none), and 3 x 3 convolutions for the paper's 5 x 5. Only training computes the two inner
classifiers (section 5). The paper names no initial weights: convolutions start with variance
2 / fan-out, the rest as torch draws it.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, dropout, relu

from gcsim.traces.models.initial_weights import draw_fan_out


class ConvUnit(nn.Module):
    """Convolution without bias, batch norm, ReLU."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | tuple[int, int],
        *,
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, maps: Tensor) -> Tensor:
        """`[batch, inputs, h, w]` to `[batch, outputs, h', w']`."""
        return relu(self.bn(self.conv(maps)), inplace=True)


class Widths(NamedTuple):
    """A row of the paper's table 1: channels."""

    one: int
    three_reduce: int
    three: int
    five_reduce: int
    five: int
    pool: int

    @property
    def outputs(self) -> int:
        """Channels of the four branches in total."""
        return self.one + self.three + self.five + self.pool


class Inception(nn.Module):
    """Four branches side by side; `[batch, inputs, h, w]` to `[batch, widths.outputs, h, w]`."""

    def __init__(self, inputs: int, widths: Widths) -> None:
        super().__init__()
        self.branch1 = ConvUnit(inputs, widths.one, 1)
        self.branch2 = nn.Sequential(
            ConvUnit(inputs, widths.three_reduce, 1),
            ConvUnit(widths.three_reduce, widths.three, 3, padding=1),
        )
        self.branch3 = nn.Sequential(
            ConvUnit(inputs, widths.five_reduce, 1),
            ConvUnit(widths.five_reduce, widths.five, 3, padding=1),
        )
        self.branch4 = nn.Sequential(
            nn.MaxPool2d(3, stride=1, padding=1), ConvUnit(inputs, widths.pool, 1)
        )

    def forward(self, maps: Tensor) -> Tensor:
        """Run the unit."""
        branches = (self.branch1, self.branch2, self.branch3, self.branch4)
        return torch.cat([branch(maps) for branch in branches], 1)


class InnerClassifier(nn.Module):
    """`[batch, inputs, h, w]` to logits `[batch, 1000]`, through maps of 4 x 4."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.conv = ConvUnit(inputs, 128, 1)
        self.fc1 = nn.Linear(128 * 4 * 4, 1024)
        self.fc2 = nn.Linear(1024, 1000)

    def forward(self, maps: Tensor) -> Tensor:
        """Run the classifier."""
        small = self.conv(adaptive_avg_pool2d(maps, 4)).flatten(1)
        logits: Tensor = self.fc2(dropout(relu(self.fc1(small)), 0.7, self.training))
        return logits


_BLOCKS = {
    "inception3a": Widths(64, 96, 128, 16, 32, 32),
    "inception3b": Widths(128, 128, 192, 32, 96, 64),
    "inception4a": Widths(192, 96, 208, 16, 48, 64),
    "inception4b": Widths(160, 112, 224, 24, 64, 64),
    "inception4c": Widths(128, 128, 256, 24, 64, 64),
    "inception4d": Widths(112, 144, 288, 32, 64, 64),
    "inception4e": Widths(256, 160, 320, 32, 128, 128),
    "inception5a": Widths(256, 160, 320, 32, 128, 128),
    "inception5b": Widths(384, 192, 384, 48, 128, 128),
}
_POOLED = {"inception3b": 3, "inception4e": 2}
"""Blocks followed by max pooling, and its size."""
_INNER = {"inception4a": "aux1", "inception4d": "aux2"}
"""Blocks followed by an inner classifier, and its name."""


class GoogLeNet(nn.Module):
    """Images to logits; in training mode with inner classifiers, to three logits."""

    def __init__(self, *, inner: bool) -> None:
        super().__init__()
        self.conv1 = ConvUnit(3, 64, 7, stride=2, padding=3)
        self.maxpool1 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.conv2 = ConvUnit(64, 64, 1)
        self.conv3 = ConvUnit(64, 192, 3, padding=1)
        self.maxpool2 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        channels = 192
        seen: dict[str, int] = {}
        for name, widths in _BLOCKS.items():
            self.add_module(name, Inception(channels, widths))
            channels = seen[name] = widths.outputs
        if inner:
            for block, name in _INNER.items():
                self.add_module(name, InnerClassifier(seen[block]))
        self.inner = inner
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.4)  # table 1
        self.fc = nn.Linear(channels, 1000)
        draw_fan_out(self)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        """`[batch, 3, 224, 224]` to logits `[batch, 1000]`: of the last layer, then of `aux2` and
        `aux1`."""
        maps = self.maxpool1(self.conv1(images))
        maps = self.maxpool2(self.conv3(self.conv2(maps)))
        others: list[Tensor] = []
        for name in _BLOCKS:
            maps = self.get_submodule(name)(maps)
            if self.inner and self.training and name in _INNER:
                others.insert(0, self.get_submodule(_INNER[name])(maps))
            if name in _POOLED:
                maps = nn.functional.max_pool2d(maps, _POOLED[name], stride=2, ceil_mode=True)
        logits: Tensor = self.fc(self.dropout(self.avgpool(maps).flatten(1)))
        return (logits, *others) if others else logits


googlenet = partial(GoogLeNet, inner=False)
"""6,624,904 parameters in 173 tensors; `[batch, 3, 224, 224]` to `[batch, 1000]`."""
googlenet_aux = partial(GoogLeNet, inner=True)
"""13,004,888 parameters in 187 tensors: with the two inner classifiers."""
