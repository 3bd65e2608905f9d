"""Sums in half precision around a method: float32 all-reduces travel in 16 bits.

PyTorch's fp16_compress_wrapper casts the bucket and lets the hook inside work in 16 bits; here the
method works in float32, and what it all-reduces is rounded to nearest even as it leaves, added up
in 16 bits, and widened as it comes back. All-reduces of other types, of maxima (scales, which must
not round below what they bound) and packed payloads stay as they are: of a method that packs its
values itself, its own parameters decide on their format.

float16 ends at 65504: a sum beyond it is refused as everywhere (`participation.py`).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeGuard

from gcsim.compressors.base import Compressor, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.mistakes import passed_on
from gcsim.compressors.options.dense_parts import Member
from gcsim.compressors.options.method import HalfFormat
from gcsim.compressors.participation import participate
from gcsim.compressors.requests import AllReduce, Exchange, Request

_MOST_TRIED = 256
"""Steps of a trial."""
_TRIED = (("weight", 0, (32, 32)), ("bias", 1, (32,)))
"""Tensors of a trial: a matrix and a vector."""


class HalfSums:
    """A method whose float32 sums travel in 16 bits."""

    def __init__(self, inner: Member, payload: HalfFormat) -> None:
        self._inner, self._payload = inner, payload

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        narrow = torch.float16 if self._payload == "fp16" else torch.bfloat16

        def ask(request: Request) -> Generator[Request, Any, Any]:
            if not is_float_sum(request):
                return (yield request)
            return (yield AllReduce(tensor=request.tensor.to(narrow))).float()

        return passed_on(self._inner.exchange(bucket, step), ask)

    def residual_of(self, bucket: Bucket) -> Tensor | None:
        return self._inner.residual_of(bucket)


def is_float_sum(request: Request) -> TypeGuard[AllReduce]:
    """Whether a request adds up float32 numbers."""
    return (
        isinstance(request, AllReduce)
        and request.op == "sum"
        and request.tensor.dtype == torch.float32
    )


def adds_up_floats(method: type[Compressor], parameters: Any) -> bool:
    """Whether a method all-reduces sums of float32 in its settled steps; a trial on small tensors
    says so, since that may depend on its parameters, a controller's on its inner compressor."""
    layout = BucketLayout.behind(0, _TRIED)
    team = [method(Worker(rank=rank, count=2, seed=0), parameters) for rank in range(2)]
    first, heard = method.warmup_steps(parameters), False

    def listening(request: Request) -> Generator[Request, Any, Any]:
        nonlocal heard
        heard = heard or is_float_sum(request)
        return (yield request)

    for step in range(first, first + min(method.period(parameters), _MOST_TRIED)):
        exchanges = []
        for member in team:
            draw = torch.Generator().manual_seed(2 * step + member.worker.rank)
            gradient = torch.randn(layout.numel, generator=draw)
            moment = gradient.square() if method.requires else None
            bucket = Bucket(layout=layout, gradient=gradient, second_moment=moment, loss=1.0)
            exchanges.append(passed_on(participate(member, bucket, step), listening))
        with torch.no_grad():
            lockstep(exchanges)
        if heard:
            return True
    return False
