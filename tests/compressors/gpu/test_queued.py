"""The table of launches is that of the kernels as they are."""

from typing import Any

import numpy as np
import pytest
import torch

from gcsim.compressors.base import Worker
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.meter import Meter
from gcsim.compressors.queued import launches, queued
from gcsim.compressors.registry import check_parameters, compressor_class
from gcsim.simulator.plans import CHECKS, STEP_CHECKS
from gcsim.traces.timing.kernels import matrix_bucket, steps_of
from tests.benchmarks.launches import cases, of_the_hook, stretches

METHODS = ("qsgd", "topk", "signsgd", "terngrad", "fp8", "dgc", "gradient_sampling", "variance")


@pytest.mark.parametrize(
    "name", [METHODS[0], *(pytest.param(each, marks=pytest.mark.long) for each in METHODS[1:])]
)
def test_launches_of_a_steps_metered_kernels_are_those_that_run(name: str) -> None:
    """Within a fifth and three in a step: what a kernel launches depends on its arguments, and
    frames' launches are in the kernels of their message."""
    for phase, each in stretches(name):
        counted = np.sum([one.counts for one in each], axis=0)
        costs = [cost for one in each for cost, _ in one.calls]
        said = np.sum([cost.launches * np.array(queued(cost), dtype=float) for cost in costs], 0)
        # messages are joined by kernels that are metered as torch.cat
        for found, right in ((said[:2].sum(), counted[:2].sum()), (said[2], counted[2])):
            assert abs(found - right) <= 3 + 0.2 * right, (phase, said, counted)


def test_a_hooks_checks_launch_what_the_table_says() -> None:
    costs = [cost for each in (CHECKS, STEP_CHECKS) for cost in each.fixed]
    assert {cost.name: queued(cost) for cost in costs} == of_the_hook()


def names(name: str, given: dict[str, Any]) -> set[str]:
    """All kernels that a method is metered as, on a CPU."""
    cls, parameters = compressor_class(name), check_parameters(name, given)
    bucket = matrix_bucket(torch.linspace(-1, 1, 4096) ** 3, second_moments=bool(cls.requires))
    member, costs = cls(Worker(rank=0, count=1, seed=0), parameters), []
    for step in steps_of(cls, parameters):
        meter = Meter(1)
        with torch.no_grad():
            lockstep([member.exchange(bucket, step)], meter)
        costs += [cost for one in meter.segments[0] for cost in one.costs()]
    return {cost.name.partition(":")[0] for cost in costs if cost.launches}


@pytest.mark.long
def test_every_metered_kernel_has_an_entry() -> None:
    # the interpreter takes minutes for the Bloom filters of long tensors
    counted = [(name, given) for name, given in cases() if name != "deepreduce"]
    found = {kernel for name, given in counted for kernel in names(name, given)}
    named = {one for one in found if not one.startswith("aten.")}
    missing = named - {one.partition(":")[0] for one in launches()}
    assert not missing, (
        f"compressors/launches.csv has no line for {', '.join(sorted(missing))}: write it by "
        "PYTHONPATH=. python -m tests.benchmarks.launches > compressors/launches.csv"
    )


def test_an_operator_is_one_launch_a_plug_ins_kernel_the_mean_and_other_code_none() -> None:
    def cost(name: str) -> KernelCost:
        return KernelCost(kind="streaming", name=name, launches=1, elements=1, nbytes=4)

    assert [*queued(cost("aten.mul"))] == [0, 1, 0]
    mean = [sum(column) / len(launches()) for column in zip(*launches().values(), strict=True)]
    assert queued(cost("my_package.my_kernel")) == tuple(mean)
    assert not any(queued(cost("")))
