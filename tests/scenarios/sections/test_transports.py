"""Do a scenario's additions and calls cost what its transport's do, unless it says otherwise?"""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.scenarios import catalog
from gcsim.scenarios.sections.transports import defaults, transports
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.collectives.dispatch import execute
from gcsim.simulator.host import DTYPES, PRICES, Sums
from tests.scenarios.files import load, reread

TEXT = """\
name: small
model: lenet
batch_size: 32
cluster:
  nodes: 4
  device: p100_pcie
  network: 10gbe
  collectives: {transport: gloo}
compressors: [none]
"""


@pytest.mark.parametrize("transport", ["textbook", "gloo", "nccl", "mpich"])
@pytest.mark.parametrize("library", ["pytorch1", "pytorch2"])
def test_a_scenario_has_its_transports_prices_and_reads_back(
    tmp_path: Path, transport: Any, library: Any
) -> None:
    chosen = f"cluster.collectives={{transport: {transport}, library: {library}}}"
    scenario = load(tmp_path, TEXT, chosen)
    sums, host = defaults(Collectives(transport=transport, library=library))
    assert (scenario.cluster.sums, scenario.cluster.host) == (sums, host)
    on_host = transport in {"gloo", "mpich"}
    assert (sums != Sums(), host is not None) == (on_host, on_host)
    assert reread(tmp_path, scenario).cluster == scenario.cluster


def test_what_a_scenario_states_is_known_and_none_is_nothing(tmp_path: Path) -> None:
    default = load(tmp_path, TEXT).cluster
    own = load(
        tmp_path, TEXT, "cluster.sums={float16: 70 MB/s}", "cluster.host={dispatch: 1 ms}"
    ).cluster
    assert own.sums == replace(default.sums, float16=Fraction(7 * 10**7), float16_range=None)
    assert default.host is not None
    assert own.host == replace(default.host, dispatch=Fraction(1, 1000), dispatch_range=None)
    ranged = load(
        tmp_path,
        TEXT, "cluster.sums={float16: 70 MB/s, float16_range: [60 MB/s, 80 MB/s]}",
        "cluster.host={dispatch: 1 ms, dispatch_range: [0 s, 2 ms]}",
    )  # fmt: skip
    assert ranged.cluster.sums.float16_range == (Fraction(6 * 10**7), Fraction(8 * 10**7))
    assert ranged.cluster.host == replace(own.host, dispatch_range=(Fraction(0), Fraction(1, 500)))
    nothing = load(tmp_path, TEXT, "cluster.sums=none", "cluster.host=none")
    assert (nothing.cluster.sums, nothing.cluster.host) == (Sums(), None)
    for scenario in (ranged, nothing):
        assert reread(tmp_path, scenario).cluster == scenario.cluster


def test_few_cores_have_the_transports_prices_but_for_those_stated(tmp_path: Path) -> None:
    shared = "cluster.collectives={transport: gloo}"
    known = load(tmp_path, TEXT, shared, "cluster.host={cores: 2, ranks: all}").cluster.host
    assert known is not None
    assert (known.cores, known.ranks) == (2, "all")
    shipped = transports()["gloo_few_cores"][1]
    assert shipped is not None
    assert known.per_message == shipped.per_message > 0
    assert known.per_message_range is not None
    own = load(tmp_path, TEXT, shared, "cluster.host={cores: 2, per_call: 1 ms}").cluster.host
    assert own == replace(shipped, cores=2, per_call=Fraction(1, 1000), per_call_range=None)


def test_a_named_machine_narrows_the_reception(tmp_path: Path) -> None:
    """An unnamed host may keep up or be as slow as EC2's."""
    gloo = "cluster.collectives={transport: gloo}"
    low = {}
    for name in ("{}", "bare_metal", "virtual_machine"):
        host = load(tmp_path, TEXT, gloo, f"cluster.host={name}").cluster.host
        assert host is not None
        assert host.dispatch_range is not None
        low[name] = host.per_received_byte_range
    slowest = Fraction(145, 10**11)
    assert low == {
        "{}": (Fraction(0), slowest),
        "bare_metal": (Fraction(0), Fraction(1, 10**9)),
        "virtual_machine": (Fraction(5, 10**10), slowest),
    }


def test_a_generation_that_makes_no_difference_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path, TEXT, "cluster.collectives={transport: gloo, library: pytorch1}")
    assert not caplog.records
    load(tmp_path, TEXT, "cluster.collectives={transport: nccl, library: pytorch1}")
    (record,) = caplog.records
    assert "cluster.collectives.library = 'pytorch1' has no effect" in record.getMessage()


@pytest.mark.parametrize("name", sorted(transports()))
def test_every_shipped_price_has_its_range(name: str) -> None:
    """A user's own figure is exact; the catalogue's were measured elsewhere."""
    sums, host = transports()[name]
    assert host is not None
    for dtype in DTYPES:
        assert getattr(sums, f"{dtype}_range") is not None, dtype
    for price in PRICES:
        assert (getattr(host, f"{price}_range") is not None) == bool(getattr(host, price)), price


SERVED = "all_reduce: parameter_server, all_gather: ring"


@pytest.mark.parametrize(
    ("collectives", "priced"),
    [
        (f"transport: nccl, {SERVED}", True),
        (f"transport: textbook, {SERVED}", True),
        (f"transport: custom, {SERVED}", True),
        (f"transport: gloo, {SERVED}", True),
        (f"transport: mpich, {SERVED}", True),
        ("transport: nccl, servers: per_node", True),  # push-pulls, and dense training beside them
        ("transport: nccl", False),
        ("transport: textbook, servers: per_node", False),  # its rings add nowhere in particular
    ],
)
def test_servers_add_at_a_price_with_a_range(
    tmp_path: Path, collectives: str, priced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = f"cluster.collectives={{{collectives}}}"
    scenario = load(tmp_path, TEXT, chosen)
    for dtype in DTYPES:
        assert (getattr(scenario.cluster.sums, dtype) is not None) == priced, dtype
        assert (getattr(scenario.cluster.sums, f"{dtype}_range") is not None) == priced, dtype
    caplog.clear()
    again = reread(tmp_path, scenario)
    assert again.cluster == scenario.cluster
    assert not any("cluster.sums" in record.getMessage() for record in caplog.records)
    assert load(tmp_path, TEXT, chosen, "cluster.sums=none").cluster.sums == Sums()


def test_half_precision_through_servers_gains_next_to_nothing(tmp_path: Path) -> None:
    """VGG-16 on 4 p3.16xlarge, 25 Gbit/s: no benefit (bytedance/byteps issue 293)."""

    def gain(*settings: str) -> float:
        chosen = f"cluster.collectives={{transport: nccl, {SERVED}, servers: per_node}}"
        cluster = load(tmp_path, TEXT, "cluster.network=25gbe", chosen, *settings).cluster
        start = np.zeros(cluster.workers, dtype=np.int64)
        single, half = (
            int(execute(CollectiveRecord(kind="all_reduce", sent=(size * 138_000_000,),
                        element=size, dtype=dtype), start, cluster).max())
            for size, dtype in ((4, "float32"), (2, "float16"))
        )  # fmt: skip
        return single / half

    assert gain("cluster.sums=none") == pytest.approx(2, rel=0.01)
    assert gain() < 1.1
    assert gain("cluster.sums.float16=12.5 GB/s") > 1.5  # with as many threads as it takes


LINE = replace(catalog.link("10gbe"), bandwidth=Fraction(75 * 10**8, 8))


@given(elements=st.integers(10**6, 10**8), ranks=st.integers(2, 9))
def test_half_precision_on_gloo_pays_only_since_pytorch_2(elements: int, ranks: int) -> None:
    """At 7.5 Gbit/s, as in all 15 pairs that mlbench measured on PyTorch 1 (1.19 to 1.85 times)."""

    def last(library: Any, dtype: str, element: int) -> int:
        chosen = Collectives(
            transport="gloo", library=library, all_reduce="auto", host_staging=False
        )
        sums, host = defaults(chosen)
        where = Cluster(
            nodes=ranks, devices_per_node=1, device=catalog.device("p100_pcie"), network=LINE,
            intra_node=catalog.link("pcie3_x16"), collectives=chosen, sums=sums, host=host,
        )  # fmt: skip
        record = CollectiveRecord(
            kind="all_reduce", sent=(element * elements,), element=element, dtype=dtype
        )
        return int(execute(record, np.zeros(ranks, dtype=np.int64), where).max())

    single = last("pytorch1", "float32", 4)
    assert last("pytorch1", "float16", 2) > single
    assert last("pytorch2", "float16", 2) < single
    assert last("pytorch2", "float32", 4) == single
