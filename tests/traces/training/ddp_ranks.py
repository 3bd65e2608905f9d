"""Real DistributedDataParallel with `gcsim.ddp_hook`: the weights after a training. A script.

    python ddp_ranks.py FOLDER

Ranks are forked, so that torch is imported once; rank 0 leaves FOLDER/weights.pt, by method.
"""

import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DDP would in each rank
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gcsim
from gcsim.traces.models.building import build_model, trainable
from gcsim.traces.models.losses import sample_losses
from gcsim.traces.tasks.registry import make_split
from gcsim.traces.training.plan import Partition
from gcsim.traces.training.shares import Shares
from tests.forked import ranks
from tests.traces.training.world import BATCH, entry

RANKS, STEPS, RATE, MOMENTUM, SEED = 4, 20, 0.05, 0.9, 0
CAP = 512
"""Bytes of a bucket: the small model has two."""
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("none", {}), ("ef_block_sgdm", {}), ("onebit_adam", {"freeze_step": 8}),
    ("topk", {"ratio": 0.05}), ("dgc", {"ratio": 0.05}), ("gradient_sampling_bayes", {"tau": 7}),
    ("powersgd", {"rank": 2}), ("count_sketch", {}), ("thc", {}),
]  # fmt: skip
"""Of each memory, momentum and kind of exchange; updates of all: `test_ddp.py`."""


def trained(rank: int, kind: str, parameters: dict[str, Any], group: Any) -> torch.Tensor:
    made = entry()
    data = make_split(made, SEED).train
    shares = Shares(data, workers=RANKS, batch=BATCH, seed=SEED, partition=Partition())
    net = build_model(made, seed=SEED)
    model = DistributedDataParallel(net, bucket_cap_mb=CAP / 2**20)
    hook = gcsim.ddp_hook(kind, seed=SEED, process_group=group, **parameters).register(model)
    own = hook._method.checked.compressor.momentum(hook.parameters)[0] > 0
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0 if own else MOMENTUM)
    for step in (0, *range(STEPS)):  # DDP's first exchange is uncompressed: its update is not used
        first = hook.step < -1
        inputs, labels = data.taken(shares.indices(rank, step))
        losses = sample_losses(made, model(inputs), labels) / BATCH
        hook.loss = float(losses.detach().sum())
        optimizer.zero_grad()
        losses.sum().backward()  # type: ignore[no-untyped-call]
        if not first:
            optimizer.step()
    assert hook.step == STEPS - 1
    return torch.cat([parameter.detach().flatten() for _, parameter in trainable(net)])


def work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=RANKS,
        timeout=timedelta(seconds=600),
    )  # fmt: skip
    group = dist.new_group(backend="gloo")
    found = [trained(rank, kind, parameters, group) for kind, parameters in METHODS]
    if rank == 0:
        torch.save(found, folder / "weights.pt")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    ranks(work, RANKS, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
