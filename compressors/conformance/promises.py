"""Checks of `properties`: unbiased, within its error bound, conserving, exact."""

from __future__ import annotations

import math

from gcsim.compressors.conformance.subject import Subject, gradients, normal
from gcsim.compressors.lazy_torch import Tensor, torch

ELEMENTS = 1000
DRAWS = 300
FEW = 12
"""Draws after which a random method's results differ."""
DIRECTIONS = 16
Z = 5.0
"""Number of standard errors that a Gaussian exceeds once in 1.7 million times."""


def mean_is_right_when_unbiased(subject: Subject) -> None:
    """The mean update is the mean gradient, over 300 seeds and along 16 directions. Directions are
    used because single elements show little if few are sent."""
    if not subject.properties.unbiased:
        return
    given = [_heavy(ELEMENTS, rank) for rank in range(2)]
    mean = (given[0] + given[1]).double() / 2
    directions = torch.stack(
        [mean, mean.sign(), *(normal(ELEMENTS, 50 + d, 1.0).double() for d in range(DIRECTIONS))]
    )
    samples = torch.stack(
        [directions @ (_one_step(subject, given, seed)[0].double() - mean) for seed in range(DRAWS)]
    )
    rounding = 1e-5 * directions.norm(dim=1) * mean.norm()  # due to 16-bit fractions and float32
    error = samples.std(dim=0) / math.sqrt(DRAWS)
    excess = (samples.mean(dim=0).abs() - rounding) / error.clamp_min(1e-30)
    assert float(excess.max()) <= Z, (
        f"the mean of {DRAWS} updates is not the mean gradient: "
        "correct it, or declare unbiased=False"
    )


def more_workers_do_not_scale_the_update(subject: Subject) -> None:
    """One and four workers with equal gradients give about the same update: sums are divided by the
    number of workers. Averages over a window and ten seeds."""
    if subject.properties.scale_free:
        return
    gradient = _heavy(ELEMENTS, 3)
    shares = []
    for workers in (1, 4):
        share = 0.0
        for seed in range(10):
            crew = subject.crew([(ELEMENTS // 25, 25)], workers=workers, seed=seed)
            for t in range(subject.windows(2)):
                updates = crew.step([gradient] * workers, subject.first + t)
                share += sum(float(gradient.double() @ update.double()) for update in updates)
        shares.append(share / workers / float(gradient.double().square().sum()))
    alone, together = shares
    if abs(together - 4 * alone) < 0.4 * alone:
        raise AssertionError(
            "the update is the sum over the workers, not their mean: four workers' updates hold "
            f"{together / alone:.2f} times as much as one worker's; divide by self.worker.count"
        )
    near = 0.5 * alone <= together <= 2.0 * alone
    assert near, f"four workers' updates hold {together / alone:.2f} times as much as one worker's"


def error_stays_within_its_bound(subject: Subject) -> None:
    """The mean of |Q(v) - v|^2 over seeds, for one worker with empty memory."""
    bound = subject.properties.error_bound
    if bound is None:
        return
    cases = {
        "normal": normal(ELEMENTS, 1, 1.0),
        "heavy-tailed": _heavy(ELEMENTS, 2),
        "mostly zero": normal(ELEMENTS, 3, 1.0) * (normal(ELEMENTS, 4, 1.0) > 1.5),
        "constant": torch.full((ELEMENTS,), 0.5),
        "long": _heavy(40_000, 5),
        "small": normal(2 * ELEMENTS, 6, 1e-7),
        "large": normal(2 * ELEMENTS, 7, 1e3),
    }
    for case, v in cases.items():
        scale = float(v.double().square().sum())
        limit = bound(v) / scale
        errors: list[float] = []
        draws = FEW
        while len(errors) < draws:
            (update,) = _one_step(subject, [v], seed=len(errors))
            errors.append(float((update.double() - v.double()).square().sum()) / scale)
            if len(set(errors)) == 2 and v.numel() == ELEMENTS:
                draws = DRAWS
        sample = torch.tensor(errors, dtype=torch.float64)
        found, spread = float(sample.mean()), float(sample.std()) / math.sqrt(draws)
        slack = Z * spread + 1e-4 * limit + 1e-6
        assert found <= limit + slack, (
            f"{case}: error {found:.5g} |v|^2, the bound is {limit:.5g} |v|^2"
        )
        if subject.properties.error_is_exact:
            assert found >= limit - slack, (
                f"{case}: error {found:.5g} |v|^2, it should be {limit:.5g} |v|^2"
            )


def what_is_not_sent_is_kept(subject: Subject) -> None:
    """All updates plus what workers still keep add up to all mean gradients (after momentum)."""
    if not subject.properties.conserves:
        return
    shapes = [(40, 25), (30,)]
    n, workers, steps = 1030, 3, subject.windows(12)
    crew = subject.crew(shapes, workers=workers)
    coefficient, nesterov = subject.compressor.momentum(subject.parameters)
    buffer, expected, delivered = torch.zeros(3, n, dtype=torch.float64)
    for t in range(steps):
        given = gradients(n, workers, t)
        mean = torch.stack(given).double().mean(0)
        buffer = coefficient * buffer + mean
        expected += mean + coefficient * buffer if nesterov else buffer
        updates = crew.step(given, subject.first + t)
        delivered += torch.stack(updates).double().mean(0)
    for member, gradient in zip(crew.members, given, strict=True):
        held = member.residual_of(crew.bucket(gradient))
        if held is not None:
            delivered += held.cpu().double() / workers
    difference = float((delivered - expected).norm() / expected.norm())
    assert difference <= 1e-4, f"{difference:.2g} of what was given is lost or invented"


def lossless_is_lossless(subject: Subject) -> None:
    """The update is the mean gradient up to float32 rounding."""
    if not subject.properties.exact:
        return
    crew = subject.crew([(40, 25)], workers=3)
    for t in range(3):
        given = gradients(1000, 3, t)
        mean = torch.stack(given).double().mean(0)
        for update in crew.step(given, subject.first + t):
            assert torch.allclose(update.double(), mean, rtol=1e-5, atol=1e-7), "values were lost"


def _one_step(subject: Subject, given: list[Tensor], seed: int) -> list[Tensor]:
    n = given[0].numel()
    crew = subject.crew([(n // 25, 25)], workers=len(given), seed=seed)
    return crew.step(given, subject.first)


def _heavy(n: int, seed: int) -> Tensor:
    """Draw N(0, 1) exp(.8 N(0, 1)), which resembles gradients."""
    return normal(n, seed, 1.0) * (0.8 * normal(n, 900 + seed, 1.0)).exp()


CHECKS = (
    mean_is_right_when_unbiased,
    more_workers_do_not_scale_the_update,
    error_stays_within_its_bound,
    what_is_not_sent_is_kept,
    lossless_is_lossless,
)
