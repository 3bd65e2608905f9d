"""What does DDP cost around an exchange, and what a hook? Processor time of one rank's steps.

    python tests/benchmarks/hook_cost.py

Each line: buckets, tensors, elements of a tensor, and milliseconds of a step by itself, with DDP,
and with `gcsim.ddp_hook("none")`: the lower quartile, all threads of the process together. The
differences are what `scenarios/catalog/loops.yaml` states a tensor, a bucket and a byte.
"""

from __future__ import annotations

import os
import time
from typing import Any

STEPS = 40
WARM_UP = 6
SHAPES = (
    (1, 1, 256), (8, 1, 256), (32, 1, 256), (8, 8, 256), (32, 4, 256), (1, 64, 256),
    (1, 1, 1_000_000), (2, 1, 1_000_000), (1, 1, 4_000_000), (2, 1, 4_000_000),
)  # fmt: skip
"""Buckets, tensors a bucket, elements a tensor."""


def main() -> None:
    """Measure all shapes."""
    import torch
    from torch import distributed

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29577")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=0, world_size=1)
    print("buckets tensors elements   alone    DDP   hook")
    for buckets, tensors, elements in SHAPES:
        times = [step_ms(buckets, tensors, elements, how) for how in ("alone", "ddp", "hook")]
        cells = " ".join(f"{ms:6.2f}" for ms in times)
        print(f"{buckets:7d} {buckets * tensors:7d} {elements:8d}  {cells}", flush=True)
    distributed.destroy_process_group()


def step_ms(buckets: int, tensors: int, elements: int, how: str) -> float:
    """A step that computes next to nothing."""
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    import gcsim

    parameters = [torch.nn.Parameter(torch.randn(elements)) for _ in range(buckets * tensors)]

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.all = torch.nn.ParameterList(parameters)

        def forward(self, x: Any) -> Any:
            for parameter in self.all:
                x = x + parameter * x
            return x.sum()

    model: Any = Net()
    if how != "alone":
        nbytes = tensors * elements * 4
        setattr(distributed, "_DEFAULT_FIRST_BUCKET_BYTES", nbytes)  # noqa: B010
        model = DistributedDataParallel(model, bucket_cap_mb=nbytes / 2**20)
    if how == "hook":
        hook = gcsim.ddp_hook("none")
        hook.register(model)
    x, found = torch.randn(elements) / 10, []
    for _ in range(WARM_UP + STEPS):
        begun = time.process_time()
        model(x).backward()
        for parameter in parameters:
            parameter.grad = None
        found.append(1e3 * (time.process_time() - begun))
    if how == "hook" and len(hook.layouts) != buckets:
        raise SystemExit(f"DDP made {len(hook.layouts)} buckets, not {buckets}")
    return sorted(found[WARM_UP:])[STEPS // 4]


if __name__ == "__main__":
    main()
