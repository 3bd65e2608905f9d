"""Small shipped models as plain torch modules; imports torch.

AlexNet is the one-tower layout of A. Krizhevsky, "One weird trick for parallelizing convolutional
neural networks", arXiv:1404.5997, with torchvision's order and names of parameters. LeNet-5 is Y.
LeCun et al., "Gradient-based learning applied to document recognition", Proc. IEEE 86(11), 1998, in
today's common form: full connections between the convolutions, max pooling, ReLU, and a linear
output instead of radial basis functions.

Weights start normal with variance 1.5 / fan-in, instead of 2 (K. He et al., arXiv:1502.01852, eq.
10), because overlapping max pooling raises the second moment (with 2, AlexNet's logits start ten
times larger than its labels can use). The output layer starts with standard deviation 0.01, so that
the loss starts near ln(classes); biases at zero.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from gcsim.traces.models.initial_weights import draw_fan_in


def in_two_parts(
    features: nn.Sequential, classifier: nn.Sequential, *, side: int | None = None
) -> nn.Sequential:
    """Convolutions, then full connections; images to logits. Between them the maps are averaged to
    `side` x `side`; None: as they are."""
    parts: dict[str, nn.Module] = {"features": features}
    if side is not None:
        parts["avgpool"] = nn.AdaptiveAvgPool2d(side)
    parts |= {"flatten": nn.Flatten(), "classifier": classifier}
    return nn.Sequential(OrderedDict(parts))


def alexnet() -> nn.Module:
    """61,100,840 parameters in 16 tensors; input `[batch, 3, 224, 224]`, output `[batch, 1000]`.
    He's initial weights."""
    features = nn.Sequential(
        nn.Conv2d(3, 64, kernel_size=11, stride=4, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(kernel_size=3, stride=2),
        nn.Conv2d(64, 192, kernel_size=5, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(kernel_size=3, stride=2),
        nn.Conv2d(192, 384, kernel_size=3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(384, 256, kernel_size=3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(256, 256, kernel_size=3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(kernel_size=3, stride=2),
    )
    classifier = nn.Sequential(
        nn.Dropout(p=0.5),
        nn.Linear(256 * 6 * 6, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(p=0.5),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Linear(4096, 1000),
    )
    model = in_two_parts(features, classifier, side=6)
    draw_fan_in(model, [classifier[-1]], variance=1.5)
    return model


def lenet() -> nn.Module:
    """LeNet-5: 61,706 parameters in 10 tensors; input `[batch, 1, 32, 32]`, output `[batch, 10]`.
    He's initial weights."""
    features = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 6, kernel_size=5),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, 16, kernel_size=5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
        )
    )
    classifier = nn.Sequential(
        OrderedDict(
            fc1=nn.Linear(16 * 5 * 5, 120),
            relu1=nn.ReLU(),
            fc2=nn.Linear(120, 84),
            relu2=nn.ReLU(),
            fc3=nn.Linear(84, 10),
        )
    )
    model = in_two_parts(features, classifier)
    draw_fan_in(model, [classifier[-1]], variance=1.5)
    return model


def cnn_digits() -> nn.Module:
    """38,282 parameters in 8 tensors; input `[batch, 1, 8, 8]`, output `[batch, 10]`."""
    model = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 16, kernel_size=3, padding=1),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(16, 32, kernel_size=3, padding=1),
            relu2=nn.ReLU(),
            pool=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(32 * 4 * 4, 64),
            relu3=nn.ReLU(),
            fc2=nn.Linear(64, 10),
        )
    )
    draw_fan_in(model, [model[-1]], variance=1.5)
    return model
