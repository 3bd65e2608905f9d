"""Words and cells of a validation's page: errors, bounds, choices, and legends of its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, median

from gcsim.analysis.report.numbers import plural, significant
from gcsim.analysis.validation import suite as suites
from gcsim.analysis.validation.decisions import Decisions
from gcsim.analysis.validation.judge import Kept
from gcsim.analysis.validation.leaving_out import LeftOut, base_rate, brier, reliability


def percent(share: float) -> str:
    """Percent without its sign, which stands in the heading: "0.3", "7.2", "123"."""
    value = abs(share) * 100
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def signed(share: float) -> str:
    """A number with its sign: "+1.2", "-0.4"."""
    return ("-" if share < 0 else "+") + percent(share)


def value(point: suites.Point, number: float) -> str:
    """Value in a unit for people: "12.3 ms", "812 samples/s"."""
    if point.unit == "s":
        for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
            if number >= size or unit == "us":
                return f"{significant(number / size)} {unit}"
    if point.unit == "bytes":
        for unit, size in (("MB", 1e6), ("kB", 1e3), ("B", 1.0)):
            if number >= size or unit == "B":
                return f"{significant(number / size)} {unit}"
    return f"{significant(number)} {point.unit}"


def bound_text(kept: Kept) -> str:
    """A bound and the value reached, in a line."""
    word, bound = "kept  " if kept.kept else "BROKEN", kept.bound
    reached = f"{percent(kept.reached)} %"
    least = f"at least {bound.limit:.0%} asked"
    if bound.statistic == "statements":
        said = f"{round(kept.reached * kept.points)} of {kept.points}"
    elif bound.statistic == "alarms":
        many = round(kept.reached * kept.points) if kept.points else 0
        said = f"{many} of {plural(kept.points, 'method')}, at most {bound.limit:.0%} asked"
        if bound.target is not None and kept.reached > bound.target:
            said += f"; the target of {bound.target:.0%} is missed"
    elif bound.statistic == "regret":
        over = plural(kept.points, "setting")
        said = f"{reached} over {over}, at most {bound.limit:.0%} asked"
    elif bound.statistic == "decisions":
        said = f"{reached} of {plural(kept.points, 'choice')} right, {least}"
    elif bound.statistic in ("ordering", "pairs"):
        said = f"{reached} of {plural(kept.points, 'pair')} right, {least}"
    else:
        said = _error_text(kept)
    return f"{word} {bound.name}: {said}"


def _error_text(kept: Kept) -> str:
    alone, target = kept.unfitted, kept.bound.target
    bare = "" if alone is None else f" ({percent(alone)} % by the catalogue alone)"
    missed = target is not None and kept.reached > target
    what = "90th percentile" if kept.bound.statistic == "p90" else "median"
    return (
        f"{what} {percent(kept.reached)} % of {plural(kept.points, 'point')}{bare}, "
        f"at most {kept.bound.limit * 100:g} % asked"
        f"{f'; the target of {target:.0%} is missed' if missed else ''}"
    )


def fit_text(findings: suites.Findings) -> str:
    """The fit's freedom, in a sentence."""
    served = sum(point.fitted for point in findings.points)
    given = sum(factor.given for factor in findings.factors)
    text = f"fitted: {plural(len(findings.factors) - given, 'factor')}"
    if given:
        text += f", and {plural(given, 'figure')} given"
    return f"{text}, on {plural(served, 'point')}"


def ordering_text(one: suites.Ordering) -> str:
    """Expected and found order and the pairs that disagree, in a sentence."""
    expected = " > ".join(" = ".join(group) for group in one.expected)
    found = sorted(one.values.items(), key=lambda item: -item[1])
    values = ", ".join(f"{name} {significant(value)}" for name, value in found)
    text = f"{one.name}: {expected} ({one.source}); here {values}"
    if one.wrong:
        pairs = ", ".join(f"{better} over {worse}" for better, worse in one.wrong)
        text += f"; not so: {pairs}"
    return text


def decisions_text(found: Decisions) -> str:
    """The number of right choices, in a sentence."""
    parts = []
    if found.decided:
        text = f"{found.right} of {found.decided} right (faster than dense, yes or no)"
        if found.ties:
            text += f", {plural(found.ties, 'tie')} left out"
        if found.unfitted_decided:
            text += f"; by the catalogue alone {found.unfitted_right} of {found.unfitted_decided}"
        always = "yes" if 2 * found.faster > found.decided else "no"
        text += f"; always saying {always}: {found.commoner}"
        if found.wrong:
            text += "; wrong: " + ", ".join(point.name for point in found.wrong[:4])
            text += f" and {len(found.wrong) - 4} more" if len(found.wrong) > 4 else ""
        parts.append(text)
    if found.fastest:
        parts.append(
            f"the fastest method is right in {found.fastest_right} of "
            f"{plural(found.fastest, 'setting')}; the predicted one is "
            f"{percent(found.regret)} % slower than the fastest on average"
        )
    return "; ".join(parts)


LEFT_OUT = (
    "steps", "error [%]", "held [%]", "gains", "held [%]", "choices", "Brier score", "of base rate",
)  # fmt: skip
LEFT_OUT_LEGEND = (
    "Training steps by the catalogue alone, its own rates of the device "
    "left out, and with own passes stated; factors on whole steps are as wide as the other sources "
    "ask for. error: median of the absolute error. held: inside the 80 % range. gains: speedups "
    "over dense. Brier score: mean squared difference of P(faster than dense) from 0 or 1, "
    "beside that of always saying the share that paid. In all: means of the sources; choices "
    "together."
)


def left_out_rows(found: Sequence[LeftOut]) -> Iterator[tuple[str, ...]]:
    """Cells of each source, and in all."""

    def held(share: float, count: int) -> str:
        return f"{100 * share:.0f}" if count else "-"

    def scores(pays: Sequence[tuple[float, bool]]) -> tuple[str, str, str]:
        if not pays:
            return "-", "-", "-"
        return str(len(pays)), f"{brier(pays):.3f}", f"{base_rate(pays):.3f}"

    gaining = [one for one in found if one.gains]
    for one in found:
        yield (
            one.source, str(one.steps), percent(one.error), held(one.steps_held, one.steps),
            str(one.gains or "-"), held(one.gains_held, one.gains), *scores(one.pays),
        )  # fmt: skip
    yield (
        "in all", str(sum(one.steps for one in found)), percent(fmean(one.error for one in found)),
        held(fmean(one.steps_held for one in found), 1), str(sum(one.gains for one in found)),
        held(fmean(one.gains_held for one in gaining or found), len(gaining)),
        *scores([each for one in found for each in one.pays]),
    )  # fmt: skip


def reliability_rows(found: Sequence[LeftOut]) -> Iterator[tuple[str, ...]]:
    """Cells by predicted probability."""
    for low, high, count, share in reliability([each for one in found for each in one.pays]):
        yield f"{100 * low:.0f} to {100 * high:.0f} %", str(count), f"{100 * share:.0f}"


REGRET = ("settings", "mean [%]", "worst [%]", "Use there [%]")
REGRET_LEGEND = (
    "Regret: how much longer an iteration of the chosen method took than one of the fastest "
    "measured, in percent; mean and worst over the settings that have the method, and the mean of "
    "Use over the same settings."
)


def regret_rows(regrets: Sequence[suites.Regret]) -> Iterator[tuple[str, ...]]:
    """Rule, settings, mean, worst, and the mean of Use; a row before each source."""
    before = ""
    for one in regrets:
        if one.source != before:
            yield one.source, *[""] * len(REGRET)
        means = percent(one.mean), percent(one.worst), percent(one.use)
        yield f"- {one.rule}", str(one.settings), *means
        before = one.source


AGREEMENT = (
    "as dense", "false alarms", "too short", "pairs: right / wrong / alike", "too short",
    "Spearman (settings)",
)  # fmt: skip
AGREEMENT_LEGEND = (
    "As dense: methods that most published findings have within 1 % of dense training, and of "
    "which the task's steps tell; false alarms: of these, those that do not reach its target; too "
    "short: methods, and pairs, of which its steps do not tell. pairs: methods with figures more "
    "than 1 % apart, or two deviations of a setting's own noise; right, wrong: the seeds tell them "
    "apart (paired t-test, Holm's correction for the pairs of a setting, 10 %), in the published "
    "order or against it; alike: they do not. Spearman: rank correlation of figures with the "
    "task's measure at the end, mean over seeds; median over settings of six methods, most pairs "
    "of which are apart in print, where the seeds agree on an order (Friedman's test, 10 %; in "
    "parentheses: such settings, of how many). Tasks named after a paper train in its "
    "settings alone."
)


def agreement_rows(agreements: Sequence[suites.Agreement]) -> Iterator[tuple[str, ...]]:
    """A row a task, then its field's and all fields'."""
    before = ""
    for one in agreements:
        if one.task != before:
            yield one.task, *[""] * len(AGREEMENT)
        many = {verdict: str(len(pairs)) for verdict, pairs in one.pairs.items()}
        told = " / ".join(many[verdict] for verdict in ("right", "wrong", "alike"))
        rank = f"{median(one.ranks):.2f}" if one.ranks else "-"
        counts = one.reported, len(one.alarms), one.reported_short
        spanning = f"{rank} ({len(one.ranks)} of {one.spanning})"
        yield f"- {one.field}", *map(str, counts), told, many["too short"], spanning
        before = one.task


def alarm_lines(agreements: Sequence[suites.Agreement]) -> Iterator[str]:
    """False alarms of each task by name."""
    for one in agreements:
        if one.alarms and one.field == suites.IN_ALL:
            yield f"false alarms of {one.task}: {', '.join(one.alarms)}"


def named(point: suites.Point) -> str:
    """A point with its error and both values."""
    return (
        f"{point.name}: {signed(point.error)} % ({value(point, point.predicted)} for "
        f"{value(point, point.measured)})"
    )
