"""The answer in sections: what to use, what to try, when that pays, what to change first.

*Use* is the method with the least expected time to the goal among those known to train, *Safe* the
same among methods with practically the dense update (`report/selection.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gcsim.analysis.report.comparison import probability_faster, ratio
from gcsim.analysis.report.numbers import elapsed, percent, significant, unit_of_time, wrapped
from gcsim.analysis.report.paste import LOCAL, hook_ends, paste, ranks_per_part
from gcsim.analysis.report.selection import Verdict, best_known, expected_s, steps_of
from gcsim.analysis.report.trust import is_safe
from gcsim.analysis.report.wording import (
    CLOSE,
    SENDS_NOTHING,
    chance_of,
    listed,
    short,
    steps_as_dense,
    uncompressed,
)
from gcsim.scenarios.advice.changes import LEAST
from gcsim.scenarios.advice.slowest_link import UPLINKS
from gcsim.scenarios.catalog import implementations
from gcsim.scenarios.findings import FASTEST, BreakEven, Change, Findings, Limits
from gcsim.scenarios.result import Result, Row, estimate, highest_to_target
from gcsim.scenarios.scenario import CompressorChoice
from gcsim.scenarios.sections.link import carrier
from gcsim.simulator.training import DENSE

Section = tuple[str, Sequence[str]]  # a word and its parts
HALF = ("fp16", "torch_fp16", "bf16", "torch_bf16")
"""Methods that send half precision, the preferred one first."""
TRUST = "train before you trust it"
INDENT = 14
WIDEST = 100  # cells of the longest line on a wide terminal


@dataclass(frozen=True, kw_only=True, repr=False)
class Recommendation:
    """A result, and the advised methods at its largest size."""

    result: Result
    verdict: Verdict

    @property
    def findings(self) -> Findings:
        """Break-evens, changes, limits and evidence; empty unless requested."""
        return self.result.advice or Findings()

    @property
    def workers(self) -> int:
        """Number of workers at the largest size."""
        return self.verdict.rows[0].workers

    @property
    def cost_per_hour(self) -> float | None:
        """Cost per hour of all nodes, if stated."""
        cost = self.result.scenario.get("cost")
        return cost["per_hour"] * self.verdict.rows[0].nodes if cost else None

    @property
    def half(self) -> Row | None:
        """Row of a method that sends half precision, if there is one."""
        by_kind = {row.compressor: row for row in reversed(self.verdict.rows)}
        return next((by_kind[kind] for kind in HALF if kind in by_kind), None)

    @property
    def use(self) -> Row | None:
        """Method with the least expected time to the goal among those known to train."""
        alone = self.verdict.dense if self.workers == 1 else None
        return alone or best_known(self.verdict, steps_of(self.verdict, self.findings.known))

    @property
    def safe(self) -> Row | None:
        """Method with the least expected time to the goal whose update is practically dense."""
        alone = self.verdict.dense if self.workers == 1 else None
        return alone or best_known(self.verdict, {})

    @property
    def to_try(self) -> Row | None:
        """Method to try that may be faster than the one to use; None if there is none."""
        found, use = self.verdict.to_try, self.use
        if found is None or use is None:
            return found
        return found if expected_s(found) < expected_s(use) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """Speed of one method relative to another."""

    speedup: float  # median over the drawn worlds; to the target if known for both methods
    low: float  # 10th percentile over the drawn worlds
    high: float  # 90th percentile
    probability: float  # probability that it is faster


def against(row: Row, other: Row, dense: Row | None = None) -> Against:
    """Compare two methods; against `dense`, with the numbers that the row itself has."""
    found, chance = ratio(row, other), probability_faster(row, other)
    low, middle, high = found.low, found.median, found.high
    if other is dense:
        ends = row.speedup_low, row.speedup_high
        if row.speedup_to_target is not None:
            ends = row.speedup_to_target_low, highest_to_target(row)
        middle = estimate(row) or middle
        low, high = ends[0] or low, ends[1] or high
    return Against(speedup=middle, low=low, high=high, probability=chance)


def answer_sections(advice: Recommendation) -> Iterator[Section]:
    """Yield the sections that the answers of `gcsim advise`, of a run and of its report share."""
    sections = (
        ("Use", _use(advice)),
        ("Safe", _safe(advice) if advice.safe is not advice.use else []),
        ("Try", _try(advice)),
        ("Break-even", _pays(advice)),
        ("Change first", _first(advice)),
        ("Bottleneck", _limit(advice)),
        ("Deploy", _deploy(advice)),
    )
    return (section for section in sections if section[1])


def section_lines(word: str, parts: Sequence[str], width: int) -> list[str]:
    """Return a section in lines of at most `width` cells; each `Line` stays whole."""
    found: list[str] = []
    for line in _wrapped(parts, width - INDENT):
        if isinstance(line, Line):
            found += [f"    {line}"] if found else [word, f"    {line}"]
        else:
            label = "" if found else word
            found.append(label.ljust(INDENT) + line.replace("\N{NO-BREAK SPACE}", " "))
    return found


def join_parts(parts: Sequence[str]) -> str:
    """Join parts to one sentence with "; ", but with a space after a colon."""
    return "; ".join(parts).replace(":; ", ": ")


class Line(str):
    """A line of code to paste, never wrapped or joined."""


def _wrapped(parts: Sequence[str], room: int) -> list[str]:
    """Join parts by "; " to lines of at most `room` cells. A part that fits in a line is not
    broken; a part that ends in a line break or colon ends its line."""
    found: list[str] = []
    for number, part in enumerate(parts, start=1):
        if isinstance(part, Line):
            found.append(part)
            continue
        text = part if part.endswith(("\n", ":")) or number == len(parts) else f"{part};"
        longer = f"{found[-1]} {text}" if found and found[-1].endswith(";") else ""
        if longer and len(longer) <= room:
            found[-1] = longer
        else:
            found += wrapped(text, room)
    return found


def comparison_text(row: Row, other: Row, name: str) -> str:
    """ "1.22x dense (1.02-1.32), faster in 98 % of draws" """
    found = against(row, other, other if name == "dense" else None)
    low, high = significant(found.low), significant(found.high)
    within = f" ({low}-{high})" if low != high else ""
    chance = chance_of(found.probability, len(row.iteration_draws_s))
    return f"{significant(found.speedup)}x {name}{within}{chance}"


def _row(advice: Recommendation, row: Row) -> Iterator[str]:
    """Yield a method's time and its speedups over dense training and over the safe method."""
    dense, safe = advice.verdict.dense, advice.safe
    yield f"{short(row)}: {elapsed(row.iteration_s)}"
    if dense is not None and row is not dense:
        yield comparison_text(row, dense, "dense")
        apart = dense.iteration_s / row.iteration_s
        if (
            row.speedup_to_target is None
            and row.speedup_vs_dense
            and abs(math.log(apart / row.speedup_vs_dense)) > _SKEWED
        ):
            yield f"the two median times differ by {significant(apart)}x"
    if safe is not None and row not in (safe, dense) and safe is not dense:
        yield comparison_text(row, safe, short(safe))


def _use(advice: Recommendation) -> list[str]:
    use = advice.use
    if use is None:
        return ["no method here can train"]
    found = list(_row(advice, use))
    if advice.workers == 1:
        return [*found, SENDS_NOTHING]
    if use is advice.safe:
        half = advice.half
        if use.compressor == DENSE and half is not None and half is not use:
            chance = against(half, use, use).probability
            if _OPEN < chance < 1 - _OPEN:
                draws = f"{short(half)} is faster in {percent(chance)} of draws"
                found.append(f"{CLOSE}: {draws}")
            else:
                found.append(f"{short(half)}: {comparison_text(half, use, 'dense')}")
        return found
    return [*found, _training_evidence(advice, use)]


def _training_evidence(advice: Recommendation, row: Row) -> str:
    """ "trained elsewhere: ResNet-50, ImageNet, 64 GPUs: 76.8 % (dense 76.2 %)"; of a row's own
    training "trained: 3 of 3 seeds reach the target" """
    shown = advice.findings.known.get(row.label)
    if row.seeds_trained is not None or shown is None:
        return f"trained: {_seeds(row)}"
    steps = shown.steps_vs_dense
    more = f", in {steps_as_dense(steps)}" if steps != 1 else ""
    return f"trained elsewhere: {shown.words}{more}"


def _safe(advice: Recommendation) -> list[str]:
    use, safe = advice.use, advice.safe
    if use is None or safe is None:
        return []
    if safe is advice.verdict.dense:
        found = [f"{short(safe)}: {elapsed(safe.iteration_s)}"]
    else:
        found = list(_row(advice, safe))
    steps = steps_of(advice.verdict, advice.findings.known).get(use.label, 1.0)
    mean, best = expected_s(safe), expected_s(use)
    if mean <= _LEFT * best * steps:
        return found
    more = f" in {steps_as_dense(steps)}" if steps != 1 else ""
    return [*found, f"mean {elapsed(mean)}, that of {short(use)} {elapsed(best)}{more}"]


_SKEWED = 0.1  # relative difference of two estimates of one figure that is mentioned
_OPEN = 0.05  # probability of being faster above which a method is too close to call
_LEFT = 1.3  # ratio of the safe method's expected time to the used one's that is mentioned


def _try(advice: Recommendation) -> list[str]:
    row = advice.to_try
    if advice.workers == 1 or len(advice.verdict.rows) == 1:
        return []
    if row is None:
        rivals = [one for one in advice.verdict.rivals if one is not advice.use]
        if rivals:
            return [f"may be as fast: {', '.join(map(short, rivals[:3]))}"]
        return [uncompressed(advice.verdict) or "nothing: no other method is clearly faster"]
    if row.seeds_trained is not None:
        return [*_row(advice, row), _seeds(row)]
    if is_safe(row):
        return [*_row(advice, row)]
    missed = advice.findings.missed.get(row.label)
    elsewhere = [f"trained elsewhere: {missed}"] if missed else []
    if row.label in advice.findings.known:
        elsewhere = [_training_evidence(advice, row)]
    return [*_row(advice, row), *elsewhere, TRUST]


def _seeds(row: Row) -> str:
    """ "3 of 3 seeds reach the target, in 1.07 times as many steps as dense" """
    reached = f"{row.seeds_at_target} of {row.seeds_trained} seeds reach the target"
    steps = row.steps_to_target_vs_dense
    return f"{reached}, in {steps_as_dense(steps)}" if steps else reached


def _pays(advice: Recommendation) -> list[str]:
    if why := advice.findings.no_break_even:
        return [f"not computed: {why}"]
    named = {row.label for row in (advice.use, advice.safe, advice.to_try) if row is not None}
    known = advice.findings.break_even
    ends = [one for one in known if one.rate is not None]
    ends = [one for one in ends if one.label in named] or ends
    never = [short(one.label) for one in known if one.rate is None and not one.pays]
    always = [one for one in known if one.rate is None and one.pays]
    found = list(map(_end, ends))
    sure = [short(one.label) for one in always if not _least(one)]
    tried = f"at any rate tried, up to {_rate(FASTEST)}"
    if sure:
        found.append(f"{listed(sure)} {tried}")
    found += [f"{short(one.label)} {tried}{least}" for one in always if (least := _least(one))]
    if never:
        found.append(f"{listed(never)} never on {advice.workers} workers")
    shown = [*ends, *always]
    ranges = " (80 % range)" if any(one.low != one.high for one in shown) else ""
    slowest = advice.findings.slowest
    at = f"these rates of {slowest}" if slowest else "this link's goodput"
    return [f"faster than dense at {at}{ranges}:", *found] if found else []


def _end(one: BreakEven) -> str:
    """ "Top-k 1 % below 29 Gbit/s (26-50)" """
    assert one.rate is not None  # noqa: S101
    size = _unit(one.rate)[1]
    low, high = (one.low or one.rate), (one.high or one.rate)
    ends = _two(low / size), _two(high / size)
    within = "" if ends[0] == ends[1] else " ({}-{})".format(*ends)
    if one.low_open and one.high_open:
        within = " (or any other rate)"
    elif one.high_open:
        within = f" ({_rate(low)} or more)"
    elif one.low_open:
        within = f" ({_rate(high)} or less)"
    return f"{short(one.label)} {'above' if one.above else 'below'} {_rate(one.rate)}{within}"


def _least(one: BreakEven) -> str:
    """ " (410 Gbit/s or more)": the 10th percentile, if it is within the rates tried."""
    return f" ({_rate(one.low)} or more)" if one.low is not None and one.low < FASTEST else ""


def _rate(value: float) -> str:
    unit, size = _unit(value)
    return f"{_two(value / size)} {unit}"


def _unit(value: float) -> tuple[str, float]:
    return ("Gbit/s", 1e9) if value >= 1e9 else ("Mbit/s", 1e6)


def _two(value: float) -> str:
    """Format with two digits, or with all integer digits."""
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.2g}"


def _first(advice: Recommendation) -> list[str]:
    dense = advice.verdict.dense
    if dense is None or advice.result.advice is None:
        return []
    found = [
        _change(advice, one, dense)
        for one in advice.findings.changes
        if one.saves_s.get(dense.label, 0) > LEAST * dense.iteration_s
    ]
    now = f"dense takes {elapsed(dense.iteration_s)}; time saved by:"
    return [now, *found] if found else ["no change here saves 1 %"]


def _change(advice: Recommendation, change: Change, dense: Row) -> str:
    """ "twice the bandwidth: 27.5 ms (19 %)" of dense training's time"""
    saved = change.saves_s[dense.label]
    share = saved / dense.iteration_s
    cost = advice.cost_per_hour
    money = "" if cost is None else f", {significant(share * cost)} per hour"
    note = f"; {change.note}" if change.note else ""
    unit, in_a_second = unit_of_time(dense.iteration_s)
    time = f"{significant(saved * in_a_second)} {unit}"
    return f"{change.words}: {time} ({percent(share)}{money}{note})"


def _limit(advice: Recommendation) -> list[str]:
    """Return the bottlenecks of dense training and of the method to use."""
    first = [row for row in (advice.verdict.dense, advice.use) if row is not None]
    limits = advice.findings.limits
    link = "bus" if advice.result.rows[-1].nodes == 1 else "network"
    slowest = advice.findings.slowest
    rest = other_causes(advice.result.scenario, link, slowest) if limits else ""
    kinds = {row.label: row.compressor for row in first}
    training: Any = advice.result.scenario.get("training", {})
    code = COPIES if training.get("strategy") in _RESHARDS else HOOKS
    found = [
        bottleneck_text(label, limits[label], link, slowest, rest, code if kind == DENSE else None)
        for label, kind in kinds.items()
        if label in limits
    ]
    found = [part for part in found if part]
    dense = advice.verdict.dense
    if found and dense is not None and dense.iteration_draws_s:
        stated = dense.iteration_as_stated_s or dense.iteration_s
        differs = abs(stated - dense.iteration_s) > _SKEWED * dense.iteration_s
        time = f" ({elapsed(stated)})" if differs else ""
        found[0] = f"with default inputs{time}, {found[0]}"
    return found


HOOKS, COPIES = "in gradient hooks and bucket copies", "copying weights and gradients"
"""Tasks of dense training besides its passes, with DDP and with FSDP."""


def bottleneck_text(  # noqa: PLR0917 - parts of one sentence
    label: str, one: Limits, link: str, slowest: str, rest: str, code: str | None
) -> str:
    """ "PowerSGD spends 22 % of its time waiting for the network (bandwidth 20 %), 4 % encoding".
    `slowest` is from `Findings`; `rest` names the causes of the wait that remains with infinite
    bandwidth and no latency."""
    whole = one.compute_s + one.waits_s + one.encode_s + one.decode_s
    found: list[tuple[float, str]] = []
    if one.waits_s > _NAMED * whole:
        other = one.waits_s - max(0.0, one.bytes_s) - max(0.0, one.latency_s)
        of = f" of {slowest}" if slowest else ""
        parts = (
            (f"bandwidth{of}", one.bytes_s, _NAMED),
            (f"latency{of}", one.latency_s, _NAMED),
            (rest, other, _OTHER),
        )
        split = bool(one.bytes_s or one.latency_s)  # unlike nodes: no single rate sets the time
        known = [(word, value) for word, value, least in parts if split and value > least * whole]
        alone = len(known) == 1 and known[0][1] > _ALONE * one.waits_s and known[0][0] != rest
        each = " alone" if other < -_NAMED * whole else ""  # the two savings overlap
        causes = ", ".join(f"{word}{each} {percent(value / whole)}" for word, value in known)
        cause = f"the {link} ({causes})" if known else f"the {link}"
        if alone:
            cause = f"the {known[0][0]}" if slowest else f"the {link}'s {known[0][0]}"
        found.append((one.waits_s, f"waiting for {cause}"))
    codes = [(one.encode_s, "encoding"), (one.decode_s, "decoding")]
    if code:
        codes = [(one.encode_s + one.decode_s, code)]
    found += [(value, word) for value, word in codes if value > _CODED * whole]
    shares = [percent(value / whole) for value, _ in found]
    shares[:1] = [f"{share} of its time" for share in shares[:1]]
    said = (f"{share} {word}" for share, (_, word) in zip(shares, found, strict=True))
    return f"{short(label)} spends {', '.join(said)}" if found else ""


def other_causes(scenario: Mapping[str, Any], link: str, slowest: str) -> str:
    """Return the causes of a wait for a link other than its bandwidth and latency: "Gloo's calls,
    copies and sums"; `slowest` is from `Findings`."""
    cluster, training = scenario["cluster"], scenario["training"]
    transport = cluster["collectives"]["transport"]
    library = "the library" if transport in ("textbook", "custom") else carrier(transport, None)
    nccl = transport == "nccl"  # it adds on the GPU
    noise = training.get("noise") or {}
    chances = any(noise.get(key) for key in ("variation", "skew", "slow_probability"))
    uplinks = slowest in UPLINKS.values()
    slow = "groups" in cluster or {"slow_nodes", "slow_workers"} & {*training}
    more = {
        "the bus": link == "network" and cluster["devices_per_node"] > 1,
        "the NICs": uplinks,
        "the uplinks": "racks" in cluster and not uplinks,
        "the other NICs": slowest != "" and not uplinks,
        "the servers": "servers" in cluster["collectives"],
        "the slowest rank": chances or slow,
    }
    calls = f"{library}'s {'calls' if nccl else 'calls, copies and sums'}"
    return listed([calls, *(word for word, present in more.items() if present)])


_NAMED, _CODED = 0.005, 0.02  # shares of an iteration from which parts are named
_OTHER = 0.05  # the same for waits that neither more bandwidth nor no latency would shorten
_ALONE = 0.95  # share of the wait for the network above which only this cause is named


_RESHARDS = {"zero2": False, "zero3": True, "hsdp": True}
"""Whether FSDP frees a unit's weights after the forward pass, by strategy."""
_IN_A_BYTE = {
    "fp8": "torchao's enable_fsdp_float8_all_gather",
    "int8": "DeepSpeed's zero_quantized_weights",
}
_TYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def _fully_sharded(training: Any, cluster: Any, row: Row) -> list[str]:
    """Return code with PyTorch's FSDP; a method that FSDP lacks gets a comment on where it goes."""
    passes = _TYPES[training.get("precision", "fp32")]
    inside = training["strategy"] == "hsdp"
    known = {DENSE, *_TYPES}
    lines = [
        "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard",
        f"types = MixedPrecisionPolicy(param_dtype=torch.{passes}, "
        f"reduce_dtype=torch.{_reduced(training, row)})",
    ]
    mesh = ""
    if inside:
        sizes = f"({row.nodes}, {cluster['devices_per_node']})"
        lines[1:1] = [
            "from torch.distributed.device_mesh import init_device_mesh",
            f'mesh = init_device_mesh("cuda", {sizes}, mesh_dim_names=("nodes", "gpus"))',
        ]
        mesh = "mesh=mesh, " if row.compressor in known else 'mesh=mesh["gpus"], '
    reshards: bool | int = _RESHARDS[training["strategy"]]
    if training.get("secondary"):  # to the devices of a node
        reshards = cluster["devices_per_node"]
    again = training.get("checkpointing", "none")
    if again != "none":
        lines[:0] = [
            "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import "
            "checkpoint_wrapper"
        ]
        wrapped = "model.layers = torch.nn.ModuleList(map(checkpoint_wrapper, model.layers))"
        some = "  # with context_fn: create_selective_checkpoint_contexts of torch.utils.checkpoint"
        lines.append(wrapped + (some if again == "selective" else ""))
    lines += [
        "for module in [*model.layers, model]:  # the model's blocks, then the whole",
        f"    fully_shard(module, {mesh}mp_policy=types, reshard_after_forward={reshards})",
    ]
    if training.get("gathered", "stored") != "stored":
        lines.append(f"# weights in {training['gathered']}: {_IN_A_BYTE[training['gathered']]}")
    if row.compressor not in known:
        own = "set_all_reduce_hook" if inside else "set_custom_reduce_scatter"
        lines.append(f"# {row.label}: your own code in FSDPModule.{own}")
    return lines


def _reduced(training: Any, row: Row) -> str:
    """Return the type in which FSDP reduces gradients."""
    stored = _TYPES[training.get("gradients", "fp32")]
    return _TYPES.get(row.compressor, stored)


def _deploy(advice: Recommendation) -> list[str]:
    row = advice.use
    if row is None:
        return []
    lines = _pasted(advice, row)
    training: Any = advice.result.scenario.get("training", {})
    if training.get("strategy") == "zero1" and advice.workers > 1:
        kind = "AdamW" if training.get("optimizer_state", "adam") == "adam" else "SGD"
        lines = [
            *(lines if row.compressor != DENSE else ()),
            "from torch.distributed.optim import ZeroRedundancyOptimizer",
            f"optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.{kind}, lr=lr)",
        ]
    sharded = training.get("strategy") in _RESHARDS and advice.workers > 1
    if sharded:
        lines = _fully_sharded(training, advice.result.scenario["cluster"], row)
    others = [
        f"{one.title} would take {elapsed(one.iteration_s)}"
        f" ({implementations.KEY}: {one.implementation})"
        for one in advice.findings.other_code
    ]
    if len(lines) <= 1:  # no code
        named = "" if row.compressor == DENSE else f"{short(row)}: "
        return [*(f"{named}{one}" for one in lines), *others]
    safe = advice.safe
    if safe is not None and safe is not row:
        dense = safe.compressor == DENSE
        code = "no hook" if dense else "".join(_pasted(advice, safe)[-1:])
        if sharded:
            code = f"reduce_dtype=torch.{_reduced(training, safe)}"
        lines += [f"# Safe: {code}"] if code else []
    if "servers" in advice.result.scenario["cluster"]["collectives"]:
        lines.append("# the times are with parameter servers, which DDP does not have")
    return [Line(line) for line in (*lines, *(f"# {one}" for one in others))]


def _pasted(advice: Recommendation, row: Row) -> list[str]:
    """Return Python code for a row's method; empty if the scenario does not list the row."""
    scenario: Any = advice.result.scenario
    training = scenario.get("training", {})
    if training.get("local_steps", 1) > 1 and row.compressor != DENSE:
        return [LOCAL]
    arguments = hook_ends(training.get("between", ""), ranks_per_part(scenario))
    for one in scenario.get("compressors", ()):
        if one["label"] == row.label:
            kind, code = one["kind"], one.get(implementations.KEY, "")
            given = implementations.parameters(one)
            choice = CompressorChoice(
                kind=kind, label=row.label, parameters=given, implementation=code
            )
            return paste(choice, arguments)
    return []
