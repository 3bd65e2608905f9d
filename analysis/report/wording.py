"""Names of rows, lists and proportions in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gcsim.analysis.report import intervals
from gcsim.analysis.report.numbers import percent, significant, times
from gcsim.analysis.report.selection import UNLIKELY, Verdict
from gcsim.scenarios.result import Result, Row, estimate
from gcsim.scenarios.uncertainty.close_pairs import TIE
from gcsim.simulator.luck import as_probability
from gcsim.simulator.training import DENSE

SENDS_NOTHING = "a single worker sends nothing, so there is nothing to compress"
CLOSE = "too close to call"
LONGEST = 26  # characters of a label; longer ones are shortened at every width


def short(row_or_label: Row | str) -> str:
    """Label, shortened if long."""
    label = row_or_label if isinstance(row_or_label, str) else row_or_label.label
    if label == DENSE:
        return "dense"
    return label if len(label) <= LONGEST else f"{label[: LONGEST - 3].rstrip()}..."


def steps_as_dense(ratio: float) -> str:
    """ "2.00 times as many steps as dense" """
    factor = significant(ratio)
    return f"{'' if factor == '1.00' else f'{factor} times '}as many steps as dense"


def uncompressed(found: Verdict) -> str:
    """Reason to train without compression; empty with a method to try or no dense row."""
    best, chance = found.best, found.probability
    if found.dense is None or found.to_try is not None:
        return ""
    if found.rows[0].workers == 1:
        why = SENDS_NOTHING
    elif best is None or chance is None:
        why = "no method here supports this training"
    elif found.pays == "no":
        why = f"no method is more than {percent(TIE)} faster"
    else:
        slows = "probably slows" if chance <= UNLIKELY else "may slow"
        against = f"{times(estimate(best) or 0.0)} dense"
        likely = chance_of(chance, len(best.iteration_draws_s))
        why = f"{short(best)} {slows} this down ({against}{likely})"
    return f"train uncompressed: {why}"


def chance_of(probability: float, draws: int) -> str:
    """ ", faster in 98 % of draws", "at least 99 %" at `as_probability`'s bound; "" for certainty
    without draws."""
    share = percent(probability)
    if draws <= 1:
        return f", {share} likely to be faster" if 0 < probability < 1 else ""
    ends = (
        ("at least ", probability >= as_probability(1)),
        ("at most ", probability <= as_probability(0)),
    )
    bound = "".join(word for word, reached in ends if reached)
    return f", faster in {bound}{share} of draws"


def advantage(row: Row) -> str:
    """The speedup that a method is judged by, with its range: "1.88x (1.80-1.95)"; "" without a
    dense row."""
    if row.speedup_to_target is not None:
        known = intervals.within(intervals.to_target_known(row))
        return f"{times(row.speedup_to_target)} to the target{known}"
    if row.speedup_vs_dense is None:
        return ""
    return f"{times(row.speedup_vs_dense)}{intervals.within(intervals.speedup_known(row))}"


def input_named(name: str) -> str:
    """An uncertain input's name in a sentence: "the error of predicted speedups"."""
    ratio = name.removeprefix("measured ")
    what = ratio.partition(" over ")[0].replace("gains of compression", "speedups")
    return name if ratio == name else f"the error of predicted {what}"


def to_narrow(measure: str) -> str:
    """Instruction to measure an uncertain input: "run gcsim calibrate link"."""
    if measure.startswith("gcsim "):
        return f"run {measure}"
    return measure if measure.startswith("time ") else f"state {measure}"


def listed(names: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def name_of(row: Row) -> str:
    """A row's label, as it can stand in a sentence."""
    return "dense training" if row.label == DENSE else row.label


def spread(result: Result, rows: Iterable[Row]) -> list[str]:
    """Kind of times of these rows, where iterations differ."""
    ranges = [f"{row.label} {intervals.range_of(row)}" for row in rows if intervals.range_of(row)]
    if not ranges:
        return []
    return one_iteration(result) or [
        f"These are {intervals.averaged(result)}; nine in ten take: {', '.join(ranges)}."
    ]


def one_iteration(result: Result) -> list[str]:
    """Note that one iteration may be luck, if iterations differ."""
    if result.rows[0].iteration_error_s is None and intervals.number(result) == "1 iteration":
        return ["Each time is that of one random iteration. Increase training.iterations."]
    return []
