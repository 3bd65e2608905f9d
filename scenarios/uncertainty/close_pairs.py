"""Pairs of methods that luck decides: more iterations, until they are told apart.

Only methods that may be fastest, or as fast as uncompressed training, are simulated for longer, up
to `DOUBLINGS`; what stays open is reported as open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gcsim.simulator.luck import Luck, error_of_difference

if TYPE_CHECKING:
    from gcsim.simulator.predict import Prediction

DOUBLINGS = 3
ERRORS = 2  # standard errors of a difference that luck may explain
TIE = 0.01  # relative difference below which the order does not matter


def resolve_close_pairs(
    found: Sequence[Prediction], dense: int | None, again: Callable[[int, int], Prediction]
) -> list[Prediction]:
    """Predictions of all methods at one size, close ones over more iterations. `dense`: number of
    the uncompressed method; `again(number, factor)` predicts a method over `factor` times the
    iterations."""
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
    """The fastest and its rivals; the fastest but dense, and dense if it is a rival."""
    order = sorted(range(len(found)), key=lambda number: found[number].iteration)
    pairs = [(order[0], number) for number in order[1:]]
    if dense is not None:
        pairs += [(number, dense) for number in order if number != dense][:1]
    return {number for pair in pairs if _open(*(found[n] for n in pair)) for number in pair}


def _open(one: Prediction, other: Prediction) -> bool:
    """Whether luck leaves the order open, beyond a tie."""
    doubt = ERRORS * error_of_difference(luck_of(one), luck_of(other))
    apart = abs(one.iteration - other.iteration)
    shortest = min(one.iteration, other.iteration)
    return doubt > 0 and apart <= doubt and apart + doubt > TIE * shortest


def luck_of(prediction: Prediction) -> Luck:
    """Statistics of a prediction's mean."""
    return Luck(
        iterations=prediction.iterations,
        batches=prediction.batches,
        error=prediction.iteration_error,
    )
