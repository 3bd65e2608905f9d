"""The lockstep driver carries out each collective exactly and refuses a deadlock."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gcsim.compressors.conformance.subject import Heard, N, gradients, overheard, subject_of
from gcsim.compressors.lockstep import CollectiveRecord, lockstep
from gcsim.compressors.meter import Meter
from gcsim.compressors.registry import REGISTRY
from gcsim.compressors.requests import (
    AllGather,
    AllReduce,
    Exchange,
    PushPull,
    Request,
    gather_variable,
)
from gcsim.errors import InternalError
from gcsim.traces.profile import Layer
from gcsim.traces.stage1 import cache
from tests.compressors.shared import layout_of
from tests.simulator.one_bucket import one_bucket


def one(request: Request) -> Exchange:
    """An exchange of one request; its update is the reply."""
    reply: Any = yield request
    return reply  # type: ignore[no-any-return]  # whatever the request's is


def test_all_reduce_sums_over_workers_and_gives_each_its_own_copy() -> None:
    def worker(value: float) -> Exchange:
        reply: torch.Tensor = yield AllReduce(tensor=torch.full((3,), value))
        reply += value  # one worker's change is not seen by another
        return reply

    first, second = lockstep([worker(1.0), worker(2.0)])
    assert first.tolist() == [4.0] * 3
    assert second.tolist() == [5.0] * 3


def test_all_reduce_max_takes_the_largest_element() -> None:
    given = [torch.tensor([1.0, 5.0]), torch.tensor([3.0, 2.0])]
    updates = lockstep([one(AllReduce(tensor=tensor, op="max")) for tensor in given])
    assert [update.tolist() for update in updates] == [[3.0, 5.0]] * 2


def test_all_gather_gives_payloads_in_rank_order() -> None:
    given = [torch.tensor([rank], dtype=torch.uint8) for rank in range(3)]
    replies = lockstep([one(AllGather(payload=payload)) for payload in given])
    assert [[int(payload) for payload in reply] for reply in replies] == [[0, 1, 2]] * 3


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

    def server(payloads: Iterable[torch.Tensor]) -> torch.Tensor:
        received = list(payloads)
        calls.append(len(received))
        return torch.cat(received)

    given = [torch.tensor([rank], dtype=torch.uint8) for rank in (1, 2)]
    meter = Meter(2)
    updates = lockstep([one(PushPull(payload=p, server=server)) for p in given], meter)
    assert [u.tolist() for u in updates] == [[1, 2]] * 2
    assert calls == [2]
    assert meter.collectives == [CollectiveRecord(kind="push_pull", sent=(1, 1), pulled=2)]


def test_payloads_of_unequal_length_are_pushed_when_the_method_says_so() -> None:
    def workers(*, variable: bool) -> list[Exchange]:
        given = [torch.zeros(1 + rank, dtype=torch.uint8) for rank in range(2)]
        first = lambda received: next(iter(received))  # noqa: E731 - the server
        return [one(PushPull(payload=p, server=first, variable=variable)) for p in given]

    meter = Meter(2)
    lockstep(workers(variable=True), meter)
    (record,) = meter.collectives
    assert (record.sent, record.variable) == ((1, 2), True)
    with pytest.raises(InternalError, match=r"unequal payloads: .*variable=True"):
        lockstep(workers(variable=False))


def test_workers_that_ask_for_different_things_are_a_deadlock() -> None:
    def silent() -> Exchange:
        yield from ()
        return torch.zeros(1)

    for other in (one(AllGather(payload=torch.zeros(1, dtype=torch.uint8))), silent()):
        with pytest.raises(InternalError, match="disagree"):
            lockstep([one(AllReduce(tensor=torch.zeros(1))), other])


def test_unequal_tensors_and_payloads_are_refused() -> None:
    with pytest.raises(InternalError, match="shape"):
        lockstep([one(AllReduce(tensor=torch.zeros(length))) for length in (1, 2)])
    with pytest.raises(InternalError, match="gather_variable"):
        lockstep([one(AllGather(payload=torch.zeros(n, dtype=torch.uint8))) for n in (1, 2)])


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
