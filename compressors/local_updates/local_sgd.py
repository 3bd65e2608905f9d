"""Local SGD and DiLoCo: workers take local steps, and an outer optimiser applies the mean of their
changes.

For H steps each worker steps in its own direction d: heavy ball (u = m u + g, d = u), or Adam
(`inner: adam`, with bias correction). Then, with x the common weights before and w_i the worker's
weights,
    outer gradient  D = mean over workers of (x - w_i)
    outer step      b = m_o b + D;  x -= lr_o b         (nesterov: x -= lr_o (D + m_o b))
and each worker continues from x. lr_o = 1 without momentum is plain local SGD: x is the mean of the
weights.

| name        | outer                       | paper                                                |
|-------------|-----------------------------|------------------------------------------------------|
| `local_sgd` | lr 1, no momentum           | S. Stich, ICLR 2019, arXiv:1805.09767                |
| `diloco`    | Nesterov, lr .7, momentum .9| A. Douillard et al., arXiv:2311.08105 (inner: AdamW; |
|             |                             | weight decay is the optimiser's; up to H = 500)      |

`fragments`: each bucket is cut into P equal parts; part p is sent after step (p + 1) H / P of each
round, so that no step sends more than one P-th (Streaming DiLoCo, A. Douillard et al.,
arXiv:2501.18512, whose fragments are groups of layers; its delayed application is left out).
Workers' weights are then never equal.

`values`: outer gradients in 8 or 4 bits are all-gathered QSGD messages with 127 or 7 steps and a
norm per 512 elements; Streaming DiLoCo uses a 4-bit float. There is no error feedback.

The update is d, and at a synchronisation ((outer step) - (x - w_i before)) / rate, with
`Bucket.rate`; distances are sums of rate * d. Replicas become equal up to float32 rounding with any
schedule of rates; weight decay of a round is not in D. The optimiser is plain SGD.

Bits per element and step: 32 / H, or (8 + 32 / 512) / H, (4 + 32 / 512) / H.

Source: S. U. Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019,
arXiv:1805.09767; A. Douillard, Q. Feng, A. A. Rusu, R. Chhaparia, Y. Donchev, A. Kuncoro,
M. Ranzato, A. Szlam, J. Shen, "DiLoCo: Distributed Low-Communication Training of Language Models",
arXiv:2311.08105, 2023.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from gcsim.compressors.base import About, Compressor, CompressorParameters, Properties, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.quantization.rounding.qsgd import Qsgd, QsgdParameters
from gcsim.compressors.requests import AllReduce, Exchange

QUANTISED = {"int8": 127, "int4": 7}
"""QSGD's number of steps by format."""
_EPSILON = 1e-8


class Outer(CompressorParameters):
    name: Literal["sgd", "nesterov"] = Field(
        "sgd", description="update rule: sgd (with momentum: heavy ball) or nesterov"
    )
    lr: float = Field(1.0, gt=0, description="learning rate of the outer optimiser")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of the outer optimiser")

    @model_validator(mode="after")
    def _has_momentum(self) -> Self:
        if self.name == "nesterov" and not self.momentum:
            raise ValueError("nesterov needs a momentum: write momentum: 0.9, or name: sgd")
        return self

    @property
    def plain(self) -> bool:
        """Whether the outer step just takes the mean of the weights."""
        return self.lr == 1 and not self.momentum


class LocalSgdParameters(CompressorParameters):
    interval: int = Field(4, ge=1, description="steps between synchronisations (H)")
    inner: Literal["sgd", "adam"] = Field("sgd", description="optimiser of the local steps")
    momentum: float = Field(0.9, ge=0, lt=1, description="heavy-ball momentum (m), or Adam's beta1")
    beta2: float = Field(0.999, ge=0, lt=1, description="Adam's beta2, decay of the variance")
    outer: Outer = Field(
        Outer.model_validate({}), description="outer optimiser: name, lr, momentum"
    )
    fragments: int = Field(1, ge=1, description="equal parts of each DDP bucket, sent in turn (P)")
    values: Literal["fp32", "int8", "int4"] = Field(
        "fp32", description="format of the outer gradients on the wire"
    )

    @model_validator(mode="after")
    def _a_step_for_each(self) -> Self:
        if self.fragments > self.interval:
            raise ValueError(
                f"{self.fragments} fragments do not find a step each in an interval of "
                f"{self.interval}: lower fragments, or raise interval"
            )
        return self

    def due(self, step: int) -> int | None:
        """Return the fragment that is sent after a step; None if none is."""
        place = (step % self.interval + 1) * self.fragments  # one fragment is H of these units
        number = -(-place // self.interval) - 1
        ends = (number + 1) * self.interval // self.fragments
        return number if ends == step % self.interval + 1 else None


class DilocoParameters(LocalSgdParameters):
    interval: int = Field(100, ge=1, description="steps between synchronisations (H)")
    outer: Outer = Field(
        Outer.model_validate({"name": "nesterov", "lr": 0.7, "momentum": 0.9}),
        description="outer optimiser: name, lr, momentum",
    )


class LocalSgd(Compressor[LocalSgdParameters]):
    """Local steps, then an outer step along the mean of all workers' distances."""

    Parameters: ClassVar[type[CompressorParameters]] = LocalSgdParameters
    about = About(
        title="Local SGD",
        family="local updates",
        collective="all-reduce (int8, int4: all-gather) every interval steps, nothing between",
        bits="32 / interval (int8: 8.06, int4: 4.06)",
        state="momentum (n), distance since the last synchronisation (n)",
        paper="Stich, Local SGD Converges Fast, ICLR 2019, arXiv:1805.09767",
    )

    def __init__(self, worker: Worker, parameters: LocalSgdParameters) -> None:
        super().__init__(worker, parameters)
        steps = QUANTISED.get(parameters.values)
        self._narrow = (
            None if steps is None else Qsgd(worker, QsgdParameters.model_validate({"steps": steps}))
        )

    @classmethod
    def period(cls, parameters: LocalSgdParameters) -> int:
        return parameters.interval

    @classmethod
    def phase(cls, parameters: LocalSgdParameters, step: int) -> str:
        return "local" if parameters.due(step) is None else "synchronisation"

    @classmethod
    def momentum(cls, parameters: LocalSgdParameters) -> tuple[float, bool]:
        return parameters.momentum, False

    @classmethod
    def memory(cls, parameters: LocalSgdParameters) -> str:
        adam = "variance (n), " if parameters.inner == "adam" else ""
        outer = ", outer momentum (n)" if parameters.outer.momentum else ""
        return f"momentum (n), {adam}distance since the last synchronisation (n){outer}"

    @classmethod
    def properties(cls, parameters: LocalSgdParameters) -> Properties:
        """Return the properties; only a plain float32 mean of SGD weights loses nothing."""
        sgd = parameters.inner == "sgd"
        return Properties(
            conserves=sgd and parameters.outer.plain and parameters.values == "fp32",
            replicas="meet" if parameters.fragments == 1 else "differ",
            scale_free=not sgd,
        )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """Return the inner direction; for the fragment that is due, add what leads to the outer
        step's result. Float32 `[n]`."""
        update, moved = self._direction(bucket, step), self.kept("distance", bucket)
        number = self.parameters.due(step)
        if number is None:
            moved.add_(update, alpha=bucket.rate)
            return update
        part = self._part(bucket, number)
        own = torch.add(moved[part], update[part], alpha=bucket.rate)
        outer = yield from self._outer(bucket, part, own, step)
        before = moved[part].clone()
        moved.add_(update, alpha=bucket.rate)
        moved[part] = 0.0
        update[part] = outer.sub_(before).div_(bucket.rate)
        return update

    def _part(self, bucket: Bucket, number: int) -> slice:
        n, count = bucket.gradient.numel(), self.parameters.fragments
        return slice(number * n // count, (number + 1) * n // count)

    def _direction(self, bucket: Bucket, step: int) -> Tensor:
        """Return the inner optimiser's step, divided by the learning rate."""
        chosen, momentum = self.parameters, self.kept("momentum", bucket)
        if chosen.inner == "sgd":
            return momentum.mul_(chosen.momentum).add_(bucket.gradient).clone()
        momentum.lerp_(bucket.gradient, 1.0 - chosen.momentum)
        variance = self.kept("variance", bucket).mul_(chosen.beta2)
        variance.addcmul_(bucket.gradient, bucket.gradient, value=1.0 - chosen.beta2)
        first, second = (1.0 - beta ** (step + 1) for beta in (chosen.momentum, chosen.beta2))
        return (momentum / first).div_(variance.sqrt().div_(second**0.5).add_(_EPSILON))

    def _outer(self, bucket: Bucket, part: slice, own: Tensor, step: int) -> Exchange:
        """Return the outer step of a part, in units of the weights, from this worker's distance."""
        chosen = self.parameters.outer
        if self._narrow is None:
            mean: Tensor = yield AllReduce(tensor=own.div_(self.worker.count))
        else:
            layout, key = bucket.layout, (LocalSgd, part.start, part.stop)
            if key not in layout.facts:
                piece = ("outer gradient", layout.slices[0].index, (own.numel(),))
                layout.facts[key] = BucketLayout.behind(layout.index, (piece,))
            sent = Bucket(layout=layout.facts[key], gradient=own)
            mean = yield from self._narrow.exchange(sent, step)
        if not chosen.momentum:
            return mean.mul_(chosen.lr)
        velocity = self.kept("outer momentum", bucket)[part].mul_(chosen.momentum).add_(mean)
        if chosen.name == "nesterov":
            return mean.add_(velocity, alpha=chosen.momentum).mul_(chosen.lr)
        return velocity * chosen.lr


class Diloco(LocalSgd):
    """Local steps, then a Nesterov step along the mean of all workers' distances."""

    Parameters = DilocoParameters
    about = replace(
        LocalSgd.about,
        title="DiLoCo",
        state="momentum (n), distance since the last synchronisation (n), outer momentum (n)",
        paper="Douillard et al., DiLoCo, 2023, arXiv:2311.08105",
    )
