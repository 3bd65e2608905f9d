"""Waits and launches of the hook's steps, counted in Triton's interpreter."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gcsim
from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.ddp.collectives import Collectives
from gcsim.compressors.ddp.hook import DdpHook
from gcsim.compressors.ddp.steps import Step
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.registry import create
from gcsim.compressors.requests import AllGather
from gcsim.compressors.state import plain, tensors_in
from tests.compressors.gpu.conftest import host_copies, whole_methods, wrap_launches
from tests.compressors.gpu.test_bounded_launches import Operators
from tests.compressors.shared import layout_of_shapes
from tests.compressors.standin import pretended_gpu

CHECKS = {"_finite_part", "_count_faults"}
"""Kernels of the hook's own."""


@pytest.mark.parametrize(
    ("kind", "given", "checks"),
    [
        ("fp16", {}, 2),  # of the gradient, and of the sum in 16 bits
        ("qsgd", {}, 1),
        ("ef_signsgd", {}, 1),
        ("onebit_adam", {"freeze_step": 0}, 1),
        ("topk", {"ratio": 0.1}, 1),
        ("dgc", {"ratio": 0.1, "warmup_epochs": 0}, 1),
        ("powersgd", {}, 1),
    ],
)
def test_a_step_waits_once_and_checks_a_bucket_in_one_launch(
    kind: str, given: dict[str, Any], checks: int, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many buckets. DGC must know its sums, and all ranks' lengths: two waits a bucket."""
    launched: Counter[str] = Counter()

    def counting(run: Callable[..., None]) -> Callable[..., None]:
        def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
            launched[kernel.fn.__name__] += 1
            run(kernel, programs, *arguments, **constants)

        return launch

    def step() -> None:
        model.zero_grad()
        model(torch.ones(4, 30)).square().sum().backward()

    wrap_launches(monkeypatch, counting)
    monkeypatch.setattr("gcsim.compressors.ddp.hook.COMPARED", 0)  # of the first steps alone
    model = DistributedDataParallel(
        nn.Sequential(*(nn.Linear(30, 30) for _ in range(3))), bucket_cap_mb=0.003
    )
    hook = gcsim.ddp_hook(kind, **given).register(model)
    with whole_methods():
        for _ in range(3):  # uncompressed, with the buckets' tables, settled
            launched.clear()
            with host_copies() as seen:
                step()
    buckets = len(hook.layouts)
    assert buckets >= 3
    assert sum(launched[each] for each in CHECKS) == checks * buckets
    assert len(seen) == 1 + 2 * buckets * (kind == "dgc")


def test_a_buckets_kernels_run_on_the_hooks_stream_before_the_next_bucket_is_written(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the stand-in: QSGD launches nothing on the stream of the backward pass, and nothing of a
    bucket behind the gradients of a later one."""
    seen: list[tuple[Any, set[str]]] = []
    exchange = DdpHook.exchange
    with pretended_gpu() as gpu, whole_methods():

        def noting(run: Callable[..., None]) -> Callable[..., None]:
            def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
                seen.append((gpu.current_stream(), set(gpu.known())))
                run(kernel, programs, *arguments, **constants)

            return launch

        def written_then_exchanged(self: DdpHook, bucket: Any) -> Any:
            gpu.state(f"{step}.{bucket.index()}")
            return exchange(self, bucket)

        wrap_launches(monkeypatch, noting)
        monkeypatch.setattr(DdpHook, "exchange", written_then_exchanged)
        model = DistributedDataParallel(
            nn.Sequential(*(nn.Linear(30, 30) for _ in range(3))), bucket_cap_mb=0.003
        )
        hook = gcsim.ddp_hook("qsgd").register(model)
        for step in range(3):  # noqa: B007 - stated above
            seen.clear()
            model.zero_grad()
            model(torch.ones(4, 30)).square().sum().backward()
        (stream,) = {stream for stream, _ in seen}
        assert stream is not gpu.computing
        buckets = len(hook.layouts)
        of_bucket = Counter(sum(each.startswith("2.") for each in behind) for _, behind in seen)
        assert set(of_bucket) == set(range(1, buckets + 1))
        assert len(set(of_bucket.values())) == 1
        assert gpu.waits == 0


@pytest.mark.parametrize("kind", ["powersgd", "ef_signsgd", "onebit_adam"])
def test_a_members_copy_is_one_operator_and_all_of_its_tensors(kind: str) -> None:
    """PowerSGD has a query for each of 16 matrices, and an error; no copy shares memory."""
    layout = layout_of_shapes([(30, 20)] * 16)
    member = create(kind, Worker(rank=0, count=1, seed=0), {})
    for number in range(3):
        gradient = torch.randn(layout.numel, generator=torch.Generator().manual_seed(number))
        with torch.no_grad():
            lockstep([member.exchange(Bucket(layout=layout, gradient=gradient), number)])
    step, members = Step(3, None, regrouped=False), {0: (layout, member)}
    with Operators() as operators:
        step.remember(members, 0)
    assert set(operators.seen) == {"_foreach_copy_"}
    before, held = plain(vars(member)), list(tensors_in(vars(member)))
    for each in held:
        each.fill_(7)
    step.undo(members)
    after = plain(vars(members[0][1]))
    assert before[0] == after[0]
    assert len(held) >= (17 if kind == "powersgd" else 2)
    assert all(torch.equal(one, after[1][name]) for name, one in before[1].items())


def test_lengths_of_a_variable_gather_are_read_at_once(alone: None) -> None:
    carried_out = Collectives(None)
    told = [torch.tensor([n]).view(torch.uint8) for n in (7, 9)]
    with host_copies() as seen:
        request = AllGather(payload=torch.zeros(0, dtype=torch.uint8), variable=True, lengths=told)
        assert carried_out._lengths(request) == [7, 9]
    assert len(seen) == 1
