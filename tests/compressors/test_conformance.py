"""Every registered compressor passes every check, and each check catches a fault."""

import re
from collections.abc import Iterable
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from gcsim.compressors import check
from gcsim.compressors.base import About, Compressor, CompressorParameters, Properties, Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frames import Codec, as_bytes, frames_of, from_bytes, pack_frame
from gcsim.compressors.conformance import CHECKS, FOLLOWS, examine
from gcsim.compressors.conformance.subject import subject_of
from gcsim.compressors.registry import REGISTRY
from gcsim.compressors.requests import AllGather, AllReduce, Exchange
from gcsim.compressors.sharing import fill_once
from gcsim.errors import ExpectationError, InputError

SLOW = {
    "alq", "amq", "bingrad_pb", "ce_sgd", "cser", "diloco", "linear", "natural", "nuqsgd",
    "ok_topk", "omnireduce", "orq", "random_sampling_bayes", "terngrad", "torch_powersgd",
    "variance_bounded",
}  # fmt: skip
"""They take more than a second each, and are checked in `make long`; others of their families are
not among them."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in SLOW)) for name in REGISTRY]
)
def test_registered(name: str) -> None:
    assert check(name) == tuple(CHECKS)


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
    def properties(cls, parameters: CompressorParameters) -> Properties:
        return Properties(unbiased=True, exact=True, error_bound=lambda v: 0.0)


class Loose(Plain):
    """A method that promises nothing."""

    @classmethod
    def properties(cls, parameters: CompressorParameters) -> Properties:
        return Properties()


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
    def properties(cls, parameters: CompressorParameters) -> Properties:
        return Properties(unbiased=True)


class ForgetsToDivide(Loose):
    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        return self.worker.count * (yield from super().exchange(bucket, step))


class BreaksItsBound(Biased):
    @classmethod
    def properties(cls, parameters: CompressorParameters) -> Properties:
        return Properties(error_bound=lambda v: 1e-8 * float(v.square().sum()))


class BoastsOfAnExactError(Plain):
    @classmethod
    def properties(cls, parameters: CompressorParameters) -> Properties:
        return Properties(error_bound=lambda v: 0.1 * float(v.square().sum()), error_is_exact=True)


class Forgets(Biased):
    @classmethod
    def properties(cls, parameters: CompressorParameters) -> Properties:
        return Properties(conserves=True)


class SendsNothing(Plain):
    """A method that forgot its collective, or counts on another's."""

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        yield from ()
        return bucket.gradient.clone()


class TellsWorkerZeros(Loose):
    """All replicas agree, on the gradient of one."""

    def mean(self, bucket: Bucket, payloads: Iterable[Tensor]) -> Tensor:
        return super().mean(bucket, list(payloads)[:1]) * self.worker.count


class SharesWhatItRemembers(Plain):
    """The result of the payloads depends on how often that was done, on whichever worker."""

    times: ClassVar[list[int]] = []

    def mean(self, bucket: Bucket, payloads: Iterable[Tensor]) -> Tensor:
        return fill_once(_grow, payloads, torch.zeros_like(bucket.gradient))


def _grow(payloads: Iterable[Tensor], out: Tensor) -> None:
    SharesWhatItRemembers.times.append(1)
    out += float(len(SharesWhatItRemembers.times))


class KeepsItsOwn(Plain):
    """It gathers, and then applies its own gradient."""

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        yield from super().exchange(bucket, step)
        return bucket.gradient.clone()


class Remembers(Loose):
    """A momentum that `about.state` does not tell."""

    def __init__(self, worker: Worker, parameters: CompressorParameters) -> None:
        super().__init__(worker, parameters)
        self.velocity: dict[int, Tensor] = {}

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        update = yield from super().exchange(bucket, step)
        held = self.velocity.get(bucket.layout.index, torch.zeros_like(update))
        self.velocity[bucket.layout.index] = 0.5 * held + update
        return self.velocity[bucket.layout.index].clone()


class KeepsAGenerator(Loose):
    """Not memory: what it draws does not depend on what it saw."""

    def __init__(self, worker: Worker, parameters: CompressorParameters) -> None:
        super().__init__(worker, parameters)
        self.generator = torch.Generator().manual_seed(worker.seed)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        update = yield from super().exchange(bucket, step)
        return update * (1 + 1e-3 * torch.rand(update.shape, generator=self.generator))


class HasAUnit(Loose):
    """Elements below a threshold are not sent."""

    def mean(self, bucket: Bucket, payloads: Iterable[Tensor]) -> Tensor:
        update = super().mean(bucket, payloads)
        return update * (update.abs() > 1e-3)


class GathersUnequal(Plain):
    def encode(self, bucket: Bucket) -> Tensor:
        return super().encode(bucket)[self.worker.rank :]


class DrawsWithoutASeed(Loose):
    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        update = yield from super().exchange(bucket, step)
        noise = torch.Generator()
        noise.seed()
        return update * (1 + 1e-3 * torch.rand(update.shape, generator=noise))


class LosesALittle(Biased):
    @classmethod
    def properties(cls, parameters: CompressorParameters) -> Properties:
        return Properties(exact=True)


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
        (SendsNothing, "something is sent"),
        (TellsWorkerZeros, "every workers gradient counts"),
        (SharesWhatItRemembers, "sharing changes nothing"),
        (KeepsItsOwn, "every workers gradient counts"),
        (KeepsItsOwn, "replicas stay together"),
        (Remembers, "steps stand alone without memory"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_fault_is_caught(faulty: type[Compressor], caught_by: str) -> None:
    with pytest.raises((AssertionError, InputError)):
        CHECKS[caught_by.replace(" ", "_")](subject_of(faulty, {}))


def test_follows_names_checks() -> None:
    assert set(FOLLOWS) < set(CHECKS)
    assert {name for rest in FOLLOWS.values() for name in rest} < set(CHECKS)


class SumsExactly(ForgetsToDivide):
    """The laws of the mean break with it: exact, unbiased."""

    @classmethod
    def properties(cls, parameters: CompressorParameters) -> Properties:
        return Properties(unbiased=True, exact=True)


@pytest.mark.parametrize(
    ("faulty", "said", "with_it"),
    [
        (GathersUnequal, "unequal payloads", "updates have the shape of the bucket"),
        (SumsExactly, "the sum over the workers, not their mean", "lossless is lossless"),
        (SendsNothing, "it sends nothing", "replicas stay together"),
        (DrawsWithoutASeed, "differs when it is repeated", "only what travelled is used"),
        (WrongDtype, "returned torch.float64", "any length works"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_one_cause_is_one_finding(faulty: type[Compressor], said: str, with_it: str) -> None:
    (found,) = examine(faulty).findings
    assert said in found.message
    assert len(found.checks) > 1
    assert with_it.replace(" ", "_") in found.checks
    with pytest.raises(
        ExpectationError, match=f"{faulty.__name__} fails .*, one cause\n"
    ) as raised:
        check(faulty)
    assert str(raised.value).count(found.message) == 1


def test_a_fault_of_an_exchange_names_file_and_line() -> None:
    (found,) = examine(GathersUnequal).findings
    assert re.search(
        r"test_conformance.py:\d+: error: all-gather of unequal payloads", found.message
    )


def test_a_generator_that_is_kept_is_no_memory() -> None:
    assert not examine(KeepsAGenerator).findings


def test_a_unit_shows_in_a_note_and_breaks_nothing() -> None:
    report = examine(HasAUnit)
    assert not report.findings
    assert "depends on the gradients' scale" in report.notes[0]
    assert "1e-07: error 1," in report.notes[0]  # all of it is below the threshold
    assert not examine(Plain).notes


def test_parameters_are_checked_first() -> None:
    with pytest.raises(InputError, match="topk has no parameter 'ratoi'; did you mean 'ratio'"):
        check("topk", {"ratoi": 0.1})


def test_a_compressor_can_be_named_by_its_path() -> None:
    with pytest.raises(InputError, match="unknown compressor"):
        check("topq")
    assert check("gcsim.compressors.dense:Dense") == tuple(CHECKS)


def test_parameters_that_change_the_laws_are_checked_with_them() -> None:
    assert check("randomk", {"scaled": True, "ratio": 0.2}) == tuple(CHECKS)


def test_gradients_are_put_on_the_device_that_is_asked_for() -> None:
    """The meta device has no values: whatever looks at one there fails."""
    (found,) = [f for f in examine("none", device="meta").findings if "updates_have" in f.checks[0]]
    assert "meta" in found.message
    assert not examine("none", device="cpu").findings
