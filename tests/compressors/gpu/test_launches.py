"""A bucket takes as many kernels for four tensors as for two."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from gcsim.compressors.bucket import Bucket
from gcsim.compressors.demands import Demands
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.participation import participate
from gcsim.errors import InputError
from tests.compressors.gpu.conftest import host_copies, whole_methods, wrap_launches
from tests.compressors.shared import Team

ALIKE: list[tuple[str, dict[str, Any]]] = [
    ("qsgd", {"coding": "elias_sparse"}),
    ("terngrad", {"packing": "two_bit"}),
    ("topk", {"ratio": 0.3, "indices": "rice"}),
    ("threshold", {"threshold": 0.5, "indices": "raw"}),
    ("bingrad_b", {"clip": 2.0}),
    ("orq", {"clip": 2.0}),
    ("alq", {}),
    ("amq", {}),
    ("cser", {}),
    ("omnireduce", {}),
]
"""Others are bounded for any number of tensors: test_bounded_launches.py."""


@pytest.mark.long
@pytest.mark.parametrize(("name", "parameters"), ALIKE)
def test_launches_and_waits_do_not_grow_with_tensors(
    name: str, parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[str] = []
    generator = torch.Generator().manual_seed(1)

    def counting(run: Callable[..., None]) -> Callable[..., None]:
        def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
            launched.append(kernel.fn.__name__)
            run(kernel, programs, *arguments, **constants)

        return launch

    wrap_launches(monkeypatch, counting)

    def step(tensors: int) -> tuple[list[str], int]:
        launched.clear()
        workers = Team(name, ((5,), (3, 4)) * (tensors // 2), workers=2, **parameters)
        with whole_methods(), host_copies() as seen:
            for at in range(2):  # of some methods the first one is a synchronisation
                gradients = torch.randn(2, workers.layout.numel, generator=generator)
                workers.step(gradients.unbind(), at)
        return list(launched), len(seen)

    assert step(4) == step(2)


FIXED: list[tuple[str, dict[str, Any]]] = [
    ("qsgd", {}),
    ("ef_signsgd", {}),
    ("orq", {}),
    ("qsgd", {"coding": "digits"}),
    ("terngrad", {"shared": False}),
    ("natural", {}),
    ("scaled_sign", {}),
    ("bingrad_b", {}),
    ("nuqsgd", {}),
]
"""Methods whose messages have one length."""


@pytest.mark.parametrize(
    ("name", "parameters"),
    [*FIXED[:3], *(pytest.param(*each, marks=pytest.mark.long) for each in FIXED[3:])],
)
def test_what_arrives_is_checked_in_one_wait_at_the_end(
    name: str, parameters: dict[str, Any]
) -> None:
    """Two payloads: Python reads one tensor after the last request, and none before."""
    crew = Team(name, ((5,), (9,), (3, 4)), workers=2, **parameters)
    gradients = torch.randn(2, 26, generator=torch.Generator().manual_seed(1))
    reads: list[list[int]] = []
    for changed in (False, True):
        members = [
            participate(worker, Bucket(layout=crew.layout, gradient=gradient), 0, finite=False,
                        unmodified=False)
            for worker, gradient in zip(crew.workers, gradients, strict=True)
        ]  # fmt: skip
        with whole_methods():
            with host_copies() as before:
                sent = [next(member).payload for member in members]  # type: ignore[union-attr]
            assert not before
            if changed:
                sent[1][-1] ^= 1
            with host_copies() as seen:
                reads.append(seen)
                wrong = pytest.raises(InputError, match="the checksum does not match")
                with wrong if changed else pytest.raises(StopIteration):
                    members[0].send(sent)
    assert len(reads[0]) == 1


@pytest.mark.parametrize(("name", "waits"), [("alq", 1), ("amq", 1), ("ok_topk", 3)])
def test_waits_of_a_step_that_fits_nothing(name: str, waits: int) -> None:
    """One for all checks; Ok-Topk's parts and survivors have lengths that nobody knows before."""
    crew = Team(name, ((5,), (9,), (3, 4)), workers=1)
    generator = torch.Generator().manual_seed(1)
    with whole_methods():
        for step in range(2):
            gradient = torch.randn(26, generator=generator)
            bucket = Bucket(layout=crew.layout, gradient=gradient)
            member = participate(crew.workers[0], bucket, step, finite=False, unmodified=False)
            with host_copies() as seen:
                lockstep([member], share=False)
    assert len(seen) == waits


@pytest.mark.parametrize("name", ["qsgd", "strom"])
def test_checks_of_an_iteration_wait_once(name: str) -> None:
    """Exchanges of two buckets leave them to the demands around, which find what is damaged."""
    crew = Team(name, ((5,), (9,), (3, 4)), workers=2)
    gradients = torch.randn(2, 26, generator=torch.Generator().manual_seed(1))
    for changed in (False, True):
        together = Demands()
        with whole_methods(), together:
            for bucket in range(2):
                members = [
                    participate(worker, Bucket(layout=crew.layout, gradient=gradient), 0,
                                finite=False, unmodified=False)
                    for worker, gradient in zip(crew.workers, gradients, strict=True)
                ]  # fmt: skip
                sent = [next(member).payload for member in members]  # type: ignore[union-attr]
                if name == "strom":  # behind the lengths
                    sent = [member.send(sent).payload for member in members]  # type: ignore[union-attr]
                if changed and bucket:
                    sent[1][-1] ^= 1
                with pytest.raises(StopIteration):
                    members[0].send(sent)
        with host_copies() as seen:
            wrong = pytest.raises(InputError, match="checksum")
            with wrong if changed else nullcontext():
                together.require()
        assert len(seen) == 1
