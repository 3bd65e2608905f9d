"""How long did a model's passes really take, and when was each gradient there? Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from gcsim.fields import Limits

PassSeconds = Annotated[float, Limits(least=0, most=1_000_000)]
"""Eleven days at most: the simulated clock has room for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """One iteration of one worker, in seconds, as it was measured."""

    forward: PassSeconds
    """Of the forward pass."""
    backward: PassSeconds
    """From the end of the forward pass to the end of the iteration: the optimiser is in it."""
    ready: tuple[PassSeconds, ...] | None = None
    """By trained parameter, in the model's order: from the start of the backward pass until its
    gradient is there; None when only the totals are known. None of them is after `backward`."""
    processor: Literal["gpu", "cpu"] | None = None
    """What computed; None where nobody knows."""
    source: str
    """Who measured it, and how, for people."""
