"""Exchanges side by side give what they give alone, in the collectives of one."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.meter import Meter
from gcsim.compressors.options.fusing import LENGTH_BYTES, fused, pack, unpack
from gcsim.compressors.registry import create
from gcsim.compressors.requests import AllGather, AllReduce, Exchange, PushPull, gather_variable
from gcsim.errors import InputError
from gcsim.traces.stage1.metered import metered_exchange
from tests.compressors.shared import layout_of, normal

WORKERS = 3


def payload(length: int, value: int) -> Tensor:
    return torch.full((length,), value, dtype=torch.uint8)


def all_reduce(rank: int, size: int) -> Exchange:
    total = yield AllReduce(tensor=torch.full((size, 2), float(rank)))
    again = yield AllReduce(tensor=total + rank, op="max")
    return torch.cat([total.reshape(-1), again.reshape(-1)])


def all_reduce_integers(rank: int, size: int) -> Exchange:
    total: Tensor = yield AllReduce(tensor=torch.full((size,), rank + size, dtype=torch.int32))
    return total.float()


def gather(rank: int, size: int) -> Exchange:
    received = yield AllGather(payload=payload(size, rank))
    return torch.cat([part.float() for part in received])


def gather_unequal(rank: int, size: int) -> Exchange:
    received = yield from gather_variable(payload(size * rank, rank + size))
    return torch.cat([part.float() for part in received])


def push_pull(rank: int, size: int) -> Exchange:
    def serve(received: Any) -> Tensor:
        total = torch.zeros(size, dtype=torch.int64)
        for part in received:
            total += part[:size]
        return total.to(torch.uint8)

    answer: Tensor = yield PushPull(
        payload=payload(size + rank, rank + 1), server=serve, variable=True
    )
    return answer.float()


MERGED: Sequence[Callable[[int, int], Exchange]] = (
    all_reduce, all_reduce_integers, gather, gather_unequal,
)  # fmt: skip
KINDS = (*MERGED, push_pull)


def together(kinds: Sequence[Callable[[int, int], Exchange]], sizes: Sequence[int]) -> Any:
    """The updates by exchange and rank, and the meter that saw the fused exchange."""
    meter = Meter(WORKERS)

    def worker(rank: int) -> Exchange:
        updates = yield from fused(
            [kind(rank, size) for kind, size in zip(kinds, sizes, strict=True)]
        )
        return torch.cat([update.reshape(-1) for update in updates])

    results = lockstep([worker(rank) for rank in range(WORKERS)], meter)
    return results, meter.collectives


def apart(kinds: Sequence[Callable[[int, int], Exchange]], sizes: Sequence[int]) -> list[Tensor]:
    each = [
        lockstep([kind(rank, size) for rank in range(WORKERS)])
        for kind, size in zip(kinds, sizes, strict=True)
    ]
    return [
        torch.cat([update.reshape(-1) for update in column]) for column in zip(*each, strict=True)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_equal_kinds_give_the_same_in_the_collectives_of_one(
    kind: Callable[[int, int], Exchange],
) -> None:
    sizes = [4, 1, 7]
    results, collectives = together([kind] * 3, sizes)
    for one, other in zip(results, apart([kind] * 3, sizes), strict=True):
        assert torch.equal(one, other)
    meter = Meter(WORKERS)
    lockstep([kind(rank, 4) for rank in range(WORKERS)], meter)
    alone = [] if kind in MERGED else [r.kind for r in meter.collectives] * 2
    assert [r.kind for r in collectives] == [r.kind for r in meter.collectives] + alone


def test_all_kinds_at_once_give_the_same() -> None:
    kinds, sizes = [*KINDS, *KINDS], [3, 5, 2, 4, 6, 7, 1, 1, 3, 2]
    results, collectives = together(kinds, sizes)
    for one, other in zip(results, apart(kinds, sizes), strict=True):
        assert torch.equal(one, other)
    # Round 1: two all-reduces (dtypes), gather (of fixed payloads and of lengths), and what travels
    # alone. Round 2: the all-reduce's maximum, the gather of unequal payloads.
    assert sorted(record.kind for record in collectives) == sorted(
        ["all_reduce", "all_gather", "push_pull"] * 2 + ["all_reduce"]
    )  # fmt: skip


def test_one_exchange_alone_travels_as_it_is() -> None:
    for kind in KINDS:
        _, collectives = together([kind], [5])
        meter = Meter(WORKERS)
        lockstep([kind(rank, 5) for rank in range(WORKERS)], meter)
        assert collectives == meter.collectives


def test_what_merging_costs_is_a_length_where_lengths_differ() -> None:
    # Fixed: 4 + 1 bytes. Unequal, of 4 rank and 1 rank bytes: lengths first, 2 * 8; then 16 for
    # the two lengths beside the payloads.
    _, fixed = together([gather, gather], [4, 1])
    assert [record.sent for record in fixed] == [(5, 5, 5)]
    _, variable = together([gather_unequal, gather_unequal], [4, 1])
    head = 2 * LENGTH_BYTES
    assert [record.sent for record in variable] == [(16, 16, 16), (head, head + 5, head + 10)]


def test_no_exchange_needs_no_collective() -> None:
    with pytest.raises(StopIteration) as stop:
        next(fused([]))
    assert stop.value.value == []


def test_the_meter_counts_a_payload_once_however_many_parts_it_has() -> None:
    # Cost of decoding N payloads = fixed + N * per payload: what is metered with two workers must
    # tell that of four, for one exchange and for three side by side.
    def metered(count: int, parts: int) -> Any:
        meter = Meter(count)
        layout = layout_of(1000)

        def worker(rank: int) -> Exchange:
            members = [create("topk", Worker(rank=rank, count=count, seed=1)) for _ in range(parts)]
            bucket = Bucket(layout=layout, gradient=normal(1000, rank))
            updates = yield from fused([member.exchange(bucket, 0) for member in members])
            return updates[0]

        lockstep([worker(rank) for rank in range(count)], meter)
        return metered_exchange(meter, None).computes[-1]

    def nbytes(costs: Any) -> int:
        return sum(cost.nbytes for cost in costs)

    for parts in (1, 3):
        two, four = metered(2, parts), metered(4, parts)
        assert nbytes(two.per_payload) > 0
        assert nbytes(two.per_payload) == nbytes(four.per_payload)
        assert nbytes(two.fixed) == nbytes(four.fixed)
    assert nbytes(metered(2, 3).per_payload) == 3 * nbytes(metered(2, 1).per_payload)


def test_payloads_in_one_another_come_out_again() -> None:
    parts = [payload(3, 1), payload(0, 2), payload(5, 3)]
    packed = pack(parts)
    assert packed.numel() == 3 * LENGTH_BYTES + 8
    assert all(torch.equal(a, b) for a, b in zip(unpack(packed, 3), parts, strict=True))


def test_damage_is_refused() -> None:
    packed = pack([payload(3, 1), payload(5, 3)])
    negative = packed.clone()
    negative[7] = 0x80
    for damaged in (packed[:-1], packed[:9], packed[:0], torch.cat((packed, packed)), negative):
        with pytest.raises(InputError, match="damaged"):
            unpack(damaged, 2)
    exchanges = fused([gather(0, 4), gather(0, 2)])
    next(exchanges)
    with pytest.raises(InputError, match="damaged"):
        exchanges.send([payload(6, 0), payload(5, 0)])
