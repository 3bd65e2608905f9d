"""The suite shaped-collectives: the measured rows, and what Gloo does for each call."""

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from gcsim.analysis.validation import suites
from gcsim.analysis.validation.folder import Folder
from gcsim.analysis.validation.judge import Report
from gcsim.analysis.validation.rows import Row, read_suite

NAME = "shaped-collectives"
LARGE = 16_000_000
PRICES = {"message": 0.0, "byte": 0.0, "call": 0.0, "copy": 0.0}


def folder(**values: float) -> Folder:
    """With these values fitted: an ideal link, and a host that costs nothing but them."""
    path = Path(suites.__path__[0]) / "shaped_collectives"
    found = Folder(path, *read_suite(path))
    found.file.scenario["cluster"]["network"] = {"like": "1gbe", "latency": "0 s"}
    found.values = {"goodput": 1.0, **PRICES, **values}
    return found


@cache
def rows() -> Mapping[str, Row]:
    return {row["name"]: row for row in folder().rows}


def predicted(name: str, **values: float) -> float:
    (run,) = folder(**values).runs(rows()[name])
    return run.seconds


def test_every_row_lies_between_its_shortest_and_its_longest_repeat() -> None:
    assert len(rows()) == 916
    for row in rows().values():
        low, middle, high = (float(row[name]) for name in ("_min_s", "measured", "_max_s"))
        assert 0 < low <= middle <= high
        assert int(row["_repeats"]) >= 3
    heavy = rows()["ring_allgatherv heavy by 65536 B 15999995 B, 16 ranks, 1000 Mbit/s"]
    assert heavy.number("measured") == pytest.approx(0.27416, rel=1e-4)  # in the measurement


def test_bounds_are_kept(report: Report) -> None:
    assert [(kept.bound.limit, kept.kept) for kept in report.bounds] == [
        (0.03, True), (0.20, True), (0.15, True)
    ]  # fmt: skip
    assert sum(kept.points for kept in report.bounds) > 600
    assert all(len(name) <= 36 for name in report.series)


def test_acknowledgements_are_those_that_the_shapers_counted() -> None:
    """Bytes of all NICs over the payload's frames, of messages of 4 MB: the median, less 1."""
    sends = [row for name, row in rows().items() if name.startswith("send_0_to_1 4000000 B")]
    for mbit in (100, 1000, 2500, 10_000):
        rate = f"{mbit} Mbit/s"
        counted = sorted(
            float(row["_wire_bytes"]) / (4e6 * 1514 / 1448) - 1
            for row in sends
            if row["_wire_bytes"] and row["cluster.network.bandwidth"] == rate
        )
        middle = (counted[(len(counted) - 1) // 2] + counted[len(counted) // 2]) / 2
        ring = rows()[f"allreduce 4000000 B, 4 ranks, {rate}"]["cluster.network.efficiency"]
        assert float(ring.split("*")[1]) == pytest.approx(1 / (1 + middle), rel=1e-5)


@pytest.mark.parametrize(
    ("call", "copies"),
    [
        (f"broadcast {LARGE} B, 4 ranks", 3),
        (f"broadcast {LARGE} B, 16 ranks", 10),
        (f"gather {LARGE} B, 16 ranks", 15 / 16),
        (f"scatter {LARGE} B, 8 ranks", 7 / 8),
        ("ps_push 15999984 B, 8 ranks", 1),
        ("ps_pull 15999984 B, 8 ranks", 1),
        (f"ps_pushpull {LARGE} B, 2 ranks", 2),
        (f"send_0_to_1 {LARGE} B, 16 ranks", 1),
        (f"allreduce {LARGE} B, 4 ranks", 1.5 * 1.010932),
        (f"reduce_scatter {LARGE} B, 4 ranks", 1.5 * 1.010932),
        (f"allgather {LARGE} B, 4 ranks", 3 / 4 * 1.010932),
        (f"allgather {LARGE} B, 2 ranks", 3 / 4 * 1.010932),
    ],
)
def test_without_latency_a_call_takes_what_its_protocol_sends(call: str, copies: float) -> None:
    """Bytes through the busiest NIC; a broadcast's copies share NICs, and the all-gather of two
    ranks takes three halves of a block where two would do; rings wait for acknowledgements."""
    row = rows()[f"{call}, 100 Mbit/s"]
    seconds = copies * row.number("traffic.let.b") * 8 / 100e6
    assert predicted(row["name"]) == pytest.approx(seconds, rel=1e-5)


def test_blocks_are_those_that_were_gathered() -> None:
    """The longest of linear blocks is 2 / (p + 1) of all, of heavy ones a half: rings of whole
    blocks of four ranks take three hops, whose longest block is on the way all the time."""
    for shape, share in (("linear 4000000", 0.4), ("heavy 3999998", 0.5)):
        padded = predicted(f"allgather_padded {shape} B, 4 ranks, 100 Mbit/s")
        assert padded == pytest.approx(3 * share * 4e6 * 8 / 1e8 * 1.010932, rel=1e-3)


def test_a_slow_card_slows_a_ring_but_no_incast() -> None:
    ring = predicted("allreduce 1000000 B, 4 ranks, 100 Mbit/s, one of 50")
    assert ring == pytest.approx(1.5 * 8e6 / 50e6, rel=0.04)
    push = predicted("ps_push 999996 B, 4 ranks, 100 Mbit/s, one of 50")
    assert push == pytest.approx(0.08, rel=1e-3)


def test_all_ranks_share_the_two_cores() -> None:
    """Messages of 1 s on two cores, which make all transfers short: ends of a barrier of sixteen
    ranks in four rounds, and 15 messages with 16 calls of 2 s."""
    barrier = "barrier 0 B, 16 ranks, 100 Mbit/s"
    assert predicted(barrier, message=1.0) == pytest.approx(16 * 4 / 2)
    gather = predicted("gather 64 B, 16 ranks, 100 Mbit/s", message=1.0, call=2.0)
    assert gather == pytest.approx((15 + 16 * 2) / 2, rel=1e-4)


def test_copies_around_a_call_take_turns_on_the_cores() -> None:
    for call, turns in (("reduce_scatter", 2), ("allreduce", 0), ("allgather", 2)):
        name = f"{call} 4000000 B, 4 ranks, 1000 Mbit/s"
        more = predicted(name, copy=1e-9) - predicted(name)
        assert math.isclose(more, turns * 4e-3, abs_tol=1e-9)
