"""A method with options, as a compressor like any other.

They compose from the inside out: half-precision sums (`half_sums.py`), then dense tensors, then
dense steps (`dense_parts.py`). What is dense is float32 and equals dense training to the last bit,
whatever else is asked for.

A settled step is one of the method: stage 1 measures what a long training consists of, without the
dense steps.
"""

from __future__ import annotations

from dataclasses import replace

from gcsim.compressors.base import About, Compressor, Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.mistakes import is_users, new_member
from gcsim.compressors.options.dense_parts import DenseSteps, DenseTensors, DenseUpdate, Member
from gcsim.compressors.options.half_sums import HalfSums
from gcsim.compressors.options.method import Options
from gcsim.compressors.participation import participate
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import Exchange


class Optioned(Compressor[Options]):
    """A method with options."""

    about = About(
        title="A method with options",
        family="controller",
        collective="the method's; all-reduce of what stays dense",
        bits="the method's; 32 of what stays dense",
        state="the method's",
        paper="Vogels et al., PowerSGD, NeurIPS 2019, arXiv:1905.13727 (dense start and vectors)",
    )

    def __init__(self, worker: Worker, parameters: Options) -> None:
        super().__init__(worker, parameters)
        self.about = parameters.method.about  # type: ignore[misc]  # what errors call it
        momentum = self.momentum(parameters)
        found: Member = _Guarded(new_member(parameters.method, worker, parameters.own))
        if parameters.payload is not None:
            found = HalfSums(found, parameters.payload)
        if (kept := parameters.dense_tensors) is not None:
            found = DenseTensors(found, DenseUpdate(worker, momentum), kept.names, kept.below)
        if parameters.before:
            found = DenseSteps(found, DenseUpdate(worker, momentum), parameters.before)
        self._member = found

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        return (yield from self._member.exchange(bucket, step))

    def residual_of(self, bucket: Bucket) -> Tensor | None:
        return self._member.residual_of(bucket)

    @classmethod
    def properties(cls, parameters: Options) -> Properties:
        """Properties of the method, without those that rounded sums break."""
        found = parameters.method.properties(parameters.own)
        if parameters.dense_tensors is not None:
            found = replace(found, error_is_exact=False)
        if parameters.payload is None:
            return found
        return Properties(replicas=found.replicas, scale_free=found.scale_free)

    @classmethod
    def memory(cls, parameters: Options) -> str:
        return parameters.method.memory(parameters.own)

    @classmethod
    def period(cls, parameters: Options) -> int:
        return parameters.method.period(parameters.own)

    @classmethod
    def warmup_steps(cls, parameters: Options) -> int:
        """Warm-up steps of the method, after the dense steps."""
        return parameters.before + parameters.method.warmup_steps(parameters.own)

    @classmethod
    def phase(cls, parameters: Options, step: int) -> str:
        """Phase of a step: "dense" first, then the method's."""
        if step < parameters.before:
            return "dense"
        return parameters.method.phase(parameters.own, step - parameters.before)

    @classmethod
    def momentum(cls, parameters: Options) -> tuple[float, bool]:
        return parameters.method.momentum(parameters.own)

    @classmethod
    def window(cls, parameters: Options) -> int:
        return parameters.method.window(parameters.own)


class OptionedWithMoments(Optioned):
    """A method with options that needs second moments."""

    requires = frozenset({"second_moments"})


class _Guarded:
    """A method whose mistakes are told with its own file and line, where it is a user's."""

    def __init__(self, member: Compressor) -> None:
        self._member = member

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        if not is_users(type(self._member)):
            return self._member.exchange(bucket, step)
        return participate(self._member, bucket, step, finite=False, unmodified=False)

    def residual_of(self, bucket: Bucket) -> Tensor | None:
        return self._member.residual_of(bucket)
