"""Wide residual networks as plain torch modules; imports torch.

S. Zagoruyko and N. Komodakis, "Wide residual networks", arXiv:1605.07146, table 1, in the form of
the authors' code (szagoruyko/wide-residual-networks, models/wide-resnet.lua): batch norm and ReLU
in front of each convolution; where a block changes the number of channels its shortcut is a 1 x 1
convolution behind its first batch norm and ReLU; no convolution has a bias; no dropout.
Convolutions start with variance 2 / fan-out and the output layer's bias at zero, as there.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn.functional import relu

from gcsim.traces.models.initial_weights import draw_fan_out


class WideBlock(nn.Module):
    """The paper's B(3, 3); `[batch, inputs, h, w]` to `[batch, width, h / stride, w / stride]`."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.shortcut = (
            None if inputs == width else nn.Conv2d(inputs, width, 1, stride=stride, bias=False)
        )

    def forward(self, maps: Tensor) -> Tensor:
        """Run the block."""
        given = relu(self.bn1(maps))
        inner: Tensor = self.conv2(relu(self.bn2(self.conv1(given))))
        carried = maps if self.shortcut is None else self.shortcut(given)
        return inner + carried


class WideResNet(nn.Module):
    """Three stages of 16 k, 32 k and 64 k channels; images to logits."""

    def __init__(self, layers: int, k: int, classes: int) -> None:
        super().__init__()
        blocks = (layers - 4) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        inputs, stages = 16, []
        for number in range(3):
            width = (16 << number) * k
            first = WideBlock(inputs, width, stride=1 if number == 0 else 2)
            rest = [WideBlock(width, width, stride=1) for _ in range(blocks - 1)]
            stages.append(nn.Sequential(first, *rest))
            inputs = width
        self.layer1, self.layer2, self.layer3 = stages
        self.bn = nn.BatchNorm2d(inputs)
        self.fc = nn.Linear(inputs, classes)
        draw_fan_out(self)
        nn.init.zeros_(self.fc.bias)

    def forward(self, images: Tensor) -> Tensor:
        """`[batch, 3, 32, 32]` to logits `[batch, classes]`."""
        maps = self.layer3(self.layer2(self.layer1(self.conv1(images))))
        logits: Tensor = self.fc(relu(self.bn(maps)).mean((2, 3)))
        return logits


wrn28_10_cifar10 = partial(WideResNet, 28, 10, 10)
"""36,479,194 parameters in 80 tensors; `[batch, 3, 32, 32]` to `[batch, 10]`."""
