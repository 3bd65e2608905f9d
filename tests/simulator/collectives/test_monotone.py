"""Is training never slower on a faster device? Prices: always. Iterations: but for the order.

What `docs/model/uncertainty.md` says of the ends of a device's ranges rests on these.
"""

from dataclasses import replace
from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from gcsim.compressors.kernels import KERNEL_CLASSES, KernelCost
from gcsim.simulator.devices.device import Device, KernelRate
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.steps.events.steady import simulate_steady
from gcsim.simulator.steps.step_plan import BucketWork, CarryOut, StepPlan
from gcsim.traces.profile import Compute
from tests.simulator.steps.random_plans import bucket, compute, first_come, fixed, skewed

COSTS = st.lists(
    st.builds(
        KernelCost,
        kind=st.sampled_from(KERNEL_CLASSES),
        launches=st.integers(0, 50),
        elements=st.just(1),
        nbytes=st.integers(0, 10**9),
        flops=st.integers(0, 10**12),
    ),
    max_size=4,
).map(tuple)
SHARES = st.floats(0.01, 1.0)


@st.composite
def ranged(draw: st.DrawFn) -> Device:
    """A device whose every coefficient has a range, and that is somewhere within."""

    def rate() -> KernelRate:
        launch, width, flops = draw(SHARES) * 1e-4, draw(SHARES) * 1e12, draw(SHARES) * 1e13
        return KernelRate(
            launch=launch,
            bandwidth=width,
            flop_rate=flops,
            source="test",
            launch_range=(launch * draw(SHARES), launch / draw(SHARES)),
            bandwidth_range=(width * draw(SHARES), width / draw(SHARES)),
            flop_rate_range=(flops * draw(SHARES), flops / draw(SHARES)),
        )

    return Device(
        name="toy",
        title="Toy",
        kernels={kind: rate() for kind in KERNEL_CLASSES},
        effective_flop_rate=1e12,
        source="test",
    )


@given(device=ranged(), fixed_=COSTS, payload=COSTS, part=COSTS, workers=st.integers(1, 64))
def test_every_price_lies_between_those_at_the_ends(
    device: Device,
    fixed_: tuple[KernelCost, ...],
    payload: tuple[KernelCost, ...],
    part: tuple[KernelCost, ...],
    workers: int,
) -> None:
    work = Compute(stage="decode", fixed=fixed_, per_payload=payload, per_part=part)
    fastest, stated, slowest = (
        PriceList(one).compute_time(work, workers)
        for one in (
            device.at(kernels="fastest", training="fastest"),
            device,
            device.at(kernels="slowest", training="fastest"),
        )
    )
    assert fastest <= stated <= slowest


durations = st.integers(0, 20)
CARRIED = st.sampled_from([fixed, skewed])


@st.composite
def pairs(draw: st.DrawFn, *, decoding: bool) -> tuple[StepPlan, StepPlan]:
    """A plan with one collective a bucket at most, and the same with shorter computations."""
    slow: list[BucketWork] = []
    fast: list[BucketWork] = []

    def both(longest: int = 20) -> tuple[int, int]:
        duration = draw(st.integers(0, longest))
        return duration, draw(st.one_of(st.just(duration), st.integers(0, duration)))

    for _ in range(draw(st.integers(1, 5))):
        before = both()
        if draw(st.booleans()) or not slow:
            collective, after = draw(st.integers(0, 60)), both(20 if decoding else 0)
            slow.append(bucket(before[0], collective, after[0]))
            fast.append(bucket(before[1], collective, after[1]))
        else:
            slow.append(bucket(before[0]))
            fast.append(bucket(before[1]))
    forward, tail, parts = both(), both(), [both() for _ in slow]
    return tuple(  # type: ignore[return-value]
        StepPlan(
            compute=compute(forward[n], *(part[n] for part in parts), tail=tail[n]),
            buckets=tuple(work),
        )
        for n, work in enumerate((slow, fast))
    )


def iteration(plan: StepPlan, execute: CarryOut = fixed) -> Fraction:
    found = simulate_steady(plan, ranks=3, execute=execute)
    return Fraction(int(found.shift.max()), found.period)


@given(both=pairs(decoding=True), execute=CARRIED)
def test_nothing_is_slower_for_less_work_in_the_same_order(
    both: tuple[StepPlan, StepPlan], execute: CarryOut
) -> None:
    # all times are sums and maxima of those before, which rise
    slow, fast = both
    slow = first_come(slow)
    buckets = zip(fast.buckets, slow.buckets, strict=True)
    fast = replace(fast, buckets=tuple(replace(a, behind=b.behind) for a, b in buckets))
    assert iteration(fast, execute) <= iteration(slow, execute)


@given(both=pairs(decoding=False), execute=CARRIED)
def test_nothing_is_slower_for_less_work_where_nothing_is_decoded(
    both: tuple[StepPlan, StepPlan], execute: CarryOut
) -> None:
    # there is one order alone
    slow, fast = map(first_come, both)
    assert iteration(fast, execute) <= iteration(slow, execute)


def five_buckets(second: int) -> StepPlan:
    """Of which the second part of the backward pass takes that long."""
    return StepPlan(
        compute=compute(0, 0, second, 5, 10, 5),
        buckets=(bucket(0, 10, 20), bucket(0), bucket(0, 25, 20), bucket(0), bucket(0, 100, 0)),
    )


@given(both=pairs(decoding=True), execute=CARRIED)
@example(both=(five_buckets(11), five_buckets(9)), execute=fixed)
def test_an_order_costs_no_more_than_all_decoding(
    both: tuple[StepPlan, StepPlan], execute: CarryOut
) -> None:
    # Every piece of the backward pass waits for decodings at most, each of which counts once.
    slow, fast = map(first_come, both)
    decoding = sum(job.duration for work in fast.buckets for job in work.after)
    assert iteration(fast, execute) <= iteration(slow, execute) + decoding


def test_less_backward_work_can_make_an_iteration_longer() -> None:
    """So the ends of a device's ranges are not bounds: each device has its own order of work.

    Where the second part takes 11, bucket 0, back at 10, is decoded from 11 to 31, before the
    third part, which ends at 36. The fourth ends at 46, the fifth at 51; bucket 2 is back at
    36 + 25 = 61, and then bucket 4 is carried out until 161.

    Where it takes 9, bucket 0 is decoded behind the third part, from 14 to 34. Bucket 2, back at
    14 + 25 = 39, comes before the fourth part ends at 44: it is decoded until 64, the fifth part
    ends at 69, and bucket 4 is carried out until 169.
    """

    assert iteration(first_come(five_buckets(11))) == Fraction(161)
    assert iteration(first_come(five_buckets(9))) == Fraction(169)
