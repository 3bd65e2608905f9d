"""A compressor of its own for each tensor, whose settings a controller may change.

The inner compressors see buckets of one tensor; their exchanges are `fused`. They must keep
replicas identical (controllers decide from updates, alike on all workers), need no second moments,
and follow a schedule that does not depend on the setting.

When a setting changes, the inner object gets the new `parameters` and, with them, whatever a fresh
object has otherwise under these (tables, thresholds); all other state is kept. PowerSGD's factors
P and Q have `rank` columns and are dropped: the next step starts from a random Q.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gcsim.compressors.base import Compressor, CompressorParameters, P, Worker
from gcsim.compressors.bucket import Bucket, TensorSlice
from gcsim.compressors.controllers.fusing import fused
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.properties import Properties
from gcsim.compressors.registry import checked_parameters, compressor_class
from gcsim.compressors.requests import Exchange
from gcsim.compressors.sharing import same
from gcsim.errors import InputError

_FACTORS = ("_query", "_left")
"""PowerSGD's state that has as many columns as `rank`."""


def inner_parameters(name: str, given: Mapping[str, Any], place: str) -> CompressorParameters:
    """Checked parameters of an inner compressor.

    Raises `InputError` whose places begin with `place`, the controller's parameter.
    """
    try:
        cls = compressor_class(name)
    except InputError as error:
        raise InputError([replace(p, place="compressor") for p in error.problems]) from error
    try:
        return checked_parameters(name, cls, given)
    except InputError as error:
        problems = [replace(p, place=f"{place}.{p.place}".rstrip(".")) for p in error.problems]
        raise InputError(problems) from error


def check_inner(name: str, settings: Mapping[str, CompressorParameters]) -> None:
    """Raise `InputError` when a controller cannot run the named compressor in these settings.

    `settings` are by the names that errors give them; the first counts for schedules.
    """
    cls = compressor_class(name)
    problem = ""
    if cls.about.family == "controller":
        problem = "is a controller itself"
    elif cls.requires:
        problem = f"needs {', '.join(sorted(cls.requires))}"
    elif any(cls.properties(p).replicas != "identical" for p in settings.values()):
        problem = "lets the workers' models differ between its steps"
    if problem:
        raise InputError(f"{name} cannot be controlled: it {problem}")
    (first, base), *others = settings.items()
    for name_of, other in others:
        for what in ("period", "warmup_steps", "momentum"):
            one, two = (getattr(cls, what)(each) for each in (base, other))
            if one != two:
                raise InputError(f"{name}: {what} is {one} with {first}, {two} with {name_of}")


class Around(Compressor[P]):
    """A compressor that keeps to the schedule of another one."""

    @classmethod
    @abstractmethod
    def inside(cls, parameters: P) -> tuple[type[Compressor], Any]:
        """The other one, and its parameters."""

    @classmethod
    def period(cls, parameters: P) -> int:
        inner, own = cls.inside(parameters)
        return inner.period(own)

    @classmethod
    def warmup_steps(cls, parameters: P) -> int:
        inner, own = cls.inside(parameters)
        return inner.warmup_steps(own)

    @classmethod
    def phase(cls, parameters: P, step: int) -> str:
        inner, own = cls.inside(parameters)
        return inner.phase(own, step)

    @classmethod
    def momentum(cls, parameters: P) -> tuple[float, bool]:
        inner, own = cls.inside(parameters)
        return inner.momentum(own)

    @classmethod
    def window(cls, parameters: P) -> int:
        inner, own = cls.inside(parameters)
        return inner.window(own)


class PerTensor(Around[P]):
    """A compressor that runs another one for each tensor, with settings of its own."""

    def __init__(self, worker: Worker, parameters: Any) -> None:
        super().__init__(worker, parameters)
        self._class, _ = self.inside(parameters)
        self._settings = parameters.settings()
        self.inner: dict[int, Compressor] = {}
        """Compressors by tensor."""

    @classmethod
    def properties(cls, parameters: Any) -> Properties:
        """Properties that hold in all settings; bounds are those of the first."""
        inner = compressor_class(parameters.compressor)
        each = [inner.properties(setting) for setting in parameters.settings()]
        return replace(
            each[0],
            unbiased=all(properties.unbiased for properties in each),
            conserves=all(properties.conserves for properties in each),
            exact=all(properties.exact for properties in each),
            scale_free=any(properties.scale_free for properties in each),
        )

    @classmethod
    def inside(cls, parameters: Any) -> tuple[type[Compressor], Any]:
        return compressor_class(parameters.compressor), parameters.base()

    def member(self, piece: TensorSlice) -> Compressor:
        """The tensor's own compressor; it begins with the first setting."""
        if piece.index not in self.inner:
            self.inner[piece.index] = self._class(self.worker, self._settings[0])
        return self.inner[piece.index]

    def exchange_tensors(self, bucket: Bucket, step: int) -> Exchange:
        """Each tensor's exchange, fused; the update of the bucket, float32 `[n]`."""
        one_by_one = [(self.member(piece), alone(bucket, piece)) for piece in bucket.layout.slices]
        return torch.cat((yield from fused([m.exchange(own, step) for m, own in one_by_one])))

    def residual_of(self, bucket: Bucket) -> Tensor | None:
        pieces = bucket.layout.slices
        parts = [self.member(piece).residual_of(alone(bucket, piece)) for piece in pieces]
        known = [part for part in parts if part is not None]
        return torch.cat(known) if len(known) == len(parts) else None

    def set_parameters(self, piece: TensorSlice, parameters: CompressorParameters) -> None:
        """Give a tensor's compressor other parameters; see the module's text for its state."""
        member = self.member(piece)
        if member.parameters == parameters:
            return
        before, after = (self._class(self.worker, p) for p in (member.parameters, parameters))
        for key, value in vars(after).items():
            if not same(getattr(before, key), value):
                setattr(member, key, value)
        for key in _FACTORS:
            getattr(member, key, {}).clear()


def alone(bucket: Bucket, piece: TensorSlice) -> Bucket:
    """A bucket of one of a bucket's tensors; its index is the tensor's."""
    layout = bucket.layout.alone[piece.index]
    return Bucket(layout=layout, gradient=piece.of(bucket.gradient), loss=bucket.loss)
