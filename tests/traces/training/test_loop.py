"""A trajectory goes on where it was left, tells what was sent, and ends early where it must."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gcsim.traces.profile import holds_together
from gcsim.traces.training import loop
from gcsim.traces.training.loop import Rules, advance, load, put_away
from gcsim.traces.training.plan import Schedule, Stop, Target
from gcsim.traces.training.team import Team
from gcsim.traces.training.trajectory import Evaluation, Trajectory, steps_to
from tests.traces.training.world import fresh, method, team

RULES = Rules(evaluate_every=10, schedule=Schedule(), target=Target(accuracy=0.9), stop=Stop())


def trained(
    folder: Path, kind: str, steps: int = 40, *, rate: float = 0.05, **given: Any
) -> Trajectory:
    chosen = method(kind, **given)
    of = team(chosen)
    return advance(of, fresh(chosen, of, steps, rate=rate), RULES, folder / kind)


class KilledError(Exception):
    pass


@pytest.mark.parametrize("kind", ["topk", "powersgd", "cser", "variance"])
def test_killed_at_any_step_it_ends_with_the_same_bits(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times stopped in the middle of a window, each time by another process's team."""
    whole = trained(tmp_path / "whole", kind)
    monkeypatch.setattr(loop, "KEEP_EVERY", 0.0)
    drawn = random.Random(kind)
    for stop in sorted(drawn.sample(range(1, 40), 3)):
        chosen = method(kind)
        of = team(chosen)
        steps = 0

        def told(number: int, stop: int = stop) -> None:
            nonlocal steps
            steps += number
            if steps >= stop:
                raise KilledError

        with pytest.raises(KilledError):
            advance(of, fresh(chosen, of, 40), RULES, tmp_path / "parts" / kind, told=told)
    again = trained(tmp_path / "parts", kind)
    assert again == whole
    written = [(tmp_path / name / f"{kind}.json").read_bytes() for name in ("whole", "parts")]
    assert written[0] == written[1]
    assert not list((tmp_path / "parts").glob("*.state"))  # it has ended


def test_a_trajectory_that_paused_goes_on(tmp_path: Path) -> None:
    """As in a search for the learning rate: a quarter first, the rest for the best."""
    chosen = method("qsgd")
    of = team(chosen)
    quarter = advance(of, fresh(chosen, of, 40), RULES, tmp_path / "it", until=10)
    assert (len(quarter.losses), quarter.ended) == (10, "")
    assert load(tmp_path / "it", RULES, 10) == quarter
    assert load(tmp_path / "it", RULES) is None
    of = team(chosen)
    whole = advance(of, fresh(chosen, of, 40), RULES, tmp_path / "it")
    assert whole == trained(tmp_path, "qsgd")
    assert load(tmp_path / "it", RULES, 10) == quarter  # whoever asks for less has what was then


def test_what_was_put_away_can_be_trained_further(tmp_path: Path) -> None:
    """A rate that lost an earlier search; a later search asks for more of it."""
    chosen = method("topk")

    def up_to(steps: int) -> Trajectory:
        of = team(chosen)
        return advance(of, fresh(chosen, of, 40), RULES, tmp_path / "it", until=steps)

    for steps in (10, 20, 30):
        found = up_to(steps)
        put_away(tmp_path / "it")
        assert [path.suffix for path in tmp_path.iterdir()] == [".json"]
        assert load(tmp_path / "it", RULES, steps) == found
    assert up_to(40) == trained(tmp_path, "topk")


def test_windows_cover_all_steps_and_their_bytes_are_exact(tmp_path: Path) -> None:
    """Adaptive: the method's bytes change from step to step; a window has their mean."""
    chosen = method("threshold", threshold=0.003)
    of = team(chosen)
    sent: list[float] = []
    step = of.step

    def noted(*arguments: Any, **options: Any) -> Any:
        done = step(*arguments, **options)
        of_step = [sum(r.sent) / len(r.sent) for bucket in done.collectives for r in bucket]
        sent.append(sum(of_step))
        return done

    of.step = noted  # type: ignore[method-assign]
    found = advance(of, fresh(chosen, of, 35), RULES, tmp_path / "it")
    assert [(w.first, w.steps) for w in found.windows] == [(0, 10), (10, 10), (20, 10), (30, 5)]
    assert len(set(sent)) > 5
    for window in found.windows:
        steps = sent[window.first : window.first + window.steps]
        assert window.wire_bytes_per_worker == pytest.approx(sum(steps) / len(steps))
        profile = found.profile(window)
        assert holds_together(profile)
        # a rounded byte count each collective and worker
        assert profile.wire_bytes(2) == pytest.approx(window.wire_bytes_per_worker, abs=8)


def test_kinds_of_steps_stand_in_a_window_in_their_order(tmp_path: Path) -> None:
    found = trained(tmp_path, "cser", interval=4)
    for window in found.windows:
        names = [window.phases[number].name for number in window.order]
        first = window.first
        assert names == [
            "reset" if (first + n + 1) % 4 == 0 else "partial" for n in range(window.steps)
        ]
        profile = found.profile(window)
        assert holds_together(profile)
        assert profile.period == 10


def test_a_rate_that_is_too_high_ends_it_early(tmp_path: Path) -> None:
    """Before 15 % of its steps, with a reason; what it did until then is told."""
    found = trained(tmp_path, "none", steps=200, rate=300.0)
    assert found.ended == "diverged"
    assert len(found.losses) <= 30
    assert "the loss" in found.why
    assert load(tmp_path / "none", RULES) == found


def test_a_method_that_learns_nothing_is_given_up(tmp_path: Path) -> None:
    """One element in ten thousand, chosen at random, without memory; a rate of nearly nothing."""
    chosen = method("none")
    of = team(chosen)
    found = advance(of, fresh(chosen, of, 80, rate=1e-9), RULES, tmp_path / "it")
    assert found.ended == "hopeless"
    assert len(found.losses) == 40  # half of its steps
    patient = replace(RULES, stop=Stop(hopeless=False))
    of = team(chosen)
    found = advance(of, fresh(chosen, of, 80, rate=1e-9), patient, tmp_path / "other")
    assert (found.ended, len(found.losses)) == ("finished", 80)


def test_another_target_makes_of_what_is_kept_what_it_would_train(tmp_path: Path) -> None:
    """Nothing is learned here: hopeless at half of the steps for a high target, reached at once
    for a low one."""
    chosen = method("none")
    high, low = (replace(RULES, target=Target(accuracy=level)) for level in (0.9, 0.001))

    def found(rules: Rules, folder: str) -> Trajectory:
        of = team(chosen)
        return advance(of, fresh(chosen, of, 80, rate=1e-9), rules, tmp_path / folder / "it")

    given_up = found(high, "one")
    assert (given_up.ended, len(given_up.losses)) == ("hopeless", 40)
    assert load(tmp_path / "one/it", low) is None  # its state is gone
    finished = found(low, "one")
    assert (finished.ended, len(finished.losses)) == ("finished", 80)
    assert finished == found(low, "other")
    assert load(tmp_path / "one/it", high) == given_up  # cut where it would have ended
    patient = replace(high, stop=Stop(hopeless=False))
    assert load(tmp_path / "one/it", patient) == finished


def test_a_schedule_reaches_the_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    step = Team.step

    def noted(self: Team, number: int, rate: float, **options: Any) -> Any:
        rates.append(rate)
        return step(self, number, rate, **options)

    monkeypatch.setattr(Team, "step", noted)
    chosen = method("none")
    of = team(chosen)
    rules = replace(RULES, schedule=Schedule(shape="step", warmup=4))
    advance(of, fresh(chosen, of, 20, rate=1.0), rules, tmp_path / "it")
    warm = [0.2, 0.4, 0.6, 0.8]
    assert rates == pytest.approx([*warm, *[1.0] * 6, *[0.1] * 5, *[0.01] * 5])


# --- when is the target reached? -----------------------------------------------------------------


@pytest.fixture(scope="module")
def unjudged() -> Trajectory:
    chosen = method("none")
    return replace(fresh(chosen, team(chosen), 100), ended="finished")


def judged(one: Trajectory, *accuracies: float) -> Trajectory:
    """A loss and an accuracy that say the same."""
    evaluations = (
        Evaluation(step=10 * number, loss=1 - accuracy, accuracy=accuracy)
        for number, accuracy in enumerate(accuracies)
    )
    return replace(one, evaluations=tuple(evaluations))


def reached(one: Trajectory, patience: int) -> int | None:
    """As all three forms of the target have it."""
    found = {
        steps_to(target, one, patience, dense_accuracy=1.0)
        for target in (Target(accuracy=0.9), Target(loss=0.1 + 1e-9), Target(of_dense=0.9))
    }
    (steps,) = found
    return steps


@pytest.mark.parametrize(
    ("accuracies", "patience", "steps"),
    [
        ((0.1, 0.5, 0.9, 0.9), 1, 20),
        ((0.1, 0.9, 0.5, 0.9, 0.9), 2, 30),  # it fell back
        ((0.1, 0.9, 0.9, 0.9, 0.5), 2, None),  # it fell back, and stayed there
        ((0.1, 0.9, 0.9, 0.5, 0.9), 2, None),  # once is too few
        ((0.1, 0.9, 0.9, 0.5, 0.9), 1, 40),
        ((0.1, 0.5, 0.6), 2, None),
        ((0.9, 0.9), 2, 0),
        ((0.9,), 2, None),
    ],
)
def test_reached_is_what_stays_reached(
    accuracies: tuple[float, ...], patience: int, steps: int | None, unjudged: Trajectory
) -> None:
    assert reached(judged(unjudged, *accuracies), patience) == steps


@pytest.mark.parametrize("ended", ["diverged", "hopeless"])
def test_what_was_cut_off_reached_nothing(ended: Any, unjudged: Trajectory) -> None:
    """Whatever held before."""
    whole = judged(unjudged, 0.1, 0.9, 0.9, 0.9)
    assert reached(whole, 2) == 10
    assert reached(replace(whole, ended=ended), 2) is None
