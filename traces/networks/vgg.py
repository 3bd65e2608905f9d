"""VGG networks as plain torch modules; imports torch.

- ImageNet: K. Simonyan and A. Zisserman, "Very deep convolutional networks for large-scale image
  recognition", arXiv:1409.1556, table 1, columns A (11), D (16) and E (19), without batch norm;
  torchvision's order and names of parameters.
- CIFAR, VGG-16 with batch norm: column D's convolutions and one output layer, as in
  kuangliu/pytorch-cifar.
- CIFAR, the VGG-like network of Y. Tsuzuku et al., "Variance-based gradient compression for
  efficient distributed deep learning", arXiv:1802.06058, appendix D, table 3; no layer before batch
  norm has a bias, nor the output layer, as in Chainer's example, the paper's reference.

Without batch norm the initial weights are torchvision's: convolutions with variance 2 / fan-out (K.
He et al., arXiv:1502.01852, eq. 14), full connections with standard deviation 0.01, biases at zero.
(With AlexNet's rule, 1.5 / fan-in, VGG-16 diverged within 13 steps of 4 images at a learning rate
of 0.01. The paper, section 3.1, began with a deviation of 0.1 in network A, and copied A's layers
into the others.) VGG-16 for CIFAR starts with 2 / fan-in (ibid., eq. 10), the VGG-like network with
1 / fan-in, Chainer's default; their output layers with standard deviation 0.01.
"""

from __future__ import annotations

from functools import partial

from torch import nn

from gcsim.traces.models.initial_weights import draw_fan_in, draw_fan_out
from gcsim.traces.networks.small import in_two_parts

_A = ((64,), (128,), (256,) * 2, (512,) * 2, (512,) * 2)
_D = ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3)
_E = ((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4)
Stages = tuple[tuple[int, ...], ...]
"""Channels of the 3 x 3 convolutions; max pooling halves the maps after each stage."""


def _convolutions(
    stages: Stages, *, norm: bool = False, bias: bool = True, dropout: float = 0.0
) -> nn.Sequential:
    """Convolutions of the stages; with `dropout` (VGG-like) between a stage's convolutions, 0.1
    less in the first stage."""
    layers: list[nn.Module] = []
    inputs = 3
    for number, stage in enumerate(stages):
        for place, width in enumerate(stage):
            if dropout and place:
                layers.append(nn.Dropout(dropout if number else dropout - 0.1))
            layers.append(nn.Conv2d(inputs, width, kernel_size=3, padding=1, bias=bias))
            if norm:
                layers.append(nn.BatchNorm2d(width))
            layers.append(nn.ReLU(inplace=True))
            inputs = width
        layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
    return nn.Sequential(*layers)


def _imagenet(stages: Stages) -> nn.Module:
    classifier = nn.Sequential(
        nn.Linear(512 * 7 * 7, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(p=0.5),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(p=0.5),
        nn.Linear(4096, 1000),
    )
    model = in_two_parts(_convolutions(stages), classifier, side=7)
    draw_fan_out(model)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif name.startswith("classifier"):
            nn.init.normal_(parameter, std=0.01)
    return model


def _vgg_like(narrower: int) -> nn.Module:
    stages = tuple(tuple(width // narrower for width in stage) for stage in _D)
    width = stages[-1][-1]
    output = nn.Linear(width, 10, bias=False)
    classifier = nn.Sequential(
        nn.Dropout(0.5),
        nn.Linear(width, width, bias=False),
        nn.BatchNorm1d(width),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        output,
    )
    model = in_two_parts(
        _convolutions(stages, norm=True, bias=False, dropout=0.4), classifier, side=1
    )
    draw_fan_in(model, [output], variance=1.0)
    return model


def vgg16_bn_cifar10() -> nn.Module:
    """14,728,266 parameters in 54 tensors; `[batch, 3, 32, 32]` to `[batch, 10]`."""
    output = nn.Linear(512, 10)
    model = in_two_parts(_convolutions(_D, norm=True), nn.Sequential(output), side=1)
    draw_fan_in(model, [output], variance=2.0)
    return model


vgg11 = partial(_imagenet, _A)
"""132,863,336 parameters in 22 tensors; `[batch, 3, 224, 224]` to `[batch, 1000]`."""
vgg16 = partial(_imagenet, _D)
"""138,357,544 parameters in 32 tensors; `[batch, 3, 224, 224]` to `[batch, 1000]`."""
vgg19 = partial(_imagenet, _E)
"""143,667,240 parameters in 38 tensors; `[batch, 3, 224, 224]` to `[batch, 1000]`."""
vgg_like_cifar10 = partial(_vgg_like, narrower=1)
"""14,987,200 parameters in 43 tensors; `[batch, 3, 32, 32]` to `[batch, 10]`."""
vgg_narrow_cifar10 = partial(_vgg_like, narrower=16)
"""The same with a sixteenth of the channels: 59,500 parameters in 43 tensors."""
