"""Progress reports of a long run's stages.

A stage opens a task with its number of steps (methods, cluster sizes) and advances it by steps or
parts of a step; leaving the context closes the task.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from typing import Protocol

from gcsim.signals import raise_if_asked


class Task(Protocol):
    """A running stage."""

    def advance(self, n: int | Fraction = 1, note: str = "") -> None:
        """Report `n` more steps, or a part of one, as done; `note`: what the stage does now."""


class Progress(Protocol):
    """Receiver of progress reports."""

    def task(self, description: str, total: int) -> AbstractContextManager[Task]:
        """Open a stage of `total` steps, described for people."""


class _SilentTask:
    def advance(self, n: int | Fraction = 1, note: str = "") -> None:
        raise_if_asked()


class SilentProgress:
    """Progress that shows nothing."""

    def task(self, description: str, total: int) -> AbstractContextManager[Task]:
        """Open a silent stage."""
        return nullcontext(_SilentTask())
