"""The base class of compressors: one worker's side of an algorithm, written as a generator.

    class MyParameters(CompressorParameters):
        ratio: Ratio = Field(0.01, description="fraction of a tensor's elements to send")

    class Mine(Compressor[MyParameters]):
        about = About(...)

        def exchange(self, bucket, step):
            payload = self.encode(bucket.gradient)      # ← priced as encode
            payloads = yield AllGather(payload=payload) # ← the only contact with the world
            return sum(decode(p) for p in payloads) / self.worker.count   # ← priced as decode

`exchange` returns the *update*: the float32 vector that the optimiser applies in the place of
the mean gradient. State lives on the object, keyed by bucket or tensor; randomness comes from
`gcsim.compressors.random` under the worker's seed and never from a global generator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import TypeVar

from gcsim.compressors.bucket import Bucket, BucketLayout, bucket_state
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.requests import Exchange, WithoutServer
from gcsim.compressors.sharing import fill_once

Ratio = Annotated[float, Field(gt=0.0, le=1.0)]


Family = Literal[
    "dense",
    "sparsification",
    "quantization",
    "low rank",
    "sketching",
    "local updates",
    "option",  # around another method
    "reference",  # what PyTorch's own communication hooks do
]


class CompressorParameters(BaseModel):
    """A compressor's hyper-parameters: validated, frozen, each with a default and a description.
    Types are strict: `true` and "0.01" are not numbers, but a list may stand for a tuple."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)
    instead: ClassVar[Mapping[str, str]] = {}
    """Hints for parameter names that belong to other methods."""

    @model_validator(mode="before")
    @classmethod
    def _lists_as_tuples(cls, given: dict[str, Any]) -> dict[str, Any]:
        tuples = {key for key, f in cls.model_fields.items() if get_origin(f.annotation) is tuple}
        return {
            key: tuple(value) if key in tuples and isinstance(value, list) else value
            for key, value in given.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Description of an algorithm for `gcsim list compressors`."""

    title: str
    family: Family
    collective: str
    """Kind of communication, e.g. "all-gather" or "all-reduce (dense every tau, short between)"."""
    without_server: WithoutServer | None = None
    """`PushPull.without_server` of the method's requests; None if it makes no such request."""
    bits: str
    """Bits per element that one worker sends, as a formula in the parameters."""
    unbiased: bool = False
    """Whether it is unbiased with default parameters; for others see `Compressor.properties`."""
    state: str = "none"
    """State that a worker keeps between steps, in units of n elements, e.g. "residual (n)"."""
    paper: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    rank: int
    count: int
    seed: int


Replicas = Literal["identical", "meet", "differ"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """Properties that a method promises and `gcsim.compressors.check` tests."""

    unbiased: bool = False
    """The expected update, over the method's own randomness, is the mean gradient."""

    error_bound: Callable[[Tensor], float] | None = None
    """Upper bound on the mean of |Q(v) - v|^2 for a float32 v `[n]`, for one worker without memory
    at its first settled step; as tight as the theory that the method cites."""

    error_is_exact: bool = False
    """The mean of |Q(v) - v|^2 equals `error_bound(v)`."""

    conserves: bool = False
    """Nothing is lost: a worker keeps what it has not sent (`Compressor.residual_of`)."""

    replicas: Replicas = "identical"
    """Replicas are equal after each step (identical), each window (meet) or never (differ)."""

    scale_free: bool = False
    """The update does not depend on the gradient's scale, as with signs or Adam's direction."""

    exact: bool = False
    """Lossless: the update is the mean gradient, up to float32 rounding."""


P = TypeVar("P", bound=CompressorParameters, default=Any)


class Compressor(ABC, Generic[P]):
    """One worker's state and behaviour in a compression method."""

    Parameters: ClassVar[type[CompressorParameters]] = CompressorParameters
    """Class of the parameters; by default the one in the brackets of the base class."""
    about: ClassVar[About]

    requires: ClassVar[frozenset[Literal["second_moments"]]] = frozenset()
    """Additional input that the method needs besides gradients."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "Parameters" in vars(cls):
            return
        for base in vars(cls).get("__orig_bases__", ()):
            for given in get_args(base):
                if isinstance(given, type) and issubclass(given, CompressorParameters):
                    cls.Parameters = given

    def __init__(self, worker: Worker, parameters: P) -> None:
        self.worker, self.parameters = worker, parameters
        self.state: defaultdict[str, dict[int, Tensor]] = defaultdict(dict)
        """State tensors by name, then by bucket (`kept`)."""

    @abstractmethod
    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """Exchange one bucket at training step `step` (from 0) and return the update. Requests and
        update depend only on the arguments, the state and the replies."""

    def kept(self, name: str, bucket: Bucket) -> Tensor:
        """Return the state vector `name` of this bucket: float32 `[n]`, zeros at first use."""
        return bucket_state(self.state[name], bucket)

    def mean_of(
        self, payloads: Iterable[Tensor], bucket: Bucket, add: Callable[..., object], **known: Any
    ) -> Tensor:
        """Return the mean over workers of their decoded payloads, given a reply: float32 `[n]`.
        `add(payload, layout, out, weight, **known)` decodes one: out += weight * decoded. It is a
        pure function: workers of one process share its result (`sharing.py`)."""
        update, weight = torch.zeros_like(bucket.gradient), 1.0 / self.worker.count
        return fill_once(add_all, payloads, update, add, bucket.layout, weight, known)

    # --- what the method promises; `gcsim.compressors.check` tests it ----------------------------

    @classmethod
    def properties(cls, parameters: P) -> Properties:
        """Return the properties that hold with these parameters."""
        return Properties(unbiased=cls.about.unbiased)

    @classmethod
    def memory(cls, parameters: P) -> str:
        """Describe the state that a worker keeps between steps; "none" if steps are independent."""
        return cls.about.state

    def residual_of(self, bucket: Bucket) -> Tensor | None:
        """Return the part of `bucket` that this worker keeps to deliver later, in units of the
        update: float32 `[n]`, or None. If `Properties.conserves`, the sum of all updates + the mean
        of `residual_of` over workers = the sum of all mean gradients (after `momentum`)."""
        return None

    # --- schedule: overridden by methods whose steps differ ----------------------------------

    @classmethod
    def period(cls, parameters: P) -> int:
        """Return after how many steps the kinds of step repeat; 1 if all steps are alike."""
        return 1

    @classmethod
    def warmup_steps(cls, parameters: P) -> int:
        """Return the first step after any start-up phase, from which on the `period` repeats."""
        return 0

    @classmethod
    def phase(cls, parameters: P, step: int) -> str:
        """Return the kind of step `step`, e.g. "synchronisation" or "sampled"."""
        return "step"

    # --- quality: what the update is compared with -------------------------------------------

    @classmethod
    def momentum(cls, parameters: P) -> tuple[float, bool]:
        """Return (coefficient, Nesterov) of a momentum that the method applies before compression.
        Its update then replaces dense SGD's momentum buffer instead of the gradient."""
        return 0.0, False

    @classmethod
    def window(cls, parameters: P) -> int:
        """Return how many steps are judged together: the period if replicas differ, else 1."""
        alike = cls.properties(parameters).replicas == "identical"
        return 1 if alike else cls.period(parameters)


def add_all(
    received: Iterable[Tensor],
    out: Tensor,
    add: Callable[..., None],
    layout: BucketLayout,
    weight: float,
    known: dict[str, Any],
) -> None:
    """Decode all payloads of a reply with `add`; see `Compressor.mean_of`."""
    for payload in [received] if isinstance(received, torch.Tensor) else received:
        add(payload, layout, out, weight, **known)


class ErrorFeedback(Compressor[P]):
    """A compressor with a residual per bucket, unless a parameter turns it off: a = e + g, send
    Q(a), e = a - Q(a) (F. Seide et al., "1-bit stochastic gradient descent", Interspeech 2014; S.
    Karimireddy et al., ICML 2019, arXiv:1901.09847)."""

    def __init__(self, worker: Worker, parameters: P) -> None:
        super().__init__(worker, parameters)
        self.residual: dict[int, Tensor] = {}
        """Residual by bucket: float32 `[n]`, the sum of what was not sent (`bucket_state`)."""

    @property
    def remembers(self) -> bool:
        """Whether the residual is on, as the parameter `error_feedback` (or `residual`) says."""
        chosen = self.parameters
        return bool(getattr(chosen, "error_feedback", getattr(chosen, "residual", True)))

    def corrected(self, bucket: Bucket) -> Tensor:
        """Return residual plus gradient, added in place; else the gradient. float32 `[n]`."""
        if not self.remembers:
            return bucket.gradient
        return bucket_state(self.residual, bucket).add_(bucket.gradient)

    def residual_of(self, bucket: Bucket) -> Tensor | None:
        return bucket_state(self.residual, bucket).clone() if self.remembers else None
