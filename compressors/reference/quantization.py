"""PyTorch's quantisation hooks: buckets are all-gathered as 8-bit integers.

A range [min(v, 0), max(v, 0)] is mapped to the integers 0 … 255 by a scale and a zero point z:

    scale = (max - min) / 255 (at least 2^-23),   z = clamp(round(-min / scale), 0, 255)
    code = clamp(round(v / scale) + z, 0, 255),   decoded = scale (code - z)

Workers all-gather scales and zero points as float32, then codes, and average the decoded values.
`quantization_pertensor_hook` uses one range for the whole bucket, 8 n + 64 bits;
`quantization_perchannel_hook` one per row of `bucket_size` elements. The last row is padded with
zeros, and all zeros if n is a multiple: (8 bucket_size + 64) (floor(n / bucket_size) + 1) bits.
Deterministic, biased, without error feedback. Zero is exact; an element's error is at most half a
scale (also at the ends of the range, which shift by the rounding of z).

With PyTorch 2.13 and the gloo backend both hooks raise IndexError, since the future of their
all-gather holds a flat list; the arithmetic here equals theirs bit for bit. The per-channel hook
loops over rows in Python; here one operation handles all rows, so the cost omits launches per row.

Source: torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks and
torch.ao.quantization.observer (MinMaxObserver, PerChannelMinMaxObserver), PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Properties
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frames import (
    HEADER_BYTES,
    Codec,
    as_bytes,
    from_bytes,
    pack_frame,
    read_frames,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.requests import AllGather, Exchange
from gcsim.compressors.sharing import fill_once, once
from gcsim.errors import InputError

LEVELS = 255
_CODES, _RANGES = 0, 1  # a frame's flags
LEAST_SCALE = 2.0**-23
"""Epsilon of float32, the observers' `eps`."""


class TorchQuantizationPerTensor(Compressor):
    """quantization_pertensor_hook: one range per bucket."""

    about = About(
        title="PyTorch quantization_pertensor_hook",
        family="reference",
        collective="all-gather twice (ranges, codes)",
        bits="8 + 64 / n, n a bucket's elements",
        paper="torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks",
    )

    @classmethod
    def properties(cls, parameters: CompressorParameters) -> Properties:
        """Return the properties: the error is half a scale per element, up to rounding."""

        def bound(values: Tensor) -> float:
            rows = cls.rows(values, parameters)
            scale, _ = ranges(rows)
            return float((scale.double() / 2).square().sum()) * rows.shape[1] * (1 + 1e-5)

        return Properties(error_bound=bound)

    @classmethod
    def rows(cls, gradient: Tensor, parameters: CompressorParameters) -> Tensor:
        """Return the gradient as rows that share a range: float32 `[rows, length]`."""
        return gradient[None]

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        n, count = bucket.gradient.numel(), self.worker.count
        rows = self.rows(bucket.gradient, self.parameters)
        scale, zero = ranges(rows)
        own = as_bytes(torch.cat((scale, zero)))
        known = yield AllGather(payload=pack_frame(Codec.AFFINE, own, numel=n, flags=_RANGES))
        known = once(_all_ranges, known, n, rows.shape[0])
        codes = rows.div(scale[:, None]).round_().add_(zero[:, None]).clamp_(0, LEVELS)
        body = codes.to(torch.uint8).view(-1)
        payload = pack_frame(Codec.AFFINE, body, numel=rows.numel())
        payloads = yield AllGather(payload=payload)
        total = fill_once(_add_codes, payloads, torch.zeros_like(rows), known)
        return total.view(-1)[:n] / count


class PerChannelParameters(CompressorParameters):
    bucket_size: int = Field(512, ge=1, description="elements that share a range")


class TorchQuantizationPerChannel(TorchQuantizationPerTensor):
    """quantization_perchannel_hook: one range per 512 elements."""

    Parameters = PerChannelParameters
    about = replace(
        TorchQuantizationPerTensor.about,
        title="PyTorch quantization_perchannel_hook",
        bits="8 + 64 / bucket_size",
    )

    @classmethod
    def rows(cls, gradient: Tensor, parameters: CompressorParameters) -> Tensor:
        """Return the gradient's rows; the last one is filled up with zeros, or all zeros."""
        assert isinstance(parameters, PerChannelParameters)
        size = parameters.bucket_size
        missing = size - gradient.numel() % size
        return torch.nn.functional.pad(gradient, (0, missing)).view(-1, size)


def ranges(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return (scale, zero point) of each row as torch's observers compute them: float32 `[rows]`;
    an empty row has the least scale."""
    if rows.shape[0] == 1 and rows.shape[1]:  # without `dim`: ten times as fast
        least, most = (value.view(1) for value in rows.aminmax())
    elif rows.shape[1]:
        least, most = rows.aminmax(dim=1)
    else:
        least = most = rows.new_zeros(rows.shape[0])
    least, most = least.clamp(max=0), most.clamp(min=0)
    scale = ((most - least) / float(LEVELS)).clamp_(min=LEAST_SCALE)
    return scale, torch.round(least / scale).neg_().clamp_(0, LEVELS)


def read_ranges(message: Tensor, n: int, rows: int) -> tuple[Tensor, Tensor]:
    """Read another worker's scales and zero points; raises `InputError` if they are impossible."""
    values = from_bytes(_body(message, n, _RANGES), torch.float32, 2 * rows)
    scale, zero = values[:rows], values[rows:]
    if rows and (not bool((scale >= LEAST_SCALE).all()) or not bool((zero <= LEVELS).all())):
        raise InputError("damaged payload: an impossible scale or zero point")
    return scale, zero


def _all_ranges(messages: Iterable[Tensor], n: int, rows: int) -> list[tuple[Tensor, Tensor]]:
    return [read_ranges(message, n, rows) for message in messages]


def _add_codes(payloads: Iterable[Tensor], out: Tensor, known: list[tuple[Tensor, Tensor]]) -> None:
    for message, (scale, zero) in zip(payloads, known, strict=True):
        codes = from_bytes(_body(message, out.numel(), _CODES), torch.uint8, out.numel())
        out += codes.view(out.shape).float().sub_(zero[:, None]).mul_(scale[:, None])


def _body(message: Tensor, n: int, flags: int) -> Tensor:
    frames = read_frames(message, expected=Codec.AFFINE, most=1)  # on a GPU only one header is read
    size = message.numel() - HEADER_BYTES
    if [(one.numel, one.flags, one.body.numel()) for one in frames] != [(n, flags, size)]:
        raise InputError(f"damaged payload: not one frame of {n} elements, of kind {flags}")
    return frames[0].body
