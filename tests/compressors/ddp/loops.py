"""What training loops do under DDP besides plain steps: each function runs on every rank.

`ranks.py` runs them with three ranks; a loop that finds something wrong raises.
"""

import gc
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import gcsim
from gcsim.compressors.base import Compressor
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.ddp import hook as hooks
from gcsim.compressors.ddp.collectives import Collectives
from gcsim.compressors.ddp.model import group_for
from gcsim.compressors.requests import AllGather, AllReduce, Exchange, gather_variable
from gcsim.errors import InputError
from tests.compressors.ddp.plan import (
    BUCKET_MB,
    PROBE,
    SEED,
    SHAPES,
    Planned,
    gpus_for,
    gradients,
    in_lockstep,
    planned,
    same_bits,
    steps_of,
)
from tests.compressors.standin import pretended_gpu

COUNT = 3
TOPK: dict[str, Any] = {"ratio": 0.05}


def grads(model: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def expect_lockstep(
    hook: Any,
    rank: int,
    given: Sequence[Sequence[Sequence[Tensor]]],
    got: Sequence[Sequence[Tensor | None]],
) -> None:
    """`got` by step are this rank's updates of top-k for `given`, by step and rank."""
    layouts = [hook.layouts[number] for number in range(len(hook.layouts))]
    found = list(in_lockstep("topk", TOPK, layouts, given))
    assert len(found) == len(got)
    for step, (expected, mine) in enumerate(zip(found, got, strict=True)):
        for number, (update, own) in enumerate(zip(expected[rank], mine, strict=True)):
            if own is not None:
                assert same_bits(own, update), f"step {step}, tensor {number}"


def topk(model: DistributedDataParallel) -> Any:
    return gcsim.ddp_hook("topk", seed=SEED, **TOPK).register(model)


def of_all(steps: Sequence[int]) -> list[list[list[Tensor]]]:
    return [[gradients(step, rank) for rank in range(COUNT)] for step in steps]


# --- DDP's own options -------------------------------------------------------------------


def with_option(start_up: int = 1, **options: Any) -> Callable[[int], None]:
    def loop(rank: int) -> None:
        model = planned(**options)
        hook = topk(model)
        updates = list(steps_of(model, rank))
        expect_lockstep(hook, rank, of_all(range(start_up, 5)), updates[start_up:])

    return loop


def accumulates_under_no_sync(rank: int) -> None:
    model = planned()
    hook = topk(model)
    list(steps_of(model, rank, 1))
    got, given = [], []
    for first in (10, 20):
        model.zero_grad()
        with model.no_sync():
            model(gradients(first, rank)).backward()
            model(gradients(first + 1, rank)).backward()
        model(gradients(first + 2, rank)).backward()
        got.append(grads(model))
        parts = of_all(range(first, first + 3))
        given.append(
            [[a + b + c for a, b, c in zip(*(p[r] for p in parts), strict=True)]
             for r in range(COUNT)]
        )  # fmt: skip
    assert hook.step == 1  # two exchanges after the first, not six
    expect_lockstep(hook, rank, given, got)


class Partial(Planned):
    """Tensor 2 is used by nobody, tensor 3 by rank 0 alone."""

    def forward(self, given: list[Tensor]) -> Tensor:
        used = [n for n in range(len(SHAPES)) if n != 2 and (n != 3 or dist.get_rank() == 0)]
        return torch.stack([(self.tensors[n] * given[n]).sum() for n in used]).sum()


def unused_parameters_count_as_zeros(rank: int) -> None:
    model = DistributedDataParallel(Partial(), bucket_cap_mb=BUCKET_MB, find_unused_parameters=True)
    hook = topk(model)
    updates = []
    for step in range(5):
        model.zero_grad()
        model(gradients(step, rank)).backward()
        updates.append(grads(model))
        assert updates[-1][2] is None  # as DDP without a hook leaves it
        assert updates[-1][3] is not None
    given = of_all(range(1, 5))
    for of_ranks in given:
        for other, tensors in enumerate(of_ranks):
            tensors[2] = torch.zeros(SHAPES[2])
            if other:
                tensors[3] = torch.zeros(SHAPES[3])
    expect_lockstep(hook, rank, given, updates[1:])


def joins_uneven_inputs(rank: int) -> None:
    """Ranks that have run out take part with zeros."""
    model = planned()
    hook = topk(model)
    updates = []
    with Join([model]):
        for step in range(5 if rank == 1 else 3):
            model.zero_grad()
            model(gradients(step, rank)).backward()
            updates.append(grads(model))
    given = of_all(range(1, 5))
    for of_ranks in given[2:]:
        for other in (0, 2):
            of_ranks[other] = [torch.zeros(shape) for shape in SHAPES]
    expect_lockstep(hook, rank, given[: len(updates) - 1], updates[1:])


def trains_in_bfloat16(rank: int) -> None:
    model = DistributedDataParallel(Planned().bfloat16(), bucket_cap_mb=BUCKET_MB)
    hook = topk(model)
    updates = []
    for step in range(3):
        model.zero_grad()
        model([g.bfloat16() for g in gradients(step, rank)]).backward()
        updates.append(grads(model))
    narrow = [[[g.bfloat16().float() for g in r] for r in step] for step in of_all(range(1, 3))]
    layouts = [hook.layouts[number] for number in range(len(hook.layouts))]
    for expected, mine in zip(in_lockstep("topk", TOPK, layouts, narrow), updates[1:], strict=True):
        for update, own in zip(expected[rank], mine, strict=True):
            assert own is not None
            assert same_bits(own, update.bfloat16())


def replicas_stay_equal(rank: int) -> None:
    """A network with batch normalisation, trained on data of each rank's own."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 5))
    model = DistributedDataParallel(net, bucket_cap_mb=0.002)
    gcsim.ddp_hook("qsgd", seed=SEED).register(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(8):
        optimizer.zero_grad()
        inputs = torch.randn(16, 20, generator=generator)
        model(inputs).square().mean().backward()
        optimizer.step()
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    everybody = [torch.empty_like(flat) for _ in range(COUNT)]
    dist.all_gather(everybody, flat)
    assert all(same_bits(one, flat) for one in everybody)


def a_sharded_optimizer_takes_the_same_steps(rank: int) -> None:
    """Each rank updates a part of the weights, by updates that are equal on all ranks."""

    def trained(sharded: bool) -> Tensor:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 30), nn.Linear(30, 5))
        model = DistributedDataParallel(net, bucket_cap_mb=0.002)
        topk(model)
        if sharded:
            from torch.distributed.optim import ZeroRedundancyOptimizer  # warns of torch.jit

            optimizer: torch.optim.Optimizer = ZeroRedundancyOptimizer(
                model.parameters(), torch.optim.AdamW, lr=0.01
            )
        else:
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(rank)
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.randn(16, 20, generator=generator)).square().mean().backward()
            optimizer.step()
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    assert same_bits(trained(sharded=True), trained(sharded=False))


def a_part_of_the_ranks_trains(rank: int) -> None:
    """Ranks 2 and 0 train; the hook makes its group without rank 1."""
    group = dist.new_group([0, 2])
    if rank != 1:
        model = planned(process_group=group)
        hook = topk(model)
        updates = list(steps_of(model, rank))
        given = [[gradients(step, other) for other in (0, 2)] for step in range(1, 5)]
        expect_lockstep(hook, rank // 2, given, updates[1:])


def exchanges_as_on_a_gpu(rank: int) -> None:
    """On a stream of its own, with the collectives of a GPU: on a stand-in where there is none."""
    if gpus_for(COUNT):
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        model = planned(device, process_group=dist.new_group(backend="nccl"))
        hook = topk(model)
        updates = list(steps_of(model, rank))
    else:
        with pretended_gpu(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(hooks, "group_for", lambda *of: (group_for(*of)[0], True))
            model = planned()
            hook = topk(model)
            updates = list(steps_of(model, rank))
    assert not hook._collectives._on_host
    got = [[update.cpu() for update in step] for step in updates]
    expect_lockstep(hook, rank, of_all(range(1, 5)), got[1:])


# --- the thread --------------------------------------------------------------------------


class Waits(Compressor):
    """Bucket 0's exchange ends only after the backward pass has reached the first parameter."""

    about = PROBE
    reached = threading.Event()
    seen: list[tuple[int, bool]] = []  # noqa: RUF012 - one rank's notes

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        waited = self.reached.wait(timeout=20) if bucket.layout.index == 0 else True
        self.seen.append((bucket.layout.index, waited))
        mean: Tensor = yield AllReduce(tensor=bucket.gradient / self.worker.count)
        return mean


def backward_goes_on_meanwhile(rank: int) -> None:
    model = planned()
    gcsim.ddp_hook(Waits).register(model)
    list(steps_of(model, rank, 1))
    first = model.module.tensors[0]
    handle = first.register_hook(lambda gradient: Waits.reached.set())
    model(gradients(1, rank)).backward()
    handle.remove()
    assert Waits.seen == [(0, True), (1, True), (2, True), (3, True)]


class Dawdles(Compressor):
    """Several collectives a bucket, at moments that differ from rank to rank."""

    about = PROBE

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        total = bucket.gradient / self.worker.count
        for part in range(3):
            time.sleep(0.002 * ((self.worker.rank + part + bucket.layout.index + step) % 3))
            number = torch.tensor([100 * bucket.layout.index + part], dtype=torch.int64)
            most = yield AllReduce(tensor=number.clone(), op="max")
            assert torch.equal(most, number)  # all are in the same bucket
            odd = torch.full((1 + self.worker.rank,), part, dtype=torch.uint8)
            payloads = yield from gather_variable(odd)
            assert [p.tolist() for p in payloads] == [[part] * (r + 1) for r in range(COUNT)]
        mean: Tensor = yield AllReduce(tensor=total)
        return mean


def ranks_keep_one_order(rank: int) -> None:
    """Many buckets, with DDP's own collectives (unused parameters) in between."""
    model = DistributedDataParallel(Planned(), bucket_cap_mb=1e-4, find_unused_parameters=True)
    hook = gcsim.ddp_hook(Dawdles).register(model)
    for _ in steps_of(model, rank, 6):
        time.sleep(0.003 * rank)
    assert len(hook.layouts) >= 6


def the_thread_ends_with_the_model(rank: int) -> None:
    earlier = set(threading.enumerate())  # an earlier loop's thread may end at any time
    model: Any = planned()
    hook: Any = topk(model)
    list(steps_of(model, rank, 3))
    (thread,) = [t for t in threading.enumerate() if t.name == "gcsim-ddp" and t not in earlier]
    del model, hook
    gc.collect()
    thread.join(timeout=10)
    assert not thread.is_alive(), "it still waits"


def lengths_that_were_told_are_not_exchanged_again(rank: int) -> None:
    collectives = Collectives(dist.new_group(backend="gloo"))
    calls = []
    gather = collectives._gather
    collectives._gather = lambda payload: calls.append(payload.numel()) or gather(payload)  # type: ignore[method-assign, func-returns-value]
    own = torch.zeros(10 * (rank + 1), dtype=torch.uint8)
    requests = gather_variable(own)
    collectives.execute(requests.send(collectives.execute(next(requests))))
    assert calls == [8]
    collectives.execute(AllGather(payload=own, variable=True))
    assert calls == [8, 8]


# --- refusals ----------------------------------------------------------------------------


def refused(register: Callable[[], Any]) -> str:
    with pytest.raises(InputError) as caught:
        register()
    return str(caught.value)


def ranks_that_differ_are_refused(rank: int) -> None:
    model = planned()
    said = refused(lambda: gcsim.ddp_hook("topk", seed=int(rank == 2)).register(model))
    assert "seed: error: differs between rank 0 and rank 2" in said
    said = refused(lambda: gcsim.ddp_hook("topk", ratio=0.1 * (rank + 1)).register(model))
    assert "parameters: error: differs between rank 0 and ranks 1, 2" in said
    said = refused(lambda: gcsim.ddp_hook(("fp16", "fp16", "bf16")[rank]).register(model))
    assert "compressor: error: differs between rank 0 and rank 2" in said
    topk(model)  # the model is as it was


def groups_of_other_ranks_are_refused(rank: int) -> None:
    group = dist.new_group([0, 1])
    if rank < 2:
        model = planned()
        said = refused(lambda: gcsim.ddp_hook("topk", process_group=group).register(model))
        assert "it has ranks 0, 1, the model is trained by ranks 0, 1, 2" in said
    else:
        planned()


LOOPS: dict[str, Callable[[int], None]] = {
    "gradients as views of buckets": with_option(gradient_as_bucket_view=True),
    "static graph": with_option(start_up=2, static_graph=True),
    "unused parameters looked for": with_option(find_unused_parameters=True),
    **{
        loop.__name__.replace("_", " "): loop
        for loop in (
            accumulates_under_no_sync,
            unused_parameters_count_as_zeros,
            joins_uneven_inputs,
            trains_in_bfloat16,
            replicas_stay_equal,
            a_sharded_optimizer_takes_the_same_steps,
            a_part_of_the_ranks_trains,
            exchanges_as_on_a_gpu,
            backward_goes_on_meanwhile,
            ranks_keep_one_order,
            the_thread_ends_with_the_model,
            lengths_that_were_told_are_not_exchanged_again,
            ranks_that_differ_are_refused,
            groups_of_other_ranks_are_refused,
        )
    },
}
