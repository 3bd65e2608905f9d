"""The live suite on this machine, and the fit of its host."""

import json
import os
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.analysis.live.live import MEASUREMENTS, Observation, fit_host, run_live, work_of
from gcsim.analysis.live.namespaces import run
from gcsim.analysis.live.plan import CollectiveTask
from gcsim.analysis.live.predict import PREDICTIONS, Knowledge, record_of
from gcsim.scenarios.catalog import device
from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.collectives.dispatch import execute
from gcsim.simulator.host import Host


@pytest.mark.long
@pytest.mark.usefixtures("rights")
def test_a_quick_live_run_predicts_and_then_measures(tmp_path: Path) -> None:
    report = run_live(tmp_path, quick=True)
    predicted, measured = (
        json.loads((tmp_path / name).read_text(encoding="utf-8"))
        for name in (PREDICTIONS, MEASUREMENTS)
    )
    assert predicted["made"] < measured["made"]
    assert {p["name"] for p in predicted["predictions"]} == set(measured["measurements"])
    # The link decides here: a loaded machine moves these by less than a quarter.
    large = [p for p in report.findings.points if ">= 1 MB" in p.series]
    assert len(large) >= 3
    for point in large:
        # An all-gather of two ranks takes three halves of a block, as predicted, or two.
        modes = (1, 1.5) if point.workers == 2 and "all-gather" in point.series else (1,)
        errors = [(1 + point.error) / mode - 1 for mode in modes]
        assert min(map(abs, errors)) < 0.25, point.name
    dense = next(p for p in report.findings.points if p.method == "none")
    assert dense.measured > 0.5  # 7.4 MB at 12 MB/s
    assert report.decisions is not None
    assert report.decisions.share == 1.0
    assert f"gcsim-{os.getpid()}-" not in run(["ip", "netns", "list"])


ANY = Host(cores=2, per_message=Fraction(0))
TIMES = st.integers(0, 10**13)


@given(TIMES, TIMES)
def test_work_is_the_largest_that_gives_the_time(network: int, total: int) -> None:
    work = work_of(ANY, network, total)
    if total < network:
        assert work == 0
    else:
        assert ANY.combined_time(network, work) <= total < ANY.combined_time(network, work + 1)


@pytest.mark.parametrize(
    ("call", "message", "byte"), [("1 ms", 60, 0.4), ("0", 200, 0.0), ("0", 0, 1.0)]
)
def test_the_host_that_made_the_times_is_found_again(
    call: str, message: float, byte: float
) -> None:
    host = Host(
        cores=2,
        per_call=Fraction(1, 1000) if call != "0" else Fraction(0),
        per_message=Fraction(message) / 10**6,
        per_byte=Fraction(byte) / 10**9,
        per_copied_byte=Fraction(2, 10**10),
        ranks="all",
    )
    kinds: tuple[Literal["all_reduce", "all_gather"], ...] = ("all_reduce", "all_gather")
    seen = []
    for ranks in (2, 4):
        for kind, nbytes in product(kinds, (4_000, 400_000, 3_000_000)):
            task = CollectiveTask(kind=kind, nbytes=nbytes, repeats=1)
            clusters = [
                Knowledge(link=None, host=one, device=device("cpu_2core")).cluster(ranks, 4 * 10**9)
                for one in (None, host)
            ]
            finishes = execute(record_of(task, ranks), np.zeros(ranks, dtype=np.int64), clusters[1])
            seen.append(
                Observation(
                    record=record_of(task, ranks),
                    cluster=clusters[0],
                    seconds=int(finishes.max()) / PS_PER_SECOND,
                )
            )
    found = fit_host(seen, cores=2)
    assert (found.cores, found.ranks) == (2, "all")
    assert float(found.per_call) == pytest.approx(float(host.per_call), rel=1e-3, abs=1e-7)
    assert float(found.per_message) == pytest.approx(float(host.per_message), rel=1e-3, abs=1e-8)
    assert float(found.per_copied_byte) == pytest.approx(2e-10, rel=1e-3)
    assert float(found.per_byte) == pytest.approx(float(host.per_byte), rel=1e-3, abs=1e-13)
