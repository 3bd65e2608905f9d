"""Does every registered compressor pass every check, and does each check catch a fault?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from gcsim.compressors import check
from gcsim.compressors.base import About, Compressor, CompressorParameters
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frame import Codec, as_bytes, from_bytes, pack_frame
from gcsim.compressors.coding.messages import frames_of
from gcsim.compressors.conformance import CHECKS
from gcsim.compressors.conformance.subject import subject_of
from gcsim.compressors.laws import Laws
from gcsim.compressors.registry import REGISTRY
from gcsim.compressors.requests import AllGather, AllReduce, Exchange
from gcsim.errors import ExpectationError, InputError


@pytest.mark.parametrize("checked", CHECKS)
@pytest.mark.parametrize("name", REGISTRY)
def test_registered(name: str, checked: str) -> None:
    CHECKS[checked](subject_of(name, {}))


# --- every check fails for a method with the fault that it looks for ------------------------------


class Plain(Compressor):
    """A correct method, to be spoilt: float32 values in frames, all-gathered."""

    about = About(
        title="Plain",
        family="dense",
        collective="all-gather",
        bits="32",
        unbiased=True,
        state="none",
        paper="none",
    )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        payloads = yield AllGather(payload=self.encode(bucket))
        return self.mean(bucket, payloads)

    def encode(self, bucket: Bucket) -> Tensor:
        return torch.cat(
            [
                pack_frame(Codec.CAST, as_bytes(part), numel=piece.numel, nonzero=piece.numel)
                for piece, part in bucket.layout.views(bucket.gradient)
            ]
        )

    def mean(self, bucket: Bucket, payloads: Iterable[Tensor]) -> Tensor:
        update = torch.zeros_like(bucket.gradient)
        for payload in payloads:
            for piece, frame in frames_of(payload, bucket.layout, Codec.CAST):
                part = update[piece.offset : piece.offset + piece.numel]
                part += from_bytes(frame.body, torch.float32, piece.numel) / self.worker.count
        return update

    @classmethod
    def laws(cls, parameters: CompressorParameters) -> Laws:
        return Laws(unbiased=True, exact=True, error_bound=lambda v: 0.0)


class Undescribed(Plain):
    class Parameters(CompressorParameters):
        secret: int = 3


class WrongDtype(Plain):
    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        return (yield from super().exchange(bucket, step)).double()


class FailsWhenEmpty(Plain):
    def encode(self, bucket: Bucket) -> Tensor:
        for _, part in bucket.layout.views(bucket.gradient):
            part.max()
        return super().encode(bucket)


class DividesByZero(Plain):
    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        update = yield from super().exchange(bucket, step)
        scale = update.abs().sum() if update.numel() else torch.ones(())
        return update / scale * scale


class MakesSomethingOfNothing(Plain):
    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        return (yield from super().exchange(bucket, step)) + 1e-3


class UsesTheGlobalGenerator(Plain):
    def encode(self, bucket: Bucket) -> Tensor:
        torch.rand(1)
        return super().encode(bucket)


class SetsTheGlobalSeed(Plain):
    def encode(self, bucket: Bucket) -> Tensor:
        torch.manual_seed(0)  # as some public code does
        return super().encode(bucket)


class ReplicasDrift(Plain):
    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        update = yield from super().exchange(bucket, step)
        return update * (1 + 1e-6 * self.worker.rank)


class WritesIntoTheGradient(Plain):
    def encode(self, bucket: Bucket) -> Tensor:
        message = super().encode(bucket)
        bucket.gradient.mul_(0.5)
        return message


class HasAPeriodThatItDoesNotKeep(Plain):
    @classmethod
    def phase(cls, parameters: CompressorParameters, step: int) -> str:
        return f"step {step}"


class AsksForSomethingElseInTheSamePhase(Plain):
    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        if step % 2:
            yield AllReduce(tensor=torch.ones(1))
        return (yield from super().exchange(bucket, step))


class KnowsItsColleagues(Plain):
    board: ClassVar[dict[int, Tensor]] = {}

    def encode(self, bucket: Bucket) -> Tensor:
        self.board[self.worker.rank] = bucket.gradient.clone()
        return super().encode(bucket)

    def mean(self, bucket: Bucket, payloads: Iterable[Tensor]) -> Tensor:
        update = super().mean(bucket, payloads)
        if self.board.get(0, update).shape == update.shape:
            update = update + 1e-3 * self.board.get(0, update)
        return update


class SendsFloats(Plain):
    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        payloads = yield AllGather(payload=bucket.gradient.clone())
        return torch.stack(list(payloads)).mean(0)


class BelievesEverything(Plain):
    """Unframed bytes: a changed one goes unnoticed."""

    def encode(self, bucket: Bucket) -> Tensor:
        return as_bytes(bucket.gradient).clone()

    def mean(self, bucket: Bucket, payloads: Iterable[Tensor]) -> Tensor:
        update = torch.zeros_like(bucket.gradient)
        for payload in payloads:
            padded = torch.zeros(4 * update.numel() + payload.numel(), dtype=torch.uint8)
            padded[: payload.numel()] = payload
            values = padded[: 4 * update.numel()].view(torch.float32).nan_to_num()
            update += values.clamp(-1e3, 1e3) / self.worker.count
        return update


class Biased(Plain):
    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        update = yield from super().exchange(bucket, step)
        noise = torch.Generator().manual_seed(self.worker.seed)
        return update * (0.99 + 0.002 * torch.rand(update.shape, generator=noise))

    @classmethod
    def laws(cls, parameters: CompressorParameters) -> Laws:
        return Laws(unbiased=True)


class ForgetsToDivide(Plain):
    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        return self.worker.count * (yield from super().exchange(bucket, step))

    @classmethod
    def laws(cls, parameters: CompressorParameters) -> Laws:
        return Laws()


class BreaksItsBound(Biased):
    @classmethod
    def laws(cls, parameters: CompressorParameters) -> Laws:
        return Laws(error_bound=lambda v: 1e-8 * float(v.square().sum()))


class BoastsOfAnExactError(Plain):
    @classmethod
    def laws(cls, parameters: CompressorParameters) -> Laws:
        return Laws(error_bound=lambda v: 0.1 * float(v.square().sum()), error_is_exact=True)


class Forgets(Biased):
    @classmethod
    def laws(cls, parameters: CompressorParameters) -> Laws:
        return Laws(conserves=True)


class LosesALittle(Biased):
    @classmethod
    def laws(cls, parameters: CompressorParameters) -> Laws:
        return Laws(exact=True)


def test_the_method_to_be_spoilt_passes() -> None:
    assert check(Plain) == tuple(CHECKS)


@pytest.mark.parametrize(
    ("faulty", "caught_by"),
    [
        (Undescribed, "describes itself"),
        (WrongDtype, "updates have the shape of the bucket"),
        (FailsWhenEmpty, "any length works"),
        (DividesByZero, "hard values stay finite"),
        (MakesSomethingOfNothing, "the update has the size of the gradient"),
        (UsesTheGlobalGenerator, "equal seeds repeat themselves"),
        (SetsTheGlobalSeed, "equal seeds repeat themselves"),
        (ReplicasDrift, "replicas stay together"),
        (WritesIntoTheGradient, "gradients are left alone"),
        (HasAPeriodThatItDoesNotKeep, "schedules repeat"),
        (AsksForSomethingElseInTheSamePhase, "schedules repeat"),
        (KnowsItsColleagues, "only what travelled is used"),
        (SendsFloats, "payloads are bytes"),
        (BelievesEverything, "damaged payloads are refused"),
        (BelievesEverything, "payloads of another tensor are refused"),
        (Biased, "mean is right when unbiased"),
        (ForgetsToDivide, "more workers do not scale the update"),
        (BreaksItsBound, "error stays within its bound"),
        (BoastsOfAnExactError, "error stays within its bound"),
        (Forgets, "what is not sent is kept"),
        (LosesALittle, "lossless is lossless"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_fault_is_caught(faulty: type[Compressor], caught_by: str) -> None:
    with pytest.raises(ExpectationError, match=f"{faulty.__name__} fails") as raised:
        check(faulty)
    assert f"\n  {caught_by}: " in str(raised.value)


def test_parameters_are_checked_first() -> None:
    with pytest.raises(InputError, match="topk has no parameter 'ratoi'; did you mean 'ratio'"):
        check("topk", {"ratoi": 0.1})


def test_a_compressor_can_be_named_by_its_path() -> None:
    with pytest.raises(InputError, match="unknown compressor"):
        check("topq")
    assert check("gcsim.compressors.dense:Dense") == tuple(CHECKS)


def test_parameters_that_change_the_laws_are_checked_with_them() -> None:
    assert check("randomk", {"scaled": True, "ratio": 0.2}) == tuple(CHECKS)
