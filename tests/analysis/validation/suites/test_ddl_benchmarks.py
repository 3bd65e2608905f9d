"""The suite ddl-benchmarks: are its rows the published ones, is its fit honest, does it keep its
bound, and does it put to the simulator what the benchmark's schedulers do?"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from importlib.resources import files
from statistics import mean
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from gcsim.analysis.validation.judge import MOST_FITTED, Report, judge
from gcsim.analysis.validation.suites.ddl_benchmarks import prediction
from gcsim.analysis.validation.suites.ddl_benchmarks import suite as fitting
from gcsim.analysis.validation.suites.ddl_benchmarks.models import model, update_time
from gcsim.analysis.validation.suites.ddl_benchmarks.prediction import (
    PARTITION,
    SCHEDULED,
    SMALL,
    Factors,
    groups,
    key,
    merged_ends,
    seconds,
)
from gcsim.analysis.validation.suites.ddl_benchmarks.rows import (
    MODELS,
    SERVED,
    Row,
    Scheduler,
    all_rows,
    compared,
    mislabelled,
)
from gcsim.analysis.validation.suites.ddl_benchmarks.suite import (
    SUITE,
    Fit,
    fitted,
    least_squares,
    points,
)
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.scenarios import catalog
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.collectives.dispatch import execute
from gcsim.simulator.devices.device import KernelRate
from gcsim.simulator.training import Interference

SCHEDULERS: tuple[Scheduler, ...] = get_args(Scheduler)[1:]
ROWS = all_rows()


Squares = tuple[Sequence[Row], float, Callable[[float], Factors]]
"""Rows, the rate at which their squared errors are least, and the factors with a rate."""


@pytest.fixture(scope="module")
def squares() -> list[Squares]:
    """What the fit asked to be made least."""
    return []


@pytest.fixture(scope="module")
def fit(squares: list[Squares]) -> Iterator[Fit]:
    """Equal rows with equal factors are predicted once in this file."""
    known: dict[tuple[Row, str], float] = {}

    def remembered(one: Row, factors: Factors) -> float:
        case = one, repr(factors)
        if case not in known:
            known[case] = seconds(one, factors)
        return known[case]

    def told(rows: Sequence[Row], start: float, put: Callable[[float], Factors]) -> float:
        squares.append((rows, least_squares(rows, start, put), put))
        return squares[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "seconds", remembered)
        with patch.context() as telling:
            telling.setattr(fitting, "least_squares", told)
            found = fitted(compared(ROWS))
        yield found


@pytest.fixture(scope="module")
def report(fit: Fit) -> Report:
    return judge(SUITE, SUITE.find())


def row(name: str) -> Row:
    (found,) = [one for one in ROWS if one.name == name]
    return found


# The data


@pytest.mark.parametrize(
    ("name", "rate", "deviation"),
    [
        ("resnet50-1gpu", 253.1, None),
        ("bert-large-1gpu", 49.0, None),
        ("bert-base-1gpu", 212.8, None),
        ("resnet50-10gbe-with-tcp-ip-bsp-a2a-4gpu", 925.02, 4.42),
        ("resnet50-10gbe-with-tcp-ip-bytescheduler-ps-32gpu", 6888.995, 50.17),
        ("bert-large-100gbib-with-rdma-mg-wfbp-32gpu", 400.16, 1.88),
        ("bert-large-100gbe-with-tcp-ip-bytescheduler-ps-16gpu", 151.535, 7.46),
        ("bert-base-100gbe-with-tcp-ip-wfbp-ps-8gpu", 1020.58, 71.0),
        ("bert-base-100gbe-with-tcp-ip-bytescheduler-ps-32gpu", 4516.998, 140.77),
    ],
)
def test_rows_are_those_of_the_published_table(
    name: str, rate: float, deviation: float | None
) -> None:
    """results/2020-05-29/README.md of the repository, its first, last and some other cells."""
    assert (row(name).rate, row(name).deviation) == (rate, deviation)


def test_the_table_is_complete_and_every_row_is_cited() -> None:
    """3 models on one device, and 3 models x 3 networks x 7 schedulers x 4 sizes."""
    places = Counter((r.model, r.network, r.scheduler, r.workers, r.nodes) for r in ROWS)
    expected = {(name, "", "", 1, 1) for name in MODELS} | {
        (name, network, scheduler, nodes * 4, nodes)
        for name in MODELS
        for network in ("10GbE", "100GbE", "100Gb IB")
        for scheduler in SCHEDULERS
        for nodes in (1, 2, 4, 8)
    }
    assert set(places) == expected
    assert set(places.values()) == {1}
    assert len({r.source for r in ROWS}) == len(ROWS) == 255
    assert all("arXiv 2005.13247" in r.source for r in ROWS)


def test_layers_are_those_of_the_shipped_models() -> None:
    """Counted again by `model_facts`; the decoder predicts 64 tokens in the place of one."""
    from gcsim.traces.models.building import build_model, trainable
    from gcsim.traces.models.facts import model_facts
    from gcsim.traces.models.registry import MODELS as SHIPPED

    for name in MODELS:
        entry = SHIPPED[name]
        if name != "resnet50":
            entry = replace(entry, input_shape=(64,))
        module = build_model(entry, seed=0, device="meta")
        facts = model_facts(entry, module, 8)
        layers = tuple(
            replace(layer, forward_flops=64 * layer.forward_flops, outputs=64 * layer.outputs)
            if layer.name == "decoder"
            else layer
            for layer in facts.layers
        )
        own = model(name, 8)
        assert own.facts == replace(facts, layers=layers)
        assert dict(own.tensors) == {
            number: tensor.numel() for number, (_, tensor) in enumerate(trainable(module))
        }


def test_the_file_of_layers_names_no_other_model() -> None:
    """No row is there that nothing reads."""
    text = files("gcsim.analysis.validation") / "data" / "ddl_benchmarks_layers.csv"
    lines = [line for line in text.read_text("utf-8").splitlines() if not line.startswith("#")]
    assert {line["model"] for line in csv.DictReader(lines)} == set(MODELS)


def test_left_out_are_four_series_that_repeat_the_10gbe_column() -> None:
    """Found by eye: BSP-PS and WFBP-PS of ResNet-50 and BERT-Large. BERT-Base's differ."""
    out = mislabelled(ROWS)
    series = Counter((r.model, r.network, r.scheduler) for r in ROWS if r.name in out)
    assert series == {
        (name, "100GbE", scheduler): 3
        for name in ("resnet50", "bert_large")
        for scheduler in ("BSP-PS", "WFBP-PS")
    }


def test_a_series_that_differs_at_one_size_where_the_network_decides_stays() -> None:
    name = "bert-large-100gbe-with-tcp-ip-bsp-ps-16gpu"
    rows = [replace(r, rate=1.1 * r.rate) if r.name == name else r for r in ROWS]
    assert not any("bert-large-100gbe-with-tcp-ip-bsp-ps" in one for one in mislabelled(rows))
    assert len(mislabelled(rows)) == 9


# The schedulers


@given(
    st.lists(
        st.tuples(
            st.integers(1, 10**7) | st.sampled_from([1, SMALL - 1, SMALL]), st.integers(0, 10**10)
        ),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from([0.0, 1e-5, 1e-3]),
    st.sampled_from([0.0, 1e-10, 1e-8]),
)
def test_merging_is_that_of_the_algorithm(
    tensors: list[tuple[int, int]], start_up: float, per_byte: float
) -> None:
    """Against the algorithm as published: messages in lists, of which all starts are computed
    anew after each merge. (Our own computes each start once.)"""
    elements = [size for size, _ in tensors]
    ready = np.cumsum([time for _, time in tensors]).tolist()
    ends = merged_ends(elements, ready, start_up, per_byte)
    assert ends == _merged_naively(elements, ready, start_up, per_byte)


def _merged_naively(
    elements: Sequence[int], ready: Sequence[int], start_up: float, per_byte: float
) -> list[int]:
    sizes, last = list(elements), len(elements) - 1
    alone = []

    def starts() -> list[float]:
        found: list[float] = []
        free = 0.0
        for size, time in zip(sizes, ready, strict=True):
            found.append(max(free, time / 1e12))
            free = found[-1] + (start_up + 4 * per_byte * size if size else 0.0)
        return found

    for place in range(last):
        begun, size = starts()[place], sizes[place]
        ended = begun + start_up + 4 * per_byte * size
        there = ready[place + 1] / 1e12
        merge = size < SMALL
        if there < ended:
            merge = merge or begun > there or there - begun < start_up
        if merge:
            sizes[place + 1] += size
            sizes[place] = 0
        else:
            alone.append(place + 1)
    return [*alone, last + 1]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("name", MODELS)
def test_every_byte_is_exchanged_once(scheduler: Scheduler, name: str) -> None:
    """In messages no longer than the scheduler's partitions, of groups in order."""
    own = model(name, 8)
    sizes = [size for _, size in own.tensors]
    ready = list(range(0, 1000 * len(sizes), 1000))
    found = groups(scheduler, "10GbE", 8, sizes, ready)
    assert sum(sum(group.messages) for group in found) == own.facts.gradient_bytes
    assert sum(group.tensors for group in found) == len(sizes)
    assert [group.ready for group in found] == sorted({group.ready for group in found})
    assert found[-1].ready == ready[-1]
    longest = max(max(group.messages) for group in found)
    if scheduler.endswith("-PS"):
        assert longest == PARTITION
    if scheduler == "ByteScheduler-A2A":
        assert longest <= 4 * SCHEDULED
    if scheduler == "WFBP-A2A":
        assert [group.messages for group in found] == [(4 * size,) for size in sizes]
    if scheduler == "BSP-A2A":
        assert len(found) == 1


# Predictions


def test_one_device_takes_what_it_was_measured_to_take(fit: Fit) -> None:
    for name in ("resnet50-1gpu", "bert-large-1gpu", "bert-base-1gpu"):
        assert seconds(row(name), fit.factors) == pytest.approx(row(name).step, rel=1e-9)


def test_the_fused_exchange_is_computation_plus_one_ring(fit: Fit) -> None:
    """BSP-A2A overlaps nothing: an iteration of one device, copies into the buffer and the division
    of the sum at the device's rates, and NCCL's all-reduce of all bytes, each by itself."""
    for name, scheduler_row in (
        ("bert_large", "bert-large-10gbe-with-tcp-ip-bsp-a2a-16gpu"),
        ("resnet50", "resnet50-100gbe-with-tcp-ip-bsp-a2a-8gpu"),
    ):
        own = row(scheduler_row)
        facts, tensors = model(name, own.batch).facts, len(model(name, own.batch).tensors)
        nbytes = facts.gradient_bytes
        link = catalog.link({"10GbE": "10gbe", "100GbE": "100gbe"}[own.network], "nccl")
        rate = fit.factors.rate[own.network]
        assert fit.factors.between is not None
        bus = catalog.link("pcie3_x16", "nccl")
        cluster = Cluster(
            nodes=own.nodes,
            devices_per_node=4,
            device=catalog.device("v100_pcie"),
            network=link.exactly(efficiency=round(rate) / link.bandwidth),
            intra_node=bus.exactly(efficiency=round(fit.factors.between) / bus.bandwidth),
            collectives=Collectives(transport="nccl", all_reduce="auto"),
        )
        record = CollectiveRecord(kind="all_reduce", sent=(nbytes,), element=4)
        entry = np.zeros(own.workers, dtype=np.int64)
        ring = int(execute(record, entry, cluster).max()) / 1e12
        copies = tensors * 5e-6 + 2 * nbytes / 811.7e9
        division = 5e-6 + 2 * nbytes / 811.7e9
        expected = fit.factors.alone[name] + copies + ring + division
        # Ranks leave a ring one after another, and enter the next one so: a mean is a bit shorter.
        assert seconds(own, fit.factors) == pytest.approx(expected, rel=3e-4)


def test_two_nodes_with_two_servers_stand_for_any_number(
    fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as many servers as nodes each NIC carries the whole gradient in and out."""
    served = row("resnet50-10gbe-with-tcp-ip-wfbp-ps-32gpu")
    two = seconds(served, fit.factors)
    monkeypatch.setattr(prediction, "_SERVED_NODES", 8)
    assert seconds(served, fit.factors) == pytest.approx(two, rel=1e-7)


def test_the_optimiser_costs_its_bytes() -> None:
    """AdamW: 18 passes of 4 bytes over 335,141,888 parameters at 811.7 GB/s, and 7 launches of 5 us
    for each of 391 tensors."""
    time = update_time(model("bert_large", 8), prediction.device(), "adam")
    expected = 18 * 4 * 335_141_888 / 811.7e9 + 7 * 391 * 5e-6
    assert time / 1e12 == pytest.approx(expected, rel=1e-6)


def test_overlap_never_makes_an_exchange_slower_than_fusing_behind_it(fit: Fit) -> None:
    """On one node, where every message is long against its latency: MG-WFBP <= BSP-A2A."""
    for name in ("resnet50", "bert-large", "bert-base"):
        times = [
            seconds(row(f"{name}-10gbe-with-tcp-ip-{scheduler}-4gpu"), fit.factors)
            for scheduler in ("mg-wfbp", "bsp-a2a")
        ]
        assert times[0] < times[1]


# The fit


def test_a_judged_measurement_changes_no_prediction(fit: Fit) -> None:
    """All of them at once, by factors of 0.5 to 2."""
    generator = np.random.default_rng(0)
    rows = [
        one
        if one.name in fit.names
        else replace(one, rate=one.rate * float(generator.uniform(0.5, 2)))
        for one in compared(ROWS)
    ]
    assert fitted(rows) == fit


def test_every_fitted_measurement_matters(fit: Fit, squares: list[Squares]) -> None:
    """One that does not depend on the rate that it serves would be fitted in vain; what one device
    takes is a factor as it was measured."""
    alone = {one.name for one in ROWS if one.workers == 1}
    assert {row(name).step for name in alone} == set(fit.factors.alone.values())
    assert alone.union(*([one.name for one in rows] for rows, _, _ in squares)) == fit.names
    for rows, rate, put in squares:
        for one in rows:
            assert seconds(one, put(1.02 * rate)) != seconds(one, put(rate))


def test_least_squares_finds_the_rate_that_made_the_measurements(fit: Fit) -> None:
    """From a start that is wrong by a factor of 2.5."""
    rate = 0.9e9

    def put(rate: float) -> Factors:
        return replace(fit.factors, rate={"10GbE": rate})

    made = [
        replace(one, rate=one.batch * one.workers / seconds(one, put(rate)))
        for one in (
            row("bert-large-10gbe-with-tcp-ip-bsp-a2a-8gpu"),
            row("bert-large-10gbe-with-tcp-ip-bsp-a2a-32gpu"),
        )
    ]
    assert least_squares(made, 2.5 * rate, put) == pytest.approx(rate, rel=1e-5)


def test_the_fit_uses_what_the_suite_says(fit: Fit) -> None:
    used = {r.name: r for r in ROWS if r.name in fit.names}
    beside = {r.name for r in used.values() if r.scheduler == "WFBP-A2A"}
    assert {used[name].model for name in beside} == {"bert_large", "bert_base"}
    assert {used[name].nodes for name in beside} == {1}  # what computations slow
    several = [r for r in used.values() if r.workers > 1 and r.name not in beside]
    assert {r.model for r in several} == {"bert_large"}
    assert {r.scheduler for r in several} == {"BSP-A2A", "BSP-PS"}
    between = [r for r in several if r.nodes > 1 and r.network == "100Gb IB"]
    assert {(r.scheduler, r.workers) for r in between} == {("BSP-A2A", 8), ("BSP-A2A", 32)}
    assert Counter(r.workers for r in used.values()) == {1: 3, 4: 3 + 6, 8: 4, 32: 4}


def test_byteps_pays_for_no_launches_of_gcsims(monkeypatch: pytest.MonkeyPatch) -> None:
    """It queues its own code: a second per launch of a compressor's changes nothing."""
    rows = [row for row in all_rows() if row.scheduler in SERVED and row.workers == 8]
    stated = [seconds(row, Factors()) for row in rows]
    slow = KernelRate(launch=1.0, source="a second")
    own = replace(prediction.device(), host={"kernel": slow, "operator": slow})
    monkeypatch.setattr(prediction, "device", lambda: own)
    assert rows
    assert [seconds(row, Factors()) for row in rows] == stated


def test_byteps_pushes_while_it_pulls(fit: Fit) -> None:
    """One direction at a time it would need more than the line rate, and less than twice that."""
    assert 1 < fit.factors.served["10GbE"] / 1.25e9 < 2


# The report


def test_the_bound_is_kept(report: Report) -> None:
    """A median error of at most 7 % of everything that was not fitted."""
    (kept,) = report.bounds
    assert kept.bound.limit == 0.07
    assert kept.points == 255 - 12 - 20
    assert kept.kept


def test_points_show_every_compared_row(report: Report, fit: Fit) -> None:
    """Rates of rows, fitted points as fitted, at most a third of a series; names fit a table."""
    found = report.findings.points
    rows = compared(ROWS)
    assert [(p.measured, p.source, p.fitted) for p in found] == [
        (r.rate, r.source, r.name in fit.names) for r in rows
    ]
    assert {p.series for p in found} == set(report.series)
    for series in report.series:
        own = [p.fitted for p in found if p.series == series]
        assert sum(own) <= MOST_FITTED * len(own)
        assert len(series) <= 34
    assert len({p.panel for p in found if p.panel}) == 9
    (excluded,) = report.findings.excluded
    assert excluded.count + len(found) == len(ROWS)


def test_rows_of_one_key_are_one_prediction(fit: Fit) -> None:
    """Kept predictions are those that each row would get by itself."""
    rows = [
        one
        for one in compared(ROWS)
        if one.model == "resnet50" and one.workers <= 8 and one.scheduler != "BSP-A2A"
    ]
    shared = {p.source: p.predicted for p in points(rows, fit)}
    assert len({key(one) for one in rows}) < len(rows)
    for one in rows:
        alone = one.batch * one.workers / seconds(one, fit.factors)
        assert shared[one.source] == pytest.approx(alone, rel=1e-12)


def test_the_slow_exchange_without_factors_is_predicted_from_the_catalogue(report: Report) -> None:
    """On 10GbE the catalogue's goodput alone is within 7 % (median), for every model."""
    for name in MODELS.values():
        unfitted = report.series[f"{name}, 10GbE"].unfitted_median
        assert unfitted is not None
        assert unfitted < 0.07


@pytest.mark.long
def test_each_half_of_the_sizes_chooses_a_bus_that_carries_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is slowed, the bus is, or computations are, each fitted on the same rows: so rows of
    4 and 16 devices are judged by what 8 and 32 chose, and the other way round."""
    rows = compared(all_rows())
    fit = fitted(rows)
    factors = replace(fit.factors, beside=None)
    overlapping = {"WFBP-A2A", "MG-WFBP", "ByteScheduler-A2A"}
    judged = [row for row in rows if row.scheduler in overlapping and row.name not in fit.names]
    served = [row for row in rows if row.name in fit.rows["beside"]]

    def errors(form: Interference, own: list[Row]) -> list[float]:
        monkeypatch.setattr(prediction, "_interference", lambda _: form)
        alike = {key(row): seconds(row, factors) for row in {key(r): r for r in own}.values()}
        return [abs(math.log(alike[key(row)] / row.step)) for row in own]

    def slowed(share: float) -> Interference:
        return Interference(computation=Fraction(round(1000 * share), 1000))

    assert fit.factors.bus is not None
    assert fit.factors.beside is not None
    best = minimize_scalar(
        lambda share: sum(error**2 for error in errors(slowed(share), served)),
        bounds=(0, 3), method="bounded", options={"xatol": 0.01},
    )  # fmt: skip
    forms = {
        "nothing": Interference(),
        "bus": Interference(bus=Fraction(fit.factors.bus / fit.factors.beside) - 1),
        "computation": slowed(float(best.x)),
    }
    found = {name: errors(form, judged) for name, form in forms.items()}
    for half in ({4, 16}, {8, 32}):
        means = {
            name: mean(e for e, row in zip(own, judged, strict=True) if row.workers in half)
            for name, own in found.items()
        }
        assert min(means, key=lambda name: means[name]) == "bus"


def test_an_interval_is_of_its_own_size(report: Report) -> None:
    """Through servers one prediction stands for all sizes, whose samples a second differ."""
    drawn = [one for one in report.findings.points if one.low is not None]
    assert len(drawn) > 200
    for one in drawn:
        assert one.low is not None
        assert one.high is not None
        assert one.unfitted is not None
        assert one.low / 1.4 < one.unfitted < one.high * 1.4
