"""Advice on a scenario: the verdict of a run, up to which rate it holds, and what could be changed.

The method to use is the one that a run of the same scenario recommends (`report/selection.py`), and
every number is the engine's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gcsim.analysis.report.comparison import probability_faster, ratio
from gcsim.analysis.report.selection import Verdict, largest_verdict
from gcsim.analysis.report.wording import estimate
from gcsim.scenarios.advice.asked import Asked
from gcsim.scenarios.advice.break_even import BreakEven, break_even, rate_key
from gcsim.scenarios.advice.changes import Change, Limits, changes, limits, plain
from gcsim.scenarios.advice.engine import Engine
from gcsim.scenarios.advice.per_bucket import Plan, can_share, plan
from gcsim.scenarios.progress import Progress, SilentProgress
from gcsim.scenarios.result import Result, Row
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.trained.known import with_trained

SCHEMA = 2
HALF = ("fp16", "torch_fp16", "bf16", "torch_bf16")
"""Methods that send half precision, the first one there is."""
_WELL_KNOWN = ("powersgd", "topk", "qsgd")
_BISECTED = 4
_PLANNED = 2
"""Methods whose mixture with dense buckets is looked for."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Advice:
    """What to use on a cluster, and what to change first."""

    scenario: Scenario
    result: Result
    """Of the scenario at its largest size, as `gcsim run` has it."""
    verdict: Verdict
    break_even: tuple[BreakEven, ...] = ()
    """Of the methods that are advised, and of well-known ones; in bits a second."""
    changes: tuple[Change, ...] = ()
    """What saves time in the place of a compressor, most of dense training's first."""
    limits: Mapping[str, Limits] = field(default_factory=dict)
    """By label, of dense training and of the methods that are advised: where the time goes."""
    plans: tuple[Plan, ...] | None = None
    """Where they were asked for: a method for each bucket, the fastest plan first."""
    shipped: tuple[str, ...] = ()
    """Labels of methods whose traffic comes with gcsim."""
    measured: tuple[str, ...] = ()
    """Of those that were measured for this."""
    measured_s: float = 0.0

    @property
    def half(self) -> Row | None:
        """The row of half precision."""
        by_kind = {row.compressor: row for row in reversed(self.verdict.rows)}
        return next((by_kind[kind] for kind in HALF if kind in by_kind), None)

    @property
    def use(self) -> Row | None:
        """What is safe to use: a method whose update is practically the dense one, and that surely
        pays; else uncompressed training."""
        found = self.verdict
        return found.safe or found.dense or found.to_try

    @property
    def to_try(self) -> Row | None:
        """The fastest to try, where that is another one and may pay."""
        found = self.verdict.to_try
        return None if found is self.use else found

    def summary(self, width: int = 80) -> str:
        """Text that `gcsim advise` prints: about a dozen lines, wrapped and never cut."""
        from gcsim.analysis.advice.words import lines

        return "\n".join(lines(self, width)) + "\n"

    def document(self) -> dict[str, Any]:
        """Plain values, as `--json` has them."""
        return {
            "schema": SCHEMA,
            "scenario": self.result.scenario,
            "use": self._told(self.use),
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
    """How many times as fast one method is as another."""

    speedup: float
    """Median over the drawn worlds; until the target, where that is known of both."""
    low: float
    """10th percentile over the drawn worlds."""
    high: float
    """90th percentile."""
    probability: float
    """That it is faster."""


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


def _plans(engine: Engine, found: Advice, watcher: Progress) -> list[Plan]:
    """Of dense training and half precision, and of these and each of the fastest other methods
    that can share a model with them."""
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
    rows = (found.use, found.to_try, found.half)
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
