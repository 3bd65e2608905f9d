"""Which model is trained? The shipped ones by name, a user's own as `package.module:build`.

The table is plain data: `gcsim list models` reads it without torch. `building.py` makes the
model that an entry describes.
"""

from __future__ import annotations

from dataclasses import dataclass

from gcsim.errors import InputError, Problem, did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A model that can be built, and what it takes and returns."""

    name: str
    title: str
    build: str
    """`package.module:callable`; called without arguments, returns an `nn.Module`."""
    input_shape: tuple[int, ...]
    """One sample, without the batch."""
    classes: int
    """The output is `[batch, classes]`."""
    parameters: int | None
    """Number of scalar parameters; None for a user's model, which is counted when built."""
    paper: str


_RESNET = "K. He et al., Deep residual learning for image recognition, arXiv:1512.03385"
_SHIPPED = (
    ModelEntry(
        name="alexnet",
        title="AlexNet, one tower (torchvision's layout)",
        build="gcsim.traces.networks:alexnet",
        input_shape=(3, 224, 224),
        classes=1000,
        parameters=61_100_840,
        paper="A. Krizhevsky, One weird trick for parallelizing convolutional neural networks, "
        "arXiv:1404.5997",
    ),
    ModelEntry(
        name="lenet",
        title="LeNet-5 (small: for quick trials)",
        build="gcsim.traces.networks:lenet",
        input_shape=(1, 32, 32),
        classes=10,
        parameters=61_706,
        paper="Y. LeCun et al., Gradient-based learning applied to document recognition, "
        "Proc. IEEE 86(11), 1998",
    ),
    ModelEntry(
        name="resnet18",
        title="ResNet-18 for ImageNet (torchvision's layout)",
        build="gcsim.traces.networks_resnet:resnet18",
        input_shape=(3, 224, 224),
        classes=1000,
        parameters=11_689_512,
        paper=_RESNET,
    ),
    ModelEntry(
        name="resnet34",
        title="ResNet-34 for ImageNet (torchvision's layout)",
        build="gcsim.traces.networks_resnet:resnet34",
        input_shape=(3, 224, 224),
        classes=1000,
        parameters=21_797_672,
        paper=_RESNET,
    ),
    ModelEntry(
        name="resnet50",
        title="ResNet-50 for ImageNet (torchvision's layout)",
        build="gcsim.traces.networks_resnet:resnet50",
        input_shape=(3, 224, 224),
        classes=1000,
        parameters=25_557_032,
        paper=_RESNET,
    ),
    ModelEntry(
        name="resnet101",
        title="ResNet-101 for ImageNet (torchvision's layout)",
        build="gcsim.traces.networks_resnet:resnet101",
        input_shape=(3, 224, 224),
        classes=1000,
        parameters=44_549_160,
        paper=_RESNET,
    ),
    ModelEntry(
        name="resnet152",
        title="ResNet-152 for ImageNet (torchvision's layout)",
        build="gcsim.traces.networks_resnet:resnet152",
        input_shape=(3, 224, 224),
        classes=1000,
        parameters=60_192_808,
        paper=_RESNET,
    ),
    ModelEntry(
        name="resnet18_cifar10",
        title="ResNet-18 for 32 x 32 images (pytorch-cifar's layout)",
        build="gcsim.traces.networks_resnet:resnet18_cifar10",
        input_shape=(3, 32, 32),
        classes=10,
        parameters=11_173_962,
        paper=_RESNET,
    ),
    ModelEntry(
        name="resnet20_cifar10",
        title="ResNet-20 for CIFAR, shortcuts without parameters",
        build="gcsim.traces.networks_resnet:resnet20_cifar10",
        input_shape=(3, 32, 32),
        classes=10,
        parameters=269_722,
        paper=_RESNET,
    ),
    ModelEntry(
        name="resnet56_cifar10",
        title="ResNet-56 for CIFAR, shortcuts without parameters",
        build="gcsim.traces.networks_resnet:resnet56_cifar10",
        input_shape=(3, 32, 32),
        classes=10,
        parameters=853_018,
        paper=_RESNET,
    ),
    ModelEntry(
        name="resnet110_cifar10",
        title="ResNet-110 for CIFAR, shortcuts without parameters",
        build="gcsim.traces.networks_resnet:resnet110_cifar10",
        input_shape=(3, 32, 32),
        classes=10,
        parameters=1_727_962,
        paper=_RESNET,
    ),
)
MODELS: dict[str, ModelEntry] = {entry.name: entry for entry in _SHIPPED}


def find_model(
    name: str, input_shape: tuple[int, ...] | None = None, classes: int | None = None
) -> ModelEntry:
    """The entry of a shipped model, or one made for `package.module:build`. Imports nothing.

    Raises `InputError` when the name is unknown, when a user's model comes without its input
    shape or number of classes, or when a shipped model is given other ones than its own.
    """
    entry = MODELS.get(name)
    if entry is None:
        if ":" not in name:
            raise InputError(
                Problem(
                    message=f"unknown model {name!r}",
                    place="model",
                    hint=f"{did_you_mean(name, MODELS)} Or package.module:build for your own",
                )
            )
        return _own_model(name, input_shape, classes)
    for key, given, own in (
        ("input_shape", input_shape, entry.input_shape),
        ("classes", classes, entry.classes),
    ):
        if given is not None and given != own:
            raise InputError(
                Problem(
                    message=f"{name} has {key} {own}, not {given}",
                    place=key,
                    hint=f"leave {key} out, or name your own model as package.module:build",
                )
            )
    return entry


def _own_model(name: str, input_shape: tuple[int, ...] | None, classes: int | None) -> ModelEntry:
    problems = []
    if not input_shape or min(input_shape) < 1:
        problems.append(
            Problem(
                message=f"model {name!r} needs the shape of one sample, got {input_shape}",
                place="input_shape",
                hint="positive sizes without the batch, e.g. [3, 224, 224]",
            )
        )
    if classes is None or classes < 2:
        problems.append(
            Problem(
                message=f"model {name!r} needs its number of classes (2 or more), got {classes}",
                place="classes",
                hint="the size of the model's output, e.g. 1000",
            )
        )
    if problems or input_shape is None or classes is None:
        raise InputError(problems)
    return ModelEntry(
        name=name,
        title=name,
        build=name,
        input_shape=input_shape,
        classes=classes,
        parameters=None,
        paper="",
    )
