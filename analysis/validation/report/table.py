"""Words and cells of a validation's page: errors, bounds, choices, and legends of the tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, median

from gcsim.analysis.report.numbers import plural, significant
from gcsim.analysis.validation import suite as suites
from gcsim.analysis.validation.decisions import Decisions
from gcsim.analysis.validation.judge import Kept
from gcsim.analysis.validation.leaving_out import LeftOut, base_rate, brier, reliability
from gcsim.analysis.validation.statistics import grouped


def percent(share: float) -> str:
    """Format percent without the sign, which is in the heading: "0.3", "7.2", "123"."""
    value = abs(share) * 100
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def signed(share: float) -> str:
    """Format percent with plus or minus: "+1.2", "-0.4"."""
    return ("-" if share < 0 else "+") + percent(share)


_SMALLER = {
    "s": (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)),
    "bytes": (("MB", 1e6), ("kB", 1e3), ("B", 1.0)),
    "B/s": (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3), ("B/s", 1.0)),
}


def value(number: float, unit: str) -> str:
    """Format a value with its unit: "12.3 ms", "4.70 GB/s", "812 samples/s"."""
    units = _SMALLER.get(unit, ((unit, 1.0),))
    name, size = next((one for one in units if number >= one[1]), units[-1])
    return f"{significant(number / size)} {name}".strip()


BOUNDS = ("bound", "reached", "required", "kept")


def bound_cells(kept: Kept) -> tuple[str, ...]:
    """Return a bound, the value reached, the one required, and whether the bound holds."""
    bound, count = kept.bound, kept.points
    limit = f"{bound.limit * 100:g} %"
    share = f"{percent(kept.reached)} %"
    at_most = f"at most {limit}"
    if bound.target is not None and kept.reached > bound.target:
        at_most += f"; target of {bound.target * 100:g} % missed"
    said = {
        "statements": (f"{round(kept.reached * count) if count else 0} of {count}", "all"),
        "decisions": (f"{share} of {plural(count, 'choice')} right", f"at least {limit}"),
        "ordering": (f"{share} of {plural(count, 'pair')} right", f"at least {limit}"),
        "pairs": (f"{share} of {plural(count, 'pair')} right", f"at least {limit}"),
        "regret": (f"mean {share} over {plural(count, 'setting')}", at_most),
        "alarms": (f"{share} of {plural(count, 'method')}", at_most),
    }
    name = "90th percentile" if bound.statistic == "p90" else "median"
    alone = kept.unfitted
    bare = "" if alone is None else f" (catalogue alone: {percent(alone)} %)"
    errors = f"{name} {share} of {plural(count, 'point')}{bare}", at_most
    reached, required = said.get(bound.statistic, errors)
    return bound.name, reached, required, "yes" if kept.kept else "BROKEN"


POINTS = ("measurement", "measured", "predicted", "error [%]", "source")


def point_rows(points: Sequence[suites.Point]) -> Iterator[tuple[str, ...]]:
    """Yield each measurement with its prediction; one used in a fit has no error."""
    for point in points:
        error = "fit" if point.fitted else signed(point.error)
        values = value(point.measured, point.unit), value(point.predicted, point.unit)
        yield point.name, *values, error, _linked(point.source)


def _linked(source: str) -> str:
    """Return a citation as a link, if it has an address."""
    words, _, address = source.partition(", http")
    return f"[{words}](http{address.split(',')[0]})" if address else source


def fit_text(findings: suites.Findings) -> str:
    """Return a sentence on the number of fitted factors and points."""
    served = sum(point.fitted for point in findings.points)
    given = sum(factor.given for factor in findings.factors)
    text = f"fitted: {plural(len(findings.factors) - given, 'factor')}"
    if given:
        text += f", and {plural(given, 'figure')} given"
    return f"{text}, on {plural(served, 'point')}"


def ordering_text(one: suites.Ordering) -> str:
    """Return a sentence on expected order, computed order, and pairs that disagree."""
    expected = " > ".join(" = ".join(group) for group in one.expected)
    found = sorted(one.values.items(), key=lambda item: -item[1])
    values = ", ".join(f"{name} {significant(value)}" for name, value in found)
    text = f"{one.name}: {expected} ({one.source}); here {values}"
    if one.wrong:
        pairs = ", ".join(f"{better} over {worse}" for better, worse in one.wrong)
        text += f"; reversed: {pairs}"
    return text


def decisions_text(found: Decisions) -> str:
    """Return a sentence on the number of right choices."""
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
    "Training steps predicted from the catalogue alone, without the source's own rates of the "
    "device, and with measured passes stated; factors on whole steps are as wide as the other "
    "sources require. error: median of the absolute error. held: inside the 80 % range. gains: "
    "speedups over dense. Brier score: mean squared difference between P(faster than dense) and "
    "0 or 1; of base rate: that of always stating the share that paid off. In all: means over "
    "sources; choices are pooled."
)


def left_out_rows(found: Sequence[LeftOut]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each source, then of all."""

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
    """Yield the cells by range of predicted probability."""
    for low, high, count, share in reliability([each for one in found for each in one.pays]):
        yield f"{100 * low:.0f} to {100 * high:.0f} %", str(count), f"{100 * share:.0f}"


REGRET = ("settings", "mean [%]", "worst [%]", "Use there [%]")
REGRET_LEGEND = (
    "Regret: how much longer an iteration took with the chosen method than with the fastest one "
    "measured, in percent; mean and worst over the settings that have the method, and the mean of "
    "Use over the same settings."
)


def regret_rows(regrets: Sequence[suites.Regret]) -> Iterator[tuple[str, ...]]:
    """Yield rule, settings, mean, worst, and the mean of Use; each source starts with its name."""
    before = ""
    for one in regrets:
        if one.source != before:
            yield one.source, *[""] * len(REGRET)
        means = percent(one.mean), percent(one.worst), percent(one.use)
        yield f"- {one.rule}", str(one.settings), *means
        before = one.source


AGREEMENT = ("as dense", "false alarms", "too short", "pairs", "too short", "Spearman")
AGREEMENT_LEGEND = (
    "As dense: methods that most published findings put within 1 % of dense training, and for "
    "which the task has enough steps; in all, findings of other fields and optimizers count for "
    "methods without one in the task's own. False alarms: those of them that miss its target. Too "
    "short: methods, or pairs, for which the task has too few steps. Pairs (right / reversed / "
    "alike): two methods of a setting whose published figures differ by more than 1 %, and by more "
    "than two deviations of the setting's own noise. Right: the seeds separate them in the "
    "published order; reversed: in the other order (paired t-test, Holm's correction for the pairs "
    "of a setting, 10 %); alike: the seeds do not separate them. Spearman: rank correlation of the "
    "published figures with the task's final measure, mean over seeds; the median over "
    "settings of six methods or more, most pairs of which differ in print, where the seeds agree "
    "on an order (Friedman's test, 10 %; in parentheses: how many settings do). Tasks named "
    "after a paper are compared with that paper alone. pairs.csv has every pair with its figures."
)


def agreement_rows(agreements: Sequence[suites.Agreement]) -> Iterator[tuple[str, ...]]:
    """Yield a row per task, then rows of its own settings and of all."""
    before = ""
    for one in agreements:
        if one.task != before:
            yield one.task, *[""] * len(AGREEMENT)
            before = one.task
        if not (one.pairs or one.reported or one.reported_short):
            continue  # nothing published
        verdicts = f"{one.count('right')} / {one.count('reversed')} / {one.count('alike')}"
        rank = f"{median(one.ranks):.2f}" if one.ranks else "-"
        counts = one.reported, len(one.alarms), one.reported_short
        spanning = f"{rank} ({len(one.ranks)} of {one.spanning})"
        short = str(one.count("too short"))
        yield f"- {one.compared}", *map(str, counts), verdicts, short, spanning


_ORDERS: tuple[suites.Verdict, ...] = ("right", "reversed")
SEPARATED = ("setting", *_ORDERS)


def separated_rows(agreement: suites.Agreement) -> Iterator[tuple[str, ...]]:
    """Yield a setting's pairs that the seeds separate, the published better method first."""
    for setting, pairs in grouped(agreement.pairs, lambda pair: pair.setting).items():
        cells = [_pairs_text(pair for pair in pairs if pair.verdict == one) for one in _ORDERS]
        if any(cells):
            yield setting, *cells


def _pairs_text(pairs: Iterable[suites.Pair]) -> str:
    """Return pairs as a cell: "dense > topk, qsgd; topk > qsgd"."""
    better = grouped(pairs, lambda pair: pair.better)
    return "; ".join(f"{one} > {', '.join(p.worse for p in own)}" for one, own in better.items())


def alarm_lines(agreements: Sequence[suites.Agreement]) -> Iterator[str]:
    """Yield the false alarms of each task by name."""
    for one in agreements:
        if one.alarms:
            yield f"False alarms of {one.task} ({one.compared}): {', '.join(one.alarms)}"


def point_text(point: suites.Point) -> str:
    """Return a point's name, error and both values."""
    return (
        f"{point.name}: {signed(point.error)} % ({value(point.predicted, point.unit)} for "
        f"{value(point.measured, point.unit)})"
    )
