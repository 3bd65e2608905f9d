"""Inception V3 as plain torch modules; imports torch.

C. Szegedy et al., "Rethinking the Inception architecture for computer vision", arXiv:1512.00567,
table 1 and figures 5 to 8, as the authors published it (tensorflow/models, inception/slim); with
torchvision's order and names of parameters. Only training computes the inner classifier.

The paper states no initial weights. They are those of the authors' code: normal, cut off at two
standard deviations, with a deviation of 0.1 for convolutions, 0.01 for the inner classifier's last
convolution and 0.001 for its output layer (as in torchvision); 0.01 for the main output layer, that
code's default, unverified; likewise dropout of 0.2 in front of the output, and 0.4 for the weight
of the inner classifier's loss.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d

from gcsim.traces.networks.googlenet import ConvUnit


class Unit(NamedTuple):
    """A convolution of a branch: `kernel` in rows and columns; it keeps the maps' size, or, with
    stride 2, halves it without padding."""

    outputs: int
    kernel: tuple[int, int]
    stride: int = 1

    def built(self, inputs: int) -> ConvUnit:
        """Return the unit as a module that takes `inputs` channels."""
        rows, columns = self.kernel
        padding = (rows // 2, columns // 2) if self.stride == 1 else (0, 0)
        return ConvUnit(inputs, self.outputs, self.kernel, stride=self.stride, padding=padding)


class Branch(NamedTuple):
    """Units by name, in sequence, perhaps after average pooling; the last ones in parallel."""

    units: dict[str, Unit]
    side_by_side: int
    pooled: bool


def _branch(name: str, *units: Unit, side_by_side: int = 1, pooled: bool = False) -> Branch:
    """Number the units if there are several; parallel ones (a, b) share a number."""
    before = len(units) - side_by_side
    last = f"{name}_{before + 1}" if before else name
    names = [f"{name}_{number}" for number in range(1, before + 1)]
    names += [last] if side_by_side == 1 else [last + letter for letter in "ab"]
    return Branch(dict(zip(names, units, strict=True)), side_by_side, pooled)


_1, _3, _5 = (1, 1), (3, 3), (5, 5)
_ROW3, _COLUMN3, _ROW7, _COLUMN7 = (1, 3), (3, 1), (1, 7), (7, 1)


def _pool(outputs: int) -> Branch:
    return _branch("branch_pool", Unit(outputs, _1), pooled=True)


def _figure5(pool: int) -> tuple[Branch, ...]:
    """35 x 35: 1, 5, twice 3, pooling."""
    return (
        _branch("branch1x1", Unit(64, _1)),
        _branch("branch5x5", Unit(48, _1), Unit(64, _5)),
        _branch("branch3x3dbl", Unit(64, _1), Unit(96, _3), Unit(96, _3)),
        _pool(pool),
    )


def _figure6(inner: int) -> tuple[Branch, ...]:
    """17 x 17: 7 x 7 in two, and in four, with `inner` channels between them."""
    first, row, column = Unit(inner, _1), Unit(inner, _ROW7), Unit(inner, _COLUMN7)
    return (
        _branch("branch1x1", Unit(192, _1)),
        _branch("branch7x7", first, row, Unit(192, _COLUMN7)),
        _branch("branch7x7dbl", first, column, row, column, Unit(192, _ROW7)),
        _pool(192),
    )


_TO_17 = (
    _branch("branch3x3", Unit(384, _3, 2)),
    _branch("branch3x3dbl", Unit(64, _1), Unit(96, _3), Unit(96, _3, 2)),
)
_TO_8 = (
    _branch("branch3x3", Unit(192, _1), Unit(320, _3, 2)),
    _branch("branch7x7x3", Unit(192, _1), Unit(192, _ROW7), Unit(192, _COLUMN7), Unit(192, _3, 2)),
)
_BESIDE = Unit(384, _ROW3), Unit(384, _COLUMN3)
_FIGURE7 = (  # 8 x 8: rows and columns side by side
    _branch("branch1x1", Unit(320, _1)),
    _branch("branch3x3", Unit(384, _1), *_BESIDE, side_by_side=2),
    _branch("branch3x3dbl", Unit(448, _1), Unit(384, _3), *_BESIDE, side_by_side=2),
    _pool(192),
)
_BLOCKS = {
    "Mixed_5b": _figure5(32),
    "Mixed_5c": _figure5(64),
    "Mixed_5d": _figure5(64),
    "Mixed_6a": _TO_17,
    "Mixed_6b": _figure6(128),
    "Mixed_6c": _figure6(160),
    "Mixed_6d": _figure6(160),
    "Mixed_6e": _figure6(192),
    "Mixed_7a": _TO_8,
    "Mixed_7b": _FIGURE7,
    "Mixed_7c": _FIGURE7,
}
_CLASSIFIED = "Mixed_6e"
"""The block before the inner classifier."""


class Mixed(nn.Module):
    """Parallel branches; if they halve the maps, max pooling is one more."""

    def __init__(self, inputs: int, branches: tuple[Branch, ...]) -> None:
        super().__init__()
        self.outputs = 0
        self._branches = branches
        self._halves = any(
            unit.stride == 2 for branch in branches for unit in branch.units.values()
        )
        for branch in branches:
            channels = inputs
            first_parallel = len(branch.units) - branch.side_by_side
            for place, (name, unit) in enumerate(branch.units.items()):
                self.add_module(name, unit.built(channels))
                if place < first_parallel:
                    channels = unit.outputs
                else:
                    self.outputs += unit.outputs
        if self._halves:
            self.outputs += inputs

    def forward(self, maps: Tensor) -> Tensor:
        """`[batch, inputs, h, w]` to `[batch, self.outputs, h', w']`."""
        found: list[Tensor] = []
        for branch in self._branches:
            inner = avg_pool2d(maps, 3, stride=1, padding=1) if branch.pooled else maps
            modules = [self.get_submodule(name) for name in branch.units]
            for module in modules[: -branch.side_by_side]:
                inner = module(inner)
            found += [module(inner) for module in modules[-branch.side_by_side :]]
        if self._halves:
            found.append(max_pool2d(maps, 3, stride=2))
        return torch.cat(found, 1)


class InnerClassifier(nn.Module):
    """`[batch, inputs, 17, 17]` to logits `[batch, 1000]`."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.conv0 = ConvUnit(inputs, 128, 1)
        self.conv1 = ConvUnit(128, 768, 5)
        self.fc = nn.Linear(768, 1000)

    def forward(self, maps: Tensor) -> Tensor:
        """Run the classifier."""
        small = self.conv1(self.conv0(avg_pool2d(maps, 5, stride=3)))  # [batch, 768, 1, 1]
        logits: Tensor = self.fc(small.flatten(1))
        return logits


class InceptionV3(nn.Module):
    """Images to logits; in training mode with the inner classifier, to two logits."""

    def __init__(self, *, inner: bool) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = ConvUnit(3, 32, 3, stride=2)
        self.Conv2d_2a_3x3 = ConvUnit(32, 32, 3)
        self.Conv2d_2b_3x3 = ConvUnit(32, 64, 3, padding=1)
        self.Conv2d_3b_1x1 = ConvUnit(64, 80, 1)
        self.Conv2d_4a_3x3 = ConvUnit(80, 192, 3)
        channels = 192
        for name, branches in _BLOCKS.items():
            block = Mixed(channels, branches)
            self.add_module(name, block)
            channels = block.outputs
            if inner and name == _CLASSIFIED:
                self.AuxLogits = InnerClassifier(channels)
        self.inner = inner
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(channels, 1000)
        self._draw_weights()

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        """`[batch, 3, 299, 299]` to logits `[batch, 1000]`: of the last layer, then the inner
        classifier's."""
        maps = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(images)))
        maps = max_pool2d(maps, 3, stride=2)  # [batch, 64, 73, 73]
        maps = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(maps))
        maps = max_pool2d(maps, 3, stride=2)  # [batch, 192, 35, 35]
        others: list[Tensor] = []
        for name in _BLOCKS:
            maps = self.get_submodule(name)(maps)
            if self.inner and self.training and name == _CLASSIFIED:
                others.append(self.AuxLogits(maps))
        pooled = maps.mean((2, 3))  # [batch, 2048]
        logits: Tensor = self.fc(self.dropout(pooled))
        return (logits, *others) if others else logits

    def _draw_weights(self) -> None:
        deviations = {"AuxLogits.conv1.conv": 0.01, "AuxLogits.fc": 0.001, "fc": 0.01}
        for name, layer in self.named_modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                std = deviations.get(name, 0.1)
                nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)


inception_v3 = partial(InceptionV3, inner=False)
"""23,834,568 parameters in 284 tensors; `[batch, 3, 299, 299]` to `[batch, 1000]`."""
inception_v3_aux = partial(InceptionV3, inner=True)
"""27,161,264 parameters in 292 tensors: with the inner classifier."""
