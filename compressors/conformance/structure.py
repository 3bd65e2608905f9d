"""Checks that every method must pass: of its updates, what they depend on, and their scale."""

from __future__ import annotations

import math

from gcsim.compressors.base import About
from gcsim.compressors.conformance.subject import (
    STEPS,
    N,
    Subject,
    gradients,
    normal,
    unchanged_global_generators,
)
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.lockstep import Collectives
from gcsim.compressors.meter import segment
from gcsim.compressors.sharing import same
from gcsim.errors import InputError

LENGTHS = (0, 1, 2, 7, 8, 9, 63, 64, 65, 255, 256, 257, 511, 512, 513)
MANY = 64
"""Longest period that checks run through."""
SCALES = (1e-6, 1.0, 1e4)
"""Scales of gradients, relative to the standard deviation of 0.1 in other checks."""
APART = 0.1
"""Relative differences of bytes or errors between scales that are reported."""


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
    """Updates are float32, one-dimensional and finite (`participate`), for up to 5 workers."""
    for workers in (1, 2, 3, 5):
        list(subject.crew(workers=workers).updates(STEPS))


def any_length_works(subject: Subject) -> None:
    """Lengths of 0, 1 and around powers of two work, as a matrix and as a vector."""
    for n in LENGTHS:
        for shape in ((n, 1), (n,), (1, n)):
            list(subject.crew([shape]).updates(2))


def hard_values_stay_finite(subject: Subject) -> None:
    """Updates stay finite for zero, constant, outlier, single, alternating and tiny gradients."""
    outlier = normal(N, 5)
    outlier[17] = 3e4  # within float16, which some methods send
    spike = torch.zeros(N)
    spike[200] = -1.0
    cases = (
        torch.zeros(N),
        torch.full((N,), 0.25),
        torch.full((N,), -3.0),
        outlier,
        spike,
        torch.tensor([1.0, -1.0]).repeat(N)[:N],
        1e-40 * normal(N, 6),
        1e-44 * normal(N, 7),  # the smallest floats
    )
    for values in cases:
        list(subject.crew().updates(STEPS, [values, values.flip(0)]))


def the_update_has_the_size_of_the_gradient(subject: Subject) -> None:
    """Zero gradients give zero updates, and small gradients small updates."""
    if subject.properties.scale_free:
        return
    for magnitude in (0.0, 1e-30):
        given = [magnitude * normal(N, r, 1.0) for r in range(2)]
        for _, updates in subject.crew().updates(STEPS, given):
            largest = max(float(update.abs().max()) for update in updates)
            # momentum adds up to ten gradients; quantisers may reach a norm; others scale by n / k
            assert largest <= 1e4 * magnitude, f"{largest} from gradients of {magnitude}"


def equal_seeds_repeat_themselves(subject: Subject) -> None:
    """Equal gradients and seeds give equal updates; global generators are not used."""
    with unchanged_global_generators():
        once = list(subject.crew().updates(STEPS))
    for (t, first), (_, again) in zip(once, subject.crew().updates(STEPS), strict=True):
        assert same(first, again), f"step {t} differs when it is repeated"


def replicas_stay_together(subject: Subject) -> None:
    """All workers have equal models after each step (or window), as `properties` say."""
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
    """The bucket is not modified, and later steps do not change an update."""
    kept, copies = [], []
    for _, updates in subject.crew().updates(STEPS):
        kept += updates
        copies += [update.clone() for update in updates]
    assert same(kept, copies), "an update changed at a later step"


def schedules_repeat(subject: Subject) -> None:
    """`phase` repeats with `period`, and each phase always requests the same collectives."""
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
    """Updates are the same under the meter, which counts something."""
    plain, metered = subject.crew(), subject.crew()
    for t in range(subject.first, subject.first + STEPS):
        given = gradients(N, 2, t)
        expected = plain.step(given, t)
        with segment() as recorder:
            updates = metered.step(given, t)
        assert same(expected, updates), f"another update under the meter at step {t}"
        assert sum(cost.nbytes for cost in recorder.costs()) > 0, "the meter saw nothing"


def sharing_changes_nothing(subject: Subject) -> None:
    """Four workers send and apply the same with and without sharing; shared results are right."""
    apart, together = subject.crew(workers=4), subject.crew(workers=4)
    for t in range(subject.first, subject.first + subject.windows(STEPS)):
        given = gradients(N, 4, t)
        expected, logs_apart = apart.heard(given, t, share=False)
        updates, logs = together.heard(given, t, share="checked")
        sent_apart, sent = (
            [[heard.sent for heard in log] for log in each] for each in (logs_apart, logs)
        )
        for what, one, other in (("sent", sent_apart, sent), ("update", expected, updates)):
            assert same(one, other), f"another {what} at step {t} where workers share their work"


def something_is_sent(subject: Subject) -> None:
    """Two workers send at least one byte within a period."""
    steps = subject.windows(max(STEPS, min(MANY, subject.compressor.period(subject.parameters))))
    collectives = Collectives()
    for _ in subject.crew().updates(steps, observer=collectives):
        if collectives.nbytes:
            return
    raise AssertionError(f"it sends nothing: no byte passed between two workers in {steps} steps")


def every_workers_gradient_counts(subject: Subject) -> None:
    """Changing the gradient of one of three workers changes the next worker's updates."""
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
    """Two crews with different earlier gradients give equal updates if `memory` is "none"; both
    take the same number of steps with the same seeds, so that generators agree."""
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


def scale_is_told(subject: Subject) -> str | None:
    """Return a note if gradients 10^-6 or 10^4 times as large are treated differently (allowed)."""
    errors, bits, said = zip(*(_at_scale(subject, scale) for scale in SCALES), strict=True)
    alike = all(abs(each - bits[1]) <= APART * bits[1] for each in bits)
    if not subject.properties.scale_free:
        alike &= all(abs(each - errors[1]) <= APART * max(errors[1], APART) for each in errors)
    if alike:
        return None
    return (
        f"what it does depends on the gradients' scale (standard deviation of an element "
        f"{'; '.join(said)}); error: |update - mean|^2 / |mean|^2"
    )


def _at_scale(subject: Subject, scale: float) -> tuple[float, float, str]:
    """Return (relative error |updates - mean gradients|^2 / |mean gradients|^2, 1 if nothing is
    delivered, NaN if refused; bits per element that a worker sends; both as text)."""
    steps = subject.windows(STEPS)
    crew, collectives = subject.crew(), Collectives()
    wanted = delivered = torch.zeros(N, dtype=torch.float64)
    try:
        for t in range(subject.first, subject.first + steps):
            given = [scale * gradient for gradient in gradients(N, 2, t)]
            updates = crew.step(given, t, collectives)
            wanted = wanted + (given[0].double() + given[1].double()) / 2
            delivered = delivered + updates[0].double()
    except InputError as error:
        return math.nan, math.nan, f"{0.1 * scale:.0e}: {error.problems[0].message}"
    lost = float((delivered - wanted).square().sum() / wanted.square().sum())
    bits = 8 * collectives.nbytes / (2 * steps * N)
    return lost, bits, f"{0.1 * scale:.0e}: error {lost:.2g}, {bits:.3g} bits per element"


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
    something_is_sent,
    every_workers_gradient_counts,
    steps_stand_alone_without_memory,
)
