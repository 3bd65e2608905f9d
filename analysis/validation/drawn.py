"""Training steps in drawn worlds, drawn as in `gcsim run` but without factors on whole steps.

Inputs with a range are drawn together (`scenarios/uncertainty/worlds.py`). Draws depend only on an
input's name, so errors of points are correlated as within one run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gcsim.scenarios.uncertainty.approximation import Approximation, records_of
from gcsim.scenarios.uncertainty.collective_times import CollectiveTimes
from gcsim.scenarios.uncertainty.drawn import Drawn
from gcsim.scenarios.uncertainty.figures import uncertain_inputs
from gcsim.scenarios.uncertainty.worlds import draw
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.devices.device import Device
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.devices.step_time import step_time
from gcsim.simulator.devices.training_rates import Precision
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.push_pull import as_collectives
from gcsim.simulator.training import Training
from gcsim.traces.profile import ModelFacts, TrafficProfile

DRAWS = 10
_SEED = 0
_HELD: dict[object, CollectiveTimes] = {}  # by what moves them, shared by suites


def step_in_worlds(
    cluster: Cluster,
    training: Training,
    profile: TrafficProfile,
    compute: Mapping[str, ComputeTimes],
    exact: float,
) -> NDArray[np.float64]:
    """Return a step's seconds by world; `exact`: as stated, `compute`: as in `uncertain_inputs`."""
    inputs = uncertain_inputs(cluster, training, compute)
    worlds = draw(inputs, DRAWS, _SEED)
    carried = as_collectives(profile, cluster)
    key = (
        cluster.nodes, cluster.devices_per_node, cluster.network, cluster.intra_node,
        cluster.collectives, cluster.sums, cluster.host, frozenset(records_of([carried])),
        training.interference, training.concurrent_collectives,
        tuple(one.name for one in inputs),
    )  # fmt: skip
    about = Approximation(
        Drawn(cluster, training, inputs, worlds.with_stated(inputs)),
        cluster.nodes, training, compute["stated"], [carried],
        prices=PriceList(cluster.device), seed=_SEED, collective_times=_HELD.get(key),
    )  # fmt: skip
    _HELD[key] = about.collective_times
    times = about.iteration(carried)
    seconds: NDArray[np.float64] = exact * times[1 : 1 + DRAWS] / times[0]
    return seconds


def passes_of(
    compute: ComputeTimes, facts: ModelFacts, device: Device, precision: Precision
) -> dict[str, ComputeTimes]:
    """Return the passes as the catalogue states them, and at both ends of the device's ranges."""
    stated = float(step_time(facts, device, precision).seconds)
    found = {"stated": compute}
    for end in ("fastest", "slowest"):
        other = device.at(kernels="fastest", training=end)
        share = float(step_time(facts, other, precision).seconds) / stated
        found[end] = compute.scaled(Fraction(share).limit_denominator(10**6))
    return found


def device_without(work: str, device: Device, model: ModelFacts, precision: Precision) -> Device:
    """Return the device without steps of the model that cite `work`; unchanged without any."""
    key = model.name, precision, model.tokens
    times = device.measured.get(key)
    if times is None:
        return device
    steps = tuple(s for s in times.steps if not any(work.lower() in c.lower() for c in s.sources))
    if len(steps) == len(times.steps):
        return device
    others = {name: each for name, each in device.measured.items() if name != key}
    return replace(device, measured=others | ({key: replace(times, steps=steps)} if steps else {}))
