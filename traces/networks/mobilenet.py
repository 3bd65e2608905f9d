"""MobileNetV2 as plain torch modules; imports torch.

M. Sandler et al., "MobileNetV2: inverted residuals and linear bottlenecks", arXiv:1801.04381, table
2, at width 1; torchvision's order and names of parameters. Convolutions start with variance
2 / fan-out of a group, the output layer as torch draws it.
"""

from __future__ import annotations

from torch import Tensor, nn

from gcsim.traces.models.initial_weights import draw_fan_out

_STAGES = (  # expansion, channels, blocks, stride of the first
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _unit(inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Module:
    """Convolution without bias, batch norm, ReLU6."""
    return nn.Sequential(
        nn.Conv2d(
            inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False
        ),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, linear projection; plus its input if shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.adds = stride == 1 and inputs == outputs
        self.conv = nn.Sequential(
            *([_unit(inputs, inner, 1)] if expansion > 1 else []),
            _unit(inner, inner, 3, stride=stride, groups=inner),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, maps: Tensor) -> Tensor:
        """`[batch, inputs, h, w]` to `[batch, outputs, h / stride, w / stride]`."""
        projected: Tensor = self.conv(maps)
        return maps + projected if self.adds else projected


class MobileNetV2(nn.Module):
    """Images to logits: 3,504,872 parameters in 158 tensors."""

    def __init__(self) -> None:
        super().__init__()
        channels = 32
        features = [_unit(3, channels, 3, stride=2)]
        for expansion, outputs, blocks, stride in _STAGES:
            for number in range(blocks):
                step = stride if number == 0 else 1
                features.append(InvertedResidual(channels, outputs, step, expansion))
                channels = outputs
        features.append(_unit(channels, 1280, 1))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))
        draw_fan_out(self)

    def forward(self, images: Tensor) -> Tensor:
        """`[batch, 3, 224, 224]` to logits `[batch, 1000]`."""
        pooled = self.features(images).mean((2, 3))  # [batch, 1280]
        logits: Tensor = self.classifier(pooled)
        return logits
