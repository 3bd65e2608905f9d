"""Are forward and backward times, and when buckets are ready, those of the rules?"""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.compressors.kernels import KernelClass, KernelCost
from gcsim.errors import InputError, InternalError
from gcsim.simulator.clock import picoseconds, seconds
from gcsim.simulator.devices.device import Device, KernelRate, TrainingRate
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.devices.training_time import training_times
from gcsim.traces.profile import Compute, Layer, ModelFacts, PassTimes


def device(
    training: Mapping[str, TrainingRate] | None = None,
    kernels: Mapping[KernelClass, KernelRate] | None = None,
) -> Device:
    return Device(
        name="toy",
        title="Toy device",
        kernels=kernels or {},
        training=training or {},
        effective_flop_rate=3e12,
        backward_over_forward=2.0,
        source="invented for this test",
    )


def model(*layers: tuple[tuple[int, ...], int]) -> ModelFacts:
    return ModelFacts(
        name="toy",
        parameters=100,
        layers=tuple(
            Layer(name=f"layer{k}", parameters=parameters, forward_flops=flops)
            for k, (parameters, flops) in enumerate(layers)
        ),
        samples_per_worker=10,
    )


def buckets(*indices: tuple[int, ...]) -> list[BucketLayout]:
    return [
        BucketLayout(
            index=k,
            slices=tuple(
                TensorSlice(name=f"p{i}", shape=(10 + i,), offset=0, index=i) for i in group
            ),
        )
        for k, group in enumerate(indices)
    ]


# Three layers of 1, 2 and 3 GFLOP a sample; two parameters each.
THREE = model(((0, 1), 10**9), ((2, 3), 2 * 10**9), ((4, 5), 3 * 10**9))


def test_flops_give_three_forward_passes_split_by_the_ratio() -> None:
    # 3 * 6 GFLOP * 10 samples / 3 TFLOP/s = 60 ms; backward / forward = 2
    times = training_times(THREE, buckets((5, 4, 3, 2, 1, 0)), device())
    assert (seconds(times.forward), seconds(times.backward)) == (0.020, 0.040)
    assert times.estimate is True
    assert "FLOPs" in times.provenance


def test_a_measured_rate_comes_before_flops() -> None:
    rate = TrainingRate(model="toy", fixed=0.003, per_sample=0.0012, source="bench")
    times = training_times(THREE, buckets((5, 4, 3, 2, 1, 0)), device({"toy": rate}))
    assert times.forward + times.backward == picoseconds(0.015)  # 3 ms + 10 * 1.2 ms
    assert times.forward == 5 * 10**9
    assert times.estimate is False
    assert "bench" in times.provenance


def test_the_users_measurement_comes_before_everything() -> None:
    rate = TrainingRate(model="toy", fixed=1.0, per_sample=1.0, source="bench", estimate=True)
    measured = PassTimes(forward=0.010, backward=0.015, source="bench")
    times = training_times(THREE, buckets((5, 4, 3, 2, 1, 0)), device({"toy": rate}), measured)
    assert (times.forward, times.backward) == (10**10, 15 * 10**9)
    assert times.estimate is False
    assert times.provenance == "measured: bench"


def test_a_bucket_is_ready_with_the_last_of_its_measured_gradients() -> None:
    # Gradients arrive at 9, 7, 5, 6, 2 and 1 ms, the fourth after the third: the bucket of 2 and 3
    # is there at 6. The rest of the 12 ms is the optimiser's.
    measured = PassTimes(
        forward=0.004, backward=0.012, ready=(0.009, 0.007, 0.005, 0.006, 0.002, 0.001), source="p"
    )
    times = training_times(THREE, buckets((5, 4), (3, 2), (1, 0)), device(), measured)
    assert times.parts == (2 * 10**9, 4 * 10**9, 3 * 10**9)
    assert times.rest == 0
    assert times.optimizer == 3 * 10**9


@given(ready=st.lists(st.floats(0, 0.02), min_size=6, max_size=6), backward=st.floats(0, 0.02))
def test_measured_parts_never_run_backwards_nor_past_the_pass(
    ready: list[float], backward: float
) -> None:
    measured = PassTimes(forward=0.0, backward=backward, ready=tuple(ready), source="p")
    times = training_times(THREE, buckets((5, 4), (3, 2), (1, 0)), device(), measured)
    assert min(times.parts) >= 0
    assert sum(times.parts) <= times.backward
    last = min(times.backward, max(round(value * 1e12) for value in ready))
    assert abs(sum(times.parts) - last) <= 1


def test_a_bucket_is_ready_when_the_backward_pass_has_reached_all_its_layers() -> None:
    # backward 40 ms: layer2 takes 20, layer1 13.333, layer0 6.667. Parameter 3 is in the first
    # bucket, so that it waits for layer1; the second waits for layer0.
    times = training_times(THREE, buckets((5, 4, 3), (2, 1, 0)), device())
    assert times.parts == (33_333_333_333, 6_666_666_667)
    assert times.rest == 0
    alone = training_times(THREE, buckets((5, 4), (3, 2), (1, 0)), device())
    assert alone.parts == (20 * 10**9, 13_333_333_333, 6_666_666_667)


def test_a_bucket_is_not_ready_before_the_one_in_front_of_it() -> None:
    times = training_times(THREE, buckets((0, 1), (5, 4, 3, 2)), device())
    assert times.parts == (40 * 10**9, 0)


def test_a_shared_tensor_is_ready_with_its_last_layer() -> None:
    tied = model(((0,), 10**9), ((1,), 10**9), ((0,), 2 * 10**9))
    times = training_times(tied, buckets((0,), (1,)), device())
    assert times.parts[0] == times.backward


def test_backward_work_behind_the_last_bucket_is_kept() -> None:
    frozen = model(((9,), 10**9), ((1,), 10**9))
    times = training_times(frozen, buckets((1,)), device())
    assert times.parts == (times.backward // 2,)
    assert times.rest == times.backward - times.backward // 2


def test_without_flops_parameters_stand_in() -> None:
    # parameters 0 and 1 hold 10 and 11 elements
    blank = model(((0,), 0), ((1,), 0))
    measured = PassTimes(forward=1.0, backward=2.1, source="bench")
    times = training_times(blank, buckets((1,), (0,)), device(), measured)
    assert times.parts == (11 * 10**11, 10 * 10**11)
    with pytest.raises(InputError, match="neither a measured rate"):
        training_times(blank, buckets((1,), (0,)), device())


def test_a_parameter_of_no_layer_is_our_bug() -> None:
    with pytest.raises(InternalError, match="belong to no layer"):
        training_times(THREE, buckets((5, 17)), device())


@given(flops=st.lists(st.integers(0, 10**12), min_size=1, max_size=8))
def test_parts_are_never_negative_and_add_up(flops: list[int]) -> None:
    net = model(*(((k,), work) for k, work in enumerate(flops)))
    if not any(flops):
        return
    order = buckets(*((k,) for k in reversed(range(len(flops)))))
    times = training_times(net, order, device())
    assert min(times.parts) >= 0
    assert sum(times.parts) == times.backward
    assert times.rest == 0


# --- what a kernel costs -------------------------------------------------------------------------

STREAM = KernelRate(launch=5e-6, bandwidth=500e9, source="test")
PRODUCT = KernelRate(launch=2**-20, bandwidth=None, flop_rate=4e12, source="test")


def cost(kind: KernelClass, launches: int, nbytes: int, flops: int = 0) -> KernelCost:
    return KernelCost(kind=kind, launches=launches, elements=1, nbytes=nbytes, flops=flops)


def test_a_kernel_costs_its_launches_bytes_and_flops() -> None:
    toy = device(kernels={"streaming": STREAM, "matmul": PRODUCT})
    fixed = (cost("streaming", 3, 10**6), cost("matmul", 2, 10**9, 8 * 10**6))
    compute = Compute(stage="encode", fixed=fixed)
    # 3 * 5 us + 1 MB / 500 GB/s = 17 us; 2 * 2^-20 s + 8 MFLOP / 4 TFLOP/s; no byte rate
    expected = 17_000_000 + round(2 * 10**12 / 2**20 + 2_000_000)
    assert PriceList(toy).compute_time(compute, payloads=4) == expected


def test_what_is_spent_for_each_payload_grows_with_their_number() -> None:
    toy = device(kernels={"streaming": STREAM})
    compute = Compute(
        stage="decode",
        fixed=(cost("streaming", 1, 500_000),),
        per_payload=(cost("streaming", 1, 1_000_000),),
    )
    times = [PriceList(toy).compute_time(compute, payloads) for payloads in (0, 1, 64)]
    assert times == [6_000_000, 13_000_000, 6_000_000 + 64 * 7_000_000]


def test_parts_of_a_whole_cost_more_launches_and_the_same_bytes() -> None:
    toy = device(kernels={"streaming": STREAM})
    compute = Compute(stage="decode", fixed=(), per_part=(cost("streaming", 2, 1_000_000),))
    times = [PriceList(toy).compute_time(compute, payloads) for payloads in (1, 64)]
    assert times == [10_000_000 + 2_000_000, 64 * 10_000_000 + 2_000_000]


def test_servers_share_the_bytes_but_not_the_launches() -> None:
    toy = PriceList(device(kernels={"streaming": STREAM}))
    compute = Compute(stage="server", fixed=(cost("streaming", 2, 10**6),))
    assert toy.compute_time(compute, 1) == 12_000_000
    assert toy.compute_time(compute, 1, servers=4) == 10_500_000


def test_a_class_without_a_rate_is_named() -> None:
    compute = Compute(stage="encode", fixed=(cost("sort", 1, 1),))
    with pytest.raises(InputError, match="'toy' has no rate for kernels of class 'sort'"):
        PriceList(device()).compute_time(compute, payloads=1)
