"""Recording: from a model's name to a trace that serves stage 1, or to nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gcsim.errors import InputError
from gcsim.traces.buckets import bucket_layouts
from gcsim.traces.live import LiveTrainer
from gcsim.traces.models.building import build_model
from gcsim.traces.models.registry import shipped_model
from gcsim.traces.recording.model_traces import record_live
from gcsim.traces.storage.store import Trace
from gcsim.traces.tasks.images import Textures

LENET: dict[str, Any] = {
    "model": shipped_model("lenet"),
    "batch_size": 8,
    "workers": 2,
    "warmup_steps": 3,
    "iterations": 2,
    "learning_rate": 0.01,
    "momentum": 0.9,
    "device": "cpu",
    "seed": 5,
}


def test_a_trace_holds_what_the_trainer_makes(tmp_path: Path) -> None:
    trace = Trace.open(record_live(**LENET, folder=tmp_path / "trace"))
    trainer = LiveTrainer(
        shipped_model("lenet"),
        build_model(shipped_model("lenet"), seed=5),
        Textures((1, 32, 32), 10, 5),
        batch_size=8,
        learning_rate=0.01,
        momentum=0.9,
        seed=5,
    )
    assert trace.source["warmup_losses"] == list(trainer.warm_up(3))
    layouts = bucket_layouts(trace.parameters)
    losses = []
    for taken in trainer.gradients(2, 2):
        losses.append(taken.loss)
        for layout in layouts:
            bucket = trace.bucket(layout, taken.iteration, taken.worker)
            for piece, part in layout.views(bucket.gradient):
                assert torch.equal(part, taken.gradients[piece.index].flatten())
    assert trace.source["losses"] == losses
    assert trace.facts.parameters == 61_706
    assert trace.facts.samples_per_worker == 8
    assert not trace.has_second_moments


def test_equal_seeds_record_equal_bytes(tmp_path: Path) -> None:
    one = record_live(**LENET, second_moments=True, folder=tmp_path / "one")
    other = record_live(**LENET, second_moments=True, folder=tmp_path / "other")
    for path in one.iterdir():
        assert path.read_bytes() == (other / path.name).read_bytes()


def test_second_moments_come_with_their_costs(tmp_path: Path) -> None:
    trace = Trace.open(record_live(**LENET, second_moments=True, folder=tmp_path / "trace"))
    (layout,) = bucket_layouts(trace.parameters, first=1 << 30)
    bucket = trace.bucket(layout, 1, 1, second_moments=True)
    assert bucket.second_moment is not None
    # Cauchy-Schwarz over the 8 samples
    assert bool((bucket.gradient**2 <= 8 * bucket.second_moment * 1.0001 + 1e-12).all())
    assert sorted(trace.moment_costs) == list(range(10))


def test_progress_counts_every_step_to_the_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    record_live(
        **LENET, folder=tmp_path / "t", progress=lambda _what, done, of: seen.append((done, of))
    )
    assert seen == [(done, 7) for done in range(8)]  # 3 warm-up steps, 2 iterations x 2 workers


def test_a_limit_shortens_the_trace_and_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    folder = record_live(
        **{**LENET, "iterations": 5},
        folder=tmp_path / "t",
        max_bytes=1_100_000,  # an iteration of two workers: 2 x (4 x 61,706 + header) = 0.5 MB
        progress=lambda what, _done, _of: said.append(what),
    )
    trace = Trace.open(folder)
    assert trace.iterations == 2
    assert trace.nbytes <= 1_100_000
    assert said[-1] == "kept 2 of 5 iterations: no more fit"


@pytest.mark.parametrize("when", ["training", "gradients"])
def test_an_interrupt_leaves_nothing(tmp_path: Path, when: str) -> None:
    def interrupt(what: str, _done: int, _of: int) -> None:
        if what.startswith(when):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record_live(**LENET, folder=tmp_path / "trace", progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_a_diverging_training_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="training diverged"):
        record_live(**{**LENET, "learning_rate": 1e8}, folder=tmp_path / "trace")
    assert list(tmp_path.iterdir()) == []


def test_the_threads_and_device_are_told(tmp_path: Path) -> None:
    source = Trace.open(record_live(**LENET, folder=tmp_path / "trace")).source
    assert str(source["device"]).startswith("CPU")
    assert source["threads"] == torch.get_num_threads()
    assert source["seed"] == 5
