"""Iteration of a method in other implementations, simulated as in a run.

No gradients are needed: kernels and bytes of these implementations depend only on the tensors'
shapes, or are those of gcsim's method.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gcsim.compressors.options.method import method_of
from gcsim.scenarios.advice.engine import Engine, KnownTraffic
from gcsim.scenarios.catalog import implementations
from gcsim.scenarios.findings import OtherCode
from gcsim.scenarios.scenario import CompressorChoice


def other_code(engine: Engine, label: str) -> Iterator[OtherCode]:
    """Yield a method's iteration in each other known implementation, for exchanges of workers in
    every step."""
    scenario = engine.scenario
    choice = next((one for one in scenario.compressors if one.label == label), None)
    between, steps = scenario.training.between, scenario.training.local_steps
    if choice is None or between != "workers" or steps > 1:  # None: dense through servers
        return
    own = engine.known(choice, scenario)
    for there in in_other_code(choice):
        known = own if there.kind == choice.kind else engine.known(there, scenario)
        known = known or _by_shapes(there, own, by_formula=scenario.model.transformer is not None)
        if known is not None:
            row = engine.row_of(there, known, most_draws=scenario.draws)
            entry = implementations.of(there.kind, there.implementation)
            yield OtherCode(
                title=implementations.OWN_TITLE if entry is None else entry.title,
                implementation=there.implementation or implementations.OWN,
                iteration_s=row.iteration_s,
            )


def in_other_code(choice: CompressorChoice) -> Iterator[CompressorChoice]:
    """Yield the same method in each other known implementation."""
    given = choice.kind, choice.implementation, choice.parameters
    for method, name, stated in implementations.alternatives(*given):
        kind, parameters = implementations.installed(method, name, stated)
        checked = method_of(kind, parameters).parameters.model_dump()
        yield replace(choice, kind=kind, implementation=name, parameters=checked)


def _by_shapes(
    choice: CompressorChoice, like: KnownTraffic | None, *, by_formula: bool
) -> KnownTraffic | None:
    """Return a method's traffic on the buckets of another method's profile."""
    if like is None:
        return None
    try:
        import torch  # noqa: F401 - the small installation (docs/advice.md) does without
    except ModuleNotFoundError:
        return None
    from gcsim.scenarios.running.by_shapes import by_shapes

    facts, layouts = like.profile.model, like.profile.buckets
    profile = by_shapes(choice.kind, choice.parameters, facts, layouts, by_formula=by_formula)
    return KnownTraffic(f"by shapes {choice.kind} {choice.parameters} {like.key}", profile)
