"""What holds for every registered compressor, whatever its algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.base import About
from gcsim.compressors.meter import segment
from gcsim.compressors.registry import REGISTRY, check_parameters, compressor_class
from gcsim.errors import InputError

EVERY = pytest.mark.parametrize("name", list(REGISTRY))
SHAPES = [(16, 24), (24,), (8, 3, 3, 3), ()]
N = 384 + 24 + 216 + 1
STEPS = 5


def gradients(draw: Callable[..., Tensor], n: int, workers: int, step: int = 0) -> list[Tensor]:
    return [0.1 * draw(n, 1000 * step + rank) for rank in range(workers)]


def steps(name: str, at_least: int = STEPS) -> int:
    """Whole windows, so that replicas agree at the end."""
    window = compressor_class(name).window(check_parameters(name, {}))
    return -(-at_least // window) * window


@EVERY
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_update_has_the_buckets_shape_and_no_nan(
    team: Any, normal: Callable[..., Tensor], name: str, workers: int
) -> None:
    crew = team(name, SHAPES, workers=workers)
    for t in range(STEPS):
        for update in crew.step(gradients(normal, N, workers, t), t):
            assert update.shape == (N,)
            assert update.dtype == torch.float32
            assert bool(update.isfinite().all())


@EVERY
def test_replicas_agree_after_each_window(
    team: Any, normal: Callable[..., Tensor], name: str
) -> None:
    # Local methods differ within a window; the sums of their updates agree (float rounding).
    window = compressor_class(name).window(check_parameters(name, {}))
    crew = team(name, SHAPES, workers=3)
    sums = [torch.zeros(N) for _ in range(3)]
    for t in range(steps(name)):
        updates = crew.step(gradients(normal, N, 3, t), t)
        sums = [total + update for total, update in zip(sums, updates, strict=True)]
        if (t + 1) % window == 0:
            for other in sums[1:]:
                if window == 1:
                    assert torch.equal(other, sums[0])
                else:
                    torch.testing.assert_close(other, sums[0], rtol=1e-5, atol=1e-6)


@EVERY
def test_equal_seeds_give_equal_updates_and_bytes(
    team: Any, normal: Callable[..., Tensor], name: str
) -> None:
    crews = [team(name, SHAPES, seed=3) for _ in range(2)]
    for t in range(STEPS):
        first, second = (crew.step(gradients(normal, N, 2, t), t) for crew in crews)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        assert crews[0].sent == crews[1].sent
        for a, b in zip(crews[0].listener.received, crews[1].listener.received, strict=True):
            assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@EVERY
def test_neither_gradient_nor_payload_is_modified(
    team: Any, normal: Callable[..., Tensor], name: str
) -> None:
    crew = team(name, SHAPES)
    for t in range(STEPS):
        given = gradients(normal, N, 2, t)
        copies = [gradient.clone() for gradient in given]
        crew.step(given, t)
        assert all(torch.equal(a, b) for a, b in zip(given, copies, strict=True))
        heard = crew.listener
        for now, before in zip(heard.received, heard.as_sent, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(now, before, strict=True))


@EVERY
def test_an_update_is_not_changed_by_later_steps(
    team: Any, normal: Callable[..., Tensor], name: str
) -> None:
    crew = team(name, SHAPES)
    updates = [crew.step(gradients(normal, N, 2, t), t)[0] for t in range(STEPS)]
    again = team(name, SHAPES)
    for t, update in enumerate(updates):
        assert torch.equal(again.step(gradients(normal, N, 2, t), t)[0], update)


@EVERY
def test_no_global_random_state_is_read_or_set(
    team: Any, normal: Callable[..., Tensor], name: str
) -> None:
    given = [gradients(normal, N, 2, t) for t in range(STEPS)]
    before = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    first = team(name, SHAPES)
    updates = [first.step(pair, t)[0] for t, pair in enumerate(given)]
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == str(np.random.get_state())  # noqa: NPY002
    torch.rand(7), np.random.rand(7)  # noqa: NPY002
    second = team(name, SHAPES)
    for t, pair in enumerate(given):
        assert torch.equal(second.step(pair, t)[0], updates[t])


@EVERY
def test_zero_gradients_give_zero_updates(team: Any, name: str) -> None:
    crew = team(name, SHAPES)
    for t in range(STEPS):
        for update in crew.step([torch.zeros(N)] * 2, t):
            assert bool((update == 0).all())


@EVERY
@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 255, 256, 257, 511, 512, 513])
@pytest.mark.parametrize("matrix", [True, False], ids=["matrix", "vector"])
def test_lengths_around_powers_of_two(
    team: Any, normal: Callable[..., Tensor], name: str, n: int, matrix: bool
) -> None:
    crew = team(name, [(n, 1) if matrix else (n,)])
    for t in range(3):
        for update in crew.step(gradients(normal, n, 2, t), t):
            assert update.shape == (n,)
            assert bool(update.isfinite().all())


@EVERY
@pytest.mark.parametrize("outlier", [3e4, -3e4])
def test_a_huge_outlier_stays_finite(
    team: Any, normal: Callable[..., Tensor], name: str, outlier: float
) -> None:
    # 3e4 is within float16, which two of the methods travel in
    crew = team(name, SHAPES)
    for t in range(STEPS):
        given = gradients(normal, N, 2, t)
        given[0][17] = outlier
        for update in crew.step(given, t):
            assert bool(update.isfinite().all())


@EVERY
@pytest.mark.parametrize("magnitude", [1e-44, 1e-39, 1e-30])
def test_the_smallest_floats_give_small_and_finite_updates(
    team: Any, normal: Callable[..., Tensor], name: str, magnitude: float
) -> None:
    crew = team(name, SHAPES)
    for t in range(STEPS):
        for update in crew.step([magnitude * normal(N, rank) for rank in range(2)], t):
            assert bool(update.isfinite().all())
            # the momentum methods add up to ten gradients; quantisers reach the norm
            assert float(update.abs().max()) <= 1e4 * magnitude


@EVERY
def test_another_first_step_of_a_period_works_too(
    team: Any, normal: Callable[..., Tensor], name: str
) -> None:
    period = compressor_class(name).period(check_parameters(name, {}))
    crew = team(name, SHAPES)
    for t in range(3 * period, 3 * period + STEPS):
        for update in crew.step(gradients(normal, N, 2, t), t):
            assert bool(update.isfinite().all())


@EVERY
def test_equal_phases_use_equal_collectives(
    team: Any, normal: Callable[..., Tensor], name: str
) -> None:
    cls, parameters = compressor_class(name), check_parameters(name, {})
    crew = team(name, SHAPES)
    kinds: dict[str, list[str]] = {}
    for t in range(2 * steps(name)):
        crew.step(gradients(normal, N, 2, t), t)
        seen = [record.kind for record in crew.listener.collectives]
        assert kinds.setdefault(cls.phase(parameters, t), seen) == seen


@EVERY
def test_schedules_repeat_with_their_period(name: str) -> None:
    cls, parameters = compressor_class(name), check_parameters(name, {})
    period = cls.period(parameters)
    assert period >= 1
    assert cls.window(parameters) >= 1
    for t in range(3 * min(period, 100)):
        assert cls.phase(parameters, t) == cls.phase(parameters, t + period)


@EVERY
def test_compression_sends_fewer_bytes_than_dense_over_a_period(
    team: Any, normal: Callable[..., Tensor], name: str
) -> None:
    period = compressor_class(name).period(check_parameters(name, {}))
    crew = team(name, [(100, 100)], workers=2)
    sent = 0
    for t in range(period):
        crew.step(gradients(normal, 10_000, 2, t), t)
        sent += sum(record[0] for record in crew.sent)
    dense = 4 * 10_000 * period
    assert sent == dense if name == "none" else 0 < sent < 0.6 * dense


@EVERY
def test_metering_changes_nothing_and_sees_work_in_each_exchange(
    team: Any, normal: Callable[..., Tensor], name: str
) -> None:
    plain, metered = team(name, SHAPES), team(name, SHAPES)
    for t in range(STEPS):
        given = gradients(normal, N, 2, t)
        expected = plain.step(given, t)
        with segment() as recorder:
            updates = metered.step(given, t)
        assert all(torch.equal(a, b) for a, b in zip(expected, updates, strict=True))
        assert sum(cost.nbytes for cost in recorder.costs()) > 0


@EVERY
def test_every_compressor_describes_itself_and_its_parameters(name: str) -> None:
    cls = compressor_class(name)
    assert isinstance(cls.about, About)
    assert all((cls.about.title, cls.about.collective, cls.about.bits, cls.about.paper))
    for key, field in cls.Parameters.model_fields.items():
        assert field.description, key
        assert not field.is_required(), key


@EVERY
def test_an_unknown_parameter_is_refused_by_name(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} has no parameter 'colour'"):
        check_parameters(name, {"colour": 1})
