"""Suites of measurements, and the errors of predictions for them.

Your own suite needs these names besides the catalogue and the simulator:

    from gcsim.analysis.validation import Bound, Factor, Findings, Point, Suite
"""
# ruff: noqa: F401
# mypy: implicit-reexport

from __future__ import annotations

from typing import TYPE_CHECKING

from gcsim.lazy import offered

if TYPE_CHECKING:
    from gcsim.analysis.validation.judge import Report, run_suite
    from gcsim.analysis.validation.suite import (
        Bound,
        Excluded,
        Factor,
        Findings,
        Ordering,
        Point,
        Statement,
        Suite,
    )
    from gcsim.scenarios.catalog import device, link
    from gcsim.simulator.collectives import (
        Cluster,
        CollectiveMemo,
        CollectiveRecord,
        Collectives,
        execute,
        seconds,
    )
    from gcsim.simulator.predict import predict
    from gcsim.simulator.training import DENSE

_MODULES = {
    "gcsim.analysis.validation.judge": "Report run_suite",
    "gcsim.analysis.validation.suite": "Bound Excluded Factor Findings Ordering Point "
    "Statement Suite",
    "gcsim.scenarios.catalog": "device link",
    "gcsim.simulator.collectives": "Cluster CollectiveMemo CollectiveRecord Collectives execute "
    "seconds",
    "gcsim.simulator.predict": "predict",
    "gcsim.simulator.training": "DENSE",
}

__getattr__, __dir__, __all__ = offered(__name__, _MODULES)
