"""Accordion: low compression of a tensor while its gradient changes, else high compression.

The gradient that a tensor accumulates over an epoch is measured every `interval_epochs` epochs (the
first, then the 11th, ...). When its norm has changed by |previous - current| / previous >=
`threshold` since the measurement before, training is in a critical regime: low compression until
the next decision; else high compression. It begins with low compression, and a drop of the
learning rate (at the steps that `learning_rate_drops` names: a compressor is not told) makes it
low as well, until the next decision.

`low` and `high` are parameters of the inner compressor, which go over those in `parameters`. Each
tensor has an inner compressor of its own; their all-reduces and all-gathers are merged.

Readings: what is accumulated are the updates, which all workers know, so they decide alike and
nothing travels for it. An epoch is `steps_per_epoch` steps. A norm that was zero and is not counts
as critical. State: the inner compressor's; in a measured epoch, n floats more.

Source: S. Agarwal, H. Wang, K. Lee, S. Venkataraman, D. Papailiopoulos, "Accordion: Adaptive
Gradient Communication via Critical Learning Regime Identification", MLSys 2021, arXiv:2010.16248;
ranks 2 and 1 as there for PowerSGD.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from gcsim.compressors.base import About, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.controllers.inner import PerTensor, check_inner, inner_parameters
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.requests import Exchange


class AccordionParameters(CompressorParameters):
    compressor: str = Field("powersgd", description="the compressor that is controlled")
    parameters: dict[str, Any] = Field({}, description="its parameters in either setting")
    low: dict[str, Any] = Field(
        {"rank": 2}, description="its parameters in critical regimes: low compression"
    )
    high: dict[str, Any] = Field({"rank": 1}, description="its parameters else: high compression")
    threshold: float = Field(
        0.5, ge=0, description="relative change of the gradient's norm that is critical"
    )
    steps_per_epoch: int = Field(390, ge=1, description="steps in an epoch")
    interval_epochs: int = Field(10, ge=1, description="epochs from a measurement to the next")
    learning_rate_drops: tuple[int, ...] = Field(
        (), description="steps at which the learning rate drops: low compression from there"
    )

    @model_validator(mode="after")
    def _check_inner(self) -> Self:
        check_inner(self.compressor, dict(zip(("low", "high"), self.settings(), strict=True)))
        return self

    def settings(self) -> list[CompressorParameters]:
        """The inner compressor's parameters: low compression, high compression."""
        return [
            inner_parameters(self.compressor, {**self.parameters, **given}, which)
            for which, given in (("low", self.low), ("high", self.high))
        ]

    def base(self) -> CompressorParameters:
        """The inner compressor's parameters to begin with: low compression."""
        return self.settings()[0]


class Accordion(PerTensor[AccordionParameters]):
    """Low compression in critical regimes, high compression elsewhere, tensor by tensor."""

    about = About(
        title="Accordion",
        family="controller",
        collective="those of the inner compressor",
        bits="those of the inner compressor at `low` or `high`",
        state="the inner compressor's; sum of updates (n) in measured epochs",
        paper="Agarwal et al., Accordion, MLSys 2021, arXiv:2010.16248",
    )

    def __init__(self, worker: Worker, parameters: AccordionParameters) -> None:
        super().__init__(worker, parameters)
        self._low, self._high = self._settings
        self._sums: dict[int, Tensor] = {}
        """Updates of the measured epoch, by bucket."""
        self._norms: dict[int, float] = {}
        """Norms at the last measurement, by tensor."""

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        if step in self.parameters.learning_rate_drops:
            for piece in bucket.layout.slices:
                self.set_parameters(piece, self._low)
        update: Tensor = yield from self.exchange_tensors(bucket, step)
        epoch, position = divmod(step, self.parameters.steps_per_epoch)
        if epoch % self.parameters.interval_epochs == 0:
            index = bucket.layout.index
            total = self._sums.get(index)
            self._sums[index] = update.clone() if total is None else total.add_(update)
            if position == self.parameters.steps_per_epoch - 1:
                self._decide(bucket, self._sums.pop(index))
        return update

    def _decide(self, bucket: Bucket, total: Tensor) -> None:
        """Compare the epoch's norms with the last ones; `total` is float32 `[n]`."""
        for piece, part in bucket.layout.views(total):
            norm = energy(part) ** 0.5
            before = self._norms.get(piece.index, norm)
            if piece.index in self._norms:
                change = abs(before - norm)
                critical = change >= self.parameters.threshold * before and norm != before
                self.set_parameters(piece, self._low if critical else self._high)
            self._norms[piece.index] = norm
