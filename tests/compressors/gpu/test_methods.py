"""Whole methods on kernels: the payloads and updates of the loops, and nothing long on the host."""

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gcsim.compressors import check, on_device
from gcsim.compressors.conformance import CHECKS
from gcsim.compressors.segments import Segments
from gcsim.compressors.sparsification.by_threshold import adacomp
from tests.compressors.gpu.conftest import ON_HOST, equal, host_copies, kernels, whole_methods
from tests.compressors.shared import Team
from tests.process import printed

SHAPES = ((30, 9), (1,), (0, 3), (2100,))
QUICK: list[tuple[str, dict[str, Any]]] = [("ef_signsgd", {}), ("threshold", {"threshold": 0.5})]
MORE: list[tuple[str, dict[str, Any]]] = [
    ("topk", {"ratio": 0.05, "indices": "rice"}),
    ("qsgd", {"norm": "l2", "steps": 15, "bucket": None}),
    ("qsgd", {"coding": "digits", "steps": 1}),
    ("qsgd", {"coding": "elias_sparse", "norm": "l2"}),
    ("terngrad", {"packing": "two_bit", "shared": False}),
    ("terngrad", {"packing": "all_reduce"}),
    ("natural", {"bits": 8}),
    ("fp8", {"format": "e5m2"}),
    ("topk", {"indices": "bitmap", "values": "fp16"}),
    ("topk", {"indices": "packed", "error_feedback": False}),
    ("randomk", {"ratio": 0.6, "scaled": True}),
    ("gradient_sampling_bayes", {"tau": 2, "unbiased": True, "values": "fp32"}),
    ("random_sampling_bayes", {"residual": True}),
    ("tk_ccd", {"ratio": 0.5, "groups": 3, "values": "fp32"}),
    ("variance_bounded", {"bound": 0.5}),
    ("dgc", {"nesterov": True, "ratio": 0.05, "too_many": "rescale", "sample_ratio": 0.1}),
    ("bingrad_b", {"clip": 1.7, "bucket": 100}),
    ("orq", {"refine": True, "clip": 2.5, "levels": 9, "bucket": 500}),
    ("linear", {"levels": 3}),
    ("onebit_adam", {"freeze_step": 1}),
    ("threshold", {"threshold": 0.5, "error_feedback": False, "values": "fp16"}),
    ("qsparse_local_sgd", {"interval": 1}),
]
"""Defaults are in `test_every_method.py`."""


def exchanged(
    name: str, shapes: Sequence[tuple[int, ...]], on_kernels: bool, **parameters: Any
) -> tuple[list[Tensor], list[int]]:
    """Updates and payloads of two steps of two workers, and bytes of what came to the host."""
    workers = Team(name, shapes, **parameters)
    generator, found = torch.Generator().manual_seed(3), []
    with whole_methods() if on_kernels else nullcontext(), host_copies() as seen:
        for step in range(2):
            gradients = torch.randn(2, workers.layout.numel, generator=generator)
            found += workers.step(gradients.unbind(), step)
            found += [each for sent in workers.listener.as_sent for each in sent]
    return found, seen


@pytest.mark.parametrize(
    ("name", "parameters"),
    [*QUICK, *(pytest.param(*each, marks=pytest.mark.long) for each in MORE)],
)
def test_payloads_and_updates_are_the_loops(name: str, parameters: dict[str, Any]) -> None:
    expected, _ = exchanged(name, SHAPES, False, **parameters)
    found, seen = exchanged(name, SHAPES, True, **parameters)
    assert equal(found, expected)
    assert max(seen) <= ON_HOST


@pytest.mark.parametrize("too_many", ["resample", pytest.param("rescale", marks=pytest.mark.long)])
def test_dgc_treats_samples_of_many_tensors_together(too_many: str) -> None:
    """Some are all looked at; some have thresholds that let too many or too few pass."""

    def run() -> list[Tensor]:
        shapes = ((30, 70), (3, 4), (7,), (40, 20), (9, 1))
        given: dict[str, Any] = {"ratio": 0.05, "sample_ratio": 0.02, "values": "fp16"}
        workers, found = Team("dgc", shapes, workers=1, too_many=too_many, **given), list[Tensor]()
        generator = torch.Generator().manual_seed(5)
        for step in range(5):
            gradient = torch.randn(workers.layout.numel, generator=generator) ** 5
            found += workers.step([gradient], step)
            found += [each for sent in workers.listener.as_sent for each in sent]
        state = workers.workers[0].state
        return [*found, *state["momentum"].values(), *state["velocity"].values()]

    expected = run()
    with whole_methods():
        assert equal(run(), expected)


def test_a_method_without_kernels_is_noticed() -> None:
    """The test above looks at what is copied to the host; so this must be seen."""
    values, bins = torch.randn(1000), Segments.alone(1000).cells(50)
    with kernels(), host_copies() as seen:
        adacomp.encoded(torch.zeros(1000), values, bins)
    assert max(seen) > ON_HOST


def test_nobody_asks_for_triton_where_tensors_lie_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked() -> bool:
        raise AssertionError("Triton was asked for")

    monkeypatch.setattr(on_device, "_has_triton", asked)
    workers = Team("topk", SHAPES, workers=2)
    workers.step(torch.randn(2, workers.layout.numel).unbind(), 0)
    with whole_methods(), pytest.raises(AssertionError, match="asked for"):
        workers.step(torch.randn(2, workers.layout.numel).unbind(), 1)


@pytest.mark.parametrize(("capability", "has_kernels"), [((6, 0), False), ((7, 0), True)])
def test_a_gpu_that_triton_does_not_compile_for_has_no_kernels(
    capability: tuple[int, int], has_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: capability)
    on_device._new_enough.cache_clear()
    there: Any = SimpleNamespace(is_cuda=True, device="cuda:0")
    assert on_device.handled(there) == has_kernels
    on_device._new_enough.cache_clear()


def test_no_part_of_gcsim_imports_triton_where_there_is_no_gpu() -> None:
    """With all methods, the hook, recording and calibration loaded, and torch."""
    code = (
        "import sys, torch, gcsim\n"
        "import gcsim.compressors.ddp.hook, gcsim.scenarios.calibration.device\n"
        "import gcsim.traces.recording.recording\n"
        "from gcsim.compressors.registry import REGISTRY, compressor_class\n"
        "assert all(compressor_class(name) for name in REGISTRY)\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] == 'triton'))\n"
    )
    assert printed("-c", code) == "[]\n"


@pytest.mark.long
@pytest.mark.parametrize("name", ["fp16"])
def test_a_method_on_kernels_passes_all_checks(name: str) -> None:
    with whole_methods():
        assert check(name) == tuple(CHECKS)
