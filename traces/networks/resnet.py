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
from collections.abc import Callable
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
    """Shortcut without parameters: every `stride`-th pixel, with channels of zeros on both sides;
    `[batch, inputs, h, w]` to `[batch, outputs, h / stride, w / stride]`."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.added, self.stride = outputs - inputs, stride

    def forward(self, maps: Tensor) -> Tensor:
        """Run the shortcut."""
        kept = maps[:, :, :: self.stride, :: self.stride]
        before = self.added // 2
        return pad(kept, (0, 0, 0, 0, before, self.added - before))


def _projected(inputs: int, outputs: int, stride: int) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class ResNet(nn.Sequential):
    """Images to logits; its children run one after the other."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        widths: tuple[int, ...],
        counts: tuple[int, ...],
        shortcut: Callable[[int, int, int], nn.Module],
        *,
        classes: int,
        small: bool,
    ) -> None:
        """Build a stage of blocks for each width; `shortcut` makes those that change size. `small`
        images (32 x 32) keep their size before the stages."""
        inputs = widths[0]
        kernel, stride = (3, 1) if small else (7, 2)
        first = nn.Conv2d(3, inputs, kernel, stride=stride, padding=kernel // 2, bias=False)
        layers: dict[str, nn.Module] = {
            "conv1": first, "bn1": nn.BatchNorm2d(inputs), "relu": nn.ReLU(),
        }  # fmt: skip
        if not small:
            layers["maxpool"] = nn.MaxPool2d(3, stride=2, padding=1)
        for number, (width, count) in enumerate(zip(widths, counts, strict=True), start=1):
            outputs, stride = block.expansion * width, 1 if number == 1 else 2
            changes = stride != 1 or inputs != outputs
            carried = shortcut(inputs, outputs, stride) if changes else None
            rest = [block(outputs, width, 1, None) for _ in range(count - 1)]
            begun = block(inputs, width, stride, carried)
            layers[f"layer{number}"] = nn.Sequential(begun, *rest)
            inputs = outputs
        fc = nn.Linear(inputs, classes)
        layers |= {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "fc": fc}
        super().__init__(OrderedDict(layers))
        draw_fan_out(self)


_stages = partial(ResNet, widths=(64, 128, 256, 512), shortcut=_projected)
_imagenet = partial(_stages, classes=1000, small=False)
_cifar = partial(ResNet, BasicBlock, (16, 32, 64), shortcut=ZeroPadded, classes=10, small=True)
resnet18 = partial(_imagenet, BasicBlock, counts=(2, 2, 2, 2))
"""11,689,512 parameters; `[batch, 3, 224, 224]` to `[batch, 1000]`."""
resnet34 = partial(_imagenet, BasicBlock, counts=(3, 4, 6, 3))
"""21,797,672 parameters; `[batch, 3, 224, 224]` to `[batch, 1000]`."""
resnet50 = partial(_imagenet, Bottleneck, counts=(3, 4, 6, 3))
"""25,557,032 parameters; `[batch, 3, 224, 224]` to `[batch, 1000]`."""
resnet101 = partial(_imagenet, Bottleneck, counts=(3, 4, 23, 3))
"""44,549,160 parameters; `[batch, 3, 224, 224]` to `[batch, 1000]`."""
resnet152 = partial(_imagenet, Bottleneck, counts=(3, 8, 36, 3))
"""60,192,808 parameters; `[batch, 3, 224, 224]` to `[batch, 1000]`."""
resnet18_cifar10 = partial(_stages, BasicBlock, counts=(2, 2, 2, 2), classes=10, small=True)
"""11,173,962 parameters; `[batch, 3, 32, 32]` to `[batch, 10]`."""
resnet20_cifar10 = partial(_cifar, (3, 3, 3))
"""269,722 parameters; `[batch, 3, 32, 32]` to `[batch, 10]`."""
resnet56_cifar10 = partial(_cifar, (9, 9, 9))
"""853,018 parameters; `[batch, 3, 32, 32]` to `[batch, 10]`."""
resnet110_cifar10 = partial(_cifar, (18, 18, 18))
"""1,727,962 parameters; `[batch, 3, 32, 32]` to `[batch, 10]`."""
