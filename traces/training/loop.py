"""The training loop of a trajectory: step by step, evaluated at intervals, and stored as it goes.
After an evaluation its state may be written (`checkpoint.py`), from which another process continues
identically. A finished trajectory is a JSON file, without the state."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.compressors.state import CannotBeKeptError
from gcsim.errors import InputError
from gcsim.files import sealed, unsealed, write_text
from gcsim.traces.profile import Exchange, Phase, Quality, Step
from gcsim.traces.training import checkpoint
from gcsim.traces.training.plan import Schedule, Stop, Target
from gcsim.traces.training.team import Done, Team
from gcsim.traces.training.trajectory import Evaluation, Trajectory, Window, holds

KEEP_EVERY = 10.0
"""About how many seconds of training a kill can lose."""
_TRAJECTORY = TypeAdapter(Trajectory)
_SMOOTHED = 20
"""Steps whose mean loss is compared with the loss of untrained weights."""

Records = Sequence[Sequence[CollectiveRecord]]
"""A step's collectives, by bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of a training: when to evaluate, the schedule, and when to end early."""

    evaluate_every: int
    schedule: Schedule
    target: Target
    stop: Stop


def advance(
    team: Team,
    fresh: Trajectory,
    rules: Rules,
    path: Path,
    *,
    until: int | None = None,
    told: Callable[[int], None] = lambda steps: None,
) -> Trajectory:
    """Train up to a step (`until`; None: to the end) and return the trajectory. `fresh` is the
    trajectory before its first step; `path` names the files: `.json` if ended, `.state` if it can
    continue. `told` gets the steps done. Raises `InputError` as `Team.step` does, and
    `CannotBeKeptError` if a state does not fit the team, which is then unusable; the state is
    removed."""
    known, state = _kept(path)
    done = asked_for(known, rules, until)
    if done is not None:
        told(len(done.losses))
        return done
    now = fresh
    if state is not None:
        about, tensors = state
        now = _TRAJECTORY.validate_python(about, strict=False)
        try:
            team.restore(tensors)
        except CannotBeKeptError:
            path.with_suffix(".state").unlink(missing_ok=True)
            raise
        told(len(now.losses))
    kept = time.monotonic()
    last = min(until or now.steps, now.steps)
    if not now.evaluations:
        now = replace(now, evaluations=(_judged(now, team),))
        _check_first(rules.target, now.evaluations[0])
    while len(now.losses) < last and not now.ended:
        now = _window(team, now, rules, last, told)
        whole = len(now.losses) == last or now.ended
        if not now.ended and (whole or time.monotonic() - kept > KEEP_EVERY):
            _keep(path, now, team)
            kept = time.monotonic()
    if len(now.losses) == now.steps and not now.ended:
        now = replace(now, ended="finished")
    if now.ended:
        _write(path, now)
    return now


def load(path: Path, rules: Rules, until: int | None = None) -> Trajectory | None:
    """Return the stored trajectory, as far as requested (`asked_for`)."""
    return asked_for(_kept(path)[0], rules, until)


def asked_for(
    known: Trajectory | None, rules: Rules, until: int | None = None
) -> Trajectory | None:
    """Return a trajectory up to a step (None: to the end) and as far as these rules let it run,
    even if it was trained further or for another target. None if it must be trained (further)."""
    found = None if known is None else _given_up(known, rules)
    if found is None:
        return None
    last = min(until or found.steps, found.steps)
    if len(found.losses) > last:
        return _cut(found, last)
    return found if found.ended or len(found.losses) == last else None


def _cut(known: Trajectory, step: int) -> Trajectory:
    """Return the trajectory as it was after `step` steps."""
    return replace(
        known,
        losses=known.losses[:step],
        evaluations=tuple(one for one in known.evaluations if one.step <= step),
        windows=tuple(window for window in known.windows if window.first < step),
        ended="",
        why="",
    )


def _kept(path: Path) -> tuple[Trajectory | None, Any]:
    """Return the longer trajectory of both files (a `.json` may have been trained further since),
    and its state; None if missing."""
    found: list[Trajectory] = []
    with suppress(OSError, ValidationError):
        body = unsealed(path.with_suffix(".json").read_bytes())
        found += [] if body is None else [_TRAJECTORY.validate_json(body)]
    state = checkpoint.read(path.with_suffix(".state"))
    try:
        found += [] if state is None else [_TRAJECTORY.validate_python(state[0], strict=False)]
    except ValidationError:
        state = None
    return max(found, key=lambda one: (len(one.losses), one.ended), default=None), state


def _given_up(known: Trajectory, rules: Rules) -> Trajectory | None:
    for one in known.evaluations if rules.stop.hopeless else ():
        until = _cut(known, one.step)
        if why := _hopeless(until, rules.target):
            return replace(until, ended="hopeless", why=why)
    return None if known.ended == "hopeless" else known


def put_away(path: Path) -> None:
    """Keep a trajectory's records, and drop its state, which is as large as several models."""
    known, _ = _kept(path)
    if known is not None and path.with_suffix(".state").exists():
        _write(path, known)


def write(path: Path, now: Trajectory) -> bool:
    """Store a trajectory for `load`; return False without room or if it cannot be read back."""
    body = _TRAJECTORY.dump_json(now)
    with suppress(InputError, ValidationError):
        _TRAJECTORY.validate_json(body)
        write_text(path.with_suffix(".json"), sealed(body).decode())
        return True
    return False


def _write(path: Path, now: Trajectory) -> None:
    if write(path, now):
        path.with_suffix(".state").unlink(missing_ok=True)


def _keep(path: Path, now: Trajectory, team: Team) -> None:
    about: Any = _TRAJECTORY.dump_python(now, mode="json")
    # without room, training starts again
    with suppress(InputError, ValidationError, CannotBeKeptError):
        _TRAJECTORY.validate_python(about, strict=False)
        checkpoint.write(path.with_suffix(".state"), about, team.state())


def _check_first(target: Target, untrained: Evaluation) -> None:
    if not math.isfinite(untrained.loss):
        message = f"the loss of untrained weights is {untrained.loss:g} on the samples held out"
        hint = "look for NaN or infinity in the data, the model and the loss"
        raise InputError(message, place="train.task", hint=hint)
    if target.loss is None and untrained.accuracy is None:
        message = "is an accuracy, but the labels are not classes"
        raise InputError(message, place="train.target", hint="write target: {loss: 0.1}")


def _judged(now: Trajectory, team: Team) -> Evaluation:
    loss, accuracy = team.evaluate()
    return Evaluation(step=len(now.losses), loss=loss, accuracy=accuracy)


# --- one window ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Kind:
    """The steps of one kind in a window."""

    name: str
    number: int
    """Number of its first step."""
    records: list[Records] = field(default_factory=list)
    """Records by step."""
    exchanges: tuple[Exchange, ...] = ()
    """Exchanges of a metered step."""


def _window(
    team: Team, now: Trajectory, rules: Rules, last: int, told: Callable[[int], None]
) -> Trajectory:
    """Train up to the next evaluation, and evaluate."""
    first = len(now.losses)
    end = min(last, first + rules.evaluate_every - first % rules.evaluate_every)
    kinds: dict[object, _Kind] = {}
    order: list[object] = []
    losses = list(now.losses)
    errors = []
    for number in range(first, end):
        phase = team.phase(number)
        unknown = not any(kind.name == phase and kind.exchanges for kind in kinds.values())
        rate = now.learning_rate * rules.schedule.factor(number, now.steps)
        done = team.step(number, rate, metered=unknown)
        losses.append(done.loss)
        told(1)
        if not done.finite:
            return _ended(now, losses, "diverged", f"step {number}: the loss is not a number")
        _note(kinds, order, phase, number, done)
        if done.error is not None:
            errors.append(done.error)
    now = replace(now, losses=tuple(losses))
    if rules.stop.diverged and (why := _diverging(losses, now)):
        return _ended(now, losses, "diverged", why)
    quality = None
    if errors and team.comparable:
        quality = Quality(
            nmse=sum(error.nmse for error in errors) / len(errors),
            cosine_similarity=sum(error.cosine for error in errors) / len(errors),
        )
        if not math.isfinite(quality.nmse + quality.cosine_similarity):
            return _ended(now, losses, "diverged", f"step {end}: an update is not a number")
    one = _judged(now, team)
    if not math.isfinite(one.loss):
        why = f"step {end}: the loss is {one.loss:g} on the samples held out"
        return _ended(now, losses, "diverged", why)
    window = _closed(kinds, order, first, quality)
    now = replace(now, windows=(*now.windows, window), evaluations=(*now.evaluations, one))
    if rules.stop.hopeless and (why := _hopeless(now, rules.target)):
        return _ended(now, losses, "hopeless", why)
    return now


def _note(
    kinds: dict[object, _Kind], order: list[object], phase: str, number: int, done: Done
) -> None:
    shape = tuple(tuple((r.kind, r.dtype) for r in bucket) for bucket in done.collectives)
    key = (phase, shape)
    kind = kinds.setdefault(key, _Kind(name=phase, number=number))
    kind.records.append(done.collectives)
    kind.exchanges = kind.exchanges or done.exchanges
    order.append(key)


def _closed(
    kinds: dict[object, _Kind], order: Sequence[object], first: int, quality: Quality | None
) -> Window:
    """Return the window; a kind of step that was never metered gets the kernels of another."""
    metered = next(kind.exchanges for kind in kinds.values() if kind.exchanges)
    numbers = {key: number for number, key in enumerate(kinds)}
    sent = 0.0
    phases = []
    for kind in kinds.values():
        exchanges = []
        for bucket, exchange in enumerate(kind.exchanges or metered):
            steps = [records[bucket] for records in kind.records]
            means = tuple(map(_mean, zip(*steps, strict=True)))
            fitting = len(exchange.collectives) == len(means)
            computes = exchange.computes if fitting else exchange.computes[:1] * (len(means) + 1)
            servers = exchange.servers if fitting else ()
            exchanges.append(
                replace(exchange, computes=computes, collectives=means, servers=servers)
            )
            sent += sum(sum(r.sent) / len(r.sent) for records in steps for r in records)
        step = Step(number=kind.number, exchanges=tuple(exchanges))
        phases.append(Phase(name=kind.name, count=len(kind.records), steps=(step,)))
    return Window(
        first=first,
        steps=len(order),
        phases=tuple(phases),
        order=tuple(numbers[key] for key in order),
        wire_bytes_per_worker=sent / len(order),
        quality=quality,
    )


def _mean(records: Sequence[CollectiveRecord]) -> CollectiveRecord:
    """Average one collective over several steps of a kind, by worker."""
    first = records[0]
    sent = [
        round(sum(of_rank) / len(records))
        for of_rank in zip(*(r.sent for r in records), strict=True)
    ]
    if first.kind == "all_reduce":  # whole elements
        sent = [nbytes - nbytes % first.element for nbytes in sent]
    pulled = round(sum(record.pulled for record in records) / len(records))
    return replace(first, sent=tuple(sent), pulled=pulled)


# --- early ends ----------------------------------------------------------------------------------


def _ended(now: Trajectory, losses: Sequence[float], how: Any, why: str) -> Trajectory:
    finite = tuple(loss for loss in losses if loss - loss == 0)  # JSON has no NaN
    return replace(now, losses=finite, ended=how, why=why)


def _diverging(losses: Sequence[float], now: Trajectory) -> str:
    """Return why training diverges; "" if it does not."""
    recent = losses[-_SMOOTHED:]
    mean = sum(recent) / len(recent)
    untrained = now.evaluations[0].loss
    if len(losses) >= _SMOOTHED and mean > 1.5 * untrained:
        return (
            f"step {len(losses)}: the loss is {mean:.3g}, that of untrained weights {untrained:.3g}"
        )
    return ""


def _hopeless(now: Trajectory, target: Target) -> str:
    """Return why the target will not be reached; "" while it may."""
    trained = len(now.losses)
    if trained < now.steps / 2 or target.of_dense is not None or holds(target, now.evaluations[-1]):
        return ""
    recent = [one for one in now.evaluations if one.step > trained - now.steps / 4]
    before = [one for one in now.evaluations if one not in recent]

    def best(of: Sequence[Evaluation]) -> float:
        """Return the closeness to the target: higher is nearer."""
        return max(-one.loss if target.loss is not None else one.accuracy or 0.0 for one in of)

    wanted = -target.loss if target.loss is not None else target.accuracy
    assert wanted is not None
    left, way = wanted - best(recent), wanted - best(now.evaluations[:1])
    if best(recent) > best(before) or left < way / 2:
        return ""
    most = best(now.evaluations)
    said = f"loss {-most:.3g}" if target.loss is not None else f"accuracy {most:.1%}"
    return f"step {trained}: {said} at best, no better for {len(recent)} evaluations"
