"""Workers in lockstep share what all of them make of one reply, and nothing else."""

import gc
import weakref
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding import frames
from gcsim.compressors.conformance.subject import SHAPES, N, gradients, subject_of
from gcsim.compressors.lockstep import Observer, lockstep
from gcsim.compressors.registry import REGISTRY, create
from gcsim.compressors.requests import AllGather, AllReduce, AllToAll, Exchange
from gcsim.compressors.sharing import fill_once, once
from gcsim.errors import InternalError
from tests.compressors.shared import layout_of_shapes

calls: list[int] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


def _sum(payloads: Iterable[Tensor], factor: object) -> Tensor:
    calls.append(1)
    return torch.cat(list(payloads)).float().sum() * (factor if isinstance(factor, int) else 1)


def _doubled(total: Tensor) -> Tensor:
    calls.append(1)
    return 2 * total


def _fill(payloads: Iterable[Tensor], out: Tensor) -> None:
    calls.append(1)
    out += torch.cat(list(payloads)).float()


def _numbered(received: Iterable[Tensor]) -> Tensor:
    """Not a function of its arguments."""
    calls.append(1)
    return torch.tensor(float(len(calls)))


def gathering(rank: int, factor: object) -> Exchange:
    payloads = yield AllGather(payload=torch.tensor([rank], dtype=torch.uint8))
    return once(_sum, payloads, factor)


def test_what_all_make_of_a_reply_is_made_once() -> None:
    updates = lockstep([gathering(rank, [1, torch.ones(2)]) for rank in range(5)])
    assert [float(update) for update in updates] == [10.0] * 5  # 0 + 1 + 2 + 3 + 4
    assert len(calls) == 1


@pytest.mark.parametrize(
    "factors",
    [(1, 2), ([1], [2]), (torch.zeros(2), torch.ones(2)), (1, 1.0), ((1,), (1, 1))],
    ids=str,
)
def test_a_worker_whose_arguments_differ_computes_for_itself(factors: tuple[object, ...]) -> None:
    lockstep([gathering(rank, factor) for rank, factor in enumerate(factors)])
    assert len(calls) == 2


def test_a_closure_is_another_function_on_each_worker() -> None:
    def worker(rank: int) -> Exchange:
        payloads = yield AllGather(payload=torch.zeros(1, dtype=torch.uint8))
        return once(lambda received: torch.full((len(received),), float(rank)), payloads)

    updates = lockstep([worker(rank) for rank in range(2)])
    assert [update.tolist() for update in updates] == [[0.0, 0.0], [1.0, 1.0]]


def test_a_filled_vector_is_each_workers_own() -> None:
    def worker() -> Exchange:
        payloads = yield AllGather(payload=torch.ones(2, dtype=torch.uint8))
        update = fill_once(_fill, payloads, torch.zeros(4))
        return update.mul_(2)  # the next worker does not see it

    updates = lockstep([worker(), worker()])
    assert [update.tolist() for update in updates] == [[2.0] * 4] * 2
    assert len(calls) == 1


def test_a_sum_that_a_worker_has_changed_is_another_argument() -> None:
    def worker(rank: int) -> Exchange:
        total: Tensor = yield AllReduce(tensor=torch.ones(1))
        return once(_doubled, total.add_(rank % 2))

    updates = lockstep([worker(rank) for rank in range(4)])
    assert [float(update) for update in updates] == [8.0, 10.0, 8.0, 10.0]
    assert len(calls) == 2


def test_what_was_addressed_to_one_worker_is_not_shared() -> None:
    def worker() -> Exchange:
        received = yield AllToAll(payloads=[torch.ones(1, dtype=torch.uint8)] * 2)
        return once(_sum, received, 1)

    lockstep([worker(), worker()])
    assert len(calls) == 2


def test_an_observer_sees_what_each_worker_computes_unless_told_otherwise() -> None:
    lockstep([gathering(rank, 1) for rank in range(3)], Observer())
    assert len(calls) == 3
    lockstep([gathering(rank, 1) for rank in range(3)], Observer(), share=True)
    assert len(calls) == 4
    lockstep([gathering(rank, 1) for rank in range(3)], share=False)
    assert len(calls) == 7


def test_checked_sharing_finds_what_is_no_function_of_its_arguments() -> None:
    def worker() -> Exchange:
        payloads = yield AllGather(payload=torch.zeros(1, dtype=torch.uint8))
        return once(_numbered, payloads)

    lockstep([worker(), worker()])
    with pytest.raises(InternalError, match=r"_numbered.*equal arguments, different values"):
        lockstep([worker(), worker()], share="checked")


@pytest.mark.parametrize("name", ["topk", "qsgd", "terngrad", "signsgd", "torch_fp16"])
def test_a_payload_is_decoded_once_and_not_once_a_worker(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames are read by whoever decodes: as many with sharing as there are payloads."""
    read = _count_frames(monkeypatch)
    counts = []
    for share in (True, False):
        read.clear()
        crew = subject_of(name, {}).crew(workers=4)
        lockstep(crew.exchanges(gradients(N, 4, 0), 0), share=share)
        counts.append(len(read))
    messages = {"signsgd": 5, "torch_fp16": 0}.get(name, 4)  # payloads, and the server's answer
    assert counts[0] == messages * len(SHAPES)
    assert counts[1] == {"signsgd": 8, "torch_fp16": 0}.get(name, 16) * len(SHAPES)


def _count_frames(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    read: list[int] = []
    loops: Any = frames  # whose loops are not typed
    found, agree = loops._read_headers, loops._agree

    def counting_found(data: object, rows: Any) -> None:
        read.extend([1] * rows.shape[1])
        found(data, rows)

    def counting_agreed(data: object, heads: Any, *given: object) -> bool:
        read.extend([1] * len(heads))
        return bool(agree(data, heads, *given))

    monkeypatch.setattr(frames, "_read_headers", counting_found)
    monkeypatch.setattr(frames, "_agree", counting_agreed)
    return read


@pytest.mark.parametrize("name", REGISTRY)
def test_what_an_exchange_made_is_gone_with_it(name: str) -> None:
    """Without the garbage collector: a circle would hold gigabytes of a large model until then."""
    layout = layout_of_shapes([(40, 50)])
    gradient = torch.randn(2000, generator=torch.Generator().manual_seed(1))
    bucket = Bucket(layout=layout, gradient=gradient, second_moment=gradient.square())

    def second() -> list[Tensor]:
        team = [create(name, Worker(rank=rank, count=2, seed=0)) for rank in range(2)]
        first = type(team[0]).warmup_steps(type(team[0]).Parameters())
        with torch.no_grad():
            lockstep([member.exchange(bucket, first) for member in team])
            return lockstep([member.exchange(bucket, first + 1) for member in team])

    second()  # compiles loops, whose compiler leaves circles of its own
    gc.collect()
    gc.freeze()  # what is there now need not be looked at again
    gc.disable()
    try:
        updates = second()
        alive = [weakref.ref(update) for update in updates]
        del updates
        assert [ref() is None for ref in alive] == [True, True]
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        # `type`: asking a weak proxy for its class asks its object, which may be gone.
        tensors = [one for one in gc.garbage if issubclass(type(one), Tensor)]
        left = [one for one in tensors if one.numel() >= 2000]
        assert not left
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
