"""What must any method survive, whatever its algorithm?"""

from __future__ import annotations

from gcsim.compressors.base import About
from gcsim.compressors.conformance.subject import (
    SHAPES,
    Heard,
    Subject,
    gradients,
    normal,
    numel,
    overheard,
    unchanged_global_generators,
)
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.lockstep import Collectives, lockstep
from gcsim.compressors.meter import segment
from gcsim.compressors.sharing import same
from gcsim.errors import InputError

N = numel(SHAPES)
STEPS = 4
LENGTHS = (0, 1, 2, 7, 8, 9, 63, 64, 65, 255, 256, 257, 511, 512, 513)


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
        crew = subject.crew(workers=workers)
        for t in range(subject.first, subject.first + STEPS):
            for update in crew.step(gradients(N, workers, t), t):
                _expect_update(update, N, f"{workers} workers, step {t}")


def any_length_works(subject: Subject) -> None:
    """No element, one, and around powers of two; as a matrix and as a vector."""
    for n in LENGTHS:
        for shape in ((n, 1), (n,), (1, n)):
            crew = subject.crew([shape])
            for t in range(subject.first, subject.first + 2):
                for update in crew.step(gradients(n, 2, t), t):
                    _expect_update(update, n, f"shape {shape}, step {t}")


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
        crew = subject.crew()
        for t in range(subject.first, subject.first + STEPS):
            for update in crew.step([values, values.flip(0)], t):
                _expect_update(update, N, f"{case}, step {t}")


def the_update_has_the_size_of_the_gradient(subject: Subject) -> None:
    """Nothing comes of nothing, and small gradients give small updates."""
    if subject.properties.scale_free:
        return
    for magnitude in (0.0, 1e-30):
        crew = subject.crew()
        for t in range(subject.first, subject.first + STEPS):
            for update in crew.step([magnitude * normal(N, r, 1.0) for r in range(2)], t):
                largest = float(update.abs().max())
                # momentum adds up to ten gradients; quantisers reach a norm, n / k scales
                assert largest <= 1e4 * magnitude, f"{largest} from gradients of {magnitude}"


def equal_seeds_repeat_themselves(subject: Subject) -> None:
    """Equal gradients and seeds give equal updates; the global generators are left alone."""
    given = [gradients(N, 2, t) for t in range(STEPS)]
    crews = subject.crew(), subject.crew()
    with unchanged_global_generators():
        first = [crews[0].step(pair, subject.first + t) for t, pair in enumerate(given)]
    for t, pair in enumerate(given):
        again = crews[1].step(pair, subject.first + t)
        for a, b in zip(first[t], again, strict=True):
            assert torch.equal(a, b), f"step {t} differs when it is repeated"


def replicas_stay_together(subject: Subject) -> None:
    """After each step (or window) all workers have applied the same, as `properties` say."""
    properties, window = subject.properties, subject.compressor.window(subject.parameters)
    if properties.replicas == "differ":
        return
    assert window == 1 or properties.replicas == "meet", "a window above 1 needs replicas='meet'"
    crew = subject.crew(workers=3)
    sums = [torch.zeros(N) for _ in range(3)]
    for t in range(subject.windows(STEPS)):
        updates = crew.step(gradients(N, 3, t), subject.first + t)
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
        before = [gradient.clone() for gradient in given]
        updates = crew.step(given, subject.first + t)
        for gradient, copy in zip(given, before, strict=True):
            assert torch.equal(gradient, copy), f"the gradient was modified at step {t}"
        kept += updates
        copies += [update.clone() for update in updates]
    for update, copy in zip(kept, copies, strict=True):
        assert torch.equal(update, copy), "an update changed at a later step"


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
        with torch.no_grad():
            lockstep(crew.exchanges(gradients(N, 2, t), t), observer)
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
        for a, b in zip(expected, updates, strict=True):
            assert torch.equal(a, b), f"another update under the meter at step {t}"
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


def _expect_update(update: torch.Tensor, n: int, when: str) -> None:
    assert isinstance(update, torch.Tensor), f"{when}: the update is no tensor"
    assert update.shape == (n,), f"{when}: shape {tuple(update.shape)}, not ({n},)"
    assert update.dtype == torch.float32, f"{when}: {update.dtype}, not float32"
    assert bool(update.isfinite().all()), f"{when}: not finite"


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
)
