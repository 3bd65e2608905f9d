"""What do methods make of the gradients of a training run, step after step, tensor by tensor?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gcsim.compressors.base import Worker
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.mistakes import new_member
from gcsim.compressors.participation import participate
from gcsim.compressors.registry import check_parameters, compressor_class
from gcsim.scenarios.progress import Progress
from gcsim.scenarios.running.gradients import open_gradients
from gcsim.scenarios.scenario import Scenario
from gcsim.traces.buckets import bucket_layouts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """One tensor in one step: float32 `[n]` each."""

    name: str
    step: int
    """From 0."""
    dense: Tensor
    """The mean of the workers' gradients."""
    updates: dict[str, tuple[Tensor, ...]]
    """By label: what a method delivers, by seed of its random numbers."""


def updates(scenario: Scenario, *, tensors: int, seeds: int, progress: Progress) -> Iterator[Seen]:
    """The largest `tensors` tensors of every iteration, under all methods of the scenario.

    All see the gradients of dense training. Raises `InputError` as recording does.
    """
    with open_gradients(scenario, second_moments=False, progress=progress) as trace:
        names = sorted(trace.parameters, key=lambda named: -torch.Size(named[1]).numel())
        layouts = bucket_layouts(names[:tensors][::-1], first=1, cap=1)  # a bucket a tensor
        members = {
            (choice.label, layout.index, seed): [
                new_member(
                    compressor_class(choice.kind),
                    Worker(rank=rank, count=trace.workers, seed=seed),
                    check_parameters(choice.kind, choice.parameters),
                )
                for rank in range(trace.workers)
            ]
            for choice in scenario.compressors
            for layout in layouts
            for seed in range(seeds)
        }
        for step in range(trace.iterations):
            for layout in layouts:
                buckets = [trace.bucket(layout, step, rank) for rank in range(trace.workers)]
                found = {
                    choice.label: tuple(
                        lockstep(
                            [
                                participate(member, bucket, step)
                                for member, bucket in zip(
                                    members[choice.label, layout.index, seed], buckets, strict=True
                                )
                            ]
                        )[0]
                        for seed in range(seeds)
                    )
                    for choice in scenario.compressors
                }
                yield Seen(
                    name=layout.slices[0].name,
                    step=step,
                    dense=torch.stack([bucket.gradient for bucket in buckets]).mean(0),
                    updates=found,
                )
