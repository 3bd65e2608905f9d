"""Losses: cross-entropy, sample by sample, or a user's own function. Imports torch when called."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.errors import InputError
from gcsim.traces.models.registry import ModelEntry


def heads(output: Any) -> tuple[Tensor, ...]:
    """Return the classifiers' logits, the main ones first, from a tensor or a tuple of several."""
    return tuple(output) if isinstance(output, tuple) else (output,)


def sample_losses(entry: ModelEntry, output: Any, labels: Tensor) -> Tensor:
    """Return each sample's loss, float32 `[batch]`.

    `output` are logits `[batch, classes]` with int64 labels `[batch]`, or `[batch, length,
    classes]` with labels `[batch, length]`, averaged over the sequence; a model with one output a
    sequence predicts the last label. Further classifiers of a tuple count `entry.auxiliary_weight`
    times each (C. Szegedy et al., "Going deeper with convolutions", arXiv:1409.4842, section 5:
    0.3). A user's function (`entry.loss`) gets output and labels unchanged; a mean over the batch
    becomes every sample's loss, by `expand`. Raises `InputError` if it returns anything else.
    """
    if entry.loss:
        return _own_losses(entry.loss, output, labels)
    main, *others = heads(output)
    losses = _cross_entropy(main, labels)
    for logits in others:
        losses = losses + entry.auxiliary_weight * _cross_entropy(logits, labels)
    return losses


def _own_losses(name: str, output: Any, labels: Tensor) -> Tensor:
    found = _function(name)(output, labels)
    batch = len(labels)
    if isinstance(found, torch.Tensor) and found.is_floating_point():
        if found.dim() == 0:
            return found.expand(batch)
        if found.shape == (batch,):
            return found
    shape = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
    message = f"{name} returned {shape} for a batch of {batch}"
    hint = f"return the mean loss, or one for each sample: [{batch}]"
    raise InputError(message, place="train.loss", hint=hint)


@cache
def _function(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may fail in any way
        said = f"{name}: {type(error).__name__}: {error}"
        hint = "write package.module:function, importable from here"
        raise InputError(said, place="train.loss", hint=hint) from error
    return found


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    if logits.dim() == 2:
        labels = labels if labels.dim() == 1 else labels[:, -1]
        return torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    return losses.mean(1)
