"""What does a cast to half precision cost and save? A dense all-reduce in float16.

Each worker casts its gradient, divides it by the number of workers in float16, and the sum runs
in float16: the order of PyTorch's `fp16_compress_hook`, which this reproduces bit for bit. The
order decides where range is lost. Cast first: a value above 65504 overflows to infinity before
the division could have saved it, but no float32 temporary is needed. Divided first: it would
survive up to 65504 N. In both orders values below 2^-25 N underflow to zero, since the quotient
is what float16 must hold. The overflow is kept as the infinity that training would meet.

Source: torch.distributed.algorithms.ddp_comm_hooks.default_hooks.fp16_compress_hook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gcsim.compressors.base import About, Compressor
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.requests import AllReduce, Exchange

if TYPE_CHECKING:
    from torch import Tensor


class HalfPrecision(Compressor):
    """The mean gradient with the relative error 2^-11 of float16, once more for each addition."""

    about = About(
        title="Half-precision (fp16) all-reduce",
        family="quantization",
        collective="all-reduce",
        bits="16",
        unbiased=False,
        state="none",
        paper="PyTorch DDP communication hooks, fp16_compress_hook",
    )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """The mean of the workers' gradients as summed in float16, float32 `[n]`."""
        half = bucket.gradient.half().div_(self.worker.count)
        mean: Tensor = yield AllReduce(tensor=half)
        return mean.float()
