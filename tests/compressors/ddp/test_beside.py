"""The hook beside the backward pass of a GPU: what is behind what, on a stand-in without one."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gcsim
from gcsim.compressors.base import Compressor
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.ddp import model as models
from gcsim.compressors.ddp.hook import DdpHook
from gcsim.compressors.ddp.measured import TIMED, Sums
from gcsim.compressors.ddp.model import group_for, one_device
from gcsim.compressors.requests import AllGather, AllReduce, Exchange
from gcsim.compressors.streams import Beside, clock_of
from gcsim.errors import InputError
from tests.compressors.ddp.plan import PROBE
from tests.compressors.standin import PretendedGpu, pretended_gpu

CPU = torch.device("cpu")


def probe(gpu: PretendedGpu, seen: list[tuple[int, set[str]]]) -> type[Compressor]:
    """Notes what its stream is behind at each step, and states what it queues."""

    class Probe(Compressor):
        about = PROBE

        def exchange(self, bucket: Bucket, step: int) -> Exchange:
            seen.append((bucket.layout.index, set(gpu.known())))
            gpu.state(f"{bucket.layout.index} encoded in step {step}")
            yield AllGather(payload=torch.zeros(8, dtype=torch.uint8))
            mean: torch.Tensor = yield AllReduce(tensor=bucket.gradient.clone())
            gpu.state(f"{bucket.layout.index} decoded in step {step}")
            return mean

    return Probe


def test_a_bucket_is_read_behind_its_event_and_its_update_is_behind_the_exchange(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = nn.Sequential(*(nn.Linear(30, 30) for _ in range(3)))
    seen: list[tuple[int, set[str]]] = []
    with pretended_gpu() as gpu:
        model = DistributedDataParallel(net, bucket_cap_mb=0.003)
        hook = gcsim.ddp_hook(probe(gpu, seen)).register(model)
        exchange = DdpHook.exchange

        def written_then_exchanged(self: DdpHook, bucket: Any) -> Any:
            gpu.state(f"{bucket.index()} written")  # by the backward pass, on its stream
            return exchange(self, bucket)

        monkeypatch.setattr(DdpHook, "exchange", written_then_exchanged)
        for _ in range(3):
            gpu.made.clear()
            model.zero_grad()
            model(torch.ones(4, 30)).square().sum().backward()
        buckets = len(hook.layouts)
        assert buckets > 2
        # compressed in two steps: each bucket's exchange began behind what wrote that bucket ...
        assert len(seen) == 2 * buckets
        assert all(f"{number} written" in behind for number, behind in seen)
        # ... but not behind the last one's, which was still to come (DDP has one order of buckets)
        assert all(f"{buckets - 1} written" not in behind for _, behind in seen[: buckets - 1])
        # ... and the backward pass is behind no exchange: it waits for futures alone
        assert not any("encoded" in fact for fact in gpu.computing.behind)
        for number, future in enumerate(gpu.made):
            assert {f"{number} encoded in step 1", f"{number} decoded in step 1"} <= future.behind
        (beside,) = set(gpu.kept)  # DDP's buffers are kept for the one stream that reads them
        assert beside is not gpu.computing


def test_nobody_waits_for_the_device_before_times_are_asked_for(alone: None) -> None:
    with pretended_gpu() as gpu:
        model = DistributedDataParallel(nn.Linear(30, 20))
        hook = gcsim.ddp_hook(probe(gpu, [])).register(model)
        for _ in range(4):
            model.zero_grad()
            model(torch.ones(4, 30)).sum().backward()
        assert gpu.waits == 0
        (bucket,) = hook.measured().buckets
        assert gpu.waits > 0
        # begin, twice (asked, replied), end: five events and a millisecond between two neighbours
        assert bucket.exchanged_s == pytest.approx(2e-3)
        assert bucket.computed_s == pytest.approx(3e-3)
        # bytes are those of the gather's 8 and of 620 gradients
        assert bucket.sent_bytes == 8 + 4 * 620


def test_times_are_of_the_last_steps_and_events_of_earlier_ones_are_dropped() -> None:
    with pretended_gpu() as gpu:
        now, sums = clock_of(CPU), Sums(steps=TIMED + 2)
        for _ in range(2):  # each longer than the last ones by 6 ms: five instants between
            sums.instants.append([now(), *[now() for _ in range(4)], now()][::5])
        sums.instants.extend([now(), now(), now(), now()] for _ in range(TIMED))
        assert gpu.waits == 0
        # four instants a millisecond apart: 3 ms, of which the collective has one
        assert sums.mean().exchanged_s == pytest.approx(1e-3)
        assert sums.mean().computed_s == pytest.approx(2e-3)


def test_in_host_memory_nothing_is_beside_anything() -> None:
    beside, seen = Beside(CPU), []
    with beside.after(beside.ready(torch.zeros(3))):
        seen.append("inside")
    future = beside.future()
    future.set_result(1)
    assert (seen, future.wait()) == (["inside"], 1)


LIMIT = timedelta(seconds=77)


class Group:
    """As much of a process group of one rank as `group_for` asks for."""

    def __init__(self, backends: str) -> None:
        self.backends = backends

    def _get_backend(self, device: torch.device) -> Any:
        if device.type not in self.backends:
            raise RuntimeError(f"no backend for {device}")
        return SimpleNamespace(options=SimpleNamespace(_timeout=LIMIT))


@pytest.mark.parametrize(
    ("of_model", "given", "device", "made", "carries"),
    [
        ("cpu:gloo,cuda:gloo", None, "cpu", "gloo", False),
        ("cpu:gloo,cuda:gloo", None, "cuda", "gloo", False),
        ("cuda:nccl", None, "cuda", "nccl", True),
        ("cpu:gloo,cuda:nccl", None, "cuda", "nccl", True),
        ("cpu:gloo,cuda:nccl", None, "cpu", "gloo", False),
        ("cpu:mpi", None, "cpu", "gloo", False),
        ("cuda:nccl", "cpu:gloo,cuda:gloo", "cuda", None, False),
        ("cuda:nccl", "cuda:nccl", "cuda", None, True),
    ],
)
def test_payloads_travel_over_nccl_where_the_model_s_gradients_do(
    of_model: str,
    given: str | None,
    device: str,
    made: str | None,
    carries: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    awaited: list[Any] = []

    def new_group(ranks: list[int], *, backend: str, timeout: timedelta, **_: Any) -> Group:
        asked.append(backend)
        assert (awaited, timeout) == ([(ranks, LIMIT)], LIMIT)
        return Group(backend)

    model = type("Model", (), {"process_group": Group(of_model)})
    mine = None if given is None else Group(given)
    monkeypatch.setattr(dist, "get_backend_config", lambda group: group.backends)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0])
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setattr(models, "await_ranks", lambda *of: awaited.append(of))
    group, found = group_for(model, mine, torch.device(device))
    assert (asked, found) == ([made] if made else [], carries)
    assert awaited == [([0], LIMIT)]
    assert mine is None or group is mine


def test_a_group_that_cannot_carry_payloads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_backend_config", lambda group: group.backends)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0])
    model = type("Model", (), {"process_group": Group("cpu:gloo")})
    with pytest.raises(InputError, match="its backend for cpu is none, payloads travel over gloo"):
        group_for(model, Group("cuda:nccl"), CPU)


def test_parameters_of_several_devices_are_refused() -> None:
    parts = [("a", nn.Parameter(torch.zeros(1))), ("b", nn.Parameter(torch.zeros(1)))]
    assert one_device(parts) == CPU
    away = nn.Parameter(torch.zeros(1, device="meta"))
    with pytest.raises(InputError, match="several devices: a on cpu, c on meta"):
        one_device([*parts, ("c", away)])
