"""Can this model be built and trained? From an entry of `models.py` to an `nn.Module`.

Shipped and own models go the same way: a callable without arguments that returns an `nn.Module`,
called under a keyed generator and then tried on a batch of two samples, so that a model that
cannot be trained is refused before anything is spent on it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gcsim.compressors.lazy_torch import torch
from gcsim.errors import InputError, Problem
from gcsim.traces.models import ModelEntry, find_model
from gcsim.traces.torch_generator import keyed_generator

if TYPE_CHECKING:
    from torch import Tensor, nn


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
