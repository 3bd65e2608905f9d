"""Print the kernels that our own compressors run where the measured steps had hooks: those of the
catalogue in the suite shaped-training.

    python -m tests.benchmarks.shaped_training_kernels

One bucket of 2^20 normal numbers, a 1024 x 1024 matrix; metered, so the table is the same on every
machine.
"""

import csv
import sys
from dataclasses import replace

import torch

from gcsim.compressors.base import Worker
from gcsim.compressors.kernels import total
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.meter import Meter
from gcsim.compressors.registry import create
from gcsim.traces.stage1.metered import metered_exchange
from gcsim.traces.timing.kernels import matrix_bucket

HOOKS: dict[str, tuple[str, dict[str, object]]] = {
    "none": ("none", {}),
    "fp16": ("fp16", {}),
    "topk": ("topk", {"ratio": 0.01, "error_feedback": True}),
    "signsgd": ("ef_signsgd", {}),
    "powersgd": ("powersgd", {"rank": 4}),
}


def main() -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["hook", "stage", "per_payload", "kind", "launches", "bytes", "flops"])
    for hook, (name, parameters) in HOOKS.items():
        team = [create(name, Worker(rank=rank, count=2, seed=0), parameters) for rank in range(2)]
        for step in range(2):  # the second one: memories are there
            generator = torch.Generator().manual_seed(step)
            buckets = [
                matrix_bucket(torch.randn(1 << 20, generator=generator), second_moments=False)
                for _ in team
            ]
            meter = Meter(2)
            with torch.no_grad():
                lockstep(
                    [one.exchange(b, step) for one, b in zip(team, buckets, strict=True)], meter
                )
            exchange = metered_exchange(meter, None)
        for stage in ("encode", "decode"):
            own = [compute for compute in exchange.computes if compute.stage == stage]
            for each, costs in (
                (0, [cost for compute in own for cost in compute.fixed]),
                (1, [cost for compute in own for cost in compute.per_payload]),
            ):
                for cost in total(replace(cost, name="", part=False) for cost in costs):
                    out.writerow(
                        [hook, stage, each, cost.kind, cost.launches, cost.nbytes, cost.flops]
                    )


if __name__ == "__main__":
    main()
