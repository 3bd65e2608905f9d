"""Stated traffic: is a bucket exchanged as its formulas say, and fused as Horovod does?"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.errors import InputError
from gcsim.scenarios import catalog
from gcsim.scenarios.reading.document import Document
from gcsim.scenarios.stated import StatedRun, stated
from gcsim.scenarios.tensor_groups import SMALL, fused, merged_ends
from gcsim.traces.models.registry import MODELS
from gcsim.traces.profile import Layer, ModelFacts

SIZES = [1000, 64, 4000, 16]


def facts(name: str, batch: int, tokens: int) -> tuple[ModelFacts, list[tuple[int, ...]]]:
    layers = tuple(
        Layer(name=str(n), parameters=(n,), forward_flops=size) for n, size in enumerate(SIZES)
    )
    model = ModelFacts(
        name=name, parameters=sum(SIZES), layers=layers, samples_per_worker=batch, tokens=tokens
    )
    return model, [(size,) for size in SIZES]


def run(
    traffic: Mapping[str, Any], *, model: str = "small", overlap: str = "none", **cluster: Any
) -> StatedRun:
    """On 4 machines of 1 GB/s, without latency, where forward and backward take 10 ms."""
    collectives = {"transport": "custom", "all_reduce": "ring", "all_gather": "ring"}
    data = {
        "model": model,
        "batch_size": 8,
        "compute": {"step": "10 ms"},
        "cluster": {
            "nodes": 4,
            "device": "v100",
            "network": {"bandwidth": "1 GB/s", "latency": "0 s"},
            "collectives": collectives | cluster.pop("collectives", {}),
            **cluster,
        },
        "training": {
            "overlap": overlap, "framework": "none", "shared_node": {"slowdown": 0},
            "interference": {"computation": 0, "bus": 0}, "noise": {"skew": 0},
        },
        "traffic": dict(traffic),
    }  # fmt: skip
    return stated(Document("here", data), facts)


def records(one: StatedRun) -> list[tuple[str, int, int]]:
    return [
        (record.kind, record.sent[0], record.pulled)
        for exchange in one.profile.phases[0].steps[0].exchanges
        for record in exchange.collectives
    ]


def test_a_formula_knows_the_bucket_the_cluster_and_what_is_let() -> None:
    found = run(
        {
            "grouping": "whole",
            "let": {"bits": 3},
            "exchange": [
                {"encode": [["reduction", "2*p", "8*n"]]},
                {"all_to_all": "ceil(n*bits/8)"},
                {"encode": [["streaming", 1, "4*max(n // w, 7)"]]},
                {"all_gather": "ceil(ceil(n*bits/8)/p)", "times": "2"},
                {"decode": [["streaming", 1, "5*n"]]},
            ],
        }
    )
    n = sum(SIZES)
    assert records(found) == [("all_to_all", 1905, 0), *[("all_gather", 477, 0)] * 2]
    (exchange,) = found.profile.phases[0].steps[0].exchanges
    costs = [[(c.kind, c.launches, c.nbytes) for c in one.fixed] for one in exchange.computes]
    assert costs == [
        [("reduction", 8, 8 * n)], [("streaming", 1, 4 * (n // 4))], [], [("streaming", 1, 5 * n)],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("exchange", "said"),
    [
        ([{"all_reduce": "4*m"}], "'m' means nothing in a formula"),
        ([{"all_reduce": "__import__('os')"}], "means nothing"),
        ([{"all_reduce": "4*n", "send": "n"}], "one stage or one collective"),
        ([{"element": 4}], "one stage or one collective"),
        ([{"encode": [["streamin", 1, "n"]]}], "streamin"),
    ],
)
def test_what_is_no_exchange_is_refused(exchange: list[Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        _ = run({"grouping": "whole", "exchange": exchange}).seconds


def test_a_dense_step_is_the_passes_and_the_ring() -> None:
    """By hand: 3/4 of the bytes twice through a NIC of 1 GB/s, 1270 elements a chunk."""
    assert run({"grouping": "whole"}).seconds == pytest.approx(0.01 + 6 * 4 * 1270 / 1e9)
    assert run({"grouping": "none"}).seconds == 0.01
    busy = run({"grouping": "whole", "exchange": [{"busy": "n*1e-6"}, {"all_reduce": "4*n"}]})
    assert busy.seconds == pytest.approx(0.01 + 0.00508 + 6 * 4 * 1270 / 1e9)


def by_formula(tokens: int = 0, **training: Any) -> StatedRun:
    """GPT-2 medium on 4 machines."""
    training = {"precision": "fp16", "framework": "none", **training}
    cluster = {"nodes": 4, "device": "v100", "network": "25gbe"}
    data = {"model": "gpt2_medium", "tokens": tokens, "cluster": cluster, "training": training}
    return stated(Document("here", data), facts)


def test_weights_of_a_model_by_formula_are_gathered_twice_and_gradients_scattered_once() -> None:
    """In 16 and in 32 bits; weights of the last unit of the forward pass once (FSDP)."""
    found = by_formula(strategy="fsdp").profile
    exchanges = found.phases[0].steps[0].exchanges
    gathered = [sum(r.sent[0] for r in one.collectives[:-1]) for one in exchanges]
    parameters = MODELS["gpt2_medium"].parameters
    assert sum(gathered) + gathered[0] == 2 * 2 * parameters  # type: ignore[operator]
    assert sum(one.collectives[-1].sent[0] for one in exchanges) == 4 * parameters  # type: ignore[operator]


def test_full_checkpointing_passes_the_blocks_forward_again() -> None:
    """Two of three parts of a step are the backward pass; the output, 2 s h V, is not repeated."""
    once, again = by_formula(), by_formula(checkpointing="full")
    assert once.model is not None
    share = 1 - 2 * 1024 * 1024 * 50257 / once.model.forward_flops
    assert again.step / once.step == pytest.approx(1 + share / 3, rel=1e-9)
    assert again.passes.forward == pytest.approx(once.passes.forward, rel=1e-9)


def test_a_model_by_formula_takes_samples_of_the_stated_tokens() -> None:
    """2 N FLOPs a token without attention's, whose share halves with the tokens."""
    whole, half = by_formula(), by_formula(tokens=512)
    assert whole.model is not None
    assert half.model is not None
    attention = 24 * 4 * 1024 * 1024**2
    products = (whole.model.forward_flops - attention) / 2
    assert half.model.forward_flops == pytest.approx(products + attention / 4, rel=1e-12)


def test_exchanges_alone_follow_each_other() -> None:
    alone = {"let": {"b": 4000}, "exchange": [{"all_reduce": "b", "times": "p"}, {"send": "b"}]}
    assert run(alone, model="").seconds == pytest.approx(4 * 6 * 1000 / 1e9 + 4000 / 1e9)
    spread = {"let": {"b": 4000}, "exchange": [{"broadcast": "b"}]}
    assert run(spread, model="").seconds == pytest.approx(3 * 4000 / 1e9)  # k (k + 1) / 2, k = 2


def test_a_collective_inside_a_node_takes_as_long_as_a_copy() -> None:
    """A ring of two over 2 GB/s: the vector once."""
    node = {"bandwidth": "2 GB/s", "latency": "0 s"}
    inside = [{"all_reduce": "4*n", "inside": 2}, {"all_reduce": "4*n"}]
    with_it = run({"grouping": "whole", "exchange": inside}, intra_node=node).seconds
    without = run({"grouping": "whole"}, intra_node=node).seconds
    assert with_it - without == pytest.approx(4 * sum(SIZES) / 2e9, rel=1e-3)


def test_kernels_of_a_slower_code_take_as_many_times_as_long() -> None:
    """Ten launches over 4 MB each, with no exchange to hide behind; selections stay as they are."""
    kernels = [{"encode": [["streaming", 10, 40_000_000], ["selection", 1, 4_000_000]]}]

    def encoding(**slower: float) -> float:
        exchange = [*kernels, {"all_reduce": 4}]
        with_it = run({"grouping": "whole", "exchange": exchange, "slower": slower}).seconds
        return with_it - run({"grouping": "whole", "exchange": [{"all_reduce": 4}]}).seconds

    rate = catalog.device("v100").kernels["streaming"]
    assert rate.bandwidth is not None
    streaming = 10 * rate.launch + 40_000_000 / rate.bandwidth
    assert encoding(streaming=3) - encoding() == pytest.approx(2 * streaming, rel=1e-6)


def test_the_busiest_server_decides_where_a_variable_is_not_cut() -> None:
    """Of 1000, 64, 4000 and 16 elements on two servers one holds 1000, the other the rest."""
    traffic = {"grouping": "tensors", "exchange": [{"push_pull": "4*n", "whole_variables": True}]}
    found = records(run(traffic, collectives={"transport": "textbook", "servers": 2}))
    unevenness = 2 * (64 + 4000) / sum(SIZES)
    assert [sent for _, sent, _ in found] == pytest.approx(
        [4 * size * unevenness for size in reversed(SIZES)], abs=1
    )
    assert [pulled for *_, pulled in found] == [0, 0, 0, sum(sent for _, sent, _ in found)]


def test_horovods_groups_hold_each_tensor_once_and_follow_its_transfers() -> None:
    found = run({"grouping": "horovod"}, overlap="ddp")
    pieces = [[piece.index for piece in one.slices] for one in found.profile.buckets]
    # ready 0.02, 5.3, 5.4 and 6.7 ms after the start of the backward pass; it looks every 5 ms
    assert pieces == [[3], [2, 1, 0]]


@given(
    st.lists(st.tuples(st.integers(1, 100), st.floats(0, 1)), min_size=1, max_size=12),
    st.floats(0.01, 0.3),
    st.floats(0, 0.02),
    st.integers(20, 150),
)
def test_fusion_takes_what_is_ready_in_order_up_to_the_threshold(
    tensors: list[tuple[int, float]], cycle: float, a_byte: float, threshold: int
) -> None:
    sizes = [size for size, _ in tensors]
    ready = [time for _, time in tensors]
    groups = fused(sizes, ready, lambda n: a_byte * n, cycle=cycle, threshold=threshold)
    flat = [n for group in groups for n in group]
    assert sorted(flat) == list(range(len(sizes)))
    assert [ready[n] for n in flat] == sorted(ready)
    free = 0.0
    for place, group in enumerate(groups):
        total = sum(sizes[n] for n in group)
        assert total <= threshold or len(group) == 1
        begun = max(free, *(ready[n] for n in group))
        # what follows was not ready a cycle later, or did not fit
        for after in groups[place + 1 : place + 2]:
            late = ready[after[0]] > begun - 1e-9
            assert late or total + sizes[after[0]] > threshold
        free = begun + max(cycle, a_byte * total) - cycle


def test_fusion_sends_everything_at_once_where_the_network_is_slow() -> None:
    sizes, ready = [4] * 6, [0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    slow = fused(sizes, ready, lambda n: 1.0, cycle=0.05, threshold=1000)
    fast = fused(sizes, ready, lambda n: 0.0, cycle=0.05, threshold=1000)
    assert slow == [[5], [4, 3, 2, 1, 0]]
    assert fast == [[5], [4], [3], [2], [1], [0]]


def test_parts_are_messages_of_one_bucket_that_are_ready_together() -> None:
    exchange = [{"encode": [["streaming", "t", "8*whole"]]}, {"all_reduce": "4*n"}]
    found = run({"grouping": "whole", "part": 2000, "exchange": exchange})
    assert [sent for _, sent, _ in records(found)] == [8000, 8000, 4 * (sum(SIZES) - 4000)]
    exchanges = found.profile.phases[0].steps[0].exchanges
    launches = [sum(cost.launches for cost in one.computes[0].fixed) for one in exchanges]
    assert launches == [len(SIZES), 0, 0]
    assert list(found.passes.parts[1:]) == [0, 0]


def test_an_optimizer_is_not_in_the_passes_and_comes_last() -> None:
    """A second's worth of bytes at the rate of the device's element-wise kernels."""
    kernels = [["streaming", "t", "8*n"]]
    one = run({"grouping": "whole", "optimizer": kernels})
    without = run({"grouping": "whole"})
    assert one.seconds - without.seconds == pytest.approx(float(one.training.optimizer))
    assert float(one.training.optimizer) > len(SIZES) * 4e-6


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
    assert ends == merged_naively(elements, ready, start_up, per_byte)


def merged_naively(
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
