"""Text of an advice for a terminal: about a dozen lines, the most important first.

Each section has a word in front and some parts after it, in the order of their importance. The
width wraps the text and selects nothing: every width shows the same words.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from gcsim.analysis.advice.advice import Advice, against
from gcsim.analysis.advice.deploy import paste, paste_plan
from gcsim.analysis.report.numbers import bits, duration, elapsed, significant, unit_of_time
from gcsim.analysis.report.trust import DENSE
from gcsim.analysis.report.wording import SENDS_NOTHING, uncompressed
from gcsim.scenarios import catalog
from gcsim.scenarios.advice.break_even import FASTEST, SLOWEST, BreakEven
from gcsim.scenarios.advice.changes import Change, Limits
from gcsim.scenarios.advice.per_bucket import Plan
from gcsim.scenarios.result import Row
from gcsim.scenarios.sections.link import carrier
from gcsim.simulator.network.links import Link

_INDENT = 10
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
    body = [line.replace("\N{NO-BREAK SPACE}", " ") for line in _wrapped(parts, room)]
    return [(word if n == 0 else "").ljust(_INDENT) + line for n, line in enumerate(body)]


def _sections(advice: Advice) -> Iterator[tuple[str, Sequence[str]]]:
    """Each section's word and its parts."""
    yield "Use", _use(advice)
    yield "Try", _try(advice)
    yield "Pays", _pays(advice)
    yield "First", _first(advice)
    yield "Limit", _limit(advice)
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


def _shortened(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 3].rstrip()}..."


def _name(row_or_label: Row | str) -> str:
    label = row_or_label if isinstance(row_or_label, str) else row_or_label.label
    return _shortened(label, _LONGEST)


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
    return f"{significant(found.speedup)}x {name}{within}, {chance} {_percent(found.probability)}"


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
    half = advice.half
    if use.compressor == DENSE and half is not None and half is not use:
        found.append(f"{_name(half)} {_compared(half, use, 'dense')}, not surely faster")
    return found


def _try(advice: Advice) -> list[str]:
    row = advice.to_try
    if row is None:
        rivals = [one for one in advice.verdict.rivals if one is not advice.use]
        if rivals:
            return [f"not clearly slower: {', '.join(map(_name, rivals[:3]))}"]
        if advice.scenario.cluster.workers > 1 and (why := uncompressed(advice.verdict)):
            return [why]
        return ["nothing: no method is clearly faster"]
    trust = "train before you trust it"
    if row.seeds_trained is not None:
        reached = f"{row.seeds_at_target} of {row.seeds_trained} seeds reach the target"
        steps = row.steps_to_target_vs_dense
        trust = f"{reached}, in {significant(steps)}x dense's steps" if steps else reached
    return [*_row(advice, row), trust]


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
        found[0] = f"below, in {unit}: {found[0]}"
    if always:
        found.append(f"at any rate: {', '.join(always)}")
    if never:
        found.append(f"never on {workers} workers: {', '.join(never)}")
    return found


_UNITS = (("Gbit/s", 1e9), ("Mbit/s", 1e6))


def _end(one: BreakEven, size: float) -> str:
    """ "Top-k 1 % 29 (26-50)" """
    assert one.rate is not None  # noqa: S101
    low, high = (one.low or one.rate), (one.high or one.rate)
    ends = _two(low / size), _two(high / size)
    within = "" if ends[0] == ends[1] else " ({}-{})".format(*ends)
    if high >= FASTEST:
        within = f" (from {ends[0]})"
    elif low <= SLOWEST:
        within = f" (to {ends[1]})"
    return f"{_name(one.label)} {_two(one.rate / size)}{within}"


def _two(value: float) -> str:
    """Two digits, or all whole ones."""
    return f"{value:.0f}" if value >= 99.5 else f"{value:.2g}"


def _first(advice: Advice) -> list[str]:
    dense = advice.verdict.dense
    if dense is None:
        return []
    found = [
        _change(advice, one, dense) for one in advice.changes if one.saves_s.get(dense.label, 0) > 0
    ]
    if not found:
        return [] if advice.scenario.cluster.workers == 1 else ["no change here saves 1 %"]
    found[0] = f"saved of dense's {elapsed(dense.iteration_s)}: {found[0]}"
    return found


def _change(advice: Advice, change: Change, dense: Row) -> str:
    """ "network x2 27.5 (19 %)", in the unit of dense's time"""
    saved = change.saves_s[dense.label]
    share = saved / dense.iteration_s
    cost, nodes = advice.scenario.cost_per_hour, advice.scenario.cluster.nodes
    money = "" if cost is None else f", {significant(share * cost * nodes)} an hour"
    note = f"; {change.note}" if change.note else ""
    _, in_a_second = unit_of_time(dense.iteration_s)
    return f"{change.words} {significant(saved * in_a_second)} ({_percent(share)}{money}{note})"


def _limit(advice: Advice) -> list[str]:
    found = [part for label, one in advice.limits.items() for part in _limited(label, one)]
    drawn = any(row.iteration_as_stated_s is not None for row in advice.verdict.rows)
    return [f"as stated, {found[0]}", *found[1:]] if found and drawn else found


def _limited(label: str, one: Limits) -> Iterator[str]:
    """ "dense waits 31.8 ms for the network (bytes 31.1 ms)", "PowerSGD encodes 4 ms" """
    whole = one.compute_s + one.waits_s + one.encode_s + one.decode_s
    if one.waits_s > _TOLD * whole:
        parts = (("bytes", one.bytes_s), ("latency", one.latency_s))
        named = [f"{word} {elapsed(value)}" for word, value in parts if value > _TOLD * whole]
        of = f" ({', '.join(named)})" if named else ""
        yield f"{_name(label)} waits {elapsed(one.waits_s)} for the network{of}"
    for word, value in (("encodes", one.encode_s), ("decodes", one.decode_s)):
        if value > _CODED * whole:
            yield f"{_name(label)} {word} {elapsed(value)}"


_TOLD, _CODED = 0.005, 0.02
"""Shares of an iteration from which a part is told."""


def _deploy(advice: Advice) -> list[str]:
    row = advice.use
    if row is None:
        return []
    choice = next((c for c in advice.scenario.compressors if c.label == row.label), None)
    lines = [] if choice is None else paste(choice)
    if len(lines) == 1:  # no code
        return lines if row.compressor == DENSE else [f"{_name(row)}: {lines[0]}"]
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
        found.append("traffic as shipped")
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
