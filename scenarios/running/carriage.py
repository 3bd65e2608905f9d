"""What carries each method's traffic, and which row shows what that is worth by itself?

Push-pulls become the collectives that the cluster has. Where the scenario names parameter servers
and a method goes through them, uncompressed training is offered through the same servers as a row
of its own, so that the gain of the servers is not taken for that of the compression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gcsim.scenarios.scenario import CompressorChoice, Scenario
from gcsim.simulator.push_pull import SERVED, WAYS, as_collectives, by_servers, ways
from gcsim.traces.profile import TrafficProfile

Methods = tuple[Scenario, list[str], list[TrafficProfile]]
"""A scenario whose choices say what they go by, and by choice: the profile's key, the profile."""


def as_carried(
    scenario: Scenario, keys: Sequence[str], profiles: Sequence[TrafficProfile]
) -> Methods:
    """The methods as the cluster carries them; the dense one through servers comes last."""
    cluster = scenario.cluster
    methods = list(zip(scenario.compressors, keys, profiles, strict=True))
    dense = next((method for method in methods if method[0].kind == "none"), None)
    served = [SERVED in ways(profile, cluster) for profile in profiles]
    if dense is not None and any(served) and not served[methods.index(dense)]:
        choice, key, profile = dense
        label = f"{choice.label}, {WAYS[SERVED]}"
        methods.append((replace(choice, label=label), key, by_servers(profile)))

    def told(choice: CompressorChoice, profile: TrafficProfile) -> CompressorChoice:
        return replace(choice, via="; ".join(WAYS[key_path] for key_path in ways(profile, cluster)))

    return (
        replace(scenario, compressors=tuple(told(choice, p) for choice, _, p in methods)),
        [key for _, key, _ in methods],
        [as_collectives(profile, cluster) for _, _, profile in methods],
    )
