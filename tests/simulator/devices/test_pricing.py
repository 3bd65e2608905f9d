"""A measured kernel is priced by its own curve, all others by their class, as they always were."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.kernels import KERNEL_CLASSES, KernelClass, KernelCost, TimedKernel, total
from gcsim.compressors.queued import Queued, variant
from gcsim.errors import InternalError
from gcsim.scenarios.uncertainty.kernel_use import counts
from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.devices.clocks import UNHIDDEN, Clocks, as_timed, combined_time, fitted_clocks
from gcsim.simulator.devices.device import Curve, Device, KernelRate
from gcsim.simulator.devices.kernel_fits import coefficients, curve, curves, thinned
from gcsim.simulator.devices.pricing import ExactCurve, PriceList, price_sources
from gcsim.simulator.push_pull import as_collectives
from gcsim.traces.profile import Compute, Exchange, Phase, Step
from tests.simulator import world
from tests.simulator.traffic import traffic
from tests.simulator.world import reduce

RATE = KernelRate(launch=3e-6, bandwidth=7e9, flop_rate=11e12, source="made up", estimate=True)
KERNELS: dict[KernelClass, KernelRate] = {
    kind: replace(RATE, launch=RATE.launch * (1 + place))
    for place, kind in enumerate(KERNEL_CLASSES)
}


def device(**primitives: Curve) -> Device:
    return Device(
        name="toy",
        title="toy",
        kernels=KERNELS,
        primitives=primitives,
        effective_flop_rate=1e12,
        source="made up",
    )


def cost(name: str, nbytes: int, launches: int = 1, kind: KernelClass = "streaming") -> KernelCost:
    return KernelCost(kind=kind, name=name, launches=launches, elements=1, nbytes=nbytes)


def seconds(toy: Device, *costs: KernelCost, servers: int = 1) -> Fraction:
    compute = Compute(stage="encode", fixed=costs)
    return PriceList(toy).priced_by(compute, 1, servers).total / PS_PER_SECOND


costs_strategy = st.lists(
    st.builds(
        KernelCost,
        kind=st.sampled_from(KERNEL_CLASSES),
        name=st.sampled_from(["", "aten.add", "signs.fold", "marks.take:clear"]),
        part=st.booleans(),
        launches=st.integers(0, 50),
        elements=st.integers(0, 10**9),
        nbytes=st.integers(0, 10**12),
        flops=st.integers(0, 10**14),
        work=st.integers(0, 10**6),
    ),
    max_size=12,
)


@given(costs_strategy)
def test_without_measured_kernels_the_price_is_that_of_the_sums_by_class(
    costs: list[KernelCost],
) -> None:
    # the sum that was simulated before kernels had names, written out
    expected = Fraction(0)
    for kind in KERNEL_CLASSES:
        own = [c for c in costs if c.kind == kind]
        rate = KERNELS[kind]
        assert rate.bandwidth is not None
        assert rate.flop_rate is not None
        expected += sum(c.launches for c in own) * Fraction(rate.launch)
        expected += sum(c.nbytes for c in own) / Fraction(rate.bandwidth)
        expected += sum(c.flops for c in own) / Fraction(rate.flop_rate)
    assert seconds(device(), *costs) == expected
    assert seconds(device(), *total(costs)) == expected
    nameless = (replace(cost, name="", part=False) for cost in costs)
    assert seconds(device(), *total(nameless)) == expected


@given(costs_strategy)
def test_adding_up_keeps_what_each_class_has_of_everything(costs: list[KernelCost]) -> None:
    def sums(found: list[KernelCost]) -> dict[str, list[int]]:
        return {
            kind: [
                sum(getattr(c, key) for c in found if c.kind == kind)
                for key in ("launches", "elements", "nbytes", "flops", "work")
            ]
            for kind in KERNEL_CLASSES
        }

    assert sums(list(total(costs))) == sums(costs)
    launched = total(cost for cost in costs if cost.launches)
    assert total(launched) == launched


def test_launches_of_unlike_size_stay_apart() -> None:
    # 1,000 bytes are in the octave of 512 ... 1,023, 1,500 in the next, and 1,020 in the first
    found = total([cost("f", 1000), cost("f", 1500), cost("f", 1020), cost("g", 1000)])
    assert [(c.name, c.launches, c.nbytes) for c in found] == [
        ("f", 2, 2020),
        ("f", 1, 1500),
        ("g", 1, 1000),
    ]


ascending = st.lists(
    st.tuples(st.integers(1, 10**10), st.floats(1e-7, 10.0)), min_size=1, max_size=8,
    unique_by=lambda point: point[0],
)  # fmt: skip


def as_curve(points: list[tuple[int, float]]) -> Curve:
    sizes = sorted(size for size, _ in points)
    times = sorted(time for _, time in points)
    return tuple(zip(sizes, times, strict=True))


@given(ascending)
def test_a_curve_is_exact_at_its_points(points: list[tuple[int, float]]) -> None:
    known = as_curve(points)
    for nbytes, time in known:
        assert ExactCurve(known).seconds(nbytes) == Fraction(time)


@given(ascending, st.integers(0, 10**11), st.integers(0, 10**11))
def test_more_bytes_never_take_less_and_none_takes_less_than_nothing(
    points: list[tuple[int, float]], few: int, many: int
) -> None:
    few, many = sorted((few, many))
    known = ExactCurve(as_curve(points))
    assert 0 <= known.seconds(few) <= known.seconds(many)


@given(ascending, st.integers(0, 10**10))
def test_between_two_points_it_is_numpys_line(points: list[tuple[int, float]], at: int) -> None:
    known = as_curve(points)
    at = min(max(at, known[0][0]), known[-1][0])
    sizes, times = zip(*known, strict=True)
    expected = float(np.interp(at, sizes, times))
    assert float(ExactCurve(known).seconds(at)) == pytest.approx(expected, rel=1e-6)


def test_the_last_slope_goes_on_and_below_the_first_point_a_byte_never_gets_cheaper() -> None:
    known = ExactCurve(((100, 1.0), (200, 1.5), (300, 3.5)))
    assert known.seconds(500) == Fraction(15, 2)  # 3.5 + 200 bytes at 2 / 100
    assert known.seconds(50) == Fraction(3, 4)  # the line: 1 - 50 * 0.5 / 100
    steep = ExactCurve(((100, 1.0), (200, 3.0)))
    assert steep.seconds(50) == Fraction(1, 2)  # the line would be at 0
    assert ExactCurve(((100, 1.0),)).seconds(250) == Fraction(5, 2)


@pytest.mark.parametrize(
    "points", [(), ((0, 1.0),), ((5, 1.0), (5, 2.0)), ((5, 2.0), (6, 1.0)), ((5, -1.0),)]
)
def test_what_is_no_curve_is_a_bug(points: Curve) -> None:
    with pytest.raises(InternalError):
        ExactCurve(points)


@given(ascending, st.integers(1, 40), st.integers(0, 10**9))
def test_launches_scale(points: list[tuple[int, float]], launches: int, nbytes: int) -> None:
    toy = device(f=as_curve(points))
    one = seconds(toy, cost("f", nbytes))
    assert seconds(toy, cost("f", launches * nbytes, launches)) == launches * one


def test_a_measured_kernel_is_priced_by_its_curve_and_includes_what_it_draws() -> None:
    toy = device(f=((1000, 1.0), (2000, 2.0)))
    drawn = KernelCost(kind="random", name="f", part=True, launches=0, elements=9, nbytes=10**9)
    assert seconds(toy, cost("f", 1500), drawn) == Fraction(3, 2)
    assert seconds(toy, replace(drawn, name="g")) == Fraction(10**9) / Fraction(7e9)


def test_a_variant_that_was_not_measured_is_priced_as_the_kernels_others_are() -> None:
    toy = replace(device(), primitives={"f": ((1, 1.0),), "f:fast": ((1, 0.5),)})
    assert seconds(toy, cost("f:fast", 1)) == Fraction(1, 2)
    assert seconds(toy, cost("f:fast:2^8", 1)) == Fraction(1, 2)
    assert seconds(toy, cost("f:slow", 1)) == 1


def test_a_product_is_priced_by_the_nearest_measured_shape_never_by_a_vectors_if_as_near() -> None:
    toy = replace(
        device(),
        primitives={
            "aten.mm.along_0.5_flop_per_byte": ((1, 1.0),),
            "aten.mm.along_2_flop_per_byte": ((1, 20.0),),
            "aten.mm.across_1_flop_per_byte": ((1, 7.0),),
            "aten.linalg_qr.4_columns": ((1, 3.0),),
            "aten.linalg_qr.16_columns": ((1, 5.0),),
        },
    )
    for shape, price in (("along_1", 20), ("along_0.25", 1), ("along_64", 20), ("across_4", 7)):
        assert seconds(toy, cost(f"aten.mm.{shape}_flop_per_byte", 1)) == price
    for columns, price in ((1, 3), (4, 3), (5, 3), (8, 5), (99, 5)):
        assert seconds(toy, cost(f"aten.linalg_qr.{columns}_columns", 1)) == price
    assert toy.primitive("aten.mm.out_1_flop_per_byte") is None
    assert toy.primitive("aten.bmm.along_1_flop_per_byte") is None
    assert toy.primitive("aten.linalg_svd.4_columns") is None


def test_a_kernel_that_says_on_what_it_works_is_priced_by_that() -> None:
    toy = device(f=((1000, 1.0), (2000, 2.0)))
    assert seconds(toy, replace(cost("f", 10**9), work=1500)) == Fraction(3, 2)
    assert seconds(device(), replace(cost("f", 7 * 10**9), work=1)) == Fraction(3e-6) + 1


def test_servers_share_the_bytes_of_a_measured_kernel_but_not_its_launches() -> None:
    toy = device(f=((1000, 1.0), (2000, 1.5)))
    assert seconds(toy, cost("f", 4000, 2), servers=2) == 2  # two launches of 1,000 bytes


def test_a_price_says_where_it_comes_from() -> None:
    kernels = {**KERNELS, "sort": replace(RATE, estimate=False, launch=1.0, bandwidth=None)}
    toy = replace(device(f=((1, 4.0),)), kernels=kernels)
    compute = Compute(
        stage="encode",
        fixed=(cost("f", 1), cost("g", 0, kind="sort")),
        per_payload=(cost("f", 1), KernelCost(kind="random", launches=1, elements=0, nbytes=0)),
    )
    found = PriceList(toy).priced_by(compute, payloads=3)
    launch = Fraction(KERNELS["random"].launch)
    assert found.primitives == 16 * PS_PER_SECOND
    assert found.classes == PS_PER_SECOND
    assert found.estimates == 3 * launch * PS_PER_SECOND


def test_a_mean_step_weighs_its_phases() -> None:
    def step(seconds: int) -> Step:
        compute = Compute(stage="encode", fixed=(cost("f", seconds),))
        return Step(number=0, exchanges=(Exchange(computes=(compute,), collectives=()),))

    profile = traffic(
        period=4,
        phases=(
            Phase(name="often", count=3, steps=(step(1), step(3))),
            Phase(name="once", count=1, steps=(step(10),)),
        ),
    )
    found = price_sources(profile, PriceList(device(f=((1, 1.0), (2, 2.0)))), workers=4)
    assert found == {
        "measured_kernels": 3 / 4 * 2 + 10 / 4,
        "measured_classes": 0.0,
        "estimated_classes": 0.0,
    }


# --- fits --------------------------------------------------------------------------------------


def timed(name: str, nbytes: int, time: float, flops: int = 0) -> TimedKernel:
    return TimedKernel(replace(cost(name, nbytes), flops=flops), time)


@given(st.lists(st.tuples(st.integers(1, 10**9), st.floats(1e-7, 10.0)), min_size=1, max_size=40))
def test_a_fitted_curve_ascends_whatever_was_timed(points: list[tuple[int, float]]) -> None:
    ExactCurve(curve(points))  # refuses what does not ascend
    lowest, highest = min(t for _, t in points), max(t for _, t in points)
    assert all(lowest * (1 - 1e-9) <= t <= highest * (1 + 1e-9) for _, t in curve(points))


def test_a_curve_goes_through_geometric_means_of_what_is_of_one_size() -> None:
    found = curve([(1000, 1.0), (1000, 4.0), (10_000, 9.0)])
    assert [nbytes for nbytes, _ in found] == [1000, 10_000]
    assert [time for _, time in found] == pytest.approx([2.0, 9.0])


@given(ascending)
def test_a_thinned_curve_is_near_and_goes_on_alike(points: list[tuple[int, float]]) -> None:
    whole = as_curve(points)
    thin = thinned(whole)
    assert set(thin) <= set(whole)
    assert thin[-2:] == whole[-2:]
    for nbytes, time in whole:
        assert float(ExactCurve(thin).seconds(nbytes)) == pytest.approx(time, rel=0.0301)


def test_points_on_a_line_are_left_out() -> None:
    line = tuple((n, n * 1.0) for n in range(1, 100))
    assert thinned(line) == (line[0], line[-2], line[-1])


def test_larger_but_shorter_becomes_one_point() -> None:
    ((nbytes, time),) = curve([(1000, 4.0), (4000, 1.0)])
    assert nbytes == 2000
    assert time == pytest.approx(2.0)


def test_curves_are_by_name_and_by_all_variants_together() -> None:
    found = curves([timed("f:a:x", 100, 1.0), timed("f:b", 100, 4.0), timed("g", 5, 1.0)])
    assert list(found) == ["f", "f:a", "f:b", "g"]  # f:a:x is the only f:a
    assert found["f"][0][1] == pytest.approx(2.0)


@given(st.floats(1e-7, 1e-3), st.floats(1e8, 1e12), st.one_of(st.none(), st.floats(1e9, 1e14)))
def test_known_coefficients_are_recovered(
    launch: float, bandwidth: float, flop_rate: float | None
) -> None:
    # sizes at which each term matters somewhere, and FLOPs that do not go with the bytes
    knee = launch * bandwidth
    samples = []
    for place, factor in enumerate((0.01, 0.1, 1, 10, 100, 1000)):
        nbytes = max(1, round(knee * factor))
        flops = 0
        if flop_rate is not None and place % 2:
            flops = round(flop_rate * launch * factor * 10)
        time = launch + nbytes / bandwidth + (flops / flop_rate if flop_rate else 0.0)
        samples.append(timed("f", nbytes, time, flops))
    found = coefficients(samples)
    assert found.launch == pytest.approx(launch, rel=0.01)
    assert found.bandwidth == pytest.approx(bandwidth, rel=0.01)
    if flop_rate is None:
        assert found.flop_rate is None
    else:
        assert found.flop_rate == pytest.approx(flop_rate, rel=0.01)


def test_what_no_time_depends_on_is_left_out() -> None:
    assert coefficients([timed("f", 4, 2e-6)]).bandwidth is None
    found = coefficients([timed("f", 4, 2e-6), timed("f", 400, 2e-6)])
    assert found.launch == pytest.approx(2e-6)
    assert found.bandwidth is None
    assert found.flop_rate is None


HOST: dict[Queued, KernelRate] = {
    "kernel": replace(RATE, launch=200e-6),
    "operator": replace(RATE, launch=20e-6),
    "wait": replace(RATE, launch=50e-6),
}


@pytest.fixture(autouse=True)
def one_launch_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of launches has these two."""
    table = {"signs.fold": (1, 0, 0), "signs.read": (2, 3, 1)}
    exact = {name: tuple(map(Fraction, counts)) for name, counts in table.items()}
    monkeypatch.setattr(
        "gcsim.compressors.queued._of_kernel",
        lambda name: exact.get(variant(name), (Fraction(1),) * 3),
    )


def test_on_a_gpu_the_longer_clock_hides_most_of_the_shorter() -> None:
    gpu = replace(device(), host=HOST)
    few, many = cost("aten.add", 7 * 10**9), cost("signs.fold", 7, launches=5)
    launch, byte = Fraction(RATE.launch), 1 / Fraction(7e9)
    # one launch of 3 us and a second of bytes, 20 us to queue
    assert seconds(gpu, few) == launch + 1 + UNHIDDEN * Fraction(20e-6)
    # five launches of 200 us to queue
    assert seconds(gpu, many) == 5 * Fraction(200e-6) + UNHIDDEN * (5 * launch + 7 * byte)
    # combined: 6 launches of 3 us and a second of bytes hide most of 1.02 ms of queueing
    queued = 5 * Fraction(200e-6) + Fraction(20e-6)
    assert seconds(gpu, few, many) == 6 * launch + (7 * 10**9 + 7) * byte + UNHIDDEN * queued
    host, kernels = np.array([3.0, 1.0]), np.array([1.0, 2.0])
    assert combined_time(host, kernels) == pytest.approx([3.35, 2.35])


def test_a_kernel_takes_its_host_the_launches_operators_and_waits_of_the_table() -> None:
    gpu = replace(device(), host=HOST)
    of_one = 2 * Fraction(200e-6) + 3 * Fraction(20e-6) + Fraction(50e-6)
    kernels = 4 * Fraction(RATE.launch) + 7 / Fraction(7e9)
    read = cost("signs.read:2^12", 7, launches=4)
    assert seconds(gpu, read) == 4 * of_one + UNHIDDEN * kernels


def test_a_wait_is_in_both_clocks_and_code_without_names_in_one() -> None:
    gpu = replace(device(), host=HOST)
    wait = cost("aten.item", 0, kind="host_sync")
    waited = Fraction(KERNELS["host_sync"].launch)
    assert seconds(gpu, wait) == Fraction(50e-6) + UNHIDDEN * waited
    kernels = waited + Fraction(RATE.launch) + 7 / Fraction(7e9)
    both = Fraction(50e-6) + Fraction(200e-6) + UNHIDDEN * kernels
    assert seconds(gpu, wait, cost("signs.fold", 7)) == both
    # launches of other people's code are those of their class
    assert seconds(gpu, cost("", 7, launches=5)) == seconds(device(), cost("", 7, launches=5))


@given(costs_strategy)
def test_the_second_clock_never_makes_anything_faster(costs: list[KernelCost]) -> None:
    gpu = replace(device(), host=HOST)
    assert seconds(gpu, *costs) >= seconds(device(), *costs)
    assert seconds(gpu, *total(costs)) == seconds(gpu, *costs)


# --- stages that were timed ---------------------------------------------------------------------


def test_a_stage_that_was_timed_has_its_own_factors_on_both_clocks() -> None:
    """Encoding queues 200 us and computes for 3 us and a second, decoding queues 20 us."""
    clocks = Clocks(host=Fraction(2), device=Fraction(1, 4))
    gpu = replace(device(), host=HOST, stages={"toy, step, encode": clocks})
    computes = (
        Compute(stage="encode", fixed=(cost("signs.fold", 7 * 10**9),)),
        Compute(stage="decode", fixed=(cost("aten.add", 0),)),
    )
    profile = traffic(Exchange(computes=computes, collectives=(reduce(8),)))
    timed = as_timed(profile, gpu.stages)
    encode, decode = timed.phases[0].steps[0].exchanges[0].computes
    launch = Fraction(RATE.launch)
    priced = PriceList(gpu).priced_by(encode, 1)
    assert (priced.host, priced.device) == (
        2 * Fraction(200e-6) * PS_PER_SECOND, (launch + 1) / 4 * PS_PER_SECOND,
    )  # fmt: skip
    assert decode is computes[1]
    assert as_timed(timed, gpu.stages) is timed
    assert as_timed(profile, {}) is profile
    assert as_collectives(profile, world.cluster(2, device=gpu)) == timed
    # a stage that was timed is no estimate
    found = price_sources(timed, PriceList(gpu), workers=1)
    assert found["measured_kernels"] == pytest.approx(float(priced.total / PS_PER_SECOND))
    # figures of its device count as often as the price says
    used = counts(encode, gpu, 1)
    assert (used["kernel", "launch"], used["streaming", "launch"]) == (2.0, 0.25)


def test_factors_of_a_stage_are_those_that_made_its_times() -> None:
    """At 1 MB it waits for the host, at 1 GB for the device; a length alone tells one of them."""
    lengths = [(1e-3, 1e-5), (1e-3, 1e-4), (1e-3, 1e-3), (1e-3, 1e-2)]
    stages = [
        ([(host, kernels)], float(combined_time(np.array(1.2 * host), np.array(0.5 * kernels))))
        for host, kernels in lengths
    ]
    found = fitted_clocks(stages)
    assert float(found.host) == pytest.approx(1.2, rel=0.01)
    assert float(found.device) == pytest.approx(0.5, rel=0.01)
    short = fitted_clocks(stages[:1])
    assert float(short.host) == pytest.approx(1.2, rel=0.01)
    assert float(short.device) == pytest.approx(1, rel=0.01)
