"""What describes a model, before it is built? Plain data, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from gcsim.fields import Count, Limits, Text

InputKind = Literal["samples", "tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayer:
    """A row of a table of layers: one parameter tensor and the arithmetic that goes with it."""

    name: Text
    shape: Annotated[tuple[Count, ...], Limits(least=1)]
    forward_flops: Annotated[int, Limits(least=0)] = 0
    """Per sample, 2 per multiply-add."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A model that can be built, and what it takes and returns; or a table of its layers."""

    name: str
    title: str
    build: str | None
    """`package.module:callable`; called without arguments, returns an `nn.Module`. None for a
    table of layers: there is nothing to train, so its gradients are synthetic."""
    input_shape: tuple[int, ...]
    """One sample, without the batch; of tokens: `(length,)`."""
    classes: int
    """The output is `[batch, classes]`; of tokens their number of kinds, and the output
    `[batch, length, classes]` or `[batch, classes]`."""
    parameters: int | None
    """Number of trained scalar parameters; None for a user's model, counted when it is built."""
    paper: str
    input: InputKind = "samples"
    """samples: float32 `[batch, *input_shape]`; tokens: int64 `[batch, length]` below `classes`."""
    task: str = "textures"
    """What it is trained on when nobody says otherwise; a name of `tasks.TASKS`."""
    auxiliary_weight: float = 0.0
    """Where the output in training mode is a tuple (classifiers inside the network): the loss of
    the first, plus this many times the loss of each other one."""
    loss: str = ""
    """`package.module:function` of output and labels: the mean loss of a batch, or `[batch]`, each
    sample's. "": cross-entropy."""
    layers: tuple[TableLayer, ...] = ()
    """In forward order; empty where the model is built."""
