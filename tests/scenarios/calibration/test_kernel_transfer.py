"""Metered, priced with this machine's calibration, and timed directly: the same time, about.

`tests/benchmarks/transfer_table.py` is the full comparison; here are a few methods, short buckets
and bounds that hold on a machine that others use: one thread, CPU time.
"""

import time
from dataclasses import replace

import pytest
import torch

from gcsim.scenarios.calibration.device import primitive_curves
from gcsim.scenarios.calibration.kernels import time_compressors
from gcsim.scenarios.catalog import device
from gcsim.scenarios.progress import SilentProgress
from gcsim.simulator.devices.pricing import PriceList
from gcsim.traces.timing.kernels import gradient
from tests.benchmarks.agreement import agreement
from tests.benchmarks.direct_times import direct_times

METHODS = ("signsgd", "topk", "qsgd", "natural", "orq", "powersgd", "thc", "count_sketch")


@pytest.mark.long
def test_priced_times_are_near_timed_ones_and_in_their_order() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        sites = time_compressors(
            SilentProgress(),
            seconds=60.0,
            compressors=METHODS,
            sizes=(70_000, 280_000, 1_120_000),
            clock=time.thread_time,
        )
        rows = [
            row
            for name in METHODS
            for row in direct_times(name, gradient(500_000, 5), time.thread_time, rounds=3)
        ]
    finally:
        torch.set_num_threads(before)
    prices = PriceList(replace(device("cpu_2core"), primitives=primitive_curves([], sites)))
    pairs = []
    for row in rows:
        priced = row.priced(prices)
        assert prices.priced_by(row.metered.computes[0], 1).estimates == 0
        pairs += [(priced.encode, row.measured.encode), (priced.decode, row.measured.decode)]
    found = agreement(pairs)
    assert found.pairs == 2 * len(METHODS)
    assert found.median < 0.5
    assert found.tau > 0.7


def test_errors_and_order_are_summed_up() -> None:
    # |1.1 - 1|, |0.8 - 1|, |2 - 1| and one pair that is too short to count; one of three pairs of
    # pairs is in the wrong order: (2 - 1) / 3
    found = agreement([(1.1, 1.0), (2.4, 3.0), (4.0, 2.0), (1.0, 1e-6)])
    assert found.pairs == 3
    assert found.median == pytest.approx(0.2)
    assert found.ninth == pytest.approx(0.2 + 0.8 * (1.0 - 0.2))
    assert found.tau == pytest.approx(1 / 3)
