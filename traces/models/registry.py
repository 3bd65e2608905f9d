"""Which model is trained? The shipped ones by name, a user's own as `package.module:build`.

The tables are plain data: `gcsim list models` reads them without torch. `models/building.py` makes
the model that an entry describes.
"""

from __future__ import annotations

from dataclasses import replace

from gcsim.errors import InputError, Problem, did_you_mean
from gcsim.traces.models.entry import InputKind, ModelEntry
from gcsim.traces.models.language import LANGUAGE
from gcsim.traces.models.vision import VISION

MODELS: dict[str, ModelEntry] = {entry.name: entry for entry in (*VISION, *LANGUAGE)}

_TASKS: dict[InputKind, str] = {"samples": "textures", "tokens": "characters"}


def shipped_model(name: str) -> ModelEntry:
    """The entry of a shipped model. Raises `InputError` with a suggestion for another name."""
    entry = MODELS.get(name)
    if entry is None:
        raise InputError(
            Problem(
                message=f"unknown model {name!r}",
                place="model",
                hint=f"{did_you_mean(name, MODELS)} Or package.module:build for your own",
            )
        )
    return entry


def own_model(
    build: str,
    input_shape: tuple[int, ...],
    classes: int,
    *,
    input_kind: InputKind = "samples",
    auxiliary_weight: float = 0.0,
) -> ModelEntry:
    """An entry for a user's `package.module:build`. Imports nothing.

    Raises `InputError` when the shape of a sample or the number of classes cannot be.
    """
    problems = []
    if not input_shape or min(input_shape) < 1 or (input_kind == "tokens" and len(input_shape) > 1):
        what = "of one sample" if input_kind == "samples" else "[length] of one sequence"
        problems.append(
            Problem(
                message=f"model {build!r} needs the shape {what}, got {list(input_shape)}",
                place="input_shape",
                hint="positive sizes without the batch, e.g. "
                + ("[3, 224, 224]" if input_kind == "samples" else "[128]"),
            )
        )
    if classes < 2:
        problems.append(
            Problem(
                message=f"model {build!r} needs its number of classes (2 or more), got {classes}",
                place="classes",
                hint="the size of the model's output, e.g. 1000",
            )
        )
    if problems:
        raise InputError(problems)
    return ModelEntry(
        name=build,
        title=build,
        build=build,
        input_shape=input_shape,
        classes=classes,
        parameters=None,
        paper="",
        input=input_kind,
        task=_TASKS[input_kind],
        auxiliary_weight=auxiliary_weight,
    )


def trained_on(entry: ModelEntry, task: str | None) -> ModelEntry:
    """The entry with another task, where one is given."""
    return entry if task is None else replace(entry, task=task)
