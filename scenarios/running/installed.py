"""Methods that another library's code carries out instead of gcsim's.

Such code does not run the checks of gcsim's hook. If only the cost of its code around an exchange
is known, it gets the kernels of gcsim's method, but no host time for launching them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gcsim.compressors.kernels import KernelCost
from gcsim.scenarios.catalog import implementations
from gcsim.scenarios.scenario import Scenario
from gcsim.simulator.devices.clocks import with_exchanges
from gcsim.simulator.training import Framework
from gcsim.traces.profile import Compute, Exchange, TrafficProfile


def as_installed(
    scenario: Scenario, profiles: Sequence[TrafficProfile]
) -> tuple[Scenario, list[TrafficProfile]]:
    """Return the scenario with the cost of the stated code, and the methods' profiles in it."""
    around: dict[str, Framework] = {}
    found = []
    for choice, given in zip(scenario.compressors, profiles, strict=True):
        entry, profile = implementations.of(choice.kind, choice.implementation), given
        if entry is not None:
            if not entry.kind:
                named = replace(given, compressor=f"{choice.kind} ({entry.name})")
                profile = with_exchanges(named, lambda exchange, _: _others(exchange))
            around[profile.compressor] = entry.around(scenario.training.hook)
        found.append(profile)
    if not around:
        return scenario, found
    return replace(scenario, training=replace(scenario.training, others=around)), found


def _others(exchange: Exchange) -> Exchange:
    return replace(
        exchange,
        computes=tuple(map(_unnamed, exchange.computes)),
        servers=tuple(one and _unnamed(one) for one in exchange.servers),
    )


def _unnamed(compute: Compute) -> Compute:
    """Remove the kernels' names, so that they are priced by class, not by gcsim's own measured
    kernels, and have no host time (`compressors/queued.py`)."""

    def without(costs: Sequence[KernelCost]) -> tuple[KernelCost, ...]:
        return tuple(replace(cost, name="") for cost in costs)

    return replace(
        compute,
        fixed=without(compute.fixed),
        per_payload=without(compute.per_payload),
        per_part=without(compute.per_part),
    )
