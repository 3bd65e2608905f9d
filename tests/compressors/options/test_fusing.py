"""Exchanges side by side give what they give alone; their all-reduces travel together."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.meter import Meter
from gcsim.compressors.options.optioned import fused
from gcsim.compressors.requests import AllGather, AllReduce, Exchange, PushPull, gather_variable

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


MERGED: Sequence[Callable[[int, int], Exchange]] = (all_reduce, all_reduce_integers)
KINDS = (*MERGED, gather, gather_unequal, push_pull)


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
    times = 1 if kind in MERGED else 3
    asked = [record.kind for record in meter.collectives]
    assert sorted(record.kind for record in collectives) == sorted(asked * times)


def test_all_kinds_at_once_give_the_same() -> None:
    kinds, sizes = [*KINDS, *KINDS], [3, 5, 2, 4, 6, 7, 1, 1, 3, 2]
    results, collectives = together(kinds, sizes)
    for one, other in zip(results, apart(kinds, sizes), strict=True):
        assert torch.equal(one, other)
    # all-reduces of one operation and dtype travel together, what else is asked for alone: two
    # gathers, two pairs of gathers (lengths first), two pushes
    assert sorted(record.kind for record in collectives) == sorted(
        ["all_reduce"] * 3 + ["all_gather"] * 6 + ["push_pull"] * 2
    )


def test_one_exchange_alone_travels_as_it_is() -> None:
    for kind in KINDS:
        _, collectives = together([kind], [5])
        meter = Meter(WORKERS)
        lockstep([kind(rank, 5) for rank in range(WORKERS)], meter)
        assert collectives == meter.collectives


def test_no_exchange_needs_no_collective() -> None:
    with pytest.raises(StopIteration) as stop:
        next(fused([]))
    assert stop.value.value == []
