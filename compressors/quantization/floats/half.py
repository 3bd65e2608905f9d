"""Dense all-reduce in float16 or bfloat16: one cast, then a sum in 16 bits.

Each worker divides its gradient by the number of workers in float32 and rounds to nearest even, in
one pass; the sum is computed in 16 bits. The relative error of the cast and of each addition is
2^-11 (float16) or 2^-8 (bfloat16), deterministic and biased. float16 has a range of 2^-25 to 65504,
bfloat16 that of float32.

PyTorch's hooks (`torch_fp16`, `torch_bf16`) cast before dividing. Dividing first rounds once
instead of twice if the number of workers is not a power of two, and permits elements above 65504 if
the mean is not. Underflow is the same: elements below 2^-25 N are lost. Overflow before or in the
sum is refused (`participation.py`), as for every 16-bit sum.

Source: the formats of IEEE 754-2019 (binary16) and of D. Kalamkar et al., "A Study of BFLOAT16 for
Deep Learning Training", 2019, arXiv:1905.12322; for gradients, PyTorch's fp16_compress_hook and
bf16_compress_hook.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from gcsim.compressors.base import About, Compressor, CompressorParameters, Properties
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.floats.narrow_floats import BFLOAT16, FLOAT16, Narrow, narrow
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.requests import AllReduce, Exchange


class HalfPrecision(Compressor):
    form: ClassVar[Narrow] = FLOAT16
    about = About(
        title="Half-precision (fp16) all-reduce",
        family="quantization",
        collective="all-reduce",
        bits="16",
        paper="Micikevicius et al., Mixed Precision Training, ICLR 2018, arXiv:1710.03740",
    )

    @classmethod
    def properties(cls, parameters: CompressorParameters) -> Properties:
        return Properties(error_bound=cls.form.error_bound)

    @classmethod
    def dtype(cls) -> torch.dtype:
        return torch.float16

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        codes = narrow(bucket.gradient, self.form, 1.0 / self.worker.count)
        mean: Tensor = yield AllReduce(tensor=codes.view(self.dtype()))
        return mean.float()


class BrainFloat(HalfPrecision):
    form = BFLOAT16
    about = replace(
        HalfPrecision.about,
        title="bfloat16 (bf16) all-reduce",
        paper="Kalamkar et al., A Study of BFLOAT16, 2019, arXiv:1905.12322",
    )

    @classmethod
    def dtype(cls) -> torch.dtype:
        return torch.bfloat16
