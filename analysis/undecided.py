"""What is said where nobody knows which is fastest, for luck or for what the device may be?"""

from __future__ import annotations

from gcsim.analysis.known import GIVEN, iteration_known, speedup_known
from gcsim.analysis.numbers import plural, times
from gcsim.analysis.phrases import listed, name_of, spread, within
from gcsim.analysis.selection import Best, told_apart
from gcsim.analysis.spread import mean_of, number
from gcsim.scenarios.result import Result, Row

MORE = "Set training.iterations higher to tell them apart."
MEASURE = "Measured figures of the device would tell them apart; results.json lists the estimates."
NAMED = 5
"""Methods that are named of those that cannot be told apart."""


def undecided(result: Result, where: str, found: Best, dense: Row | None) -> list[str]:
    """No winner: what cannot be told apart, and what can be said of it all the same."""
    unclear = found.unclear
    # dense is what the others are compared with: it is named, however many they are
    shown = list(unclear[:NAMED])
    if dense is not None and dense in unclear and dense not in shown:
        shown[-1] = dense
    left = len(unclear) - len(shown)
    labels = [name_of(row) for row in shown] + ([f"{plural(left, 'other')}"] if left else [])
    means = ", ".join(f"{row.label} {mean_of(row)}{within(iteration_known(row))}" for row in shown)
    reasons = [
        *(["their means differ by less than two standard errors"] if found.by_luck else []),
        *(["each may be the fastest within the device's ranges"] if found.by_device else []),
    ]
    sentences = [
        f"{where} {listed(labels)} cannot be told apart {given(result, found)}: "
        f"{listed(reasons)}. An iteration takes: {means}."
    ]
    more = " ".join([*([MORE] if found.by_luck else []), *([MEASURE] if found.by_device else [])])
    if dense in unclear:
        sentences.append(f"So it is not known whether compression pays. {more}")
    elif dense is not None:
        faster = [row for row in shown if told_apart(row, dense)]
        speeds = ", ".join(
            f"{row.label} {times(dense.iteration_s / row.iteration_s)}{within(speedup_known(row))}"
            for row in faster
        )
        pays = f"Faster than {name_of(dense)} ({mean_of(dense)}): {speeds}. " if faster else ""
        sentences.append(pays + more)
    else:
        sentences.append(
            f"The scenario has no row of kind `none`, so there is no speedup to state. {more}"
        )
    return [*sentences, *spread(result, shown[:2])]


def given(result: Result, found: Best) -> str:
    """What would have to be known better to tell rows apart: "with 100 iterations"."""
    luck = [f"with {number(result)}"] if found.by_luck else []
    return listed([*luck, *([GIVEN] if found.by_device else [])])
