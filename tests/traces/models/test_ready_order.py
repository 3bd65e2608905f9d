"""The order of gradients, and the buckets made of it: those of PyTorch's own Reducer, for every
shipped model, as it forms them after its first iteration.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket, HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

import gcsim
from gcsim.errors import InputError
from gcsim.traces.buckets import bucket_layouts
from gcsim.traces.live import LiveTrainer
from gcsim.traces.models.building import _call, build_model, sample_batch, trainable
from gcsim.traces.models.losses import sample_losses
from gcsim.traces.models.ready_order import ready_order, whole_order
from gcsim.traces.models.registry import MODELS, ModelEntry, own_model
from gcsim.traces.models.table import facts_and_parameters
from gcsim.traces.storage.store import Trace
from gcsim.traces.tasks.registry import make_task

MIB = 1 << 20
QUICK = (
    "lenet", "resnet18", "resnet20_cifar10", "mobilenet_v2", "googlenet_aux",
    "vgg_narrow_cifar10", "wrn28_10_cifar10", "lstm_ptb_650", "transformer_small",
)  # fmt: skip
"""The others take seconds, or gigabytes."""
SAME_BLOCKS = {
    "resnet34", "resnet101", "resnet152", "resnet56_cifar10", "resnet110_cifar10", "vgg11", "vgg19",
    "googlenet", "inception_v3", "densenet161", "lstm_ptb_1500", "lstm_wt2_650", "bert_large",
    "gpt2",
}  # fmt: skip
"""More, fewer or wider blocks of a model that is run, or the same for other inputs or without its
auxiliary head."""

Buckets = list[list[int]]
"""Numbers of the parameters of each bucket, in the order in which they are exchanged."""


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


class NoInitialWeights(TorchFunctionMode):
    """Weights stay as memory is, zeros: the order does not depend on them, and billions of random
    numbers take half of the time."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        found: torch.Tensor
        if getattr(func, "__module__", "") == "torch.nn.init":
            found = args[0] if args else kwargs["tensor"]
            return found.data.zero_()
        found = func(*args, **(kwargs or {}))
        return found


def reducers(entry: ModelEntry, bucket_cap_mb: float | None) -> Buckets:
    """What a communication hook is given in the second iteration, for which the Reducer has formed
    its buckets anew."""
    with NoInitialWeights():
        module = _call(entry)
    numbers = {id(p): number for number, (_, p) in enumerate(trainable(module))}
    told: dict[Any, Any] = {} if bucket_cap_mb is None else {"bucket_cap_mb": bucket_cap_mb}
    model = DistributedDataParallel(module, **told)
    seen: Buckets = []

    def logged(bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        seen.append([numbers[id(p)] for p in bucket.parameters()])
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, lambda _, bucket: logged(bucket))
    inputs = sample_batch(entry, 2, torch.device("cpu"))
    if entry.input == "tokens":  # the order depends on neither length nor size
        inputs = inputs[:, :8]
    elif inputs.shape[-1] == 224 and not entry.name.startswith("vit"):  # which has a fixed grid
        inputs = inputs[..., :64, :64]
    labels = torch.zeros(
        inputs.shape if entry.input == "tokens" else inputs.shape[:1], dtype=torch.int64
    )
    for _ in range(2):
        seen.clear()
        sample_losses(entry, model(inputs), labels).sum().backward()  # type: ignore[no-untyped-call]
    return seen


def ours(entry: ModelEntry, **limits: int) -> Buckets:
    facts, parameters = facts_and_parameters(entry, 2)
    layouts = bucket_layouts(parameters, facts.ready_order, **limits)
    return [[piece.index for piece in layout.slices] for layout in layouts]


@pytest.mark.parametrize(
    "name",
    [
        n if n in QUICK else pytest.param(n, marks=pytest.mark.long)
        for n in MODELS
        if MODELS[n].transformer is None  # nothing of them is built
        if n not in SAME_BLOCKS
    ],
)
@pytest.mark.usefixtures("one_process")
def test_buckets_of_a_shipped_model_are_the_reducers(name: str) -> None:
    entry = MODELS[name]
    assert ours(entry) == reducers(entry, None)


@pytest.mark.parametrize("mib", [1, 25])
@pytest.mark.usefixtures("one_process")
def test_a_stated_limit_is_that_of_the_first_bucket_too(mib: int) -> None:
    """ResNet-18's last layer, 2 MB, is the default's first bucket: larger than 1 MiB."""
    entry = MODELS["resnet18"]
    stated = reducers(entry, mib)
    assert stated == ours(entry, first=mib * MIB, cap=mib * MIB)
    if mib == 25:
        assert stated != ours(entry)


TORCHVISIONS = {
    "alexnet": "92b0029f46c64bc6",
    "resnet18": "618c51034c09e2ee",
    "resnet50": "965526babbe8927a",
    "vgg16": "f4b3bf0c2fc65be7",
    "googlenet_aux": "e0375446f38b96d9",
    "inception_v3_aux": "d1f19b1c85fb69f8",
    "densenet121": "d61f49bc8d5de396",
    "mobilenet_v2": "314faed7eedcdcb5",
}
"""Of torchvision 0.28.0's models in torch 2.13: SHA-256 of the names of `named_parameters()` in the
order in which hooks saw their gradients in a backward pass of the summed losses, a line each."""


@pytest.mark.parametrize("name", TORCHVISIONS)
def test_gradients_are_ready_in_torchvisions_order(name: str) -> None:
    facts, parameters = facts_and_parameters(MODELS[name], 2)
    lines = "".join(f"{parameters[number][0]}\n" for number in facts.ready_order)
    assert hashlib.sha256(lines.encode()).hexdigest()[:16] == TORCHVISIONS[name]


@pytest.mark.parametrize("with_second_moments", [False, True])
@pytest.mark.parametrize("warmup", [0, 1])
def test_training_sees_the_same_order(*, with_second_moments: bool, warmup: int) -> None:
    entry = MODELS["transformer_small"]
    trainer = LiveTrainer(
        entry, build_model(entry, seed=0), make_task(entry, 0),
        batch_size=2, learning_rate=0.1, momentum=0.9, seed=0,
    )  # fmt: skip
    list(trainer.warm_up(warmup))
    list(trainer.gradients(1, 1, with_second_moments=with_second_moments))
    assert trainer.ready_order == facts_and_parameters(entry, 2)[0].ready_order


class Branches(nn.Module):
    """Called in another order than it is registered in."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 3)
        self.one = nn.Conv2d(1, 8, 3)
        self.two = nn.Conv2d(1, 8, 3)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = self.two(images) * self.norm(self.one(images))
        logits: torch.Tensor = self.last(maps.mean((2, 3)))
        return logits


@pytest.mark.usefixtures("one_process")
def test_a_recorded_loop_has_the_order_of_its_own_buckets(tmp_path: Path) -> None:
    model = DistributedDataParallel(Branches(), bucket_cap_mb=1e-4)  # 104 bytes
    with gcsim.record(model, tmp_path / "trace", iterations=3, timed=0, quiet=True) as recording:
        for _ in range(3):
            model.zero_grad()
            model(torch.ones(2, 1, 5, 5)).sum().backward()
            recording.step()
    trace = Trace.open(tmp_path / "trace")
    layouts = bucket_layouts(trace.parameters, trace.facts.ready_order, first=104, cap=104)
    assert trace.buckets == tuple(tuple(p.name for p in layout.slices) for layout in layouts)
    assert trace.buckets != tuple(
        tuple(p.name for p in layout.slices)
        for layout in bucket_layouts(trace.parameters, first=104, cap=104)
    )


def test_a_parameter_without_a_gradient_comes_last() -> None:
    # by hand: 2 arrives twice (two passes), 0 and 3 never
    assert whole_order([2, 1, 2, 1], 4) == (2, 1, 3, 0)


class Detached(nn.Linear):
    """No gradient comes out of it."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return super().forward(input)


def test_a_model_without_a_backward_pass_is_refused() -> None:
    entry = own_model("mine:build", (4,), 3)
    with torch.device("meta"):
        module = Detached(4, 3)
    with pytest.raises(InputError, match="its output has no gradient"):
        ready_order(entry, module)
