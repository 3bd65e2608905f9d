"""Horizon of a training in delays: how often a method that sends a part of the gradient sends a
whole one.

A coordinate waits 1 / share steps, and a training of a few such delays says little of a longer one:
300 steps of a method that sends a hundredth are three. Below `TELLING` delays no verdict uses it.
The share of a step follows from the method's parameters, or from the bytes that were sent where it
depends on the gradients. Methods that send something of every element in each step (dense,
quantization, low rank) have no such horizon.

What a method loses comes never: with a hundredth of each gradient the weights go a hundredth of the
way, and whole gradients are its steps. `TELLING_LOST` of those are few for any training.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from gcsim.compressors.base import Compressor, CompressorParameters
from gcsim.compressors.options.method import Options, method_of
from gcsim.scenarios.scenario import Scenario

TELLING, TELLING_LOST = 10, 100
"""Least delays of a training that tells; of a method that loses what it does not send."""
DELAY = "A delay is as many steps as the method needs to send one whole gradient."
_IN_PARTS = ("sparsification", "sketching", "local updates")  # families


def stated_share(kind: str, given: Mapping[str, Any]) -> float | None:
    """Share of the gradient's elements that a step sends, by the parameters; 1: all of them, None:
    it depends on the gradients."""
    cls, parameters = _method(kind, given)
    own, interval = parameters.model_dump(), cls.window(parameters)
    if cls.about.family not in _IN_PARTS and interval == 1:
        return 1.0
    if "error_blocks" in own:  # whole blocks, of the errors at a synchronisation
        blocks = own.get("gradient_blocks", math.inf)
        return float(1 / (own["error_blocks"] * interval) + 1 / blocks)
    if "ratio" in own:  # between whole gradients every tau steps, where it says so
        return float(own["ratio"] / interval + 1 / own.get("tau", math.inf))
    if "drop_rate" in own:
        return float(1 - own["drop_rate"])
    if "proportion" in own:
        return float(own["proportion"])
    return 1 / interval if interval > 1 else None


def _method(kind: str, given: Mapping[str, Any]) -> tuple[type[Compressor], CompressorParameters]:
    cls, parameters = method_of(kind, given)
    return parameters.own if isinstance(parameters, Options) else (cls, parameters)


def telling(kind: str, given: Mapping[str, Any]) -> int:
    """Least delays of a training that tells of a method; values scaled up make up for the rest."""
    own = _method(kind, given)[1].model_dump()
    keeps = own.get("error_feedback", own.get("residual", True))
    return TELLING if keeps or own.get("scaled") or own.get("unbiased") else TELLING_LOST


def too_short(delays: float | None, steps: int, least: int = TELLING) -> str:
    """Reason why a training cannot tell, with the steps that could; "" where it can."""
    if delays is None or round(delays, 6) >= least:
        return ""
    enough = f" ({math.ceil(steps * least / delays):,} steps)" if delays else ""
    return f"{steps:,} steps span only {in_words(delays)}; {least}{enough} are needed"


def in_words(delays: float) -> str:
    """Number of delays, to two digits: "1 delay", "0.5 delays"."""
    number = f"{delays:.2g}"
    return f"{number} delay" if number == "1" else f"{number} delays"


def foreseen(scenario: Scenario, steps: int) -> list[tuple[str, str]]:
    """Methods (label, reason) of which so many steps cannot tell, as far as parameters say."""
    found = []
    for choice in scenario.compressors:
        share = stated_share(choice.kind, choice.parameters)
        least = telling(choice.kind, choice.parameters)
        if share is not None and share < 1 and (why := too_short(share * steps, steps, least)):
            found.append((choice.label, why))
    return found


def inconclusive(found: Iterable[tuple[str, str]]) -> list[str]:
    """Sentence on each method (label, reason) whose training cannot tell, then on a delay."""
    said = [f"{label}: inconclusive: {why}." for label, why in found]
    return [*said, DELAY] if said else []
