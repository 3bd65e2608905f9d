"""PyTorch's fp16 and bf16 communication hooks: cast, divide, and all-reduce in 16 bits.

Each worker casts its gradient and divides it by the number of workers in 16 bits, and the sum is
computed in 16 bits: the hooks' torch operators in the same order, so results are equal bit for bit.
In float16 a value above 65504 becomes infinite before the division (training would apply it; here
it is refused), and an inexact quotient is rounded a second time. `fp16` and `bf16` divide first.

Source: torch.distributed.algorithms.ddp_comm_hooks.default_hooks, fp16_compress_hook and
bf16_compress_hook, PyTorch 2.13.
"""

from __future__ import annotations

from dataclasses import replace

from gcsim.compressors.base import About
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.quantization.floats.half import BrainFloat, HalfPrecision
from gcsim.compressors.requests import AllReduce, Exchange


class TorchFp16(HalfPrecision):
    about = About(
        title="PyTorch fp16_compress_hook",
        family="reference",
        collective="all-reduce",
        bits="16",
        paper="torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
    )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        cast = bucket.gradient.to(self.dtype()).div_(self.worker.count)
        mean: Tensor = yield AllReduce(tensor=cast)
        return mean.float()


class TorchBf16(BrainFloat):
    about = replace(TorchFp16.about, title="PyTorch bf16_compress_hook")
    exchange = TorchFp16.exchange
