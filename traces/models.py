"""Which model is trained? The shipped ones by name, a user's own as `package.module:build`.

The table is plain data: `gcsim list models` reads it without torch. Shipped and own models go
the same way: a callable without arguments that returns an `nn.Module`, called under a keyed
generator and then tried on a batch of two samples, so that a model that cannot be trained is
refused before anything is spent on it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gcsim.compressors.lazy_torch import torch
from gcsim.errors import InputError, Problem, did_you_mean
from gcsim.traces.torch_generator import keyed_generator

if TYPE_CHECKING:
    from torch import Tensor, nn


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


def build_model(
    name: str,
    *,
    seed: int,
    input_shape: tuple[int, ...] | None = None,
    classes: int | None = None,
    device: str = "cpu",
) -> nn.Module:
    """Build a model with weights keyed by `seed`, in training mode, float32, on `device`.

    `name` is a shipped model or `package.module:build`; the current directory is importable
    meanwhile. On device "meta" nothing is allocated. torch's generators stay as they were.

    Raises `InputError` when the model does not import, is no `nn.Module`, has nothing to train,
    fails on a batch of its input shape, or returns anything else than float32
    `[batch, classes]`.
    """
    entry = find_model(name, input_shape, classes)
    with keyed_generator(seed, "initial weights"), _current_directory_importable():
        if device == "meta":
            with torch.device("meta"):
                model = _call(entry)
        else:
            model = _call(entry)
    model = model.to(device)
    model.train()
    _check_parameters(entry, model)
    _check_output(entry, model)
    return model


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that are trained, by name, in the model's order: what DDP exchanges."""
    return [(n, p) for n, p in model.named_parameters() if p.requires_grad]


@contextmanager
def _current_directory_importable() -> Iterator[None]:
    """As `python -m` has it; a console script has not."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _call(entry: ModelEntry) -> nn.Module:
    module, _, attribute = entry.build.partition(":")
    try:
        build = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may fail in any way
        raise _refusal(
            entry,
            f"cannot import it: {_said(error)}",
            "write package.module:build, importable from the current directory",
        ) from error
    if not callable(build):
        raise _refusal(entry, f"{attribute} is not callable", "name a function or a class")
    try:
        model = build()
    except Exception as error:
        raise _refusal(
            entry, f"{attribute}() failed: {_said(error)}", "it is called without arguments"
        ) from error
    if not isinstance(model, torch.nn.Module):
        raise _refusal(
            entry,
            f"{attribute}() returned {type(model).__name__}",
            "return a torch.nn.Module",
        )
    return model


def _check_parameters(entry: ModelEntry, model: nn.Module) -> None:
    parameters = trainable(model)
    if not parameters:
        raise _refusal(
            entry, "no parameter requires a gradient", "a model without them has no gradients"
        )
    for name, parameter in parameters:
        if parameter.dtype != torch.float32:
            raise _refusal(
                entry,
                f"parameter {name} is {parameter.dtype}",
                "build the model in float32; traces hold float32 gradients",
            )


def _check_output(entry: ModelEntry, model: nn.Module) -> None:
    """One forward pass in training mode, after which buffers (batch norm) are as before."""
    device = next(model.parameters()).device
    buffers = [(b, b.clone()) for b in model.buffers()]
    sample = torch.zeros((2, *entry.input_shape), device=device)
    try:
        with torch.no_grad(), keyed_generator(0, "trial pass", device=device):
            output: Any = model(sample)
    except Exception as error:
        raise _refusal(
            entry,
            f"forward failed on float32 {list(sample.shape)}: {_said(error)}",
            "check input_shape; the model is called with one float32 batch",
        ) from error
    finally:
        for buffer, saved in buffers:
            buffer.copy_(saved)
    expected = (2, entry.classes)
    if not isinstance(output, torch.Tensor) or tuple(output.shape) != expected:
        raise _refusal(
            entry,
            f"output of a batch of 2 is {_shape_of(output)}, not {list(expected)}",
            "return logits [batch, classes], and check classes",
        )


def _shape_of(output: Tensor | object) -> str:
    return str(list(output.shape)) if isinstance(output, torch.Tensor) else type(output).__name__


def _said(error: Exception) -> str:
    first_line = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


def _refusal(entry: ModelEntry, message: str, hint: str) -> InputError:
    return InputError(Problem(message=f"model {entry.name!r}: {message}", place="model", hint=hint))
