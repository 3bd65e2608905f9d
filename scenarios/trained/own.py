"""A user's own model, data and loss, as functions that other processes find by name.

`package.module:function`, as in a scenario file. Other processes import a script for its functions,
so whatever else it does stands under `if __name__ == "__main__":`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gcsim.compressors.mistakes import location_of
from gcsim.errors import InputError
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.sections.resolve import resolved
from gcsim.traces.models.registry import InputKind, own_model

Function = Callable[..., Any]
MAIN = "__main__"


def with_user_code(
    scenario: Scenario,
    *,
    build_model: Function | None = None,
    splits: Function | None = None,
    loss: Function | None = None,
) -> Scenario:
    """Replace model, data and loss of a scenario by a user's functions. The input shape is that of
    the first sample, the number of classes the size of the model's last axis. Raises `InputError`
    for functions that other processes cannot import, and for a model without data."""
    task = scenario.train_task if splits is None else name_of(splits, "splits")
    model = scenario.model
    if build_model is not None:
        name = name_of(build_model, "build_model")
        if splits is None:
            message = "your own model needs your own data"
            raise InputError(message, place="build_model", hint="give splits, too")
        shape, kind, classes = _inspect(build_model, splits)
        model = own_model(name, shape, max(2, classes), input_kind=kind)
    found = replace(
        scenario,
        model=model,
        train_task=task,
        train_loss=scenario.train_loss if loss is None else name_of(loss, "loss"),
    )
    description = str(scenario.resolved.get("description", ""))
    return replace(found, resolved=resolved(found, description))


def name_of(function: Function, place: str) -> str:
    """Return `package.module:function`, for other processes; `InputError` without such a name."""
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__qualname__", "")
    if module == MAIN:
        file = getattr(sys.modules[MAIN], "__file__", None)
        module = Path(file).stem if file else ""
    if not module.replace(".", "_").isidentifier() or not name.isidentifier():
        where = location_of(function)
        raise InputError(
            f"other processes cannot import {name or function!r}",
            place=f"{place}, {where}" if where else place,
            hint="define it with def at the top of a file, my_training.py, and import it",
        )
    return f"{module}:{name}"


def _inspect(build_model: Function, splits: Function) -> tuple[tuple[int, ...], InputKind, int]:
    """Return the shape and kind of a sample, and the size of the output's last axis (1: none)."""
    import torch

    from gcsim.traces.tasks.split import DatasetSamples

    try:
        train, _ = splits()
        inputs, _ = DatasetSamples(train).taken(torch.arange(2).numpy())
        with torch.no_grad():
            output = build_model().eval()(inputs)
    except Exception as error:  # a user's functions may fail in any way
        said = f"{type(error).__name__}: {error}"
        hint = "splits() returns two datasets of pairs, build_model() what takes a batch of them"
        raise InputError(said, place="build_model, splits", hint=hint) from error
    shape = tuple(inputs.shape[1:])
    kind: InputKind = "samples" if inputs.is_floating_point() else "tokens"
    last = output.shape[-1] if isinstance(output, torch.Tensor) and output.dim() > 1 else 1
    return shape, kind, last
