"""What a rank of a small DistributedDataParallel job does; run by `test_ranks.py`.

    python recorded_ranks.py RANK FOLDER

Two ranks on gloo that find each other by a file. They train once for each of `KINDS`, which says
what is recorded, and what goes wrong, in a folder of its name: the weights at the end go to
`weights-RANK.pt`, a refusal to `error-RANK`.
"""

import datetime
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gcsim
from gcsim.errors import InputError
from gcsim.traces.recording import loop

RANKS, STEPS = 2, 8
KINDS = ("alone", "together", "views", "apart", "nan")


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(40, 300), nn.ReLU(), nn.Linear(300, 300), nn.Linear(300, 7))


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(16, 40, generator=generator)
    return inputs, torch.randint(0, 7, (16,), generator=generator)


def train(model: nn.Module, rank: int, recording: Any, broken: int = -1) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, labels = batch(rank, step)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        if step == broken and rank == 1:
            loss = loss * float("nan")
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if recording is not None:
            recording.step(loss)


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=RANKS,
        timeout=datetime.timedelta(seconds=600),
    )
    for kind in KINDS:
        job(rank, folder / kind, kind)
    dist.destroy_process_group()


def job(rank: int, folder: Path, kind: str) -> None:
    reads = loop._reads
    if kind == "apart" and rank == 1:  # as on machines without a shared file system
        loop._reads = lambda path, expected: False
    model = DistributedDataParallel(
        network(), bucket_cap_mb=0.2, gradient_as_bucket_view=kind == "views"
    )
    if kind == "alone":
        train(model, rank, None)
    else:
        try:
            with gcsim.record(model, folder / "trace", iterations=3, timed=2) as recording:
                train(model, rank, recording, broken=1 if kind == "nan" else -1)
        except InputError as error:
            (folder / f"error-{rank}").write_text(str(error))
    loop._reads = reads
    torch.save(model.module.state_dict(), folder / f"weights-{rank}.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
