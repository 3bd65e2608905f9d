"""A compressor under DDP gives what lockstep gives, bit for bit, in processes on loopback."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gcsim.compressors.lockstep import in_rank_order, lockstep
from gcsim.compressors.requests import Exchange, Request
from tests.compressors.ddp.gloo_order import in_gloo_ring_order
from tests.compressors.ddp.loops import COUNT, LOOPS
from tests.compressors.ddp.plan import (
    SHAPES,
    STEPS,
    TOGETHER,
    carried,
    carried_with_options,
    demand_lockstep,
    each_exchange,
    gpus_for,
    gradients,
    same_bits,
    start_ranks,
)
from tests.compressors.ddp.ranks import LENGTHS, requests

JOBS = {
    2: ("collectives", "as_on_a_gpu", "together_on_cpu", "with_options", "all_trials"),
    COUNT: ("registry", "collectives", "as_on_a_gpu", "loops", "some_trials"),
    # four train in `tests/traces/training/test_against_ddp.py`
    4: ("collectives", "as_on_a_gpu", "between_nodes"),
}
"""What so many ranks do, one job after the other."""
CASES = carried()
Results = Callable[[int, str], list[Any]]


@pytest.mark.long
def test_two_ranks_share_a_device(ranks: Results) -> None:
    for case, found in zip(TOGETHER, zip(*ranks(2, "together_on_cpu"), strict=True), strict=True):
        demand_lockstep(case, found)


@pytest.mark.long
@pytest.mark.skipif(not gpus_for(1), reason="no GPU")
def test_two_ranks_share_a_gpu(tmp_path: Path) -> None:
    """Gloo carries its payloads through host memory."""
    (of_ranks,) = start_ranks(tmp_path, 2, "together_on_cuda")
    for case, found in zip(TOGETHER, zip(*of_ranks, strict=True), strict=True):
        demand_lockstep(case, found)


@pytest.mark.long
@pytest.mark.parametrize("case", range(len(CASES)), ids=[name for name, _ in CASES])
def test_updates_equal_those_of_lockstep_to_the_last_bit(ranks: Results, case: int) -> None:
    demand_lockstep(CASES[case], [of_rank[case] for of_rank in ranks(COUNT, "registry")])


@pytest.mark.long
def test_updates_with_options_equal_those_of_lockstep(ranks: Results) -> None:
    of_ranks = zip(*ranks(2, "with_options"), strict=True)
    for case, found in zip(carried_with_options(), of_ranks, strict=True):
        demand_lockstep(case, found)


@pytest.mark.long
def test_updates_between_nodes_equal_lockstep_of_the_nodes(ranks: Results) -> None:
    """Two nodes of two ranks are two workers with the nodes' mean gradients: a sum of two is one in
    any order."""
    given = [
        [
            [one / 2 + other / 2 for one, other in zip(*pair, strict=True)]
            for pair in [[gradients(step + 1, 2 * node + r) for r in range(2)] for node in range(2)]
        ]
        for step in range(STEPS)
    ]
    of_ranks = zip(*ranks(4, "between_nodes"), strict=True)
    for case, found in zip(each_exchange(), of_ranks, strict=True):
        demand_lockstep(case, found, given)
        assert [one["measured"] for one in found] == [(4, rank, 2) for rank in range(4)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "job", "cases"), [(2, "all_trials", CASES), (COUNT, "some_trials", each_exchange())]
)
def test_each_method_is_skipped_and_saved(
    ranks: Results, count: int, job: str, cases: list[tuple[str, dict[str, Any]]]
) -> None:
    """Overflows and restarts leave no trace; between three ranks, one method for each kind of
    exchange."""
    for rank, found in enumerate(ranks(count, job)):
        wrong = [
            f"{name} {parameters}, rank {rank}: {problem}"
            for (name, parameters), problems in zip(cases, found, strict=True)
            for problem in problems
        ]
        assert not wrong, "\n".join(wrong)


@pytest.mark.long
def test_buckets_are_those_of_ddp_after_its_rebuild(ranks: Results) -> None:
    for of_rank in ranks(COUNT, "registry"):
        for found in of_rank:
            told = [[int(n) for n in b.split()] for b in found["of DDP"].split(",")]
            assert found["buckets"] == told
            assert sorted(chain(*told)) == list(range(len(SHAPES)))


@pytest.mark.long
def test_the_first_iteration_delivers_the_mean(ranks: Results) -> None:
    given = [gradients(0, rank) for rank in range(COUNT)]
    wanted = [torch.stack(of_ranks).double() for of_ranks in zip(*given, strict=True)]
    for of_rank in ranks(COUNT, "registry"):
        for found in of_rank:
            for parts, update in zip(wanted, found["updates"][0], strict=True):
                limit = 2.0**-22 * parts.abs().sum(0)  # of float32: 2 ulp a summand
                assert bool(((update.double() - parts.mean(0)).abs() <= limit).all())


def one_request(request: Request) -> Exchange:
    reply = yield request
    return reply if isinstance(reply, Tensor) else list(reply)  # type: ignore[return-value]


@pytest.mark.long
@pytest.mark.parametrize("job", ["collectives", "as_on_a_gpu"])
@pytest.mark.parametrize("count", JOBS)
def test_collectives_reply_what_lockstep_replies(ranks: Results, count: int, job: str) -> None:
    asked = [requests(rank, count) for rank in range(count)]
    found = ranks(count, job)
    for number, together in enumerate(zip(*asked, strict=True)):
        replies: list[Any] = lockstep(
            [one_request(request) for request in together], reduction=in_gloo_ring_order
        )
        for rank, expected in enumerate(replies):
            got = found[rank][number]
            what = f"request {number}, {type(together[0]).__name__}, rank {rank}"
            if isinstance(expected, list):
                assert len(got) == len(expected)
                assert all(same_bits(a, b) for a, b in zip(got, expected, strict=True)), what
            else:
                assert got.shape == expected.shape
                any_order = count > 2 and job == "as_on_a_gpu" and gpus_for(count)  # NCCL's sums
                if any_order and expected.is_floating_point():
                    step = torch.finfo(expected.dtype).eps
                    assert torch.allclose(got, expected, rtol=count * step, atol=0), what
                    continue
                assert same_bits(got, expected), what


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [0, *LENGTHS])
def test_the_order_of_sums_does_not_matter_where_nothing_is_rounded(
    count: int, length: int
) -> None:
    tensors = [torch.arange(length) * (rank + 1) % 101 for rank in range(count)]
    for op in ("sum", "max"):
        assert torch.equal(in_gloo_ring_order(tensors, op), in_rank_order(tensors, op))
    pair = [torch.randn(length, generator=torch.Generator().manual_seed(s)) for s in range(2)]
    assert torch.equal(in_gloo_ring_order(pair, "sum"), in_rank_order(pair, "sum"))


def test_a_chunk_is_summed_down_from_the_rank_before_it() -> None:
    # Three workers, three chunks of two segments of one element: (t2 + t1) + t0, (t0 + t2) + t1,
    # (t1 + t0) + t2. In float32 1 + 2^24 is 2^24, and 1 - 2^24 is exact.
    big, one = 2.0**24, 1.0
    tensors = [torch.tensor([value] * 6) for value in (one, -big, big)]
    assert in_gloo_ring_order(tensors, "sum").tolist() == [one, one, 0.0, 0.0, one, one]
    assert in_rank_order(tensors, "sum").tolist() == [one] * 6


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(LOOPS)), ids=list(LOOPS))
def test_loop(ranks: Results, number: int) -> None:
    for of_rank in ranks(COUNT, "loops"):
        assert len(of_rank) > number, "an earlier one failed"
        assert of_rank[number] == ""
