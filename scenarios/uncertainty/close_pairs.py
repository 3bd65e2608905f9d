"""Extra iterations for pairs of methods whose order is within the statistical error.

Only methods that may be the fastest, or close to uncompressed training, are simulated longer, with
up to `DOUBLINGS` doublings; a pair whose order is still uncertain is reported as such.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gcsim.simulator.luck import Luck, error_of_difference

if TYPE_CHECKING:
    from gcsim.simulator.predict import Prediction

DOUBLINGS = 3
ERRORS = 2  # a difference within this many standard errors may be chance
TIE = 0.01  # relative difference below which the order does not matter


def resolve_close_pairs(
    found: Sequence[Prediction], dense: int | None, again: Callable[[int, int], Prediction]
) -> list[Prediction]:
    """Return the predictions `found` of one size, with close ones predicted over more iterations.
    `dense`: index of the uncompressed method; `again(number, factor)` predicts method `number` over
    `factor` times as many iterations."""
    known = list(found)
    for doubling in range(1, DOUBLINGS + 1):
        near = _near(known, dense)
        if not near:
            break
        for number in sorted(near):
            longer = again(number, 2**doubling)
            first = found[number]
            known[number] = replace(longer, spans=first.spans, sample_phase=first.sample_phase)
    return known


def _near(found: Sequence[Prediction], dense: int | None) -> set[int]:
    """Return methods of uncertain order relative to the fastest one, or around dense training."""
    order = sorted(range(len(found)), key=lambda number: found[number].iteration)
    pairs = [(order[0], number) for number in order[1:]]
    if dense is not None:
        pairs += [(number, dense) for number in order if number != dense][:1]
    return {number for pair in pairs if _open(*(found[n] for n in pair)) for number in pair}


def _open(one: Prediction, other: Prediction) -> bool:
    """Whether the order of two methods is uncertain and may matter."""
    doubt = ERRORS * error_of_difference(luck_of(one), luck_of(other))
    apart = abs(one.iteration - other.iteration)
    shortest = min(one.iteration, other.iteration)
    return doubt > 0 and apart <= doubt and apart + doubt > TIE * shortest


def luck_of(prediction: Prediction, scale: float = 1.0) -> Luck:
    """Return the statistics of a prediction's mean, times `scale`."""
    error = prediction.iteration_error
    return Luck(
        iterations=prediction.iterations,
        batches=tuple(scale * one for one in prediction.batches),
        error=None if error is None else scale * error,
    )
