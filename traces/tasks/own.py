"""A user's own data: two datasets returned by `package.module:splits`, one of them held out.

    def splits():
        return train, test          # map-style torch datasets of pairs (input, label)

A label is a whole number below the model's classes, one per token for text; a user's own loss may
have any labels. `folder:PATH` is a folder of images (`folder.py`).
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.mistakes import location_of, users_line
from gcsim.errors import InputError, Problem
from gcsim.traces.models.registry import ModelEntry
from gcsim.traces.tasks import folder
from gcsim.traces.tasks.split import DatasetSamples, Samples, Split


def own_split(entry: ModelEntry) -> Split:
    """Return the two parts from the function named by `entry.task`. Raises `InputError` with its
    line if it cannot be imported or called, returns anything else, or samples do not fit the
    model."""
    if entry.task.startswith(folder.PREFIX):
        return folder.images(Path(entry.task.removeprefix(folder.PREFIX)), entry)
    module, _, name = entry.task.partition(":")
    function: Any = None
    try:
        function = getattr(importlib.import_module(module), name)
        found = function()
    except Exception as error:  # a user's module may fail in any way
        said = f"{type(error).__name__}: {error}"
        hint = "write package.module:function, importable from here"
        raise _refused(entry, said, hint, users_line(error) or location_of(function)) from error
    place = location_of(function)
    if not isinstance(found, tuple | list) or len(found) != 2:
        what = f"it returned {type(found).__name__}, not two datasets"
        raise _refused(entry, what, "return train, test", place)
    train, test = map(DatasetSamples, found)
    for part, which in ((train, "that is learned"), (test, "that is held out")):
        try:
            fault = _fault(entry, part)
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        if fault:
            hint = "a dataset has a length, and gives pairs (input, label) by their number"
            raise _refused(entry, f"of the part {which}: {fault}", hint, place)
    return Split(train=train, test=test, source=f"{entry.task} ({len(train):,} samples)")


def _fault(entry: ModelEntry, part: Samples) -> str:
    """Return why samples do not fit the model, by the first and the last of them."""
    if not len(part):
        return "it has no samples"
    inputs, labels = part.taken(np.array([0, len(part) - 1]))
    if tuple(inputs.shape[1:]) != entry.input_shape:
        return f"a sample is {list(inputs.shape[1:])}, the model takes {list(entry.input_shape)}"
    wanted = torch.int64 if entry.input == "tokens" else torch.float32
    if inputs.dtype != wanted:
        kinds = [str(kind).removeprefix("torch.") for kind in (inputs.dtype, wanted)]
        return f"a sample is {kinds[0]}, the model takes {kinds[1]}"
    if entry.loss:
        return ""
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= entry.classes:
        return f"labels are {low} and {high}, the model has {entry.classes} classes"
    return ""


def _refused(entry: ModelEntry, message: str, hint: str, place: str) -> InputError:
    where = f"train.task, {place}" if place else "train.task"
    return InputError(Problem(place=where, message=f"{entry.task}: {message}", hint=hint))
