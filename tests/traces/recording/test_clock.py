"""Instants of a pass, from a clock that goes on by hand."""

from typing import Any

import pytest
import torch
from torch import nn

from gcsim.traces.models.building import trainable
from gcsim.traces.recording import clock as recording_clock
from gcsim.traces.recording.clock import OnePass, PassClock, can_be_timed, median_pass
from tests.compressors.standin import pretended_gpu


class ByHand:
    """A clock that stands still until somebody moves it."""

    def __init__(self) -> None:
        self.at = 0.0


class Slow(torch.autograd.Function):
    """Takes 3 s forward and 5 s backward."""

    @staticmethod
    def forward(context: Any, given: torch.Tensor, hand: ByHand) -> torch.Tensor:
        context.hand = hand
        hand.at += 3
        return given.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        context.hand.at += 5
        return gradients[0], None


class Two(nn.Module):
    def __init__(self, hand: ByHand) -> None:
        super().__init__()
        self.first, self.last, self.hand = nn.Linear(2, 2), nn.Linear(2, 2), hand

    def forward(self, given: torch.Tensor) -> Any:
        for layer in (self.first, self.last):
            given = Slow.apply(layer(given), self.hand)  # type: ignore[no-untyped-call]
        return given


def clocked(
    monkeypatch: pytest.MonkeyPatch, *, exchanges: bool, steps: bool = True, passes: int = 1
) -> OnePass | None:
    """Loss 1 s, then 7 s of waiting, then 2 s of the optimiser, then 11 s of something else."""
    hand = ByHand()
    monkeypatch.setattr(recording_clock, "clock_of", lambda device: lambda: hand.at)
    model = Two(hand)
    clock = PassClock(model, trainable(model), exchanges=exchanges)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    clock.start()
    try:
        for _ in range(passes):
            with torch.no_grad():
                model(torch.ones(1, 2))  # an evaluation is no pass
            hand.at += 100  # the next batch is loaded
            out = model(torch.ones(1, 2)).sum()
            hand.at += 1
            out.backward()
        hand.at += 7
        if steps:
            handle = optimizer.register_step_pre_hook(lambda *_: setattr(hand, "at", hand.at + 2))
            optimizer.step()
            handle.remove()
        hand.at += 11
        return clock.turn()
    finally:
        clock.stop()


@pytest.mark.parametrize("passes", [1, 3])
def test_a_pass_is_told_from_what_is_around_it(
    monkeypatch: pytest.MonkeyPatch, passes: int
) -> None:
    found = clocked(monkeypatch, exchanges=False, passes=passes)
    assert found is not None
    assert found.forward == 6
    # the last layer's after the loss and its own 5 s, the first one's 5 s later
    assert list(found.ready) == [11, 11, 6, 6]
    assert found.backward == 11 + 7 + 2


def test_waiting_for_other_ranks_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = clocked(monkeypatch, exchanges=True)
    assert found is not None
    assert found.backward == 11 + 2


def test_without_an_optimiser_the_last_gradient_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = clocked(monkeypatch, exchanges=False, steps=False)
    assert found is not None
    assert found.backward == 11


def test_medians_are_taken_time_by_time() -> None:
    passes = [
        OnePass(forward=1, ready=(5, 1), backward=6),
        OnePass(forward=9, ready=(4, 2), backward=5),
        OnePass(forward=2, ready=(9, 3), backward=99),
    ]
    found = median_pass(passes, torch.device("cpu"))
    assert (found.forward, found.ready, found.backward) == (2, (5, 2), 6)


def test_parameters_on_several_devices_cannot_be_timed() -> None:
    here, there = nn.Linear(1, 1), nn.Linear(1, 1, device="meta")
    assert can_be_timed(trainable(here))
    assert not can_be_timed(trainable(there))
    assert not can_be_timed([*trainable(here), *trainable(there)])


def test_on_a_gpu_a_pass_is_timed_by_events_of_its_stream() -> None:
    """Each event of the stand-in is a millisecond behind the one before it."""
    model, data = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.ones(1, 2)
    with pretended_gpu() as gpu:
        clock = PassClock(model, trainable(model))
        clock.start()
        try:
            model(data).sum().backward()
            assert gpu.waits == 0
            found = clock.turn()
        finally:
            clock.stop()
    assert found is not None
    assert (found.forward, sorted(found.ready)) == (1e-3, [1e-3, 2e-3, 3e-3, 4e-3])
    assert found.backward == 4e-3
