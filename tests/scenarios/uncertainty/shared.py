"""Worlds for tests of uncertain inputs."""

import numpy as np

from gcsim.scenarios.uncertainty.worlds import World, Worlds


def just(world: World) -> Worlds:
    """This world alone."""
    return Worlds({name: np.array([slow]) for name, slow in world.items()}, 1)
