"""Linear: what if the levels of an unbiased quantiser are the quantiles of the elements?

The s levels of a bucket are the quantiles 0, 1/(s-1), …, 1 of its elements, so that equally many
elements lie between any two neighbours; an element is rounded to a neighbour at random such that
the mean is right. This is the naive alternative that ORQ is compared with: most levels crowd
around zero, where they save least error.

Payload as ORQ's: 1.6, 2.33 or 3.2 bits an element and s float32 a bucket; optional clipping to
c standard deviations of the bucket, with which the method is biased. No state. The error is
exactly `rounding_error`.

Assumes that a quantile between two elements is interpolated linearly (the paper only says that
the cumulative distribution is divided linearly).

Source: A. Xu, Z. Huo, H. Huang, "Optimal Gradient Quantization Condition for
Communication-Efficient Distributed Training", arXiv:2002.11082, section 5, "Linear-s".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.bucket_levels import (
    MAX_BUCKET,
    add_decoded,
    pack_levels,
    rounding_error,
    search_levels,
)
from gcsim.compressors.laws import Laws
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.loops import loop
from gcsim.compressors.random import random_key
from gcsim.compressors.requests import AllGather, Exchange

if TYPE_CHECKING:
    from torch import Tensor


class LinearParameters(CompressorParameters):
    """Hyper-parameters of `Linear`."""

    levels: Literal[3, 5, 9] = Field(5, description="s, levels of a bucket's table")
    bucket: int = Field(
        2048, ge=1, le=MAX_BUCKET, description="elements that share a table (32 s bits a bucket)"
    )
    clip: float | None = Field(
        None,
        gt=0,
        description="c: clip to c standard deviations of the bucket (paper: 1.7, 2.5); null: no",
    )


class Linear(Compressor):
    """Random rounding to the quantiles of the bucket."""

    Parameters = LinearParameters
    about = About(
        title="Linear quantile quantisation",
        family="quantization",
        collective="all-gather",
        bits="1.6, 2.33 or 3.2 (levels = 3, 5, 9) + 32 levels / bucket",
        unbiased=True,
        state="none",
        paper="Xu et al., arXiv:2002.11082 (as its baseline Linear-s)",
    )

    def __init__(self, worker: Worker, parameters: CompressorParameters) -> None:
        super().__init__(worker, parameters)
        assert isinstance(parameters, LinearParameters)
        self.parameters = parameters

    @classmethod
    def laws(cls, parameters: CompressorParameters) -> Laws:
        """See `Compressor.laws`."""
        assert isinstance(parameters, LinearParameters)

        def error(values: Tensor) -> float:
            return rounding_error(values, quantile_tables(values, parameters), parameters.bucket)

        return Laws(unbiased=parameters.clip is None, error_bound=error, error_is_exact=True)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """See `Compressor.exchange`."""
        payloads = yield AllGather(payload=self.encode(bucket, step))
        update = torch.zeros_like(bucket.gradient)
        for payload in payloads:
            add_decoded(payload, bucket.layout, update, 1.0 / self.worker.count)
        return update

    def encode(self, bucket: Bucket, step: int) -> Tensor:
        """The message of a bucket's gradient: uint8, one frame a tensor."""
        me, chosen = self.worker, self.parameters
        return torch.cat(
            [
                pack_levels(
                    values,
                    quantile_tables(values, chosen),
                    size=chosen.bucket,
                    key=random_key(me.seed, step, piece.index, "linear rounding", me.rank),
                )
                for piece, values in bucket.layout.views(bucket.gradient)
            ]
        )


def quantile_tables(values: Tensor, parameters: LinearParameters) -> Tensor:
    """The levels of each bucket: float32 `[ceil(n / bucket), levels]`, ascending."""
    return search_levels(
        values,
        size=parameters.bucket,
        count=parameters.levels,
        clip=parameters.clip,
        search=_quantiles,
    )


@loop
def _quantiles(rows: Any, levels: Any) -> None:
    """Quantiles j / (s - 1) of each sorted row."""
    last = levels.shape[1] - 1
    for r in range(rows.shape[0]):
        row = rows[r]
        for j in range(last + 1):
            numerator = j * (row.size - 1)
            at, rest = numerator // last, numerator % last
            low = np.float64(row[at])
            if rest:
                low += (np.float64(row[at + 1]) - low) * (np.float64(rest) / np.float64(last))
            levels[r, j] = np.float32(low)
