"""Collectives of a training step of PyTorch's FSDP2 over Gloo, as rank 0 calls them. A script.

    python fsdp_ranks.py FOLDER STAGE

leaves FOLDER/called.json: kind and elements of each, for that stage of ZeRO.
"""

import json
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from tests.forked import ranks

RANKS, WIDTH, VOCABULARY, BLOCKS = 2, 16, 48, 3


class Block(nn.Module):
    """Two products with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(torch.relu(self.up(x)))
        return out


class Model(nn.Module):
    """Embedding, blocks and an output."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens).clone()
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.output(x).clone()
        return out


def step(rank: int, folder: Path, stage: int) -> None:
    """Shard embedding, blocks and output, the last of which keeps its weights; train a step."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    torch.manual_seed(0)
    model = Model()
    for module in (model.embedding, *model.layers):
        fully_shard(module, reshard_after_forward=stage == 3)
    fully_shard(model.output, reshard_after_forward=False)
    fully_shard(model)
    found: list[tuple[str, int]] = []

    def noting(kind: str, call: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
            found.append((kind, max(tensor.numel() for tensor in tensors)))  # the whole, not a part
            return call(*args, **kwargs)

        return noted

    dist.all_gather_single = noting("gather", dist.all_gather_single)
    dist.reduce_scatter_single = noting("scatter", dist.reduce_scatter_single)
    model(torch.arange(8).reshape(2, 4)).square().mean().backward()
    if rank == 0:
        (folder / "called.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    ranks(step, RANKS, Path(sys.argv[1]), int(sys.argv[2]))
