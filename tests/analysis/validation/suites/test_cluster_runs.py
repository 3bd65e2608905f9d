"""Clusters of a few published runs: are the data as published, every row compared or left out?"""

from collections.abc import Callable

import pytest

from gcsim.analysis.validation.judge import Report

PUBLISHED = {"tc-cluster": 322, "nccl-clusters": 68, "raysgd": 32, "bagua": 116, "global-qsgd": 27}
"""Rows read in the sources; of the NCCL sources those of NCCL's own all-reduce."""


@pytest.fixture(scope="module")
def reports(report_of: Callable[[str], Report]) -> dict[str, Report]:
    return {name: report_of(name) for name in PUBLISHED}


@pytest.mark.parametrize("name", PUBLISHED)
def test_bounds_hold_over_all_series_of_times(reports: dict[str, Report], name: str) -> None:
    report = reports[name]
    assert [kept.bound.name for kept in report.bounds if not kept.kept] == []
    medians = {
        series
        for bound in report.suite.bounds
        if bound.statistic == "median"
        for series in bound.series
    }
    assert medians == set(report.series)
    assert max(map(len, report.series)) <= 36


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_row_is_compared_or_left_out_by_a_rule(reports: dict[str, Report], name: str) -> None:
    found = reports[name].findings
    assert len(found.points) + sum(one.count for one in found.excluded) == PUBLISHED[name]
    for point in found.points:
        assert "https://" in point.source
        assert "read-in-source" in point.source


@pytest.mark.parametrize(
    ("name", "point", "value"),
    [  # read in the sources
        ("tc-cluster", "128 MiB, 4 ranks, Gloo all-reduce, 10 Gbit/s", 0.327),
        ("tc-cluster", "256 MiB, 32 ranks, Gloo broadcast, 1 Gbit/s, 10 ms", 32.447),
        ("nccl-clusters", "1.02 kB, 2 ranks, TCP, 50 Gbit/s", 109e-6),
        ("nccl-clusters", "134 MB, 16 ranks, RoCE, 2 x 100 Gbit/s", 11461e-6),
        ("raysgd", "Horovod, float16 sums, 25 Gbit/s, 64 GPUs", 18479.8),
        ("raysgd", "Horovod, 100 Gbit/s, 64 GPUs", 21872.5),
        ("raysgd", "DDP, 100 Gbit/s, 8 GPUs", 2962.7),
        ("bagua", "BERT-Large, ByteGrad, 2 Gbit/s", 342.3),
        ("global-qsgd", "Wide ResNet-101, linear 8bit, host memory", 0.187),
    ],
)
def test_a_measurement_is_the_published_one(
    reports: dict[str, Report], name: str, point: str, value: float
) -> None:
    (found,) = [one for one in reports[name].findings.points if one.name == point]
    assert found.measured == pytest.approx(value, rel=1e-9)


def test_what_hooks_compute_is_priced_and_explains_what_four_bits_cost(
    reports: dict[str, Report],
) -> None:
    """Half of the bytes, and yet slower: 92 ms against 81 measured."""
    times = {point.name: point.predicted for point in reports["global-qsgd"].findings.points}
    four, eight = (times[f"Wide ResNet-101, linear {bits}bit, peer to peer"] for bits in ("4", "8"))
    assert 1.05 < four / eight < 1.2
