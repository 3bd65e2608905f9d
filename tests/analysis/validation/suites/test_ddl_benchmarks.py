"""The suite ddl-benchmarks: are its rows the published ones, is what is left out left out by the
rule, does it keep its bound?"""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from gcsim.analysis.validation import data_files, registry
from gcsim.analysis.validation.judge import Report
from gcsim.analysis.validation.rows import Row, read_rows

NAME = "ddl-benchmarks"
FOLDER = Path(registry.__file__).parent / "suites" / "ddl_benchmarks"
ROWS = {row["name"]: row for row in read_rows(FOLDER / "rows.csv")}
MODELS = ("ResNet-50", "BERT-Large", "BERT-Base")
NETWORKS = ("10GbE", "100GbE", "100Gb IB")
SERVED = ("BSP-PS", "WFBP-PS", "ByteScheduler-PS")
SCHEDULERS = ("BSP-A2A", "WFBP-A2A", "MG-WFBP", "ByteScheduler-A2A", *SERVED)


LAYERS = Path(data_files.__file__).parent / "data" / "ddl_benchmarks_layers.csv"


@pytest.mark.parametrize(
    ("name", "tokens"), [("resnet50", 0), ("bert_large", 64), ("bert_base", 64)]
)
def test_layers_are_those_of_the_shipped_models(name: str, tokens: int) -> None:
    """Counted again by `model_facts`; the decoder predicts 64 tokens in the place of one."""
    from gcsim.traces.models.building import build_model, trainable
    from gcsim.traces.models.facts import model_facts
    from gcsim.traces.models.registry import MODELS as SHIPPED

    entry = SHIPPED[name]
    if tokens:
        entry = replace(entry, input_shape=(tokens,))
    module = build_model(entry, seed=0, device="meta")
    facts = model_facts(entry, module, 8)
    layers = tuple(
        replace(layer, forward_flops=64 * layer.forward_flops, outputs=64 * layer.outputs)
        if layer.name == "decoder"
        else layer
        for layer in facts.layers
    )
    own, shapes = data_files.layer_table((LAYERS,), name, 8, tokens)
    assert own == replace(facts, layers=layers)
    assert shapes == [(tensor.numel(),) for _, tensor in trainable(module)]


def rate(model: str, network: str, scheduler: str, workers: int) -> float:
    return ROWS[f"{model}, {network}, {scheduler}, {workers} GPUs"].number("measured")


def test_the_table_is_complete() -> None:
    """3 models on one device, and 3 models x 3 networks x 7 schedulers x 4 sizes."""
    expected = {f"{model}, 1 GPU" for model in MODELS} | {
        f"{model}, {network}, {scheduler}, {workers} GPUs"
        for model in MODELS
        for network in NETWORKS
        for scheduler in SCHEDULERS
        for workers in (4, 8, 16, 32)
    }
    assert set(ROWS) == expected


@pytest.mark.parametrize(
    ("name", "published"),
    [  # results/2020-05-29/README.md of the repository, its first, last and some other cells
        ("ResNet-50, 1 GPU", 253.1),
        ("BERT-Large, 1 GPU", 49.0),
        ("BERT-Base, 1 GPU", 212.8),
        ("ResNet-50, 10GbE, BSP-A2A, 4 GPUs", 925.02),
        ("ResNet-50, 10GbE, ByteScheduler-PS, 32 GPUs", 6888.995),
        ("BERT-Large, 100Gb IB, MG-WFBP, 32 GPUs", 400.16),
        ("BERT-Large, 100GbE, ByteScheduler-PS, 16 GPUs", 151.535),
        ("BERT-Base, 100GbE, WFBP-PS, 8 GPUs", 1020.58),
        ("BERT-Base, 100GbE, ByteScheduler-PS, 32 GPUs", 4516.998),
    ],
)
def test_rows_are_those_of_the_published_table(name: str, published: float) -> None:
    assert ROWS[name].number("measured") == published


def test_left_out_are_the_series_that_repeat_the_10gbe_column() -> None:
    """Servers on 100GbE whose throughput is the 10GbE column's within 3 % at every size at which
    10GbE is at least 10 % slower than InfiniBand."""
    found = set()
    for model in MODELS:
        for scheduler in SERVED:
            deciding = [
                workers
                for workers in (8, 16, 32)
                if rate(model, "100Gb IB", scheduler, workers)
                >= 1.1 * rate(model, "10GbE", scheduler, workers)
            ]
            same = [
                abs(rate(model, "100GbE", scheduler, p) / rate(model, "10GbE", scheduler, p) - 1)
                for p in deciding
            ]
            if same and max(same) <= 0.03:
                found |= {f"{model}, 100GbE, {scheduler}, {p} GPUs" for p in (8, 16, 32)}
    assert len(found) == 12
    assert {name for name, row in ROWS.items() if row["left_out"]} == found


def _served(name: str) -> list[Row]:
    return [row for row in ROWS.values() if name in row.fits]


def test_the_fit_uses_what_the_suite_says() -> None:
    assert {row["model"] for row in _served("beside")} == {"bert_large", "bert_base"}
    names = ("bus", "between", "gbe10", "gbe100", "byteps")
    assert {row["model"] for name in names for row in _served(name)} == {"bert_large"}
    assert Counter(name for row in ROWS.values() for name in row.fits) == {
        "bus": 3, "beside": 6, "between": 2, "gbe10": 2, "gbe100": 2, "byteps": 2,
    }  # fmt: skip


def test_the_bound_is_kept(report: Report) -> None:
    """A median error of at most 7 % of everything that was not fitted."""
    (kept,) = report.bounds
    assert kept.bound.limit == 0.07
    assert kept.points == 255 - 12 - 20
    assert kept.kept
    assert max(map(len, report.series)) <= 34
    (excluded,) = report.findings.excluded
    assert excluded.count + len(report.findings.points) == len(ROWS)


def test_byteps_pushes_while_it_pulls(report: Report) -> None:
    """One direction at a time it would need more than the line rate, and less than twice that."""
    (found,) = [one for one in report.findings.factors if "BytePS" in one.name]
    assert 1 < found.value / 1.25e9 < 2


def test_one_device_takes_what_it_was_measured_to_take(report: Report) -> None:
    alone = [point for point in report.findings.points if point.workers == 1]
    assert [point.predicted for point in alone] == pytest.approx([253.1, 49.0, 212.8])


def test_the_slow_exchange_without_factors_is_predicted_from_the_catalogue(report: Report) -> None:
    """On 10GbE the catalogue's goodput alone is within 7 % (median), for every model."""
    for name in MODELS:
        unfitted = report.series[f"{name}, 10GbE"].unfitted_median
        assert unfitted is not None
        assert unfitted < 0.07
