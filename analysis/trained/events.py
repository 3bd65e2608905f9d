"""How does TensorBoard see a training? As one run a method and seed, on the cluster's clock.

Wall times are simulated seconds on the largest cluster, so that TensorBoard's horizontal axis
"relative" compares methods as the target does, and "step" as iterations do.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from gcsim.errors import InputError
from gcsim.scenarios.result import Curve
from gcsim.scenarios.trained.result import TrainingResult


def require_tensorboard(place: str) -> None:
    """Raise `InputError` where the package is not installed; `place` is what asks for it."""
    if find_spec("tensorboard") is None:
        hint = "pip install 'gcsim[tensorboard]'"
        raise InputError("needs tensorboard, which is not installed", place=place, hint=hint)


def write_events(result: TrainingResult, folder: Path) -> tuple[Path, ...]:
    """A folder a curve in `folder`, with the scalars `held_out/accuracy` (a fraction),
    `held_out/loss`, `sent/bytes_per_worker_and_step` and `update/nmse`; the folders. Events of the
    same curves that an earlier call left are replaced."""
    return tuple(_write(curve, folder / _name(curve)) for curve in result.curves)


def _name(curve: Curve) -> str:
    return f"{curve.label.replace('/', '_')}, seed {curve.seed}"


def _write(curve: Curve, folder: Path) -> Path:
    from torch.utils.tensorboard import SummaryWriter

    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()
    points = list(zip(curve.steps, curve.seconds, strict=True))
    series: dict[str, tuple[float | None, ...]] = {
        "held_out/accuracy": curve.accuracy,
        "held_out/loss": curve.loss,
        "sent/bytes_per_worker_and_step": curve.wire_bytes_per_worker,
        "update/nmse": curve.nmse,
    }
    with SummaryWriter(str(folder)) as writer:
        for name, values in series.items():
            # what is of the steps between two evaluations stands at the second
            for (step, seconds), value in zip(points[-len(values) :], values, strict=True):
                if value is not None:
                    writer.add_scalar(name, value, step, walltime=seconds)
    return folder
