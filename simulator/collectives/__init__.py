"""Collective algorithms, one per file: `prepare(call)` returns a map from entry to exit times.

This package exports everything that such a file needs, and the functions that run collectives.
"""
# ruff: noqa: F401
# mypy: implicit-reexport

from __future__ import annotations

from typing import TYPE_CHECKING

from gcsim.lazy import offered

if TYPE_CHECKING:
    from gcsim.compressors.lockstep import CollectiveRecord
    from gcsim.simulator.clock import Picoseconds, Times, picoseconds, seconds
    from gcsim.simulator.cluster import Cluster, Collectives
    from gcsim.simulator.collectives.algorithms import ALGORITHMS, Algorithm
    from gcsim.simulator.collectives.call import Call, Prepared
    from gcsim.simulator.collectives.dispatch import CollectiveMemo, execute
    from gcsim.simulator.fabric.rounds import Fabric
    from gcsim.simulator.host import Traffic
    from gcsim.simulator.network.links import Link

_MODULES = {
    "gcsim.compressors.lockstep": "CollectiveRecord",
    "gcsim.simulator.clock": "Picoseconds Times picoseconds seconds",
    "gcsim.simulator.cluster": "Cluster Collectives",
    "gcsim.simulator.collectives.algorithms": "ALGORITHMS Algorithm",
    "gcsim.simulator.collectives.call": "Call Prepared",
    "gcsim.simulator.collectives.dispatch": "CollectiveMemo execute",
    "gcsim.simulator.fabric.rounds": "Fabric",
    "gcsim.simulator.host": "Traffic",
    "gcsim.simulator.network.links": "Link",
}

__getattr__, __dir__, __all__ = offered(__name__, _MODULES)
