"""Length of a training in delays: how many whole gradients a method that sends parts has sent.

If a method sends a share of the gradient per step, a coordinate waits 1 / share steps (a delay). A
training of few delays says little about a longer one: 300 steps of a method that sends 1 % are
three delays. Trainings of less than `TELLING` delays are not judged. The share follows from the
method's parameters, or from the bytes that were sent if it depends on the gradients; warm-up steps
(`warm_up`) send more. Methods that send something for every element in each step (dense,
quantization, low rank) have no delays.

If a method drops what it does not send, weights move only by that share of each gradient. Such a
training needs `TELLING_LOST` whole gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gcsim.compressors.base import Compressor, CompressorParameters
from gcsim.compressors.options.method import Options, method_of
from gcsim.scenarios.scenario import Scenario

TELLING, TELLING_LOST = 10, 100
"""Least delays of a conclusive training; the latter for methods that drop the unsent part."""
DELAY = "A delay is as many steps as the method needs to send one whole gradient."
_IN_PARTS = ("sparsification", "sketching", "local updates")  # families


class Delays(NamedTuple):
    """Number of delays in a training."""

    number: float
    further: float
    """Delays that a further step adds."""


def stated_delays(kind: str, given: Mapping[str, Any], steps: int) -> Delays | None:
    """Return the delays in a number of steps, by the parameters; None if they depend on the
    gradients, or each step sends a whole gradient."""
    stated, share = method_of(kind, given), stated_share(kind, given)
    if share is None or share >= 1:
        return None
    chosen, options = stated.parameters, stated.of_steps(steps).parameters
    if not isinstance(chosen, Options) or not isinstance(options, Options) or not chosen.warm_up:
        return Delays(share * steps, share)
    cls, _ = options.own
    warming = max(0, min(options.warming, steps - options.before))
    larger = sum(_share(cls, options.at(step)) or 0.0 for step in range(warming))
    number = larger + share * (steps - warming)
    scales = isinstance(chosen.warm_up.steps, float)  # the warm-up, with the training
    return Delays(number, number / steps if scales else share)


def stated_share(kind: str, given: Mapping[str, Any]) -> float | None:
    """Return the share of the gradient's elements that a step after warm-up sends, by the
    parameters; None if it depends on the gradients."""
    return _share(*_method(kind, given))


def _share(cls: type[Compressor], parameters: CompressorParameters) -> float | None:
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
    """Return the least delays of a conclusive training; scaled values compensate unsent ones."""
    own = _method(kind, given)[1].model_dump()
    keeps = own.get("error_feedback", own.get("residual", True))
    return TELLING if keeps or own.get("scaled") or own.get("unbiased") else TELLING_LOST


def too_short(delays: Delays | None, steps: int, least: int = TELLING) -> str:
    """Return why a training is too short to be conclusive, with the steps needed; else ""."""
    if delays is None or round(delays.number, 6) >= least:
        return ""
    enough = ""
    if delays.further:
        needed = round(steps + (least - delays.number) / delays.further, 6)
        enough = f" ({math.ceil(needed):,} steps)"
    return f"{steps:,} steps span only {in_words(delays.number)}; {least}{enough} are needed"


def in_words(delays: float) -> str:
    """Return a number of delays in words, to two digits: "1 delay", "0.5 delays"."""
    number = f"{delays:.2g}"
    return f"{number} delay" if number == "1" else f"{number} delays"


def foreseen(scenario: Scenario, steps: int) -> list[tuple[str, str]]:
    """Return the methods (label, reason) for which so many steps are surely too few."""
    found = []
    for choice in scenario.compressors:
        delays = stated_delays(choice.kind, choice.parameters, steps)
        least = telling(choice.kind, choice.parameters)
        if why := too_short(delays, steps, least):
            found.append((choice.label, why))
    return found


def inconclusive(found: Iterable[tuple[str, str]]) -> list[str]:
    """Return a sentence for each method (label, reason) that is inconclusive, then on delays."""
    said = [f"{label}: inconclusive: {why}." for label, why in found]
    return [*said, DELAY] if said else []
