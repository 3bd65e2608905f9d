"""No compression: DDP's dense float32 all-reduce.

The gradient is divided by the number of workers as it is copied into the bucket, then summed, in
the same order as in PyTorch's `DistributedDataParallel` (reducer.cpp).
"""

from __future__ import annotations

from gcsim.compressors.base import About, Compressor
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.requests import AllReduce, Exchange


class Dense(Compressor):
    about = About(
        title="Dense float32 all-reduce (no compression)",
        family="dense",
        collective="all-reduce",
        bits="32",
        unbiased=True,
        paper="S. Li et al., PyTorch Distributed, VLDB 2020",
    )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        mean: Tensor = yield AllReduce(tensor=bucket.gradient / self.worker.count)
        return mean
