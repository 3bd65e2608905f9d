"""A mean over workers keeps what each class has in all, whatever groups the launches fall into."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.kernels import KERNEL_CLASSES, KernelCost
from gcsim.compressors.meter import Meter, Recorder
from gcsim.traces.stage1.metered import metered_exchange


def cost(name: str, nbytes: int) -> KernelCost:
    return KernelCost(kind="streaming", name=name, launches=1, elements=1, nbytes=nbytes)


def exchanged(*workers: list[KernelCost]) -> tuple[KernelCost, ...]:
    meter = Meter(len(workers))
    for segments, costs in zip(meter.segments, workers, strict=True):
        recorder = Recorder()
        recorder.fixed = costs
        segments.append(recorder)
    return metered_exchange(meter, None).computes[0].fixed


one = st.builds(
    KernelCost,
    kind=st.sampled_from(KERNEL_CLASSES),
    name=st.sampled_from(["", "f", "g", "g:x"]),
    launches=st.integers(0, 3),
    elements=st.integers(0, 10**6),
    nbytes=st.integers(0, 10**6),
    flops=st.integers(0, 10**6),
)


@given(st.lists(st.lists(one, max_size=8), min_size=1, max_size=5))
def test_each_class_has_the_rounded_mean_of_everything(workers: list[list[KernelCost]]) -> None:
    found = exchanged(*workers)
    for kind in KERNEL_CLASSES:
        for key in ("launches", "elements", "nbytes", "flops"):
            whole = sum(getattr(c, key) for costs in workers for c in costs if c.kind == kind)
            mean = sum(getattr(c, key) for c in found if c.kind == kind)
            assert mean == round(whole / len(workers))


def test_one_launch_on_each_worker_is_one_launch_on_both_sides_of_a_power_of_two() -> None:
    assert exchanged([cost("f", 1000)], [cost("f", 1100)]) == (cost("f", 1050),)


def test_a_large_and_a_small_launch_stay_apart() -> None:
    both = [cost("f", 10), cost("f", 1000)]
    assert exchanged(both, both) == (cost("f", 10), cost("f", 1000))


def test_parts_of_kernels_stay_parts() -> None:
    drawn = replace(cost("f", 8), kind="random", part=True, launches=0)
    assert drawn in exchanged([cost("f", 10), drawn])
