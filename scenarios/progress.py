"""Progress reports of a long run's stages, to a bar, a log or nobody.

A stage opens a task with the number of its steps and advances it; leaving the context closes the
task, finished or not. Steps are what a person counts (methods, cluster sizes); what is finer is a
part of a step.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from typing import Protocol


class Task(Protocol):
    """One stage under way."""

    def advance(self, n: int | Fraction = 1, note: str = "") -> None:
        """Report `n` more steps, or a part of one, as done; `note` says in a few words where the
        stage is."""


class Progress(Protocol):
    """Somebody who watches a run."""

    def task(self, description: str, total: int) -> AbstractContextManager[Task]:
        """Open a stage of `total` steps; `description` is read by people."""


class _SilentTask:
    def advance(self, n: int | Fraction = 1, note: str = "") -> None:
        pass


class SilentProgress:
    """Nobody watches."""

    def task(self, description: str, total: int) -> AbstractContextManager[Task]:
        """A stage that reports to nobody."""
        return nullcontext(_SilentTask())
