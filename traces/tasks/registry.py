"""Tasks of live training by name; a new task is one file and one line here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gcsim.compressors.lazy_torch import Tensor
from gcsim.errors import InputError, did_you_mean
from gcsim.traces.models.registry import InputKind, ModelEntry
from gcsim.traces.tasks.split import Split


class Task(Protocol):
    """Learnable data, a pure function of (seed, worker, step, position in the batch). An optional
    attribute `source` describes the data in more detail; see `described`."""

    def batch(self, size: int, *, worker: int, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs `[size, *input_shape]` as in the model's entry, and int64 labels, on the
        CPU: `[size]` for samples, `[size, length]` for tokens (the next token of each)."""

    def split(self) -> Split:
        """Return the data in two parts, for a whole training: a function of the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEntry:
    """Task that a scenario can name."""

    name: str
    title: str
    input: InputKind
    make: str
    """`package.module:callable`; called with (entry, seed), it returns a `Task`, or raises
    `InputError` if the model does not fit the data, or data are missing."""


_SHIPPED = (
    TaskEntry(
        name="textures",
        title="synthetic textures of any size and number of channels, made here",
        input="samples",
        make="gcsim.traces.tasks.images:textures",
    ),
    TaskEntry(
        name="digits",
        title="handwritten digits, 8 x 8 brought to the model's size (needs scikit-learn)",
        input="samples",
        make="gcsim.traces.tasks.digits:digits",
    ),
    TaskEntry(
        name="characters",
        title="next character of gcsim's own sources, as they once were (97 characters)",
        input="tokens",
        make="gcsim.traces.tasks.text:characters",
    ),
    TaskEntry(
        name="words",
        title="next word of gcsim's own sources, as they once were, hashed below classes",
        input="tokens",
        make="gcsim.traces.tasks.text:words",
    ),
)
_OWN = "gcsim.traces.tasks.own:own_split"
"""Function for users' own tasks, under a task name; no dependency on other code."""
TASKS: dict[str, TaskEntry] = {entry.name: entry for entry in _SHIPPED}


def make_task(entry: ModelEntry, seed: int) -> Task:
    """Return the data of the task named by `entry`. Raises `InputError` if the task does not exist
    or does not fit the model."""
    chosen = TASKS.get(entry.task)
    if chosen is None:
        message = f"unknown task {entry.task!r}"
        raise InputError(message, place="gradients.task", hint=did_you_mean(entry.task, TASKS))
    if chosen.input != entry.input:
        fitting = ", ".join(name for name, task in TASKS.items() if task.input == entry.input)
        message = f"{entry.name} takes {entry.input}, the task {entry.task!r} has {chosen.input}"
        raise InputError(message, place="gradients.task", hint=f"choose one of: {fitting}")
    task: Task = _named(chosen.make)(entry, seed)
    return task


def _named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def make_split(entry: ModelEntry, seed: int) -> Split:
    """Return the data of the task named by `entry`, or of a user's function, in two parts. Raises
    like `make_task` and `own.own_split`."""
    if ":" not in entry.task:
        return make_task(entry, seed).split()
    own: Callable[[ModelEntry], Split] = _named(_OWN)
    return own(entry)


def described(entry: ModelEntry, task: Task) -> str:
    """Return a description of the data, with the version of their source."""
    source = getattr(task, "source", None)
    return source if isinstance(source, str) else TASKS[entry.task].title
