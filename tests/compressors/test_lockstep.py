"""The lockstep driver carries out each collective exactly and refuses a deadlock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gcsim.compressors.conformance.subject import Heard, N, gradients, overheard, subject_of
from gcsim.compressors.lockstep import CollectiveRecord, lockstep
from gcsim.compressors.meter import Meter
from gcsim.compressors.registry import REGISTRY
from gcsim.compressors.requests import AllGather, AllReduce, Exchange, PushPull, gather_variable
from gcsim.errors import InternalError
from gcsim.traces.profile import Layer
from gcsim.traces.stage1 import cache
from tests.compressors.shared import layout_of
from tests.simulator.one_bucket import one_bucket


def test_all_reduce_sums_over_workers_and_gives_each_its_own_copy() -> None:
    def worker(value: float) -> Exchange:
        reply: torch.Tensor = yield AllReduce(tensor=torch.full((3,), value))
        reply += value  # one worker's change is not seen by another
        return reply

    first, second = lockstep([worker(1.0), worker(2.0)])
    assert first.tolist() == [4.0] * 3
    assert second.tolist() == [5.0] * 3


def test_all_reduce_max_takes_the_largest_element() -> None:
    def worker(values: list[float]) -> Exchange:
        reply: torch.Tensor = yield AllReduce(tensor=torch.tensor(values), op="max")
        return reply

    updates = lockstep([worker([1.0, 5.0]), worker([3.0, 2.0])])
    assert [update.tolist() for update in updates] == [[3.0, 5.0]] * 2


def test_all_gather_gives_payloads_in_rank_order() -> None:
    def worker(rank: int) -> Exchange:
        payloads = yield AllGather(payload=torch.tensor([rank], dtype=torch.uint8))
        return torch.cat(list(payloads)).float()

    assert [u.tolist() for u in lockstep([worker(r) for r in range(3)])] == [[0.0, 1.0, 2.0]] * 3


def test_a_variable_all_gather_exchanges_lengths_first() -> None:
    def worker(length: int) -> Exchange:
        payloads = yield from gather_variable(torch.zeros(length, dtype=torch.uint8))
        return torch.tensor([float(p.numel()) for p in payloads])

    meter = Meter(2)
    updates = lockstep([worker(5), worker(9)], meter)
    assert updates[0].tolist() == [5.0, 9.0]
    assert meter.collectives == [
        CollectiveRecord(kind="all_gather", sent=(8, 8)),
        CollectiveRecord(kind="all_gather", sent=(5, 9)),
    ]


def test_push_pull_runs_the_server_once_with_everybodys_payload() -> None:
    calls = []

    def server(payloads: object) -> torch.Tensor:
        received = list(payloads)  # type: ignore[call-overload]
        calls.append(len(received))
        return torch.cat(received)

    def worker(rank: int) -> Exchange:
        reply: torch.Tensor = yield PushPull(
            payload=torch.tensor([rank], dtype=torch.uint8), server=server
        )
        return reply.float()

    meter = Meter(2)
    updates = lockstep([worker(1), worker(2)], meter)
    assert [u.tolist() for u in updates] == [[1.0, 2.0]] * 2
    assert calls == [2]
    assert meter.collectives == [CollectiveRecord(kind="push_pull", sent=(1, 1), pulled=2)]


def test_payloads_of_unequal_length_are_pushed_when_the_method_says_so() -> None:
    def worker(rank: int, variable: bool) -> Exchange:
        payload = torch.zeros(1 + rank, dtype=torch.uint8)
        reply: torch.Tensor = yield PushPull(
            payload=payload, server=lambda received: next(iter(received)), variable=variable
        )
        return reply.float()

    meter = Meter(2)
    lockstep([worker(0, True), worker(1, True)], meter)
    (record,) = meter.collectives
    assert (record.sent, record.variable) == ((1, 2), True)
    with pytest.raises(InternalError, match=r"unequal payloads: .*variable=True"):
        lockstep([worker(0, False), worker(1, False)], meter)


def test_workers_that_ask_for_different_things_are_a_deadlock() -> None:
    def one() -> Exchange:
        reply: torch.Tensor = yield AllReduce(tensor=torch.zeros(1))
        return reply

    def other() -> Exchange:
        payloads = yield AllGather(payload=torch.zeros(1, dtype=torch.uint8))
        return torch.cat(list(payloads))

    def silent() -> Exchange:
        yield from ()
        return torch.zeros(1)

    with pytest.raises(InternalError, match="disagree"):
        lockstep([one(), other()])
    with pytest.raises(InternalError, match="disagree"):
        lockstep([one(), silent()])


def test_unequal_tensors_and_payloads_are_refused() -> None:
    def reduce(length: int) -> Exchange:
        reply: torch.Tensor = yield AllReduce(tensor=torch.zeros(length))
        return reply

    def gather(length: int) -> Exchange:
        reply: torch.Tensor = yield AllGather(payload=torch.zeros(length, dtype=torch.uint8))
        return reply

    with pytest.raises(InternalError, match="shape"):
        lockstep([reduce(1), reduce(2)])
    with pytest.raises(InternalError, match="gather_variable"):
        lockstep([gather(1), gather(2)])


@pytest.mark.parametrize("name", REGISTRY)
def test_the_type_that_a_method_reduces_reaches_the_record(name: str) -> None:
    """The tensor on its way to the all-reduce is compared with the meter's note of it."""
    crew = subject_of(name, {}).crew()
    for step in range(4):
        logs: list[list[Heard]] = [[], []]
        meter = Meter(2)
        pairs = zip(crew.exchanges(gradients(N, 2, step), step), logs, strict=True)
        with torch.no_grad():
            lockstep([overheard(exchange, log) for exchange, log in pairs], meter)
        reduced = [heard.sent[0] for heard in logs[0] if heard.kind is AllReduce]
        records = [record for record in meter.collectives if record.kind == "all_reduce"]
        assert [(f"torch.{r.dtype}", r.element, r.sent[0]) for r in records] == [
            (str(tensor.dtype), tensor.element_size(), tensor.nbytes) for tensor in reduced
        ]


def test_a_profile_keeps_the_type_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path))
    record = CollectiveRecord(kind="all_reduce", sent=(20, 20), element=2, dtype="bfloat16")
    toy = one_bucket(record)
    layer = Layer(name="w", parameters=(0,), forward_flops=0)
    profile = replace(
        toy, model=replace(toy.model, layers=(layer,)), buckets=(layout_of(toy.model.parameters),)
    )
    cache.save("one", profile)
    assert cache.load("one") == profile
