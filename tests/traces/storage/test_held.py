"""Gradients that stay on their device: those of a stored trace, and stage 1 copies none of them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gcsim.compressors import on_device
from gcsim.compressors.registry import check_parameters, compressor_class
from gcsim.errors import InputError
from gcsim.traces.buckets import bucket_layouts
from gcsim.traces.live import WorkerGradients
from gcsim.traces.models.registry import MODELS
from gcsim.traces.recording.model_traces import record_live
from gcsim.traces.stage1.measure import Subject, measure
from gcsim.traces.storage.held import HeldTrace
from gcsim.traces.storage.store import Trace

LENET: dict[str, Any] = {
    "model": MODELS["lenet"], "batch_size": 4, "workers": 2, "warmup_steps": 1, "iterations": 2,
    "learning_rate": 0.01, "momentum": 0.9, "device": "cpu", "seed": 0,
}  # fmt: skip


def subject(kind: str) -> Subject:
    return Subject(
        kind=kind, compressor=compressor_class(kind), parameters=check_parameters(kind, {})
    )


def test_held_gradients_give_the_profile_of_stored_ones(tmp_path: Path) -> None:
    held = HeldTrace()
    record_live(**LENET, second_moments=True, held=held, folder=tmp_path / "none")
    assert not list(tmp_path.iterdir())
    stored = Trace.open(record_live(**LENET, second_moments=True, folder=tmp_path / "trace"))
    layouts = bucket_layouts(
        stored.parameters, stored.facts.ready_order, first=1 << 10, cap=1 << 16
    )
    subjects = [subject("topk"), subject("variance"), subject("dgc")]
    one, other = (
        measure(subjects, trace, layouts, workers=2, seed=0, provenance=trace.source)
        for trace in (held, stored)
    )
    assert one == other


def test_gradients_that_are_no_numbers_are_refused_by_name() -> None:
    held = HeldTrace()
    held.parameters = [("weight", (2,))]
    taken = WorkerGradients(
        iteration=3, worker=1, loss=0.0, gradients=(torch.tensor([1.0, float("nan")]),)
    )
    with pytest.raises(InputError, match="iteration 3, worker 1") as caught:
        held.add(taken)
    assert caught.value.problems[0].place == "tensor weight"


def test_stage_1_on_a_device_reads_no_vector_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Triton's interpreter as the device, all that reaches numpy has visited the host."""
    pytest.importorskip("triton")
    held = HeldTrace()
    record_live(**{**LENET, "iterations": 1}, held=held, folder=Path())
    visits: list[int] = []
    host = torch.Tensor.numpy

    def numpy(tensor: torch.Tensor, **given: bool) -> Any:
        visits.append(tensor.numel())
        return host(tensor, **given)

    def run() -> int:
        visits.clear()
        measure(subjects, held, layouts[:1], workers=2, seed=0, provenance={})
        return max(visits, default=0)

    monkeypatch.setattr(torch.Tensor, "numpy", numpy)
    subjects = [subject("none"), subject("fp16"), subject("topk")]
    layouts = bucket_layouts(held.parameters, first=1, cap=1)
    numel = layouts[0].numel
    assert run() >= numel, "in host memory loops read the gradients"
    monkeypatch.setattr(on_device, "interpreted", True)
    assert run() < numel // 8
