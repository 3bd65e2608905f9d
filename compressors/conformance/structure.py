"""Checks that any method must pass, whatever its algorithm: of its updates, of what they depend on,
and of their scale."""

from __future__ import annotations

from dataclasses import dataclass

from gcsim.compressors.base import About
from gcsim.compressors.conformance.subject import (
    STEPS,
    Heard,
    N,
    Subject,
    gradients,
    normal,
    overheard,
    unchanged_global_generators,
)
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.lockstep import Collectives, lockstep
from gcsim.compressors.meter import segment
from gcsim.compressors.sharing import same
from gcsim.errors import InputError

LENGTHS = (0, 1, 2, 7, 8, 9, 63, 64, 65, 255, 256, 257, 511, 512, 513)
MANY = 64
"""The most steps that a period is waited for."""
SCALES = (1e-6, 1.0, 1e4)
"""Scales of gradients, relative to the 0.1 that the other checks use."""
APART = 0.1
"""Bytes and errors that differ by more between scales, relatively, are reported."""


def describes_itself(subject: Subject) -> None:
    """`about` is complete, and each parameter has a default and a meaning."""
    about = subject.compressor.about
    assert isinstance(about, About), "`about` is not an About"
    for key in ("title", "collective", "bits", "state", "paper"):
        assert getattr(about, key), f"about.{key} is empty"
    for key, field in subject.compressor.Parameters.model_fields.items():
        assert field.description, f"parameter {key!r} has no description"
        assert not field.is_required(), f"parameter {key!r} has no default"


def updates_have_the_shape_of_the_bucket(subject: Subject) -> None:
    """Float32, one dimension, finite; for one worker, two, three and five."""
    for workers in (1, 2, 3, 5):
        for t, updates in subject.crew(workers=workers).updates(STEPS):
            _expect_updates(updates, N, f"{workers} workers, step {t}")


def any_length_works(subject: Subject) -> None:
    """No element, one, and around powers of two; as a matrix and as a vector."""
    for n in LENGTHS:
        for shape in ((n, 1), (n,), (1, n)):
            for t, updates in subject.crew([shape]).updates(2):
                _expect_updates(updates, n, f"shape {shape}, step {t}")


def hard_values_stay_finite(subject: Subject) -> None:
    """All zero, constant, one huge outlier, alternating and denormal gradients."""
    outlier = normal(N, 5)
    outlier[17] = 3e4  # within float16, which some methods travel in
    spike = torch.zeros(N)
    spike[200] = -1.0
    cases = {
        "zeros": torch.zeros(N),
        "constant": torch.full((N,), 0.25),
        "negative constant": torch.full((N,), -3.0),
        "one huge outlier": outlier,
        "one element": spike,
        "alternating": torch.tensor([1.0, -1.0]).repeat(N)[:N],
        "denormals": 1e-40 * normal(N, 6),
        "the smallest floats": 1e-44 * normal(N, 7),
    }
    for case, values in cases.items():
        for t, updates in subject.crew().updates(STEPS, [values, values.flip(0)]):
            _expect_updates(updates, N, f"{case}, step {t}")


def the_update_has_the_size_of_the_gradient(subject: Subject) -> None:
    """Nothing comes of nothing, and small gradients give small updates."""
    if subject.properties.scale_free:
        return
    for magnitude in (0.0, 1e-30):
        given = [magnitude * normal(N, r, 1.0) for r in range(2)]
        for _, updates in subject.crew().updates(STEPS, given):
            largest = max(float(update.abs().max()) for update in updates)
            # momentum adds up to ten gradients; quantisers reach a norm, n / k scales
            assert largest <= 1e4 * magnitude, f"{largest} from gradients of {magnitude}"


def equal_seeds_repeat_themselves(subject: Subject) -> None:
    """Equal gradients and seeds give equal updates; the global generators are left alone."""
    with unchanged_global_generators():
        once = list(subject.crew().updates(STEPS))
    for (t, first), (_, again) in zip(once, subject.crew().updates(STEPS), strict=True):
        assert same(first, again), f"step {t} differs when it is repeated"


def replicas_stay_together(subject: Subject) -> None:
    """After each step (or window) all workers have applied the same, as `properties` say."""
    properties, window = subject.properties, subject.compressor.window(subject.parameters)
    if properties.replicas == "differ":
        return
    assert window == 1 or properties.replicas == "meet", "a window above 1 needs replicas='meet'"
    sums = [torch.zeros(N) for _ in range(3)]
    for t, (_, updates) in enumerate(subject.crew(workers=3).updates(subject.windows(STEPS))):
        sums = [total + update for total, update in zip(sums, updates, strict=True)]
        if properties.replicas == "identical":
            for other in updates[1:]:
                assert torch.equal(other, updates[0]), f"updates differ at step {t}"
        elif (t + 1) % window == 0:
            for other in sums[1:]:
                assert torch.allclose(other, sums[0], rtol=1e-4, atol=1e-5), (
                    f"replicas do not meet after step {t}"
                )


def gradients_are_left_alone(subject: Subject) -> None:
    """The bucket is not written to, and an update is not changed by later steps."""
    crew = subject.crew()
    kept, copies = [], []
    for t in range(STEPS):
        given = gradients(N, 2, t)
        kept += crew.step(given, subject.first + t)
        copies += [update.clone() for update in kept[-2:]]
        assert same(given, gradients(N, 2, t)), f"the gradient was modified at step {t}"
    assert same(kept, copies), "an update changed at a later step"


def schedules_repeat(subject: Subject) -> None:
    """`phase` repeats with `period`, and a phase always asks for the same collectives."""
    cls, parameters = subject.compressor, subject.parameters
    period, first = cls.period(parameters), subject.first
    assert period >= 1, "a period below 1"
    for t in range(first, first + 2 * min(period, 100)):
        one, other = cls.phase(parameters, t), cls.phase(parameters, t + period)
        assert one == other, f"step {t} is {one!r}, step {t + period} {other!r}"
    crew = subject.crew()
    kinds: dict[str, list[str]] = {}
    for t in range(first, first + subject.windows(2 * STEPS)):
        observer = Collectives()
        crew.step(gradients(N, 2, t), t, observer)
        seen = [str(record.kind) for record in observer.collectives]
        phase = cls.phase(parameters, t)
        known = kinds.setdefault(phase, seen)
        assert known == seen, f"{phase!r} asked for {known}, then for {seen}"


def metering_changes_nothing(subject: Subject) -> None:
    """The same updates under the meter, which sees some work."""
    plain, metered = subject.crew(), subject.crew()
    for t in range(subject.first, subject.first + STEPS):
        given = gradients(N, 2, t)
        expected = plain.step(given, t)
        with segment() as recorder:
            updates = metered.step(given, t)
        assert same(expected, updates), f"another update under the meter at step {t}"
        assert sum(cost.nbytes for cost in recorder.costs()) > 0, "the meter saw nothing"


def sharing_changes_nothing(subject: Subject) -> None:
    """Four workers that share what they make of replies, and four that do not, send and apply the
    same; and whatever was shared would have been the same on each worker."""
    apart, together = subject.crew(workers=4), subject.crew(workers=4)
    for t in range(subject.first, subject.first + subject.windows(STEPS)):
        given = gradients(N, 4, t)
        logs: list[list[Heard]] = [[], []]
        exchanges = [
            [overheard(exchange, log) for exchange in crew.exchanges(given, t)]
            for crew, log in zip((apart, together), logs, strict=True)
        ]
        with torch.no_grad():
            expected = lockstep(exchanges[0], share=False)
            updates = lockstep(exchanges[1], share="checked")
        sent = [[heard.sent for heard in log] for log in logs]
        for what, (one, other) in {"sent": sent, "update": (expected, updates)}.items():
            assert same(one, other), f"another {what} at step {t} where workers share their work"


def a_gradient_that_is_not_finite_is_refused(subject: Subject) -> None:
    """NaN and infinity: one error that names the compressor and the parameter."""
    for bad in (float("nan"), float("inf")):
        given = gradients(N, 2, 0)
        given[1][N - 2] = bad
        try:
            subject.crew().step(given, subject.first)
        except InputError as error:
            message = str(error)
            for word in (subject.title, "tensor 2"):
                assert word in message, f"{word!r} is not named in {message!r}"
        else:
            raise AssertionError(f"a gradient with {bad} gave an update")


def _expect_updates(updates: list[torch.Tensor], n: int, when: str) -> None:
    for update in updates:
        assert isinstance(update, torch.Tensor), f"{when}: the update is no tensor"
        assert update.shape == (n,), f"{when}: shape {tuple(update.shape)}, not ({n},)"
        assert update.dtype == torch.float32, f"{when}: {update.dtype}, not float32"
        assert bool(update.isfinite().all()), f"{when}: not finite"


def something_is_sent(subject: Subject) -> None:
    """Two workers hand over at least a byte within a period."""
    steps = subject.windows(max(STEPS, min(MANY, subject.compressor.period(subject.parameters))))
    collectives = Collectives()
    for _ in subject.crew().updates(steps, observer=collectives):
        if collectives.nbytes:
            return
    raise AssertionError(f"it sends nothing: no byte passed between two workers in {steps} steps")


def every_workers_gradient_counts(subject: Subject) -> None:
    """An update is made of all gradients, not of one's own or of worker 0's: another gradient of
    one of three workers changes the next worker's updates."""
    crews = [subject.crew(workers=3) for _ in range(4)]
    without_effect = {0, 1, 2}
    for t in range(subject.windows(3 * STEPS)):
        given = gradients(N, 3, t)
        base = crews[3].step(given, subject.first + t)
        for rank in sorted(without_effect):
            changed = [*given[:rank], 3.0 * normal(N, 500_000 + t), *given[rank + 1 :]]
            updates, other = crews[rank].step(changed, subject.first + t), (rank + 1) % 3
            if not torch.equal(base[other], updates[other]):
                without_effect.remove(rank)
        if not without_effect:
            return
    rank = min(without_effect)
    raise AssertionError(
        f"worker {rank}'s gradients change nothing in the updates of worker {(rank + 1) % 3}"
    )


def steps_stand_alone_without_memory(subject: Subject) -> None:
    """Two crews that saw other gradients before give equal updates, if `memory` is "none".

    Both took as many steps with the same seeds, so that a generator that is kept is as far on.
    """
    if subject.compressor.memory(subject.parameters) != "none":
        return
    first, second = subject.crew(), subject.crew()
    for t in range(subject.first, subject.first + STEPS):
        first.step(gradients(N, 2, 100 + t), t)
        second.step([-5 * gradient for gradient in gradients(N, 2, 200 + t)], t)
        given = gradients(N, 2, t)
        assert same(first.step(given, t + 1), second.step(given, t + 1)), (
            f"step {t + 1} depends on the gradients of step {t}, but the memory is declared "
            "'none' (`about.state`, `memory`)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _AtScale:
    """Outcome of gradients of one scale."""

    scale: float
    error: float
    """|updates - mean gradients|^2 / |mean gradients|^2; 1 where nothing is delivered."""
    bits: float
    """Bits an element that a worker sends."""
    refused: str = ""

    def __str__(self) -> str:
        if self.refused:
            return f"{0.1 * self.scale:.0e}: {self.refused}"
        return f"{0.1 * self.scale:.0e}: error {self.error:.2g}, {self.bits:.3g} bits an element"


def scale_is_told(subject: Subject) -> str | None:
    """A note where gradients 10^-6 and 10^4 times as large are not treated alike: float16 has a
    range, a threshold a unit. A method may do so; its user must know."""
    found = [_at_scale(subject, scale) for scale in SCALES]
    middle = found[1]
    judged = [] if subject.properties.scale_free else [one.error for one in found]
    unlike = (
        any(one.refused for one in found)
        or any(abs(error - middle.error) > APART * max(middle.error, APART) for error in judged)
        or any(abs(one.bits - middle.bits) > APART * middle.bits for one in found)
    )
    if not unlike:
        return None
    each = "; ".join(map(str, found))
    return (
        f"what it does depends on the gradients' scale (standard deviation of an element {each}); "
        "error: |update - mean|^2 / |mean|^2"
    )


def _at_scale(subject: Subject, scale: float) -> _AtScale:
    steps = subject.windows(STEPS)
    crew = subject.crew()
    wanted = delivered = torch.zeros(N, dtype=torch.float64)
    collectives = Collectives()
    try:
        for t in range(subject.first, subject.first + steps):
            given = [scale * gradient for gradient in gradients(N, 2, t)]
            updates = crew.step(given, t, collectives)
            wanted = wanted + (given[0].double() + given[1].double()) / 2
            delivered = delivered + updates[0].double()
    except InputError as error:
        return _AtScale(scale=scale, error=0.0, bits=0.0, refused=error.problems[0].message)
    lost = float((delivered - wanted).square().sum() / wanted.square().sum())
    return _AtScale(scale=scale, error=lost, bits=8 * collectives.nbytes / (2 * steps * N))


CHECKS = (
    describes_itself,
    updates_have_the_shape_of_the_bucket,
    any_length_works,
    hard_values_stay_finite,
    the_update_has_the_size_of_the_gradient,
    equal_seeds_repeat_themselves,
    replicas_stay_together,
    gradients_are_left_alone,
    schedules_repeat,
    metering_changes_nothing,
    sharing_changes_nothing,
    a_gradient_that_is_not_finite_is_refused,
    something_is_sent,
    every_workers_gradient_counts,
    steps_stand_alone_without_memory,
)
