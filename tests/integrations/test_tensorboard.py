"""The curves of `gcsim train` as TensorBoard reads them: with its own reader."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

import gcsim
from gcsim.cli.app import app


def test_every_curve_is_a_run_with_its_values_on_the_clusters_clock(tmp_path: Path) -> None:
    events, results = tmp_path / "events", tmp_path / "results"
    words = ["train", "digits_8", "-q", "-o", str(results), "--tensorboard", str(events)]
    for _ in range(2):  # a second time replaces
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    curves = gcsim.train("digits_8").curves
    assert len(list(events.iterdir())) == len(curves) > 30
    for curve in curves:
        name = f"{curve.label.replace('/', '_')}, seed {curve.seed}"
        found = EventAccumulator(str(events / name))
        found.Reload()
        accuracy = found.Scalars("held_out/accuracy")
        assert tuple(one.step for one in accuracy) == curve.steps
        for of, values in (("held_out/accuracy", curve.accuracy), ("held_out/loss", curve.loss)):
            pairs = zip(found.Scalars(of), values, strict=True)
            assert all(one.value == pytest.approx(value, rel=1e-6) for one, value in pairs)
        for one, seconds in zip(accuracy, curve.seconds, strict=True):
            assert one.wall_time == pytest.approx(seconds, rel=1e-6)
        sent = found.Scalars("sent/bytes_per_worker_and_step")
        assert [one.step for one in sent] == list(curve.steps[-len(sent) :])
        for one, sent_bytes in zip(sent, curve.wire_bytes_per_worker, strict=True):
            assert one.value == pytest.approx(sent_bytes, rel=1e-6)
