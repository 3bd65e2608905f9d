"""Worlds for tests of uncertain inputs."""

from dataclasses import replace
from fractions import Fraction

import numpy as np

from gcsim.scenarios.uncertainty.worlds import World, Worlds
from gcsim.simulator.devices.training_time import ComputeTimes


def just(world: World) -> Worlds:
    """This world alone."""
    return Worlds({name: np.array([slow]) for name, slow in world.items()}, 1)


def longer(compute: ComputeTimes, factor: float) -> ComputeTimes:
    """The passes `factor` times as long."""
    exact = Fraction(factor)
    return replace(
        compute,
        forward=round(compute.forward * exact),
        backward=round(compute.backward * exact),
        parts=tuple(int(part * exact) for part in compute.parts),
    )
