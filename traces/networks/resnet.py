"""ResNets as plain torch modules; imports torch.

- ImageNet: K. He et al., "Deep residual learning for image recognition", arXiv:1512.03385, table 1;
  torchvision's order and names of parameters, and its stride in a bottleneck's 3 x 3 convolution
  ("v1.5"). A shortcut that changes size is a 1 x 1 convolution with batch norm (option B).
- CIFAR, 6 n + 2 layers (20, 56, 110): ibid., sec. 4.2; three stages of 16, 32 and 64 channels, and
  shortcuts that drop every second pixel and add channels of zeros (option A).
- CIFAR, ResNet-18: ImageNet's stages behind a 3 x 3 convolution without pooling, as in
  kuangliu/pytorch-cifar.

Convolutions start normal with variance 2 / fan-out (K. He et al., arXiv:1502.01852, eq. 14), the
scale of batch norm at one, the output layer as torch draws it.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

from torch import Tensor, nn
from torch.nn.functional import pad, relu

from gcsim.traces.models.initial_weights import draw_fan_out


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions; `[batch, inputs, h, w]` to `[batch, width, h', w']`."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, shortcut: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut

    def forward(self, maps: Tensor) -> Tensor:
        """Run the block."""
        inner = self.bn2(self.conv2(relu(self.bn1(self.conv1(maps)))))
        # Called last, as in torchvision: its gradients are ready first.
        carried = maps if self.downsample is None else self.downsample(maps)
        return relu(inner + carried)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1; `[batch, inputs, h, w]` to `[batch, 4 width, h', w']`."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, shortcut: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = shortcut

    def forward(self, maps: Tensor) -> Tensor:
        """Run the block."""
        inner = relu(self.bn1(self.conv1(maps)))
        inner = self.bn3(self.conv3(relu(self.bn2(self.conv2(inner)))))
        carried = maps if self.downsample is None else self.downsample(maps)
        return relu(inner + carried)


class ZeroPadded(nn.Module):
    """Shortcut without parameters: every second pixel, with channels of zeros on both sides."""

    def __init__(self, added: int, stride: int) -> None:
        super().__init__()
        self.added, self.stride = added, stride

    def forward(self, maps: Tensor) -> Tensor:
        """`[batch, c, h, w]` to `[batch, c + added, h / stride, w / stride]`."""
        kept = maps[:, :, :: self.stride, :: self.stride]
        before = self.added // 2
        return pad(kept, (0, 0, 0, 0, before, self.added - before))


Block = type[BasicBlock] | type[Bottleneck]


def _stage(block: Block, inputs: int, width: int, count: int, stride: int) -> nn.Sequential:
    outputs = block.expansion * width
    shortcut = None
    if stride != 1 or inputs != outputs:
        shortcut = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
        )
    rest = [block(outputs, width, 1, None) for _ in range(count - 1)]
    return nn.Sequential(block(inputs, width, stride, shortcut), *rest)


class ResNet(nn.Sequential):
    """Images to logits; its children run one after the other."""


def _imagenet(block: Block, counts: tuple[int, ...], *, classes: int, small: bool) -> nn.Module:
    """Build `counts` blocks per stage; `small` images (32 x 32) keep their size before them."""
    if small:
        stem = [("conv1", nn.Conv2d(3, 64, 3, padding=1, bias=False))]
    else:
        stem = [("conv1", nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False))]
    layers: list[tuple[str, nn.Module]] = [*stem, ("bn1", nn.BatchNorm2d(64)), ("relu", nn.ReLU())]
    if not small:
        layers.append(("maxpool", nn.MaxPool2d(3, stride=2, padding=1)))
    inputs = 64
    for number, count in enumerate(counts):
        width = 64 << number
        stage = _stage(block, inputs, width, count, stride=1 if number == 0 else 2)
        layers.append((f"layer{number + 1}", stage))
        inputs = block.expansion * width
    return _finished(layers, inputs, classes)


def _cifar(layers: int) -> nn.Module:
    """Build three stages of (layers - 2) / 6 blocks."""
    blocks = (layers - 2) // 6
    parts: list[tuple[str, nn.Module]] = [
        ("conv1", nn.Conv2d(3, 16, 3, padding=1, bias=False)),
        ("bn1", nn.BatchNorm2d(16)),
        ("relu", nn.ReLU()),
    ]
    inputs = 16
    for number, width in enumerate((16, 32, 64)):
        first = BasicBlock(
            inputs,
            width,
            1 if number == 0 else 2,
            None if number == 0 else ZeroPadded(width - inputs, 2),
        )
        rest = [BasicBlock(width, width, 1, None) for _ in range(blocks - 1)]
        parts.append((f"layer{number + 1}", nn.Sequential(first, *rest)))
        inputs = width
    return _finished(parts, inputs, classes=10)


def _finished(layers: list[tuple[str, nn.Module]], inputs: int, classes: int) -> nn.Module:
    layers += [
        ("avgpool", nn.AdaptiveAvgPool2d(1)),
        ("flatten", nn.Flatten()),
        ("fc", nn.Linear(inputs, classes)),
    ]
    model = ResNet(OrderedDict(layers))
    draw_fan_out(model)
    return model


resnet18 = partial(_imagenet, BasicBlock, (2, 2, 2, 2), classes=1000, small=False)
"""11,689,512 parameters; `[batch, 3, 224, 224]` to `[batch, 1000]`."""
resnet34 = partial(_imagenet, BasicBlock, (3, 4, 6, 3), classes=1000, small=False)
"""21,797,672 parameters; `[batch, 3, 224, 224]` to `[batch, 1000]`."""
resnet50 = partial(_imagenet, Bottleneck, (3, 4, 6, 3), classes=1000, small=False)
"""25,557,032 parameters; `[batch, 3, 224, 224]` to `[batch, 1000]`."""
resnet101 = partial(_imagenet, Bottleneck, (3, 4, 23, 3), classes=1000, small=False)
"""44,549,160 parameters; `[batch, 3, 224, 224]` to `[batch, 1000]`."""
resnet152 = partial(_imagenet, Bottleneck, (3, 8, 36, 3), classes=1000, small=False)
"""60,192,808 parameters; `[batch, 3, 224, 224]` to `[batch, 1000]`."""
resnet18_cifar10 = partial(_imagenet, BasicBlock, (2, 2, 2, 2), classes=10, small=True)
"""11,173,962 parameters; `[batch, 3, 32, 32]` to `[batch, 10]`."""
resnet20_cifar10 = partial(_cifar, 20)
"""269,722 parameters; `[batch, 3, 32, 32]` to `[batch, 10]`."""
resnet56_cifar10 = partial(_cifar, 56)
"""853,018 parameters; `[batch, 3, 32, 32]` to `[batch, 10]`."""
resnet110_cifar10 = partial(_cifar, 110)
"""1,727,962 parameters; `[batch, 3, 32, 32]` to `[batch, 10]`."""
