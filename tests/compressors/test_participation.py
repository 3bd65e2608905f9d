"""A compressor's own mistakes are told as such: by name, with the rule, never as a wrong tensor."""

import pytest
import torch
from torch import Tensor

from gcsim.compressors.base import About, Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.participation import participate
from gcsim.compressors.registry import REGISTRY, compressor_class, create
from gcsim.compressors.requests import AllReduce, Exchange
from gcsim.errors import InputError, Problem
from tests.compressors.shared import bucket_of, layout_of, layout_of_shapes, normal


class Toy(Compressor):
    about = About(
        title="Toy", family="dense", collective="all-reduce", bits="32", unbiased=True,
        state="none", paper="none",
    )  # fmt: skip

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        total: Tensor = yield AllReduce(tensor=bucket.gradient.clone())
        return total / self.worker.count


class Zeroing(Toy):
    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        update = yield from super().exchange(bucket, step)
        bucket.gradient.zero_()
        return update


class Raising(Toy):
    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        yield AllReduce(tensor=bucket.gradient.clone())
        raise ValueError("too tired")


class Impatient(Toy):
    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        return bucket.gradient.clone()  # type: ignore[return-value]  # the mistake


class YieldsATensor(Toy):
    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        yield bucket.gradient.clone()  # type: ignore[misc]  # the mistake
        return bucket.gradient.clone()


class Halved(Toy):
    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        return (yield from super().exchange(bucket, step)).half()


class Silent(Toy):
    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        yield from super().exchange(bucket, step)
        return None  # type: ignore[return-value]  # the mistake


def run(faulty: type[Compressor], bucket: Bucket) -> list[Tensor]:
    team = [faulty(Worker(rank=r, count=2, seed=0), CompressorParameters()) for r in range(2)]
    return lockstep([participate(member, bucket, 0) for member in team])


@pytest.mark.parametrize(
    ("faulty", "said"),
    [
        (Zeroing, r"Toy, .*_participation.py:\d+: error: exchange\(\) modified .*; clone"),
        (Raising, r"test_participation.py:\d+: error: Raising raised ValueError: too tired"),
        (Impatient, r"Toy, .*_participation.py:\d+: error: .* returned Tensor, not a generator"),
        (YieldsATensor, "yielded Tensor, which is no request; yield AllReduce"),
        (Halved, r"returned torch.float16 \[24\], not an update float32 \[24\]"),
        (Silent, r"returned NoneType, not an update float32 \[24\]"),
    ],
)
def test_a_mistake_is_named(faulty: type[Compressor], said: str) -> None:
    with pytest.raises(InputError, match=said):
        run(faulty, bucket_of(normal(24)))


def test_a_correct_compressor_passes() -> None:
    bucket = bucket_of(normal(24))
    for update in run(Toy, bucket):
        assert torch.equal(update, bucket.gradient)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_refused_by_name(bad: float) -> None:
    bucket = bucket_of(torch.ones(3), torch.tensor([1.0, bad]))
    with pytest.raises(InputError, match="Toy, t1: error: 1 of 2 elements of the gradient are not"):
        run(Toy, bucket)


class Nameless(Compressor):
    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        yield AllReduce(tensor=bucket.gradient.clone())
        return bucket.gradient.clone()


def test_a_class_that_does_not_say_what_it_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    module = types.ModuleType("nameless_compressors")
    module.Nameless = Nameless  # type: ignore[attr-defined]  # made here
    monkeypatch.setitem(sys.modules, "nameless_compressors", module)
    with pytest.raises(InputError, match=r"does not say what it is; give it `about = About"):
        compressor_class("nameless_compressors:Nameless")


@pytest.mark.parametrize("largest", [7e4, 2e5, 3.4e38])
@pytest.mark.parametrize("kind", REGISTRY)
def test_what_a_format_cannot_hold_is_refused_or_held_back(kind: str, largest: float) -> None:
    """For every method: no infinity comes back, and a refusal says which method's it is."""
    layout = layout_of(64)
    gradient = torch.linspace(-1, 1, 64)
    gradient[::7] = largest
    team = [create(kind, Worker(rank=rank, count=2, seed=0)) for rank in range(2)]
    bucket = Bucket(layout=layout, gradient=gradient, second_moment=gradient.square().clamp(max=1))
    first = type(team[0]).warmup_steps(type(team[0]).Parameters())
    refused: list[Problem] = []
    for step in range(first, first + 3):
        try:
            updates = lockstep([participate(member, bucket, step) for member in team])
        except InputError as error:
            refused = list(error.problems)
            break
        assert all(bool(update.isfinite().all()) for update in updates)
    assert all(type(team[0]).about.title in problem.place for problem in refused)


@pytest.mark.parametrize("kind", REGISTRY)
def test_gaps_in_memory_change_no_bit(kind: str) -> None:
    generator = torch.Generator().manual_seed(1)
    layout, spread = (
        layout_of_shapes([(24, 16), (1000,)]),
        torch.randn(2, 1384, generator=generator),
    )

    def run(gradient: Tensor) -> list[Tensor]:
        team = [create(kind, Worker(rank=rank, count=2, seed=0)) for rank in range(2)]
        first = type(team[0]).warmup_steps(type(team[0]).Parameters())
        bucket = Bucket(layout=layout, gradient=gradient, second_moment=gradient.square())
        return lockstep([participate(member, bucket, first) for member in team])

    gaps = spread.T.contiguous().T[0]
    assert not gaps.is_contiguous()
    for one, other in zip(run(gaps), run(gaps.contiguous()), strict=True):
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))


@pytest.mark.parametrize(
    "gradient",
    [torch.zeros(99), torch.zeros(101), torch.zeros(100).double(), torch.zeros(100, 1)],
    ids=["short", "long", "double", "matrix"],
)
def test_a_gradient_that_is_not_the_buckets_is_refused(gradient: Tensor) -> None:
    given = f"{str(gradient.dtype).removeprefix('torch.')} {list(gradient.shape)}"
    bucket = Bucket(layout=layout_of(100), gradient=gradient)
    exchange = participate(create("none", Worker(rank=0, count=1, seed=0)), bucket, 0)
    with pytest.raises(InputError) as caught:
        lockstep([exchange])
    assert f"the bucket's gradient is {given}, its layout says float32 [100]" in str(caught.value)
