"""Launches of a bucket by methods that select, round or send bits: bounded, for one tensor as for
many."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.demands import Demands
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.registry import create
from tests.compressors.gpu.conftest import host_copies, whole_methods, wrap_launches
from tests.compressors.shared import layout_of_shapes

FREE = ("empty", "new_empty", "detach", "_local_scalar", "lift", "is_pinned", "clone", "copy_")
"""PyTorch's operators that launch nothing; copies of the reply are the lockstep driver's."""
MOST: list[tuple[str, dict[str, Any], int, int]] = [
    ("topk", {}, 13, 0),
    ("gtopk", {}, 15, 0),
    ("ok_topk", {}, 24, 3),
    ("dgc", {}, 17, 1),
    ("threshold", {}, 23, 2),
    ("strom", {}, 12, 1),
    ("variance", {}, 13, 1),
    ("variance_hybrid", {}, 11, 1),
    ("dryden", {}, 21, 1),
    ("gradient_dropping", {}, 19, 1),
    ("variance_bounded", {}, 22, 1),
    ("randomk", {}, 15, 0),
    ("gradient_sampling", {}, 10, 1),
    ("gradient_sampling_bayes", {}, 18, 1),
    ("random_sampling_bayes", {}, 19, 1),
    ("tk_ccd", {}, 8, 0),
    ("ef_signsgd", {}, 10, 0),
    ("scaled_sign", {}, 10, 0),
    ("ef_block_sgdm", {}, 16, 0),
    ("signsgd", {}, 14, 0),
    ("onebit_adam", {"freeze_step": 0}, 17, 0),
    ("onebit_sgd", {}, 18, 0),
    ("bingrad_b", {}, 12, 0),
    ("bingrad_pb", {}, 12, 0),
    ("qsgd", {}, 9, 0),
    ("qsgd", {"coding": "digits", "steps": 2}, 9, 0),
    ("natural", {}, 7, 0),
    ("nuqsgd", {}, 9, 0),
    ("terngrad", {}, 10, 0),
    ("orq", {}, 11, 0),
    ("linear", {}, 11, 0),
    ("fp8", {}, 12, 0),
    ("dynamic_8bit", {}, 13, 0),
]
"""Launches, at most three more than there are, so that one for each of five tensors is too many,
and tensors that the host reads: of an encoding and a decoding; of both ways where a server or owner
codes the mean again. A message of variable length takes one wait for its length (Ok-Topk sends two;
indices whose coder depends on k are read with the headers)."""
QUICK = ("topk", "ef_signsgd", "orq")
"""Of a method that selects, sends bits and rounds, of one tensor too."""


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Notes PyTorch's operators that run on a device, and kernels."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []
        self._inside = False

    def __torch_dispatch__(self, call: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = call._schema.name.removeprefix("aten::")
        views = any(one.alias_info and not one.alias_info.is_write for one in call._schema.returns)
        self.seen += [name] * (not (self._inside or views or name.startswith(FREE)))
        return call(*args, **(kwargs or {}))

    def wrap(self, run: Callable[..., None]) -> Callable[..., None]:
        """A kernel's launch; the interpreter's own operators are none."""

        def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
            self.seen += [kernel.fn.__name__] * (programs > 0)
            self._inside = True
            run(kernel, programs, *arguments, **constants)
            self._inside = False

        return launch


def counted(
    name: str, parameters: dict[str, Any], tensors: int, patch: pytest.MonkeyPatch
) -> tuple[int, int, int]:
    """(launches, reads) of the second step of a worker alone, and reads of its checks."""
    layout = layout_of_shapes(((9, 2),) * tensors)
    member = create(name, Worker(rank=0, count=1, seed=0), parameters)
    found = Operators()
    generator, seen, reads = torch.Generator().manual_seed(1), list[int](), 0
    with patch.context() as own:
        wrap_launches(own, found.wrap)
        for step in range(2):
            gradient = torch.randn(layout.numel, generator=generator)
            moment = 2 * gradient.square() if member.requires else None
            bucket = Bucket(layout=layout, gradient=gradient, second_moment=moment)
            found.seen, demands = [], Demands()
            with whole_methods(), host_copies() as seen, demands:
                with found:
                    lockstep([member.exchange(bucket, step)])
                reads = len(seen)
                demands.require()
    return len(found.seen), reads, len(seen) - reads


@pytest.mark.parametrize(
    ("name", "parameters", "launches", "reads"),
    [one if one[0] in QUICK else pytest.param(*one, marks=pytest.mark.long) for one in MOST],
)
def test_launches_are_few_for_any_number_of_tensors(
    name: str,
    parameters: dict[str, Any],
    launches: int,
    reads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for tensors in (1, 5) if name in QUICK else (5,):
        found = counted(name, parameters, tensors, monkeypatch)
        assert found[0] <= launches
        assert found[1] <= reads
        assert found[2] <= 1
