"""Advice on a scenario: the answer of a run, and changes to the cluster or training that help.

Every number comes from the engine. In the text each section starts with a word and lists its parts
by importance; the width only wraps the text and drops nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcsim.analysis.advice.setting import NOT_CHECKED, SUPPOSED, assumed, header
from gcsim.analysis.report import sections, selection
from gcsim.analysis.report.comparison import ratio
from gcsim.analysis.report.numbers import elapsed, percent, significant, wrapped
from gcsim.analysis.report.paste import hook_ends, paste_plan
from gcsim.analysis.report.selection import (
    Verdict,
    best_known,
    expected_s,
    largest_verdict,
    steps_of,
    verdict,
)
from gcsim.analysis.report.table import bottleneck
from gcsim.analysis.report.trust import is_safe
from gcsim.analysis.report.wording import listed, short
from gcsim.files import json_text
from gcsim.scenarios.advice.break_even import break_even, no_break_even
from gcsim.scenarios.advice.changes import changes, limits
from gcsim.scenarios.advice.engine import Engine, KnownTraffic
from gcsim.scenarios.advice.open_questions import is_choice, open_questions, to_find_out
from gcsim.scenarios.advice.other_code import other_code
from gcsim.scenarios.advice.question import SUPPOSED_LOOP, Question, Words, question_about
from gcsim.scenarios.advice.slowest_link import slowest_link
from gcsim.scenarios.checks.fits import checkpointed, gib, span
from gcsim.scenarios.findings import Answer, Findings, OpenAdvice, OtherCode
from gcsim.scenarios.progress import Progress, SilentProgress
from gcsim.scenarios.result import Result, Row
from gcsim.scenarios.run import measured_run
from gcsim.scenarios.running import result_cache
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.sections.passes import measured_passes
from gcsim.scenarios.trained.evidence import evidence_of, for_and_against
from gcsim.traces.profile import PassTimes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gcsim.scenarios.advice.per_bucket import Plan

SCHEMA = 2
_WELL_KNOWN = ("powersgd", "topk", "qsgd")
_BISECTED = 4
_OF_GROUPS = 3  # the same with unlike groups of nodes, where a rate takes up to a second
_PLANNED = 2  # number of methods that are tried in a mixture with dense buckets


@dataclass(frozen=True, kw_only=True, repr=False)
class Advice(sections.Recommendation):
    """Method to use on a cluster, and the change that helps most."""

    scenario: Scenario  # restricted to its largest cluster size
    plans: tuple[Plan, ...] | None = None  # per-bucket plans if requested, fastest first
    shipped: tuple[str, ...] = ()  # methods whose traffic profile ships with gcsim
    measured: tuple[str, ...] = ()  # methods whose traffic was measured for this advice
    measured_s: float = 0.0
    supposed: tuple[str, ...] = ()  # facts that the user left out and the scenario fills in
    loop: str = ""  # training loop that the user states, if not PyTorch's DDP

    @property
    def rows(self) -> tuple[Row, ...]:
        """Rows of all methods on the cluster."""
        return self.result.rows

    def to_frame(self) -> Any:
        """Return the rows as a `pandas.DataFrame`; raises `InputError` without pandas."""
        return self.result.to_frame()

    def plot_speedup(self) -> Figure:
        """Plot throughput relative to one device against the number of workers."""
        from gcsim.analysis.plots.speedup import speedup_figure

        return speedup_figure(self.result)

    def _repr_html_(self) -> str:
        from gcsim.analysis.report.answer import html

        return html(self.result)

    def summary(self, width: int = 80) -> str:
        """Return the text of `gcsim advise`: about a dozen lines, wrapped and never truncated."""

        return "\n".join(lines(self, width)) + "\n"

    def document(self) -> dict[str, Any]:
        """Return the plain values that `--json` writes."""
        return {
            "schema": SCHEMA,
            "scenario": self.result.scenario,
            "use": self._row_document(self.use),
            "safe": self._row_document(self.safe),
            "known_to_train": {label: asdict(one) for label, one in self.findings.known.items()},
            "missed": dict(self.findings.missed),
            "to_try": self._row_document(self.to_try),
            "pays": self.verdict.pays,
            "rows": [self._row_document(row) for row in self.verdict.rows],
            "break_even_bit_per_s": [asdict(one) for one in self.findings.break_even],
            "changes": [
                {
                    "change": one.words,
                    "set": list(one.overrides),
                    "saves_s": dict(one.saves_s),
                    **({"note": one.note} if one.note else {}),
                }
                for one in self.findings.changes
            ],
            **({"groups": groups} if (groups := self.result.provenance.get("groups")) else {}),
            "limits_s": {label: asdict(one) for label, one in self.findings.limits.items()},
            "other_code": [asdict(one) for one in self.findings.other_code],
            "open": [asdict(one) for one in self.findings.open],
            **(
                {"plans": [self._plan_document(one) for one in self.plans]}
                if self.plans is not None
                else {}
            ),
            "profiles": {"shipped": list(self.shipped), "measured": list(self.measured)},
        }

    def to_json(self) -> str:
        """Return the JSON text; the same question always gives the same text."""
        return json_text(self.document())

    def _row_document(self, row: Row | None) -> dict[str, Any] | None:
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
                numbers = asdict(sections.against(row, other, dense)).items()
                found[f"against_{name}"] = {k: v if math.isfinite(v) else None for k, v in numbers}
        return found

    def _plan_document(self, one: Plan) -> dict[str, Any]:
        return {
            **(self._row_document(one.row) or {}),
            "label": one.label,
            "by_bucket": [choice.label for choice in one.choices],
            "alone": one.alone.label,
            "against_alone": asdict(sections.against(one.row, one.alone)),
        }

    def __repr__(self) -> str:
        use = self.use
        return (
            f"<gcsim.Advice {self.scenario.model.name} on {self.scenario.cluster.devices}: "
            f"use {use.label if use else 'nothing'}>"
        )


def advice(
    question: Question,
    *,
    cache: bool = True,
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda _: None,
    per_bucket: bool = False,
) -> Advice:
    """Return the advice for a scenario; raises `InputError` as a run does. `per_bucket` adds plans
    by bucket. `tell` is called with a message before methods are measured."""
    watcher = progress or SilentProgress()
    engine = Engine(question, cache=cache, progress=watcher, tell=tell)
    result = _trained(engine.scenario, engine.result())
    looped = SUPPOSED_LOOP in question.supposed
    found = Advice(
        scenario=engine.scenario,
        result=result,
        verdict=largest_verdict(result),
        shipped=engine.came,
        measured=engine.measured,
        measured_s=engine.measured_s,
        supposed=(SUPPOSED,) if looped and not question.scenario.training.sharded else (),
        loop=loop if (loop := question.stated("training", "loop")) and loop != "ddp" else "",
    )
    questions = tuple(open_questions(question))

    def estimated() -> Findings | None:
        made = _findings(engine, found, watcher)
        asking = replace(found, result=replace(result, advice=made))
        return made and replace(made, open=tuple(_open(engine, asking, questions)))

    name = _name(engine.scenario, result, engine.keys, engine.passes, questions) if cache else ""
    made = result_cache.findings(name, estimated) if name else estimated()
    result = replace(result, advice=made)
    found = replace(found, result=result, verdict=largest_verdict(result))
    one_reduction = engine.scenario.training.sharded  # one reduction covers all units
    if not per_bucket or one_reduction or found.result.advice is None:
        return found
    return replace(found, plans=tuple(_plans(engine, found, watcher)))


def advised_run(
    scenario: Scenario, *, cache: bool = True, progress: Progress | None = None
) -> Result:
    """Return the result of a run with known training and with advice at its largest size."""
    from gcsim.scenarios.sweeps.ahead import compiling_ahead

    watcher = progress or SilentProgress()
    with compiling_ahead(scenario) if cache else nullcontext():
        result, keys, profiles = measured_run(scenario, cache=cache, progress=watcher)
    result = _trained(scenario, result)
    found = sections.Recommendation(result=result, verdict=largest_verdict(result))

    def estimated() -> Findings | None:
        methods = list(map(KnownTraffic, keys, profiles))
        engine = Engine(
            question_about(scenario, Words()), cache=cache, progress=watcher, known=methods
        )
        return _findings(engine, found, watcher)

    if not cache:
        return replace(result, advice=estimated())
    name = _name(scenario, result, keys, measured_passes(scenario, profiles[0]))
    return replace(result, advice=result_cache.findings(name, estimated))


def _trained(scenario: Scenario, result: Result) -> Result:
    if scenario.train is None:
        return result
    from gcsim.scenarios.trained.known import with_training_results  # imports the simulator

    return with_training_results(scenario, result)


def _name(
    scenario: Scenario,
    result: Result,
    keys: Sequence[str],
    passes: PassTimes | None,
    questions: Sequence[Answer] = (),
) -> str:
    """Return the key under which the findings for these profiles are cached."""
    trained = [(row.label, row.seeds_at_target, row.speedups_to_target) for row in result.rows]
    files = (Path(__file__), Path(selection.__file__))
    rest = [repr(trained), repr(questions), *(file.read_text(encoding="utf-8") for file in files)]
    return result_cache.result_key(scenario, ["advice", *keys, *rest], passes)


def _findings(engine: Engine, found: sections.Recommendation, watcher: Progress) -> Findings | None:
    """Return break-evens, changes, limits and evidence; None without dense or with one worker."""
    if found.verdict.dense is None or found.workers == 1:
        return None
    faster = _faster(found.verdict)
    known, missed = for_and_against(engine.scenario, faster)
    link = slowest_link(engine.question)
    assert link is not None  # noqa: S101 - several workers
    why_not = no_break_even(engine)
    evidence = Findings(known=known, missed=missed, slowest=link.name, no_break_even=why_not)
    result = replace(found.result, advice=evidence)
    found = sections.Recommendation(result=result, verdict=largest_verdict(result))
    named = _advised_labels(found)
    most = _OF_GROUPS if engine.scenario.cluster.groups else _BISECTED
    ranked = () if why_not else _labels_with_break_even(found)[:most]
    with watcher.task("advice", len(ranked) + bool(ranked) + 2) as task:
        ends = break_even(engine, ranked, named, task.advance)
        saved = changes(engine, named)
        task.advance()
        parts = limits(engine, named)
        task.advance()
    others: tuple[OtherCode, ...] = ()
    if found.use is not None and not engine.scenario.training.sharded:  # hooks exist only in DDP
        others = tuple(other_code(engine, found.use.label))
    return replace(
        evidence, break_even=tuple(ends), changes=tuple(saved), limits=parts, other_code=others
    )


_MATTERS = 0.1  # relative change of dense training's time from which an answer matters


def _open(engine: Engine, found: Advice, questions: Sequence[Answer]) -> Iterator[OpenAdvice]:
    """Yield answers that change the method (default inputs) or dense training's time (draws)."""
    now, use = found.verdict.dense, found.use
    if now is None or use is None:
        return
    known = dict(found.findings.known)
    looked_up = set(_faster(found.verdict))
    for answer in questions:
        stated = engine.rows(answer.overrides)
        if stated is None:
            continue
        there = verdict(stated.values())
        known |= evidence_of(engine.scenario, {*_faster(there)} - looked_up)
        looked_up.update(_faster(there))
        chosen = best_known(there, {name: one.steps_vs_dense for name, one in known.items()})
        rows = engine.rows(answer.overrides, [chosen.label], draws=True) if chosen else None
        if chosen is None or rows is None:
            continue
        dense = rows[now.label]
        speedup = ratio(rows[chosen.label], dense).median
        if is_choice(answer):
            matters = dense.iteration_s / speedup < use.iteration_s
        else:
            apart = abs(dense.iteration_s / now.iteration_s - 1)
            matters = chosen.label != use.label or apart > _MATTERS
        if matters:
            yield OpenAdvice(
                answer=answer, dense_s=dense.iteration_s, use=chosen.label, speedup=speedup
            )


def _faster(found: Verdict) -> list[str]:
    """Return the methods that are faster than the safe one and therefore need evidence."""
    safe = best_known(found, {})
    limit = math.inf if safe is None else expected_s(safe)
    return [row.label for row in found.rows if expected_s(row) < limit]


def _plans(engine: Engine, found: Advice, watcher: Progress) -> list[Plan]:
    """Return plans that mix dense and half precision with the fastest methods that can be mixed."""
    from gcsim.scenarios.advice.per_bucket import can_share, plan  # imports the simulator

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


def _advised_labels(found: sections.Recommendation) -> list[str]:
    """Return the labels of the advised methods and of half precision."""
    rows = (found.use, found.safe, found.to_try, found.half)
    dense = found.verdict.dense
    labels = (row.label for row in rows if row is not None and row is not dense)
    return list(dict.fromkeys(labels))


def _labels_with_break_even(found: sections.Recommendation) -> Sequence[str]:
    """Return the labels whose break-even is computed first: advised, well-known, other methods."""
    known = [
        next((row.label for row in found.verdict.rows if row.compressor == kind), None)
        for kind in _WELL_KNOWN
    ]
    labels = [*_advised_labels(found), *(label for label in known if label)]
    every = [row.label for row in found.verdict.rows if row is not found.verdict.dense]
    served = {row.label for row in found.verdict.rows if row.via and row.compressor == "none"}
    return [label for label in dict.fromkeys([*labels, *every]) if label not in served]


def lines(advice: Advice, width: int = 80) -> list[str]:
    """Return the advice in lines of at most `width` cells (60 to 100); code is never wrapped."""
    width = max(60, min(width, sections.WIDEST))
    said = header(advice.scenario, advice.verdict.dense)
    found = wrapped(said, width, indent=" " * sections.INDENT)
    for word, parts in _sections(advice):
        found += sections.section_lines(word, parts, width)
    return found


def _sections(advice: Advice) -> Iterator[sections.Section]:
    if (dense := advice.verdict.dense) is not None:
        first = [to_find_out(one, dense.iteration_s) for one in advice.findings.open]
        if commands := [one for one in dict.fromkeys(first) if one]:
            yield "First", commands
    for word, parts in sections.answer_sections(advice):
        hooked = advice.loop and any("gcsim.ddp_hook" in one for one in parts)
        needs = f"# gcsim's hook needs DistributedDataParallel, not the loop {advice.loop!r}:"
        yield word, [sections.Line(needs), *parts] if hooked else parts
    if slowest := bottleneck(advice.result):
        yield "Groups", [one.removeprefix("Bottleneck: ") for one in slowest]
    misfits = list(_memory(advice))
    if misfits:
        yield "Memory", misfits
    if advice.findings.open:
        yield "Open", [_question_line(one, advice.use) for one in advice.findings.open]
    found = assumed(advice.scenario, shipped=bool(advice.shipped))
    yield "Assumed", [*advice.supposed, *found]
    if advice.plans is not None:
        yield "By bucket", list(_by_bucket(advice, advice.plans))


def _memory(advice: Advice) -> Iterator[str]:
    """Yield the memory of the methods that fit, details on dense training and the advised method if
    they may not fit, and the methods left out."""
    first = advice.scenario.compressors[0]
    _, held = advice.scenario.tightest(first)
    if held is None:
        return
    if held.device is None:
        yield NOT_CHECKED
        return
    told = dict.fromkeys([advice.verdict.dense, advice.use])
    named = [row for row in told if row is not None and row.fits == "perhaps"]
    for rows, words in (
        ([row for row in advice.rows if row.fits == "yes"], ""),
        *(([row], f"{short(row)} may not fit: ") for row in named),
    ):
        lows = [row.device_memory_low_bytes or 0 for row in rows]
        highs = [row.device_memory_high_bytes or 0 for row in rows]
        if rows:
            ends = span(min(lows), max(highs)).removesuffix(" GiB")
            yield f"{words}{ends} of {gib(held.device)}\n"
    yield from (
        f"saves memory: {first.label} with {one}\n" for one in checkpointed(advice.scenario, first)
    )
    yield from (f"left out: {text}\n" for text in advice.result.left_out)


def _question_line(one: OpenAdvice, use: Row | None) -> str:
    """ "--network 25gbe_roce (RDMA): dense 424 ms, fp16 1.2x" """
    words = f" ({one.answer.words})" if one.answer.words else ""
    gain = f", {short(one.use)} {significant(one.speedup)}x"
    if one.speedup == 1:
        gain = "" if use is None or use.label == one.use else ", use dense"
    return f"{one.answer.option}{words}: dense {elapsed(one.dense_s)}{gain}\n"


_GAIN = 0.01  # share of the time that a plan must save to count as faster


def _by_bucket(advice: Advice, plans: Sequence[Plan]) -> Iterator[str]:
    """Yield the fastest plan and how to use it, if it is faster than its methods alone."""
    if not plans:
        yield "nothing to choose: one bucket, or no other method that fits"
        return
    best = plans[0]
    mixed = len({choice.label for choice in best.choices}) > 1
    if not mixed:
        yield f"no mixture is faster than {short(best.alone)} for all {len(best.choices)} buckets"
        return
    kinds = list(dict.fromkeys(reversed([choice.label for choice in best.choices])))
    shares = ", ".join(f"{short(label)} {percent(best.share(label))}" for label in kinds)
    found, alone = sections.against(best.row, best.alone), f"{short(best.alone)} for all"
    gain = sections.comparison_text(best.row, best.alone, alone)
    if found.speedup < 1 + _GAIN:
        ends = "-".join(significant(end) for end in (found.low, found.high))
        gain = f"as fast as {alone} ({ends}x)"
    yield f"{elapsed(best.row.iteration_s)}, {gain}\n"
    yield f"of the gradient: {shares}\n"
    steps = steps_of(advice.verdict, advice.findings.known)
    trusted = {row.label for row in advice.verdict.rows if is_safe(row)} | steps.keys()
    if unknown := [short(label) for label in reversed(kinds) if label not in trusted]:
        yield f"{sections.TRUST}: {listed(unknown)}\n"
    cluster, training = advice.scenario.cluster, advice.scenario.training
    arguments = hook_ends(training.between, cluster.ranks_in("rack"))
    yield from map(sections.Line, paste_plan(best.choices, arguments))
