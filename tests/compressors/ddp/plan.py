"""Gradients of ranks under DDP and the updates to expect: shared by tests and ranks.

Gradients are known to the last bit, so that `in_lockstep` can be asked for the updates.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gcsim.compressors.base import About, Compressor, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.mistakes import new_member
from gcsim.compressors.options.method import method_of
from gcsim.compressors.participation import participate
from gcsim.compressors.registry import REGISTRY, check_parameters, compressor_class
from gcsim.errors import InputError
from tests.compressors.ddp.gloo_order import in_gloo_ring_order

SCRIPT = Path(__file__).with_name("ranks.py")
ROOT = SCRIPT.parents[3]
SHAPES = [(40, 60), (60,), (30, 8, 3, 3), (30,), (70, 30), (), (9, 50), (2500,)]
STEPS = 4
"""Of the compressor; one more iteration comes before."""
PROBE = About(
    title="Probe", family="dense", collective="all-reduce", bits="32", unbiased=True, state="none",
    paper="none",
)  # fmt: skip
"""Of compressors that tests make."""
BUCKET_MB = 0.008
SEED = 11

PHASES: dict[str, dict[str, Any]] = {
    # kinds of step that come late by default
    "torch_powersgd": {"start": 2, "rank": 2},
    "onebit_adam": {"freeze_step": 2},
    "gradient_sampling": {"tau": 2},
    "gradient_sampling_bayes": {"tau": 3},
    "tk_ccd": {"ratio": 0.5, "groups": 3},
    "ok_topk": {"threshold_interval": 2, "region_interval": 4},
    "alq": {"update_every": 2},
    "amq": {"update_every": 2},
}
OTHERS: list[tuple[str, dict[str, Any]]] = [
    # collectives that the defaults do not use
    ("qsgd", {"coding": "elias_sparse"}),
    ("terngrad", {"packing": "all_reduce"}),
    ("powersgd", {"start": 2, "rank": 3}),
]


def carried() -> list[tuple[str, dict[str, Any]]]:
    """Every registered compressor that DDP can carry, and some of their variants."""
    names = [
        name
        for name in REGISTRY
        for cls, parameters in [(compressor_class(name), check_parameters(name, {}))]
        if cls.properties(parameters).replicas == "identical" and not cls.requires
    ]
    return [(name, PHASES.get(name, {})) for name in names] + OTHERS


OPTIONS: dict[str, Any] = {
    "dense_steps": 1,
    "dense_tensors": {"below": 70, "names": ["tensors.7"]},
    "payload": "fp16",
}


SOME = ("powersgd", "topk", "count_sketch", "thc")
"""Kinds whose requests differ, for quick tests: sums, payloads, momentum, a server."""


TOGETHER: list[tuple[str, dict[str, Any]]] = [
    ("none", {}),
    ("fp16", {}),
    ("qsgd", {}),
    ("topk", {"ratio": 0.1}),
    ("dgc", {"ratio": 0.1, "warmup_epochs": 0}),
    ("signsgd", {}),
]
"""What ranks that share a GPU exchange over Gloo: all have the CPU's bytes there."""


def each_exchange() -> list[tuple[str, dict[str, Any]]]:
    """Some of `carried`, which together ask for every request and fuse some."""
    return [case for case in carried() if case in OTHERS or case[0] in SOME]


def carried_with_options(*kinds: str) -> list[tuple[str, dict[str, Any]]]:
    """Every one of `carried` with all options that mean something for it; of these kinds, where any
    are named, each option by itself too."""
    found = []
    for name, parameters in carried():
        if name == "none" or (kinds and name not in kinds):
            continue
        together = dict(parameters)
        for key, value in OPTIONS.items():
            with suppress(InputError):
                method_of(name, {**together, key: value})
                together[key] = value
                if kinds:
                    found.append((name, {**parameters, key: value}))
        if len(together) > len(parameters):
            found.append((name, together))
    return found


def gradients(step: int, rank: int) -> list[Tensor]:
    """By parameter; N(0, 1) exp(.8 N(0, 1)) of different sizes, shared in part by the ranks."""
    found = []
    for number, shape in enumerate(SHAPES):
        seeds = (1000 * step + number, 1000 * step + number + 100_000 * (rank + 1))
        common, own = (
            torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds
        )
        found.append((common + own) * (0.8 * own).exp() * 10.0 ** -(number % 3))
    return found


class Planned(nn.Module):
    """A network whose gradients are what it is given, to the last bit."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors = nn.ParameterList([nn.Parameter(torch.ones(shape)) for shape in SHAPES])

    def forward(self, given: list[Tensor]) -> Tensor:
        """d/dp of sum(p g) is g."""
        parts = [(p * g.to(p)).sum() for p, g in zip(self.tensors, given, strict=True)]
        return torch.stack(parts).sum()


def planned(device: torch.device | None = None, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(Planned().to(device), bucket_cap_mb=BUCKET_MB, **options)


def end_groups(*kept: dist.ProcessGroup) -> None:
    """Destroy all process groups but the job's own and some: threads of Gloo's poll for each."""
    made = dist.distributed_c10d._world.pg_map
    for group in [one for one in made if one not in (dist.group.WORLD, *kept)]:
        dist.destroy_process_group(group)


def gpus_for(count: int) -> bool:
    """Are there so many? What is tested as on a GPU then runs there, over NCCL; else in host
    memory, over Gloo."""
    return torch.cuda.device_count() >= count


def steps_of(model: nn.Module, rank: int, steps: int = STEPS + 1) -> Iterator[list[Tensor]]:
    """What DDP hands to the optimiser in each iteration, by parameter."""
    for step in range(steps):
        model.zero_grad()
        model(gradients(step, rank)).backward()
        yield [p.grad.clone() for p in model.parameters() if p.grad is not None]


def same_bits(one: Tensor, other: Tensor) -> bool:
    """NaN equals itself, and 0 is not -0."""
    return one.dtype == other.dtype and torch.equal(
        one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8)
    )


def layouts_of(buckets: Sequence[Sequence[int]]) -> list[BucketLayout]:
    return [
        BucketLayout.behind(number, ((f"tensors.{index}", index, SHAPES[index]) for index in of))
        for number, of in enumerate(buckets)
    ]


def in_lockstep(
    name: str,
    parameters: dict[str, Any],
    layouts: Sequence[BucketLayout],
    given: Iterable[Sequence[Sequence[Tensor]]],
) -> Iterator[list[list[Tensor]]]:
    """By step, rank and parameter; each bucket has a team of its own, as in stage 1.

    `given` holds gradients by step of the compressor, rank and parameter.
    """
    teams: list[list[Compressor]] = []
    for step, of_ranks in enumerate(given):
        count = len(of_ranks)
        workers = [Worker(rank=rank, count=count, seed=SEED) for rank in range(count)]
        method = method_of(name, parameters)
        teams = teams or [
            [new_member(method.compressor, w, method.parameters) for w in workers] for _ in layouts
        ]
        updates = [[torch.empty(0)] * len(SHAPES) for _ in range(count)]
        for layout, team in zip(layouts, teams, strict=True):
            exchanges = []
            for worker, tensors in zip(team, of_ranks, strict=True):
                flat = torch.cat([tensors[piece.index].reshape(-1) for piece in layout.slices])
                bucket = Bucket(layout=layout, gradient=flat)
                exchanges.append(participate(worker, bucket, step))
            with torch.no_grad():
                found = lockstep(exchanges, reduction=in_gloo_ring_order)
            for rank, update in enumerate(found):
                for piece, part in layout.views(update):
                    updates[rank][piece.index] = part.view(piece.shape)
        yield updates


def demand_lockstep(
    case: tuple[str, dict[str, Any]],
    found: Sequence[Any],
    given: Sequence[Sequence[Sequence[Tensor]]] | None = None,
) -> None:
    """That `found` of each rank are lockstep's updates to the bit: of the ranks' own gradients, or
    of those `given` to the nodes, by step, which as many ranks each share."""
    (name, parameters), count = case, len(found)
    assert [f["step"] for f in found] == [STEPS - 1] * count
    layouts = layouts_of(found[0]["buckets"])
    assert len(layouts) >= 3
    own = [[gradients(step + 1, rank) for rank in range(count)] for step in range(STEPS)]
    for step, updates in enumerate(in_lockstep(name, parameters, layouts, given or own)):
        first, *_ = of_ranks = [f["updates"][step + 1] for f in found]
        for rank, got in enumerate(of_ranks):
            for expected in (updates[rank * len(updates) // count], first):
                equal = [same_bits(*pair) for pair in zip(got, expected, strict=True)]
                assert all(equal), f"{name} {parameters}, step {step}, rank {rank}: {equal}"


def start_ranks(
    folder: Path, count: int, *jobs: str, timeout: float = 600, script: Path = SCRIPT
) -> list[list[Any]]:
    """What each of `count` ranks made of each job, by job and rank."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(script), str(count), str(folder), *jobs]
    with (folder / "log").open("w") as log:
        starter = subprocess.Popen(command, env=environment, stderr=log, start_new_session=True)
        try:
            code: int | None = starter.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(starter.pid, signal.SIGKILL)
            starter.wait()
    assert code == 0, (folder / "log").read_text()[-9000:]
    return [
        [torch.load(folder / f"{job}.{rank}.pt", weights_only=True) for rank in range(count)]
        for job in jobs
    ]
