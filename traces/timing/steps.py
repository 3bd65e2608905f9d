"""Timed training steps of a model on this device: T(b) = fixed + per_sample * b, through the lowest
times at two batch sizes, for whole steps (forward, loss, backward, SGD with momentum) on random
samples, since time does not depend on what is learnt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gcsim.compressors.lazy_torch import Tensor, nn, torch
from gcsim.errors import InputError
from gcsim.traces.models.building import build_model
from gcsim.traces.models.facts import model_facts
from gcsim.traces.models.losses import sample_losses
from gcsim.traces.models.registry import ModelEntry
from gcsim.traces.models.torch_generator import keyed_generator
from gcsim.traces.timing.clock import DeviceClock


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Step times of one model on one device."""

    model: str
    seconds: dict[int, float]
    """Lowest time of a step, by batch size."""
    forward_flops: int
    """Forward FLOPs per sample."""

    @property
    def line(self) -> tuple[float, float]:
        """(fixed, per sample) in seconds, through the smallest and the largest batch; through the
        origin if the small batch took too long per sample for a line."""
        small, large = min(self.seconds), max(self.seconds)
        if small == large:
            return 0.0, self.seconds[large] / large
        slope = (self.seconds[large] - self.seconds[small]) / (large - small)
        fixed = self.seconds[large] - slope * large
        if slope <= 0 or fixed < 0:
            return 0.0, self.seconds[large] / large
        return fixed, slope

    @property
    def flop_rate(self) -> float:
        """FLOP/s of the step with the largest batch, which counts as three forward passes."""
        batch = max(self.seconds)
        return 3 * self.forward_flops * batch / self.seconds[batch]


def time_steps(
    entry: ModelEntry,
    batch: int,
    clock: DeviceClock,
    *,
    repeats: int = 3,
    advance: Callable[[str], None] = lambda note: None,
) -> StepTimes:
    """Time steps at `batch` samples and at a quarter of it. Raises `InputError` if the model cannot
    be trained or does not fit in memory."""
    model = build_model(entry, seed=0, device=clock.device)
    seconds = {}
    for size in sorted({max(2, batch // 4), max(2, batch)}):
        try:
            step = _step(entry, model, size, torch.device(clock.device))
            seconds[size] = clock.time(step, repeats).lowest
        except torch.OutOfMemoryError as error:
            message = f"a batch of {size} of {entry.name} does not fit into memory"
            raise InputError(message, place="--batch", hint="choose a smaller batch") from error
        advance(f"{entry.name}, batch {size}")
    flops = model_facts(entry, model, batch).forward_flops
    return StepTimes(model=entry.name, seconds=seconds, forward_flops=flops)


def _step(
    entry: ModelEntry, model: nn.Module, size: int, device: torch.device
) -> Callable[[], object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    inputs, labels = samples(entry, size, device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = sample_losses(entry, model(inputs), labels).mean()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        optimizer.step()

    return step


def samples(entry: ModelEntry, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Draw random inputs and labels for a batch of `size`."""
    with keyed_generator(0, "samples for timing"):
        if entry.input == "tokens":
            tokens = torch.randint(entry.classes, (size, *entry.input_shape))
            return tokens.to(device), tokens.to(device)
        inputs = torch.randn(size, *entry.input_shape)
        return inputs.to(device), torch.randint(entry.classes, (size,)).to(device)
