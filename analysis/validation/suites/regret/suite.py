"""The suite `regret`: time lost by following each line of `gcsim advise` on measured clusters.

The points are those of the suites in `choices.yaml`; the functions of `gcsim advise` choose.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from gcsim.analysis.report.selection import Verdict, avoiding, best_known, expected_s, verdict
from gcsim.analysis.validation.decisions import by_setting
from gcsim.analysis.validation.folder import suite_of
from gcsim.analysis.validation.leaving_out import with_factors
from gcsim.analysis.validation.suite import IN_ALL, Findings, Point, Regret
from gcsim.scenarios.reading.document import read_shipped
from gcsim.scenarios.result import Row
from gcsim.scenarios.trained.evidence import evidence
from gcsim.simulator.training import DENSE

_HERE = Path(__file__).parent
_HALF, _POWER = ("fp16", "bf16"), ("powersgd",)
_HALF_NMSE = 1e-7  # about that of half precision; other methods' are not known here
Steps = Mapping[str, float]
Choice = Callable[[Verdict, Steps], Row | None]


def _try(found: Verdict, steps: Steps, *, judged: bool = True) -> Row | None:
    """Return the method to try; with `judged`, Use if the line says that it missed elsewhere."""
    use = best_known(found, steps)
    faster = avoiding(steps, found, use).to_try
    if faster is None or use is None or expected_s(faster) >= expected_s(use):
        return use
    return use if judged and faster.label in steps else faster


def _always(kinds: Sequence[str]) -> Choice:
    return lambda found, steps: next((row for row in found.rows if row.compressor in kinds), None)


USE = "Use"
RULES: dict[str, Choice] = {
    USE: best_known,
    "Safe": lambda found, steps: best_known(found, {}),
    "Try, else Use": _try,
    "Try, warned of or not": partial(_try, judged=False),
    "always dense": _always((DENSE,)),
    "always half precision": _always(_HALF),
    "always PowerSGD": _always(_POWER),
}


def find() -> Findings:
    """Return the regret of each rule, by suite and in all."""
    from gcsim.analysis.validation.registry import chosen

    file = read_shipped(_HERE / "choices.yaml").data
    evidence_for = cache(lambda method, optimizer: _evidence(method, optimizer, file))
    costs: dict[str, dict[str, dict[str, float]]] = {}
    for suite in chosen(file["suites"]):
        for setting, points in _settings(suite.find().points).items():
            optimizer = next((own for word, own in file["text"].items() if word in setting), "")
            own = costs_of([(point, *evidence_for(point.method, optimizer)) for point in points])
            costs.setdefault(suite.name, {}).update({f"{suite.name}: {setting}": own})
    every = {name: own for by_name in costs.values() for name, own in by_name.items()}
    sources = {**costs, IN_ALL: every}
    return Findings(regrets=tuple(_regrets(sources)))


def _settings(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Return the settings with a choice between dense training and other methods."""
    return {
        name: own
        for name, own in by_setting(points).items()
        if len(own) > 1 and any(point.method == DENSE for point in own)
    }


def _evidence(method: str, optimizer: str, file: Mapping[str, Any]) -> tuple[str, float | None]:
    """Return gcsim's kind of a suite's method, and its steps to the goal relative to dense
    training's. An `optimizer` means evidence on text; "" means images."""
    own = dict(file["methods"].get(method, {}))
    kind = own.pop("kind", method)
    known = evidence(kind, own, "text" if optimizer else "images", optimizer)
    return kind, None if known is None else known.steps_vs_dense


def costs_of(choices: Sequence[tuple[Point, str, float | None]]) -> dict[str, float]:
    """Return the regret by rule in one setting; choices: point, kind, relative steps if known."""
    points = [point for point, _, _ in choices]
    alone = all(point.unfitted is not None for point in points)
    rows = [_row(point, kind, alone) for point, kind, _ in choices]
    steps = {point.name: known for point, _, known in choices if known is not None}
    measured = {point.name: _seconds(point, point.measured) for point in points}
    best = min(measured.values())
    found = verdict(rows)
    picked = {rule: choose(found, steps) for rule, choose in RULES.items()}
    return {rule: measured[row.label] / best - 1 for rule, row in picked.items() if row is not None}


def _seconds(point: Point, value: float) -> float:
    """Return a time per iteration, in some unit."""
    return value if point.less_is_better else 1 / value


def _row(point: Point, kind: str, alone: bool) -> Row:
    """Return the prediction as a run's row, with the fields that advice reads."""
    stated = point.unfitted if alone and point.unfitted is not None else point.predicted
    draws = with_factors(point, "", kind) if alone and point.worlds else ()
    seconds = statistics.median(draws) if draws else _seconds(point, stated)
    return Row(
        compressor=kind,
        label=point.name,
        nodes=point.workers,
        workers=point.workers,
        iteration_s=seconds,
        iteration_draws_s=draws or (seconds,),
        forward_s=0,
        backward_s=0,
        encode_s=0,
        communication_s=0,
        exposed_communication_s=0,
        decode_s=0,
        throughput_samples_per_s=0,
        speedup_vs_dense=None,
        scaling_efficiency=0,
        wire_bytes_per_worker=1,
        compression_ratio=None,
        nmse=_HALF_NMSE if kind in _HALF else None,
        cosine_similarity=1,
        steps_run=0,
        memory="none",
        period=1,
    )


def _regrets(sources: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[Regret]:
    for source, settings in sources.items():
        for rule in RULES:
            own = {name: costs[rule] for name, costs in settings.items() if rule in costs}
            if own:
                worst = max(own, key=own.__getitem__)
                mean = statistics.fmean(own.values())
                yield Regret(
                    source=source,
                    rule=rule,
                    settings=len(own),
                    mean=mean,
                    worst=own[worst],
                    where=worst,
                    use=statistics.fmean(settings[name][USE] for name in own),
                )


SUITE = suite_of(_HERE, "regret", find)
