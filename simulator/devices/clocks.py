"""Host time and device time of a stage on a GPU, and factors on both.

A stage is a worker's computation before a method's last collective (encode) or after it (decode).
The longer of both times hides most of the shorter one:

    T(host, device) = max(host, device) + UNHIDDEN * min(host, device)

If whole stages were timed on a device (`scenarios/calibration/host.py`), the times that
`pricing.py` computes from launches and bytes get factors for that stage: T(h * host, d * device),
which minimise the sum of log(T / measured)^2 over the timed lengths, with a weak prior of 1. Short
stages wait for the host and determine h, long ones determine d. The factors also apply to other
parameters of the method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.fields import Factor
from gcsim.traces.profile import Compute, Exchange, Phase, TrafficProfile, weighted

UNHIDDEN = Fraction(35, 100)
"""Share of the shorter time that the longer one does not hide, fitted to the stages of every second
method (alphabetically) on an H100 (`tests/analysis/validation/suites/test_gpu_hook.py`)."""
_PRIOR = 0.05  # weight of a factor's logarithm, relative to a length's error

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Factors on a stage's host time and device time."""

    host: Factor
    device: Factor


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStage(Compute):
    """Computation in a stage that was timed on some device of the cluster."""

    name: str  # key of `Device.stages`


def clocks_of(compute: Compute, stages: Mapping[str, Clocks]) -> Clocks | None:
    """Return a device's factors on a computation's host and device time; None: not timed."""
    return stages.get(compute.name) if isinstance(compute, TimedStage) else None


def combined_time(host: Numbers, device: Numbers) -> Numbers:
    """Return T(host, device), in any unit."""
    found: Numbers = np.maximum(host, device) + float(UNHIDDEN) * np.minimum(host, device)
    return found


def fitted_clocks(stages: Sequence[tuple[Sequence[tuple[float, float]], float]]) -> Clocks:
    """Fit the factors of a stage, given priced (host, device) times and seconds by length."""
    from scipy.optimize import least_squares

    priced = [np.array(stretches, dtype=float).T for stretches, _ in stages]
    measured = np.array([seconds for _, seconds in stages])

    def residuals(logs: Numbers) -> Numbers:
        host, device = np.exp(logs)
        found = [combined_time(host * each[0], device * each[1]).sum() for each in priced]
        return np.concatenate((np.log(found / measured), _PRIOR * logs))

    logs = least_squares(residuals, np.zeros(2)).x
    host, device = (Fraction(f"{factor:.4g}") for factor in np.exp(logs))
    return Clocks(host=host, device=device)


def stage_name(method: str, phase: str, stage: str) -> str:
    """Return the key in `Device.stages`."""
    return f"{method}, {phase}, {stage}"


def as_timed(profile: TrafficProfile, stages: Mapping[str, Clocks]) -> TrafficProfile:
    """Name the profile's timed stages; return the same object if nothing changes."""

    def timed(compute: Compute, phase: str) -> Compute:
        name = stage_name(profile.compressor, phase, compute.stage)
        if name not in stages:
            return compute
        given = {each.name: getattr(compute, each.name) for each in fields(Compute)}
        return TimedStage(**given, name=name)

    computes = [compute for _, _, each in weighted(profile) for compute in each.computes]
    if not stages or any(isinstance(each, TimedStage) for each in computes):
        return profile
    return with_exchanges(
        profile,
        lambda exchange, phase: replace(
            exchange, computes=tuple(timed(each, phase.name) for each in exchange.computes)
        ),
    )


def with_exchanges(
    profile: TrafficProfile, change: Callable[[Exchange, Phase], Exchange]
) -> TrafficProfile:
    """Apply `change` to the exchanges of a profile; those that share an object still do."""
    phases = []
    for phase in profile.phases:
        each = {id(exchange): exchange for step in phase.steps for exchange in step.exchanges}
        changed = {name: change(exchange, phase) for name, exchange in each.items()}
        steps = [
            replace(step, exchanges=tuple(changed[id(one)] for one in step.exchanges))
            for step in phase.steps
        ]
        phases.append(replace(phase, steps=tuple(steps)))
    return replace(profile, phases=tuple(phases))


def with_shared_objects(profile: TrafficProfile) -> TrafficProfile:
    """Return the profile with a single object for equal exchanges, computations and collectives, so
    that caches can use identities: hashing a value takes longer than pricing it."""
    same: dict[Any, Any] = {}

    def one(value: Any) -> Any:
        return same.setdefault(value, value)

    def changed(exchange: Exchange, _: Phase) -> Exchange:
        made, sent, served = exchange.computes, exchange.collectives, exchange.servers
        computes, collectives, servers = (tuple(map(one, each)) for each in (made, sent, served))
        found: Exchange = one(
            replace(exchange, computes=computes, collectives=collectives, servers=servers)
        )
        return found

    return with_exchanges(profile, changed)
