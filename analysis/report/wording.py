"""How are rows named, listed and put into proportion in a sentence?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gcsim.analysis.report.dispersion import averaged, number, range_of
from gcsim.analysis.report.trust import DENSE
from gcsim.scenarios.result import Result, Row


def listed(names: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def name_of(row: Row) -> str:
    """A row's label, where that can stand in a sentence."""
    return "dense training" if row.label == DENSE else row.label


def spread(result: Result, rows: Iterable[Row]) -> list[str]:
    """What kind of times these rows have, where iterations differ."""
    ranges = [f"{row.label} {range_of(row)}" for row in rows if range_of(row)]
    if not ranges:
        return []
    return one_iteration(result) or [
        f"These are {averaged(result)}; nine in ten take: {', '.join(ranges)}."
    ]


def one_iteration(result: Result) -> list[str]:
    """That a single iteration, where they differ, may be luck."""
    if result.rows[0].iteration_error_s is None and number(result) == "1 iteration":
        return ["Each time is of one iteration, which may be luck. Set training.iterations higher."]
    return []
