"""Speedups and order of the methods of a CVPR 2021 paper, predicted and published.

L. Song et al., "Communication efficient SGD via gradient sampling with Bayes prior", CVPR 2021,
section 4.4: gradient sampling is 2.5 times as fast as dense training on AlexNet, and more than 76 %
faster than every method that keeps the accuracy; CSER, which does not, is about as fast or faster;
QSparse-local-SGD, DGC and 1-bit error-feedback SGD lose much with more workers, the last one
everything. The prediction is `scenarios/alexnet_32node.yaml` with the traffic in
`data/alexnet_traffic.json.gz`, as running the methods takes minutes:

    python -m tests.benchmarks.alexnet_traffic      # makes it again, in a checkout
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files

from pydantic import TypeAdapter

from gcsim.analysis.validation.suite import Ordering, Point
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.result import Row
from gcsim.scenarios.run import simulated_run
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.sections.passes import measured_passes
from gcsim.traces.profile import TrafficProfile

CSER, GSB, QL, DGC, DENSE, EB = METHODS = (
    "cser", "gradient_sampling_bayes", "qsparse_local_sgd", "dgc", "none", "ef_block_sgdm",
)  # fmt: skip
MEASURED, AHEAD = 2.5, 1.76
"""Speed of gradient sampling over dense, and its least speed over the next method as accurate."""
SERIES = "2.5x, alexnet_32node with ranges"
SOURCE = "Song et al., CVPR 2021, doi 10.1109/CVPR46437.2021.01189, sec. 4"
_NODES = 32
FILE = "alexnet_traffic.json.gz"
PROFILES = TypeAdapter(list[TrafficProfile])


@cache
def rows(**changes: str) -> dict[str, Row]:
    """Return the rows of the changed scenario on all nodes, by method."""
    scenario = scenario_of(changes)
    packed = (files("gcsim.analysis.validation") / "data" / FILE).read_bytes()
    profiles = PROFILES.validate_json(gzip.decompress(packed))
    keys = [""] * len(profiles)  # none comes from a cache
    passes = measured_passes(scenario, profiles[0])
    found = simulated_run(scenario, keys, profiles, passes, progress=SilentProgress())
    return {row.compressor: row for row in found.rows if row.compressor in METHODS}


def orderings() -> tuple[Ordering, ...]:
    """Return the orders of the paper's figure 5a and section 4.4, with speedups over dense."""
    values = {kind: _speedup(rows()[kind]) for kind in METHODS}
    return (
        Ordering(
            name="AlexNet on 64 P100",
            source=SOURCE,
            expected=((CSER, GSB), (QL,), (DGC,), (DENSE,), (EB,)),
            values=values,
        ),
        Ordering(
            name=f"the same, gradient sampling over {AHEAD}",
            source=SOURCE,
            expected=((GSB,), (QL, DGC, DENSE, EB)),
            values={**values, GSB: values[GSB] / AHEAD},
        ),
    )


def point() -> Point:
    """Return the paper's speedup over dense training as a point."""
    row = rows()[GSB]
    predicted = _speedup(row)
    return Point(
        name="2.5x on AlexNet: the scenario alexnet_32node",
        series=SERIES,
        unit="x",
        measured=MEASURED,
        predicted=predicted,
        unfitted=predicted,
        source=SOURCE,
        workers=row.workers,
    )


def _speedup(row: Row) -> float:
    return row.speedup_vs_dense or 0.0


def scenario_of(changes: Mapping[str, str]) -> Scenario:
    """Return the scenario on all nodes, with the paper's methods."""
    scenario = load_scenario("alexnet_32node", {"cluster.nodes": f"[{_NODES}]", **changes})
    chosen = [choice for choice in scenario.compressors if choice.kind in METHODS]
    return replace(scenario, compressors=tuple(chosen))
