"""Do groups of unlike nodes train as one cluster that waits for its slowest rank?

Engines against the oracle of `steps/tick.py`, groups of one kind against a cluster without groups,
and a whole iteration against rings written out message by message below.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.cluster import Cluster, NodeGroup
from gcsim.simulator.collectives.dispatch import CollectiveMemo, execute
from gcsim.simulator.devices.clocks import Clocks, stage_name
from gcsim.simulator.devices.device import KernelRate
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.network.links import Link
from gcsim.simulator.plans import first_alike, planner_of
from gcsim.simulator.predict import Prediction, predict, schedule_of_period
from gcsim.simulator.steps import vectors
from gcsim.simulator.steps.events import steady, step
from gcsim.simulator.steps.events.message_ring import RingPrograms
from gcsim.simulator.steps.step_plan import CarryOut, StepPlan
from gcsim.simulator.training import Framework, SharedNode, Training
from gcsim.traces.profile import Compute, Exchange, TrafficProfile
from tests.simulator.steps.random_plans import extended, fixed, same, skewed
from tests.simulator.steps.step_oracle import lagging, pacings, plans, played
from tests.simulator.traffic import traffic
from tests.simulator.world import TOY, cluster, link

MILLISECOND = 10**9
CARRIED = st.sampled_from([fixed, skewed, lagging])


@st.composite
def grouped(draw: st.DrawFn, counts: tuple[int, ...]) -> StepPlan:
    """A plan whose groups' passes and jobs take other times."""
    whole = draw(plans())

    def times(durations: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(draw(st.integers(0, 9)) if draw(st.booleans()) else one for one in durations)

    def another() -> StepPlan:
        passes = whole.compute
        (forward, rest), parts = times((passes.forward, passes.rest)), times(passes.parts)
        compute = replace(passes, forward=forward, backward=sum(parts) + rest, parts=parts)
        buckets = []
        for work in whole.buckets:
            jobs = {}
            for place in ("before", "after"):
                own = getattr(work, place)
                taken = times(tuple(job.duration for job in own))
                jobs[place] = tuple(
                    replace(job, duration=time) for job, time in zip(own, taken, strict=True)
                )
            buckets.append(replace(work, **jobs))
        return replace(whole, compute=compute, buckets=tuple(buckets))

    return replace(whole, groups=tuple((count, another()) for count in counts))


@given(data=st.data(), how=CARRIED, seed=st.integers(0, 9))
def test_both_engines_are_the_oracle(data: st.DataObject, how: CarryOut, seed: int) -> None:
    counts = data.draw(st.sampled_from([(1, 1), (2, 1), (1, 2, 1)]))
    plan, ranks = data.draw(grouped(counts)), sum(counts)
    slowdown = data.draw(pacings(ranks))
    iterations = data.draw(st.integers(1, 3))
    oracle = played(plan, ranks, how, iterations, slowdown, seed)
    given: dict[str, Any] = {"ranks": ranks, "execute": how, "iterations": iterations}
    same(step.simulate(plan, slowdown=slowdown, seed=seed, **given), oracle)
    same(vectors.simulate(plan, slowdown=slowdown, seed=seed, **given), oracle)


@given(data=st.data())
def test_both_go_on_for_ever_alike(data: st.DataObject) -> None:
    plan = data.draw(grouped((2, 3)))
    by_events = steady.simulate_steady(plan, ranks=5, execute=skewed)
    by_vectors = vectors.simulate_steady(plan, ranks=5, execute=skewed)
    same(extended(by_events, 6), extended(by_vectors, 6))


@given(data=st.data(), how=CARRIED)
def test_groups_that_follow_one_plan_are_no_groups(data: st.DataObject, how: CarryOut) -> None:
    plan = data.draw(plans())
    several = replace(plan, groups=((1, plan), (3, plan)))
    for engine in (step, vectors):
        given: dict[str, Any] = {"ranks": 4, "execute": how, "iterations": 3}
        same(engine.simulate(several, **given), engine.simulate(plan, **given))


# --- a cluster of two groups, written out ---------------------------------------------------------

FAST = replace(TOY, name="fast")
SLOW = replace(
    TOY, name="slow", kernels={"streaming": KernelRate(launch=2e-6, bandwidth=4e11, source="test")}
)
"""A byte of a streaming kernel takes 1 and 2.5 ps, a launch 1 and 2 us."""
QUICK, WIDE = link(10**9, Fraction(3, 10**6)), link(2 * 10**9, Fraction(1, 10**6))
NVLINK, PCIE = link(10**11, Fraction(1, 10**6)), link(10**10, Fraction(2, 10**6))
BYTES = 64_000


def passes(*milliseconds: int) -> ComputeTimes:
    """Of each group; a third is forward."""
    first, *others = (
        ComputeTimes(
            forward=MILLISECOND * time,
            backward=2 * MILLISECOND * time,
            parts=(2 * MILLISECOND * time,),
            provenance="test",
        )
        for time in milliseconds
    )
    return replace(first, other_groups=tuple(others))


def two(*devices: Any, nics: tuple[Link, Link] = (WIDE, QUICK), **more: Any) -> Cluster:
    """Two nodes of the first group and two of the second, of two devices each."""
    groups = tuple(NodeGroup(nodes=2, device=device) for device in devices)
    return cluster(
        4, 2, device=devices[0], groups=groups, network=nics[1], intra_node=PCIE,
        nics={0: nics[0], 1: nics[0]}, buses={0: NVLINK, 1: NVLINK}, **more,
    )  # fmt: skip


def kernels(nbytes: int) -> Compute:
    cost = KernelCost(kind="streaming", launches=1, elements=nbytes // 4, nbytes=nbytes)
    return Compute(stage="encode", fixed=(cost,))


def one_exchange(nbytes: int = BYTES, work: int = 10**6) -> TrafficProfile:
    record = CollectiveRecord(kind="all_reduce", sent=(nbytes,) * 2, element=4)
    decode = replace(kernels(2 * work), stage="decode")
    return traffic(Exchange(computes=(kernels(work), decode), collectives=(record,)))


def naive_ring(
    starts: list[int],
    nbytes: int,
    nics: list[Link],
    buses: list[Link],
    devices: tuple[int, ...] = (2,) * 4,
) -> list[int]:
    """Exits of a ring all-reduce: in each of 2 (p - 1) steps a rank sends a chunk on, when it has
    received the one before and sent its own; both NICs' halves of the latency."""
    ranks = len(starts)
    node = [node for node, count in enumerate(devices) for _ in range(count)]

    def hop(rank: int) -> tuple[float, float]:
        here, there = node[rank], node[(rank + 1) % ranks]
        ends = (buses[here],) * 2 if here == there else (nics[here], nics[there])
        rate = min(float(end.bandwidth) for end in ends)
        return nbytes / ranks / rate, sum(float(end.latency) for end in ends) / 2

    ready, left = [float(start) for start in starts], [float(start) for start in starts]
    for _ in range(2 * (ranks - 1)):
        arrivals = [0.0] * ranks
        for rank in range(ranks):
            sending, latency = hop(rank)
            left[rank] = max(ready[rank], left[rank]) + sending * 1e12
            arrivals[(rank + 1) % ranks] = left[rank] + latency * 1e12
        ready = [max(ready[rank], arrivals[rank]) for rank in range(ranks)]
    return [round(max(ready[rank], left[rank])) for rank in range(ranks)]


@given(late=st.lists(st.integers(0, 400), min_size=8, max_size=8))
def test_a_ring_over_two_groups_is_the_one_written_out(late: list[int]) -> None:
    starts = [time * 1_000_000 for time in late]
    where = two(FAST, SLOW, all_reduce="ring")
    record = CollectiveRecord(kind="all_reduce", sent=(BYTES,), element=4)
    found = execute(record, np.array(starts, dtype=np.int64), where)
    expected = naive_ring(starts, BYTES, [WIDE] * 2 + [QUICK] * 2, [NVLINK] * 2 + [PCIE] * 2)
    np.testing.assert_allclose(found, expected, rtol=0, atol=20)  # halves of picoseconds


@given(
    sizes=st.lists(st.integers(1, 4), min_size=4, max_size=4).filter(lambda own: len({*own}) > 1),
    late=st.lists(st.integers(0, 400), min_size=16, max_size=16),
)
def test_a_ring_over_nodes_of_unlike_size_is_the_one_written_out(
    sizes: list[int], late: list[int]
) -> None:
    where = replace(two(FAST, SLOW, all_reduce="ring"), sizes=tuple(sizes))
    starts = [time * 1_000_000 for time in late[: where.workers]]
    nbytes = 4 * 1000 * where.workers  # equal chunks
    record = CollectiveRecord(kind="all_reduce", sent=(nbytes,), element=4)
    found = execute(record, np.array(starts, dtype=np.int64), where)
    links = [WIDE] * 2 + [QUICK] * 2, [NVLINK] * 2 + [PCIE] * 2
    expected = naive_ring(starts, nbytes, *links, tuple(sizes))
    np.testing.assert_allclose(found, expected, rtol=0, atol=4 * where.workers)


@given(sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4))
def test_rounds_share_the_nics_of_nodes_of_unlike_size(sizes: list[int]) -> None:
    """Pairwise exchange: in step s every rank sends to rank r + s; a message's rate is a NIC's,
    divided by the messages that leave the sender's node or reach the receiver's."""
    where = replace(cluster(len(sizes), max(sizes)), sizes=tuple(sizes))
    p, part = where.workers, 10_000
    node = [node for node, count in enumerate(sizes) for _ in range(count)]
    ready = [0.0] * p
    for hop in range(1, p):
        to = [(rank + hop) % p for rank in range(p)]
        far = [(node[rank], node[to[rank]]) for rank in range(p) if node[rank] != node[to[rank]]]
        left, arrived = [*ready], [0.0] * p
        for rank, partner in enumerate(to):
            ends = node[rank], node[partner]
            crowd = max(sum(ends[end] == way[end] for way in far) for end in (0, 1))
            near = ends[0] == ends[1]
            left[rank] += part * (100 if near else 800 * crowd)
            arrived[partner] = left[rank] + (10_000_000 if near else 50_000_000)
        ready = [max(pair) for pair in zip(left, arrived, strict=True)]
    record = CollectiveRecord(kind="all_to_all", sent=(part * p,))
    assert execute(record, np.zeros(p, dtype=np.int64), where).tolist() == ready


@pytest.mark.parametrize("sizes", [(1, 3), (3, 1), (2, 4)])
def test_a_server_waits_for_every_worker_of_the_other_node(sizes: tuple[int, int]) -> None:
    """A server on node 0: the other node's workers push and pull over one NIC, its own over the
    bus, each on its own link, once the last push has arrived."""
    where = replace(cluster(2, max(sizes), servers=1), sizes=sizes)
    nbytes = 8_000_000
    record = CollectiveRecord(kind="push_pull", sent=(nbytes,), element=4, pulled=nbytes)
    exits = execute(record, np.zeros(sum(sizes), dtype=np.int64), where)
    pushed = sizes[1] * nbytes * 800 + 50_000_000
    own = pushed + nbytes * 100 + 10_000_000
    assert exits.tolist() == [own] * sizes[0] + [2 * pushed] * sizes[1]


@pytest.mark.parametrize("transport", ["gloo", "nccl", "mpich", "textbook"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all", "push_pull"])
def test_equal_sizes_are_todays_cluster_to_the_picosecond(kind: Any, transport: Any) -> None:
    nics = {0: WIDE, 2: QUICK}
    plain = cluster(
        4, 2, transport=transport, nics=nics, servers=3 if kind == "push_pull" else None
    )
    stated = replace(plain, sizes=(2,) * 4)
    starts = np.arange(8, dtype=np.int64) % 3 * 1_000_000
    for nbytes in (400, 40_000, 40_000_000):
        record = CollectiveRecord(kind=kind, sent=(nbytes,), element=4, pulled=nbytes)
        np.testing.assert_array_equal(
            execute(record, starts, stated), execute(record, starts, plain)
        )


def iteration(where: Cluster, compute: ComputeTimes, **training: Any) -> Prediction:
    return predict(one_exchange(), where, compute, training=Training(**training))


def test_an_iteration_of_two_groups_is_the_one_written_out() -> None:
    # encode: 1 us + 1 ps a byte of 10^6, and 2 us + 2.5 ps; decode twice the bytes
    asked = [3 * 5 * MILLISECOND + 2_000_000] * 4 + [3 * 7 * MILLISECOND + 4_500_000] * 4
    after = [3_000_000] * 4 + [7_000_000] * 4
    starts = [0] * 8
    for _ in range(3):
        entries = [start + time for start, time in zip(starts, asked, strict=True)]
        exits = naive_ring(entries, BYTES, [WIDE] * 2 + [QUICK] * 2, [NVLINK] * 2 + [PCIE] * 2)
        before, starts = starts, [left + time for left, time in zip(exits, after, strict=True)]
    found = iteration(two(FAST, SLOW, all_reduce="ring"), passes(5, 7))
    assert found.iteration == pytest.approx((max(starts) - max(before)) / 1e12, rel=1e-9)
    # all wait for the slow group: as if its device were everywhere, but for the links
    everywhere = replace(two(SLOW, SLOW, all_reduce="ring"), groups=())
    assert found.iteration == pytest.approx(iteration(everywhere, passes(7)).iteration, rel=1e-6)


def test_groups_of_one_kind_are_todays_cluster_to_the_picosecond() -> None:
    stage = stage_name("toy", "step", "encode")
    timed = replace(FAST, stages={stage: Clocks(host=Fraction(1), device=Fraction(3))})
    alike = two(timed, timed)
    for training in (
        {},
        {"encode_on": "side", "side_slowdown": Fraction(3, 2)},
        {"encode_on": "communicator", "accumulation": 2},
        {"slow_nodes": {1: Fraction(5, 4)}, "hook": Framework(per_bucket=Fraction(1, 10**5))},
    ):
        plain = iteration(replace(alike, groups=()), passes(5), **training)
        assert iteration(alike, passes(5, 5), **training) == plain


def test_groups_of_one_device_and_passes_share_plans_that_they_would_have_anyway() -> None:
    """A copy of a device is another device, whose plans are made again."""
    times = passes(5, 7, 5, 9)

    def four(third: Any) -> Cluster:
        return replace(two(FAST, SLOW, third, SLOW), nodes=8)

    assert first_alike(four(FAST), times) == [0, 1, 0, 3]
    assert first_alike(four(replace(FAST)), times) == [0, 1, 2, 3]
    assert iteration(four(FAST), times) == iteration(four(replace(FAST)), times)


@pytest.mark.parametrize(("times", "longer"), [((10, 10), (11, 10)), ((20, 30), (22, 30))])
def test_a_device_alone_in_its_node_shares_it_with_nobody(
    times: tuple[int, int], longer: tuple[int, int]
) -> None:
    where = replace(two(FAST, FAST), sizes=(2, 2, 1, 1))
    shared = SharedNode(slowdown=Fraction(1, 10))
    assert iteration(where, passes(*times), shared_node=shared) == iteration(where, passes(*longer))


def test_each_group_has_the_factors_of_stages_timed_on_its_own_device() -> None:
    stage = stage_name("toy", "step", "encode")
    timed = replace(SLOW, stages={stage: Clocks(host=Fraction(1), device=Fraction(3))})
    usual = iteration(two(FAST, SLOW), passes(5, 7))
    longer = iteration(two(FAST, timed), passes(5, 7))
    assert longer.iteration - usual.iteration == pytest.approx(2 * 4.5e-6, rel=1e-6)
    assert iteration(two(timed, FAST), passes(7, 5)).encode == pytest.approx(3 * 4.5e-6)


def test_two_collectives_at_a_time_run_as_with_every_rank_by_itself() -> None:
    exchange = one_exchange().phases[0].steps[0].exchanges[0]
    profile = traffic(exchange, exchange)
    compute = replace(
        passes(5), parts=(MILLISECOND, 9 * MILLISECOND),
        other_groups=(replace(passes(7), parts=(2 * MILLISECOND, 12 * MILLISECOND)),),
    )  # fmt: skip
    training = Training(concurrent_collectives=2)
    where = two(FAST, SLOW, all_reduce="ring")
    schedule = schedule_of_period(profile, planner_of(where, compute, training))
    assert schedule.plans[0].slots == 2
    given: dict[str, Any] = {"ranks": 8, "iterations": 3, "rings": RingPrograms(where)}
    given |= {"execute": CollectiveMemo.of(where)}
    apart = step.simulate(schedule, collapse=False, **given)
    same(step.simulate(schedule, **given), apart)
    one = predict(profile, where, compute, training=Training())
    assert predict(profile, where, compute, training=training).iteration <= one.iteration


@given(
    times=st.lists(st.integers(1, 9), min_size=2, max_size=2),
    faster=st.integers(0, 1),
    rates=st.lists(st.integers(1, 9), min_size=2, max_size=2),
    wider=st.integers(0, 1),
    transport=st.sampled_from(["gloo", "nccl", "textbook"]),
)
def test_no_faster_group_and_no_wider_nic_makes_anything_slower(
    times: list[int], faster: int, rates: list[int], wider: int, transport: Any
) -> None:
    def took(times: list[int], rates: list[int]) -> float:
        nics = [link(rate * 10**9, Fraction(1, 10**6)) for rate in rates]
        where = cluster(
            4, 2, device=FAST, network=min(nics, key=lambda nic: nic.rate), transport=transport,
            groups=tuple(NodeGroup(nodes=2, device=device) for device in (FAST, SLOW)),
            nics={node: nics[node // 2] for node in range(4)},
        )  # fmt: skip
        return iteration(where, passes(*times)).iteration

    usual = took(times, rates)
    times[faster] -= 1
    assert took([max(1, time) for time in times], rates) <= usual
    rates[wider] += 1
    assert took([max(1, time) for time in times], rates) <= usual
