"""Construction of a trainable `nn.Module` from an entry of `models/registry.py`.

For shipped and own models a callable without arguments returns an `nn.Module` under a keyed
generator; a batch of two samples then tests that it can be trained, before time is spent on it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gcsim.compressors.lazy_torch import Tensor, nn, torch
from gcsim.traces.models.losses import heads
from gcsim.traces.models.own_code import refusal
from gcsim.traces.models.registry import ModelEntry
from gcsim.traces.models.torch_generator import keyed_generator


def build_model(entry: ModelEntry, *, seed: int, device: str = "cpu") -> nn.Module:
    """Build a model with weights keyed by `seed`, in training mode, float32, on `device` ("meta"
    allocates nothing). The current directory is importable meanwhile; torch's generators are
    restored.

    Raises `InputError` if the model cannot be imported, is not an `nn.Module`, has nothing to
    train, fails on a batch of its input shape, or does not return the float32 logits that `entry`
    promises (a user's own loss may take anything).
    """
    from gcsim.traces.models.shapes_only import ShapesOnly  # imports torch

    with keyed_generator(seed, "initial weights"), _current_directory_importable():
        if device == "meta":
            with torch.device("meta"), ShapesOnly():
                model = _call(entry)
        else:
            model = _call(entry)
    model = model.to(device)
    model.train()
    _check_parameters(entry, model)
    _check_output(entry, model)
    _check_parameters(entry, model)  # a forward pass may change them
    return model


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the trained parameters by name, in the model's order: those that DDP exchanges."""
    return [(n, p) for n, p in model.named_parameters() if p.requires_grad]


@contextmanager
def _current_directory_importable() -> Iterator[None]:
    """Append the current directory to the import path: a script's path does not have it."""
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.reverse()
        sys.path.remove(here)  # the last occurrence
        sys.path.reverse()


def _call(entry: ModelEntry) -> nn.Module:
    if entry.build is None:
        message = "it is a table of layers: there is nothing to train"
        raise refusal(entry, message, "take synthetic gradients (gradients: {source: synthetic})")
    module, _, attribute = entry.build.partition(":")
    try:
        build = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may fail in any way
        hint = "write package.module:build, importable from the current directory"
        raise refusal(entry, "cannot import it", hint, error=error) from error
    if not callable(build):
        raise refusal(entry, f"{attribute} is not callable", "name a function or a class")
    try:
        model = build()
    except Exception as error:
        hint = "it is called without arguments"
        raise refusal(entry, f"{attribute}() failed", hint, error=error) from error
    if not isinstance(model, torch.nn.Module):
        raise refusal(
            entry, f"{attribute}() returned {type(model).__name__}", "return a torch.nn.Module"
        )
    return model


def _check_parameters(entry: ModelEntry, model: nn.Module) -> None:
    parameters = trainable(model)
    if not parameters:
        raise refusal(
            entry, "no parameter requires a gradient", "a model without them has no gradients"
        )
    for name, parameter in parameters:
        if parameter.dtype != torch.float32:
            message = "build the model in float32; traces hold float32 gradients"
            raise refusal(entry, f"parameter {name} is {parameter.dtype}", message)
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Embedding | torch.nn.EmbeddingBag) and layer.sparse:
            message = "build it with sparse=False; compressors take dense gradients"
            raise refusal(entry, f"embedding {name} has sparse gradients", message)


def _check_output(entry: ModelEntry, model: nn.Module) -> None:
    """Run one forward pass in training mode and restore the buffers (batch norm)."""
    from gcsim.traces.models.shapes_only import ShapesOnly  # imports torch

    device = next(model.parameters()).device
    sample = sample_batch(entry, 2, device)
    try:
        trial = keyed_generator(0, "trial pass", device=device)
        with unmoved_buffers(model), trial, ShapesOnly():
            output: Any = model(sample)
    except Exception as error:
        kind = str(sample.dtype).removeprefix("torch.")
        raise refusal(
            entry,
            f"forward failed on {kind} {list(sample.shape)}",
            f"check input_shape; the model is called with one {kind} batch",
            model=model,
            error=error,
        ) from error
    if entry.loss:  # may take any output
        return
    logits = heads(output)
    if len(logits) > 1 and not entry.auxiliary_weight:
        raise refusal(
            entry,
            f"its output is a tuple of {len(logits)}",
            "return logits [batch, classes]; for classifiers inside the network set "
            "auxiliary_weight",
            model=model,
        )
    expected = [[2, entry.classes]]
    if entry.input == "tokens":
        expected.append([2, *entry.input_shape, entry.classes])
    for head in logits:
        if not isinstance(head, torch.Tensor) or list(head.shape) not in expected:
            raise refusal(
                entry,
                f"output of a batch of 2 is {_shape_of(head)}, not {expected[-1]}",
                "return logits [batch, classes], and check classes"
                if entry.input == "samples"
                else "return logits [batch, length, classes] or [batch, classes]",
                model=model,
            )
        if head.dtype != torch.float32:
            given = str(head.dtype).removeprefix("torch.")
            hint = "return logits as they are, in float32"
            raise refusal(entry, f"its output is {given}", hint, model=model)


def sample_batch(entry: ModelEntry, size: int, device: torch.device) -> Tensor:
    """Return a batch of zeros in the model's input format."""
    dtype = torch.int64 if entry.input == "tokens" else torch.float32
    return torch.zeros((size, *entry.input_shape), dtype=dtype, device=device)


@contextmanager
def unmoved_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the buffers (batch norm) after forward passes without gradients."""
    buffers = [(b, b.clone()) for b in model.buffers()]
    try:
        with torch.no_grad():
            yield
    finally:
        for buffer, saved in buffers:
            buffer.copy_(saved)


def _shape_of(output: Tensor | object) -> str:
    return str(list(output.shape)) if isinstance(output, torch.Tensor) else type(output).__name__
