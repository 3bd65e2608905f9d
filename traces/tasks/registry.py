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
    """Learnable data, a pure function of (seed, worker, step, position in the batch). An attribute
    `source` may describe the data beyond the title; see `described`."""

    def batch(self, size: int, *, worker: int, step: int) -> tuple[Tensor, Tensor]:
        """Inputs `[size, *input_shape]` as the model's entry says, and int64 labels, on the CPU: of
        samples `[size]`, of tokens `[size, length]`, the token behind each."""

    def split(self) -> Split:
        """The data in two parts, for training to an end: a function of the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEntry:
    """A task that a scenario can name."""

    name: str
    title: str
    input: InputKind
    make: str
    """`package.module:callable`; called with (entry, seed), it returns a `Task`. Raises
    `InputError` where the model does not fit the data, or the data are missing."""


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
"""Function of users' own tasks, named as tasks are, which do not depend on others' code."""
TASKS: dict[str, TaskEntry] = {entry.name: entry for entry in _SHIPPED}


def make_task(entry: ModelEntry, seed: int) -> Task:
    """The data of the task that `entry` names. Raises `InputError` when there is no such task, or
    it does not fit the model."""
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
    """The data of the task that `entry` names, or of a user's function, in two parts. Raises as
    `make_task` and `own.own_split` do."""
    if ":" not in entry.task:
        return make_task(entry, seed).split()
    own: Callable[[ModelEntry], Split] = _named(_OWN)
    return own(entry)


def described(entry: ModelEntry, task: Task) -> str:
    """Description of the data, with the version of their source, for people."""
    source = getattr(task, "source", None)
    return source if isinstance(source, str) else TASKS[entry.task].title
