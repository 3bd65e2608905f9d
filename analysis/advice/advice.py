"""Advice on a scenario, and its text for a terminal.

*Use* is the method with the least expected time to the goal of those that are known to train,
*Safe* that of those whose update is practically the dense one (`report/selection.py`), and every
number is the engine's. In the text each section has a word in front and some parts after it,
in the order of their importance; the width wraps the text and selects nothing.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gcsim.analysis.advice.paste import paste, paste_plan
from gcsim.analysis.report.comparison import probability_faster, ratio
from gcsim.analysis.report.numbers import bits, duration, elapsed, significant, unit_of_time
from gcsim.analysis.report.selection import Verdict, best_known, expected_s, largest_verdict
from gcsim.analysis.report.trust import DENSE
from gcsim.analysis.report.wording import SENDS_NOTHING, estimate, uncompressed
from gcsim.scenarios import catalog
from gcsim.scenarios.advice.asked import Asked
from gcsim.scenarios.advice.break_even import FASTEST, SLOWEST, BreakEven, break_even, rate_key
from gcsim.scenarios.advice.changes import LEAST, Change, Limits, changes, limits, plain
from gcsim.scenarios.advice.engine import Engine
from gcsim.scenarios.advice.per_bucket import Plan, can_share, plan
from gcsim.scenarios.progress import Progress, SilentProgress
from gcsim.scenarios.result import Result, Row
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.sections.link import carrier
from gcsim.scenarios.trained.evidence import Evidence, evidence_of
from gcsim.scenarios.trained.known import with_trained
from gcsim.simulator.network.links import Link

SCHEMA = 2
HALF = ("fp16", "torch_fp16", "bf16", "torch_bf16")
"""Methods that send half precision, the first one there is."""
_WELL_KNOWN = ("powersgd", "topk", "qsgd")
_BISECTED = 4
_PLANNED = 2
"""Methods whose mixture with dense buckets is looked for."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Advice:
    """Method to use on a cluster, and change that helps most."""

    scenario: Scenario
    result: Result
    """Result of the scenario at its largest size, as `gcsim run` has it."""
    verdict: Verdict
    break_even: tuple[BreakEven, ...] = ()
    """Break-evens of the advised methods, and of well-known ones, in bits a second."""
    changes: tuple[Change, ...] = ()
    """Changes that save time in the place of a compressor, most of dense training's first."""
    limits: Mapping[str, Limits] = field(default_factory=dict)
    """Parts of the time of dense training and of the advised methods, by label."""
    known: Mapping[str, Evidence] = field(default_factory=dict)
    """Evidence that a model trains with a method, by label, of those faster than the safe one."""
    plans: tuple[Plan, ...] | None = None
    """Plans with a method for each bucket, where they were asked for, the fastest first."""
    shipped: tuple[str, ...] = ()
    """Labels of methods whose traffic comes with gcsim."""
    measured: tuple[str, ...] = ()
    """Methods that were measured for this."""
    measured_s: float = 0.0

    @property
    def half(self) -> Row | None:
        """The row of half precision."""
        by_kind = {row.compressor: row for row in reversed(self.verdict.rows)}
        return next((by_kind[kind] for kind in HALF if kind in by_kind), None)

    @property
    def use(self) -> Row | None:
        """The method with the least expected time to the goal of those known to train."""
        return best_known(self.verdict, steps_of(self.verdict, self.known))

    @property
    def safe(self) -> Row | None:
        """The same of those whose update is practically the dense one."""
        return best_known(self.verdict, {})

    @property
    def to_try(self) -> Row | None:
        """The fastest to try, where that is another one and may pay."""
        found, use = self.verdict.to_try, self.use
        if found is None or use is None:
            return found
        return found if expected_s(found) < expected_s(use) else None

    def summary(self, width: int = 80) -> str:
        """Text that `gcsim advise` prints: about a dozen lines, wrapped and never cut."""

        return "\n".join(lines(self, width)) + "\n"

    def document(self) -> dict[str, Any]:
        """Plain values, as `--json` has them."""
        return {
            "schema": SCHEMA,
            "scenario": self.result.scenario,
            "use": self._told(self.use),
            "safe": self._told(self.safe),
            "known_to_train": {label: asdict(one) for label, one in self.known.items()},
            "to_try": self._told(self.to_try),
            "pays": self.verdict.pays,
            "rows": [self._told(row) for row in self.verdict.rows],
            "break_even_bit_per_s": [asdict(one) for one in self.break_even],
            "changes": [plain(one) for one in self.changes],
            "limits_s": {label: asdict(one) for label, one in self.limits.items()},
            **(
                {"plans": [self._planned(one) for one in self.plans]}
                if self.plans is not None
                else {}
            ),
            "profiles": {
                "shipped": list(self.shipped),
                "measured": list(self.measured),
            },
        }

    def to_json(self) -> str:
        """The same text for the same question."""
        text = json.dumps(self.document(), indent=1, allow_nan=False, ensure_ascii=False)
        return text + "\n"

    def _told(self, row: Row | None) -> dict[str, Any] | None:
        if row is None:
            return None
        dense, half = self.verdict.dense, self.half
        found: dict[str, Any] = {
            "label": row.label,
            "compressor": row.compressor,
            "iteration_s": row.iteration_s,
            "iteration_low_s": row.iteration_low_s,
            "iteration_high_s": row.iteration_high_s,
            "wire_bytes_per_worker": row.wire_bytes_per_worker,
            "nmse": row.nmse,
            "cosine_similarity": row.cosine_similarity,
        }
        for name, other in (("dense", dense), ("half_precision", half)):
            if other is not None and other is not row:
                found[f"against_{name}"] = asdict(against(row, other, dense))
        return found

    def _planned(self, one: Plan) -> dict[str, Any]:
        return {
            **(self._told(one.row) or {}),
            "label": one.label,
            "by_bucket": [choice.label for choice in one.choices],
            "alone": one.alone.label,
            "against_alone": asdict(against(one.row, one.alone)),
        }

    def __repr__(self) -> str:
        cluster, use = self.scenario.cluster, self.use
        where = f"{cluster.nodes} x {cluster.devices_per_node} {cluster.device.name}"
        return (
            f"<gcsim.Advice {self.scenario.model.name} on {where}: "
            f"use {use.label if use else 'nothing'}>"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """Speed of one method relative to another."""

    speedup: float
    """Median over the drawn worlds; until the target, where that is known of both."""
    low: float
    """10th percentile over the drawn worlds."""
    high: float
    """90th percentile."""
    probability: float
    """Probability that it is faster."""


def against(row: Row, other: Row, dense: Row | None = None) -> Against:
    """Compare a method with another; with dense training as its own row has it."""
    found, chance = ratio(row, other), probability_faster(row, other)
    low, middle, high = found.low, found.median, found.high
    if other is dense:
        ends = row.speedup_low, row.speedup_high
        if row.speedup_to_target is not None:
            ends = row.speedup_to_target_low, row.speedup_to_target_high
        middle = estimate(row) or middle
        low, high = ends[0] or low, ends[1] or high
    return Against(speedup=middle, low=low, high=high, probability=chance)


def advice(
    asked: Asked,
    *,
    cache: bool = True,
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda _: None,
    per_bucket: bool = False,
) -> Advice:
    """Return the advice for a scenario. Raises `InputError` as a run does.

    `per_bucket` asks for plans that give each bucket a method, too. `tell` is told what has to be
    measured, before that is done.
    """
    watcher = progress or SilentProgress()
    engine = Engine(asked, cache=cache, progress=watcher, tell=tell)
    result = with_trained(engine.scenario, engine.result())
    verdict = largest_verdict(result)
    found = Advice(
        scenario=engine.scenario,
        result=result,
        verdict=verdict,
        shipped=engine.came,
        measured=engine.measured,
        measured_s=engine.measured_s,
    )
    if verdict.dense is None or engine.scenario.cluster.workers == 1:
        return found
    safe = found.safe
    limit = math.inf if safe is None else expected_s(safe)
    faster = [row.label for row in verdict.rows if expected_s(row) < limit]
    found = replace(found, known=evidence_of(engine.scenario, faster))
    named = _named(found)
    ranked = _bisected(found) if rate_key(engine.scenario) else ()
    with watcher.task("advice", len(ranked) + 3) as task:
        ends = break_even(engine, ranked, named, task.advance)
        saved = changes(engine, named)
        task.advance()
        parts = limits(engine, named)
        task.advance()
    found = replace(found, break_even=tuple(ends), changes=tuple(saved), limits=parts)
    return replace(found, plans=tuple(_plans(engine, found, watcher))) if per_bucket else found


def steps_of(found: Verdict, known: Mapping[str, Evidence]) -> dict[str, float]:
    """Steps to the goal over dense training's, by label: of the scenario's own trainings, where
    every seed of them reached the target; of evidence where there are none."""
    steps = {label: one.steps_vs_dense for label, one in known.items()}
    for row in found.rows:
        if row.seeds_trained is not None:
            own = row.steps_to_target_vs_dense
            steps.pop(row.label, None)
            if own is not None and row.seeds_at_target == row.seeds_trained:
                steps[row.label] = own
    return steps


def _plans(engine: Engine, found: Advice, watcher: Progress) -> list[Plan]:
    """Plans of dense training and half precision, and of these with each of the fastest other
    methods that can share a model with them."""
    by_label = {choice.label: choice for choice in engine.scenario.compressors}
    exact = [row for row in (found.verdict.dense, found.half) if row is not None]
    base = [by_label[row.label] for row in exact]
    others = [
        by_label[row.label]
        for row in found.verdict.rows
        if row not in exact and row.label in by_label
    ]
    able = [choice for choice in others if can_share(choice)][:_PLANNED]
    plans = []
    with watcher.task("plans by bucket", 1 + len(able)) as task:
        for more in ((), *((choice,) for choice in able)):
            if len(base) + len(more) > 1:
                plans.append(plan(engine, [*base, *more]))
            task.advance()
    return sorted((one for one in plans if one), key=lambda one: one.row.iteration_s)


def _named(found: Advice) -> list[str]:
    """Methods that are advised, and half precision."""
    rows = (found.use, found.safe, found.to_try, found.half)
    dense = found.verdict.dense
    labels = (row.label for row in rows if row is not None and row is not dense)
    return list(dict.fromkeys(labels))


def _bisected(found: Advice) -> Sequence[str]:
    """Methods whose break-even is asked for: few, of which people have heard."""
    known = [
        next((row.label for row in found.verdict.rows if row.compressor == kind), None)
        for kind in _WELL_KNOWN
    ]
    labels = [*_named(found), *(label for label in known if label)]
    every = [row.label for row in found.verdict.rows if row is not found.verdict.dense]
    served = {row.label for row in found.verdict.rows if row.via and row.compressor == "none"}
    chosen = [label for label in dict.fromkeys([*labels, *every]) if label not in served]
    return chosen[:_BISECTED]


_INDENT = 14
_GAIN = 0.01
"""Share of the time from which a plan is called faster."""
_LONGEST = 26
"""Characters of a label; a longer one is shortened, at every width."""


def lines(advice: Advice, width: int = 80) -> list[str]:
    """The advice in lines of at most `width` cells, between 60 and 100; code to paste is one line
    for each of its lines, however long."""
    width = max(60, min(width, 100))
    found = textwrap.wrap(_header(advice), width, subsequent_indent=" " * _INDENT)
    for word, parts in _sections(advice):
        found += _section(word, parts, width - _INDENT)
    return found


def _section(word: str, parts: Sequence[str], room: int) -> list[str]:
    found: list[str] = []
    for line in _wrapped(parts, room):
        if isinstance(line, _Line):
            found += [f"    {line}"] if found else [word, f"    {line}"]
        else:
            label = "" if found else word
            found.append(label.ljust(_INDENT) + line.replace("\N{NO-BREAK SPACE}", " "))
    return found


def _sections(advice: Advice) -> Iterator[tuple[str, Sequence[str]]]:
    """Each section's word and its parts."""
    yield "Use", _use(advice)
    if advice.safe is not advice.use:
        yield "Safe", _safe(advice)
    yield "Try", _try(advice)
    yield "Break-even", _pays(advice)
    yield "Change first", _first(advice)
    yield "Bottleneck", _limit(advice)
    yield "Deploy", _deploy(advice)
    yield "Assumed", _assumed(advice)
    if advice.plans is not None:
        yield "By bucket", list(_by_bucket(advice.plans))


class _Line(str):
    """A line to paste: never wrapped or joined."""


def _wrapped(parts: Sequence[str], room: int) -> list[str]:
    """Parts joined by "; " in lines of at most `room` cells; one that fits a line is not broken,
    and one that ends in a line break is followed by a new line."""
    found: list[str] = []
    for number, part in enumerate(parts, start=1):
        if isinstance(part, _Line):
            found.append(part)
            continue
        text = part if part.endswith("\n") or number == len(parts) else f"{part};"
        joined = f"{found[-1]} {text}" if found and found[-1].endswith(";") else ""
        if joined and len(joined) <= room:
            found[-1] = joined
        else:
            found += textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
    return found


def _name(row_or_label: Row | str) -> str:
    label = row_or_label if isinstance(row_or_label, str) else row_or_label.label
    return label if len(label) <= _LONGEST else f"{label[: _LONGEST - 3].rstrip()}..."


def _header(advice: Advice) -> str:
    scenario, dense = advice.scenario, advice.verdict.dense
    cluster = scenario.cluster
    link = cluster.network if cluster.nodes > 1 else cluster.intra_node
    rate = bits(float(link.bandwidth)) if link.trace is None else link.name
    network = cluster.network.name if cluster.nodes > 1 else None
    now = f": dense {elapsed(dense.iteration_s)}" if dense is not None else ""
    return (
        f"{scenario.model.name}, batch {scenario.batch_size}, on {cluster.nodes} x "
        f"{cluster.devices_per_node} {cluster.device.name}, {rate}, "
        f"{carrier(cluster.collectives.transport, network)}{now}"
    )


def _compared(row: Row, other: Row, name: str) -> str:
    """ "1.22x dense (1.02-1.32), P(pays) 98 %" """
    found = against(row, other, other if name == "dense" else None)
    low, high = significant(found.low), significant(found.high)
    within = f" ({low}-{high})" if low != high else ""
    chance = "P(pays)" if name == "dense" else "P"
    draws = len(row.iteration_draws_s)
    return f"{significant(found.speedup)}x {name}{within}, {chance} {_chance(found, draws)}"


def _chance(found: Against, draws: int) -> str:
    """A probability of 0 or 1 in so many draws is a bound, by Laplace's rule of succession."""
    least = 1 / (draws + 2) if draws > 1 else 0.0
    if least and found.probability > 1 - least:
        return f"over {_percent(math.floor(100 * (1 - least)) / 100)}"
    if least and found.probability < least:
        return f"under {_percent(math.ceil(100 * least) / 100)}"
    return _percent(found.probability)


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", "\N{NO-BREAK SPACE}%")


def _row(advice: Advice, row: Row) -> Iterator[str]:
    """A method against dense training and half precision."""
    dense, half = advice.verdict.dense, advice.half
    first = f"{_name(row)}: {elapsed(row.iteration_s)}"
    if dense is not None and row is not dense:
        first += f", {_compared(row, dense, 'dense')}"
    yield first
    if half is not None and row is not half and row is not dense:
        yield _compared(row, half, "half precision")


def _use(advice: Advice) -> list[str]:
    use = advice.use
    if use is None:
        return ["no method here can train"]
    found = list(_row(advice, use))
    if advice.scenario.cluster.workers == 1:
        return [*found, SENDS_NOTHING]
    if use is advice.safe:
        half = advice.half
        if use.compressor == DENSE and half is not None and half is not use:
            found.append(f"{_name(half)} {_compared(half, use, 'dense')}")
        return found
    return [*found, _known(advice, use)]


def _known(advice: Advice, row: Row) -> str:
    """ "known to train: ResNet-50, ImageNet, 8 to 64 GPUs: 76.3 to 76.8 % (dense 76.2 %)" """
    steps = steps_of(advice.verdict, advice.known).get(row.label, 1.0)
    shown = advice.known.get(row.label)
    words = _seeds(row) if row.seeds_trained is not None or shown is None else shown.words
    more = f", in {significant(steps)}x dense's steps" if steps != 1 and shown is not None else ""
    return f"known to train: {words}{more}"


def _safe(advice: Advice) -> list[str]:
    use, safe = advice.use, advice.safe
    if use is None or safe is None:
        return []
    if safe is advice.verdict.dense:
        found = [f"{_name(safe)}: {elapsed(safe.iteration_s)}"]
    else:
        found = list(_row(advice, safe))
    steps = steps_of(advice.verdict, advice.known).get(use.label, 1.0)
    left = expected_s(safe) / (expected_s(use) * steps)
    return [*found, f"leaves {significant(left)}x on the table"] if left > _LEFT else found


_LEFT = 1.3
"""Expected time of the safe method over that of the one to use, from which it is said."""


def _try(advice: Advice) -> list[str]:
    row = advice.to_try
    if row is None:
        rivals = [one for one in advice.verdict.rivals if one is not advice.use]
        if rivals:
            return [f"may be as fast: {', '.join(map(_name, rivals[:3]))}"]
        if advice.scenario.cluster.workers > 1 and (why := uncompressed(advice.verdict)):
            return [why]
        return ["nothing: no method is clearly faster"]
    trust = "train before you trust it" if row.seeds_trained is None else _seeds(row)
    return [*_row(advice, row), trust]


def _seeds(row: Row) -> str:
    """ "3 of 3 seeds reach the target, in 1.07x dense's steps" """
    reached = f"{row.seeds_at_target} of {row.seeds_trained} seeds reach the target"
    steps = row.steps_to_target_vs_dense
    return f"{reached}, in {significant(steps)}x dense's steps" if steps else reached


def _pays(advice: Advice) -> list[str]:
    ends = [one for one in advice.break_even if one.rate is not None]
    never = [_name(one.label) for one in advice.break_even if one.rate is None and not one.pays]
    always = [_name(one.label) for one in advice.break_even if one.rate is None and one.pays]
    workers = advice.scenario.cluster.workers
    found = []
    if ends:
        slowest = min(one.rate for one in ends if one.rate is not None)
        unit, size = next(((unit, size) for unit, size in _UNITS if slowest >= size), _UNITS[-1])
        found = [_end(one, size) for one in ends]
        found[0] = f"in {unit}, {found[0]}"
    if always:
        found.append(f"at any rate: {', '.join(always)}")
    if never:
        found.append(f"never on {workers} workers: {', '.join(never)}")
    return found


_UNITS = (("Gbit/s", 1e9), ("Mbit/s", 1e6))


def _end(one: BreakEven, size: float) -> str:
    """ "Top-k 1 % pays below 29 (26-50)" """
    assert one.rate is not None  # noqa: S101
    low, high = (one.low or one.rate), (one.high or one.rate)
    ends = _two(low / size), _two(high / size)
    within = "" if ends[0] == ends[1] else " ({}-{})".format(*ends)
    if high >= FASTEST:
        within = f" (from {ends[0]})"
    elif low <= SLOWEST:
        within = f" (to {ends[1]})"
    return f"{_name(one.label)} pays below {_two(one.rate / size)}{within}"


def _two(value: float) -> str:
    """Two digits, or all whole ones."""
    return f"{value:.0f}" if value >= 99.5 else f"{value:.2g}"


def _first(advice: Advice) -> list[str]:
    dense = advice.verdict.dense
    if dense is None:
        return []
    found = [
        _change(advice, one, dense)
        for one in advice.changes
        if one.saves_s.get(dense.label, 0) > LEAST * dense.iteration_s
    ]
    if not found:
        return [] if advice.scenario.cluster.workers == 1 else ["no change here saves 1 %"]
    return found


def _change(advice: Advice, change: Change, dense: Row) -> str:
    """ "twice the bandwidth would save 27.5 ms (19 %)" of dense training's time"""
    saved = change.saves_s[dense.label]
    share = saved / dense.iteration_s
    cost, nodes = advice.scenario.cost_per_hour, advice.scenario.cluster.nodes
    money = "" if cost is None else f", {significant(share * cost * nodes)} an hour"
    note = f", {change.note}" if change.note else ""
    unit, in_a_second = unit_of_time(dense.iteration_s)
    time = f"{significant(saved * in_a_second)} {unit}"
    return f"{change.words} would save {time} ({_percent(share)}{money}{note})"


def _limit(advice: Advice) -> list[str]:
    found = [part for label, one in advice.limits.items() if (part := _limited(label, one))]
    drawn = any(row.iteration_as_stated_s is not None for row in advice.verdict.rows)
    return [f"with the default inputs, {found[0]}", *found[1:]] if found and drawn else found


def _limited(label: str, one: Limits) -> str:
    """ "dense waits 31.8 ms for the network (bandwidth 31.1 ms), encodes 4 ms" """
    whole = one.compute_s + one.waits_s + one.encode_s + one.decode_s
    found = []
    if one.waits_s > _TOLD * whole:
        parts = (("bandwidth", one.bytes_s), ("latency", one.latency_s))
        named = [f"{word} {elapsed(value)}" for word, value in parts if value > _TOLD * whole]
        of = f" ({', '.join(named)})" if named else ""
        found.append(f"waits {elapsed(one.waits_s)} for the network{of}")
    codes = (("encodes", one.encode_s), ("decodes", one.decode_s))
    found += [f"{word} {elapsed(value)}" for word, value in codes if value > _CODED * whole]
    return f"{_name(label)} {', '.join(found)}" if found else ""


_TOLD, _CODED = 0.005, 0.02
"""Shares of an iteration from which a part is named."""


def _deploy(advice: Advice) -> list[str]:
    row = advice.use
    if row is None:
        return []
    choice = next((c for c in advice.scenario.compressors if c.label == row.label), None)
    lines = [] if choice is None else paste(choice)
    if len(lines) == 1:  # no code
        return lines if row.compressor == DENSE else [f"{_name(row)}: {lines[0]}"]
    safe = advice.safe
    if safe is not None and safe is not row:
        hook = f'gcsim.ddp_hook("{safe.compressor}").register(model)'
        lines.append(f"# Safe: {'no hook' if safe.compressor == DENSE else hook}")
    return [_Line(line) for line in lines]


def _by_bucket(plans: Sequence[Plan]) -> Iterator[str]:
    """The fastest plan, if it is faster than its methods alone, and how to use it."""
    if not plans:
        yield "nothing to choose: one bucket, or no other method that fits"
        return
    best = plans[0]
    mixed = len({choice.label for choice in best.choices}) > 1
    if not mixed:
        yield f"no mixture is faster than {_name(best.alone)} for all {len(best.choices)} buckets"
        return
    kinds = list(dict.fromkeys(reversed([choice.label for choice in best.choices])))
    shares = ", ".join(f"{_name(label)} {_percent(best.share(label))}" for label in kinds)
    found, alone = against(best.row, best.alone), f"{_name(best.alone)} for all"
    gain = _compared(best.row, best.alone, alone)
    if found.speedup < 1 + _GAIN:
        ends = "-".join(significant(end) for end in (found.low, found.high))
        gain = f"as fast as {alone} ({ends}x)"
    yield f"{elapsed(best.row.iteration_s)}, {gain}\n"
    yield f"of the gradient: {shares}\n"
    yield from map(_Line, paste_plan(best.choices))


def _assumed(advice: Advice) -> list[str]:
    cluster = advice.scenario.cluster
    link = cluster.network if cluster.nodes > 1 else cluster.intra_node
    found = [_link(link)] if cluster.workers > 1 else []
    if cluster.workers > 1 and (remote := f"{_kind(link)}_roce") in catalog.links():
        found.append(f"RDMA: {remote}")
    if advice.shipped:
        found.append("shipped traffic profiles")
    if cluster.devices_per_node > 1 and cluster.nodes > 1:
        found.append(f"{cluster.intra_node.name} in a node")
    found.append(advice.scenario.training.precision)
    return found


def _kind(link: Link) -> str:
    """The entry of the catalogue that it is like."""
    return link.name.removesuffix(", changed")


def _link(link: Link) -> str:
    """Latency and goodput, with the ranges that are drawn from."""
    text = f"{_kind(link)}: latency {duration(float(link.latency))}"
    if link.latency_range is not None:
        low, high = (duration(float(end)) for end in link.latency_range)
        text += f" ({low.removesuffix(high[-3:])}-{high})"
    if link.trace is None:
        text += f", goodput {_percent(float(link.efficiency))}"
        if link.efficiency_range is not None:
            low, high = (f"{float(end):.0%}" for end in link.efficiency_range)
            text += f" ({low.rstrip('%')}-{high.rstrip('%')})"
    return text
