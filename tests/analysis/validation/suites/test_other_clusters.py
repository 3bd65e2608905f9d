"""Other clusters: are the data as published, do the numbers hold that the page states?"""

from math import prod
from pathlib import Path

import numpy as np
import pytest

from gcsim.analysis.validation import data_files
from gcsim.analysis.validation.judge import Report
from gcsim.analysis.validation.registry import chosen
from gcsim.analysis.validation.suite import Point

NAME = "other-clusters"
SUITE = chosen([NAME])[0]
ROWS = 912
"""Published: 207 TensorFlow, 168 DLPerf, 168 DeepBench, 162 mlbench, 79 gTop-k, 44 DDP, 36 Horovod,
24 tensorflow#5683, 24 MG-WFBP."""
DATA = Path(data_files.__file__).parent / "data"
LAYERS = (DATA / "other_clusters_layers.csv", DATA / "ddl_benchmarks_layers.csv")


@pytest.fixture(scope="module")
def named(report: Report) -> dict[str, Point]:
    return {point.name: point for point in report.findings.points}


def test_bounds_hold_and_names_fit_a_narrow_table(report: Report) -> None:
    assert [kept.bound.name for kept in report.bounds if not kept.kept] == []
    bounded = {name for bound in SUITE.bounds for name in bound.series}
    assert bounded == set(report.series)
    assert max(map(len, report.series)) <= 34


def test_every_point_is_cited_and_every_factor_says_what_it_was_fitted_on(report: Report) -> None:
    for point in report.findings.points:
        assert "https://" in point.source
        assert "read-in-source" in point.source
        assert point.measured > 0 < point.predicted
    assert all(factor.points >= 1 and factor.value >= 0 for factor in report.findings.factors)


def test_every_row_is_compared_or_left_out_by_a_rule(report: Report) -> None:
    # beside them: the authors' own fit and breakdown on gTop-k's cluster (2 + 12 rows), and
    # MG-WFBP's, of which a usable pair of rows makes two points
    points = len(report.findings.points)
    left_out = sum(excluded.count for excluded in report.findings.excluded)
    assert points + left_out + 2 + 12 == ROWS


@pytest.mark.parametrize(
    ("name", "value"),
    [  # read in the sources
        ("VGG-16, 64 GPUs, servers, GPU, 40 Gbit/s", 97.0),
        ("ResNet-101, 16 GPUs, NCCL, RDMA, 25 Gbit/s", 1746.2),
        ("ResNet-50, 25 MB buckets, 16 GPUs", 0.104),
        ("ResNet-50, 1 MB buckets, 16 GPUs", 0.108),
        ("ResNet-50 b128, OneFlow, 32 GPUs", 12411.97),
        ("BERT-base b32, NGC PyTorch, 16 GPUs", 1499.4),
        ("ResNet-50 b64, 8 GPUs, DGX-1, synthetic", 1734),
        ("AlexNet b512, 4 GPUs, EC2 K80, real", 2201),
        ("ResNet-152 b32, 8 hosts, EC2 K80", 981),
        ("AlexNet, gTop-k, 32 workers", 32 * 15.777),  # of each worker
        ("258 MB, 16 ranks, P100 PCIe", 0.15247235),
        ("373 MB, 8 ranks, cloud, Gloo fp32", 2.19),
        ("1 MB, 8 ranks, 1 GbE (1gbe-small)", 4.0e-3 + 1.5e-8 * 1e6),
    ],
)
def test_a_measurement_is_the_published_one(
    named: dict[str, Point], name: str, value: float
) -> None:
    assert named[name].measured == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(
    ("model", "parameters", "flops"),
    [  # torchvision's parameters and, times two, multiply-adds; He et al. 2016; Devlin et al. 2019
        ("resnet50", 25_557_032, 8.18e9),
        ("resnet101", 44_549_160, 15.6e9),
        ("vgg16", 138_357_544, 30.9e9),
        ("alexnet", 61_100_840, 1.43e9),
        ("resnext50_32x4d", 25_028_904, 8.46e9),
        ("resnext101_32x8d", 88_791_336, 32.8e9),
        ("bert_base", 109_482_240, 22.4e9),
    ],
)
def test_layers_add_up_to_the_known_model(model: str, parameters: int, flops: float) -> None:
    facts, shapes = data_files.layer_table(LAYERS, model, 1, 0)
    assert facts.parameters == sum(map(prod, shapes)) == parameters
    assert facts.forward_flops == pytest.approx(flops, rel=3e-3)


def test_what_is_fitted_is_what_the_suite_says(report: Report) -> None:
    for point in report.findings.points:
        if point.series.startswith("all-reduce, cloud"):
            assert not point.fitted or point.workers == 4
        elif point.series.startswith("TensorFlow, DGX-1, syn") or "PyTorch" in point.series:
            assert point.fitted == (point.workers == 1)
        elif "gTop-k" in point.series or "top-k" in point.series:
            assert point.fitted == (point.workers == 4)
        elif point.series.startswith("Horovod") and point.fitted:
            assert point.workers == 1 or point.name.startswith("VGG-16")


def test_how_far_the_catalogue_is_off_sparse_methods_on_the_host_is_said(report: Report) -> None:
    """Nothing of the host's code is in the prediction without a fit."""
    ratios = [
        point.unfitted / point.measured
        for point in report.findings.points
        if point.series.startswith("1 GbE, P102")
        and point.curve != "dense"
        and point.workers > 1
        and point.unfitted
    ]
    assert (round(min(ratios)), round(float(np.median(ratios))), round(max(ratios))) == (5, 24, 99)
    assert "5 to 99 times too fast (median 24)" in report.suite.missing


def test_errors_are_small_where_the_mechanism_is_whole_and_stated_where_it_is_not(
    report: Report,
) -> None:
    # what `missing` says of the series: the bias of several workers on one wire has one sign
    assert report.series["PyTorch DDP, NVLink, 1 MB buckets"].bias < 0
    servers = [
        point.predicted / point.measured
        for point in report.findings.points
        if point.name.startswith("VGG-16") and "servers" in point.name
    ]
    assert [round(one, 1) for one in (min(servers), max(servers))] == [1.7, 2.5]
    assert "1.7 to 2.5 times too fast" in report.suite.missing
    assert report.decisions is not None
    assert (report.decisions.right, report.decisions.decided) == (7, 8)
    assert (report.decisions.fastest_right, report.decisions.fastest) == (7, 8)


def test_half_precision_was_slower_on_gloo_in_every_pair(named: dict[str, Point]) -> None:
    """1e6 elements and more: 1.19 to 1.85 times float32, which the predictions without fit say."""
    half = [point for name, point in named.items() if name.endswith("Gloo fp16")]
    whole = {
        (point.nbytes, point.workers): point
        for name, point in named.items()
        if name.endswith("Gloo fp32")
    }
    pairs = [
        (point, whole[2 * point.nbytes, point.workers])
        for point in half
        if point.nbytes >= 2_000_000
    ]
    assert len(pairs) == 15
    for slower, faster in pairs:
        assert 1.18 < slower.measured / faster.measured < 1.86
        assert slower.predicted > faster.predicted
        assert slower.unfitted is not None
        assert faster.unfitted is not None
        assert slower.unfitted > faster.unfitted
