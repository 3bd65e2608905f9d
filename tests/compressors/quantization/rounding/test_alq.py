"""ALQ's levels are a coordinate-wise minimum of the expected variance, the same on all workers."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import HEADER_BYTES, read_frames
from gcsim.compressors.coding.rounding import truncated_normals
from gcsim.compressors.quantization.rounding import alq, nuqsgd
from gcsim.compressors.requests import AllGather, AllReduce
from gcsim.compressors.segments import Segments
from gcsim.traces.storage.store import Trace, shipped_traces
from tests.compressors.shared import (
    bucket_of,
    exchange,
    layout_of,
    layout_of_shapes,
    members,
    normal,
)

SINGLE = np.array([[0.01, 0.05, 1.0]])
MIXTURE = np.array([[0.02, 0.03, 0.5], [-0.01, 0.1, 0.3], [0.0, 0.4, 0.2]])


def parameters_of(**given: Any) -> alq.AlqParameters:
    return alq.AlqParameters(**given)


workers = partial(members, alq.Alq)


def density(components: np.ndarray[Any, Any], *, folded: bool) -> Callable[[float], float]:
    """The mixture of truncated normals, by scipy."""
    parts = [
        (w, stats.truncnorm((-1 - mu) / s, (1 - mu) / s, loc=mu, scale=s))
        for mu, s, w in components
    ]

    def f(r: float) -> float:
        value = sum(w * part.pdf(r) for w, part in parts)
        return float(value + sum(w * part.pdf(-r) for w, part in parts)) if folded else float(value)

    return f


def psi(f: Callable[[float], float], levels: np.ndarray[Any, Any]) -> float:
    """The sum over neighbours of the integral of (hi - r) (r - lo) dF, by quadrature."""
    return float(
        sum(
            integrate.quad(lambda r, a=a, b=b: (b - r) * (r - a) * f(r), a, b)[0]
            for a, b in pairwise(levels.tolist())
        )
    )


@pytest.mark.parametrize("components", [SINGLE, MIXTURE], ids=["single", "mixture"])
@pytest.mark.parametrize("folded", [True, False])
def test_the_histogram_has_the_integrals_of_the_truncated_normals(
    components: np.ndarray[Any, Any], folded: bool
) -> None:
    model, f = (
        truncated_normals.Histogram(components, folded=folded),
        density(components, folded=folded),
    )
    for x in (0.0, 0.003, 0.05, 0.4, 0.9) if folded else (-0.7, -0.02, 0.0, 0.05, 0.6):
        zeroth, first, second = model.tails(x)
        for power, found in enumerate((zeroth, first, second)):
            points = sorted({min(1.0, max(x, p)) for p in (-0.1, 0.0, 0.02, 0.1, 0.5)})
            exact = integrate.quad(
                lambda r, power=power: r**power * f(r), x, 1, points=points, limit=200
            )[0]
            assert found == pytest.approx(exact, abs=2e-6)
    assert model.tails(model.edges[0])[0] == pytest.approx(1.0)
    assert model.tails(1.0) == (0.0, 0.0, 0.0)
    shares = np.linspace(0, 1, 9)
    back = 1 - model.tails(model.quantiles(shares))[0]
    np.testing.assert_allclose(back, shares, atol=1e-12)


@pytest.mark.parametrize("folded", [True, False])
def test_the_expected_variance_is_the_integral(folded: bool) -> None:
    levels = np.array([0.0, 0.02, 0.06, 0.2, 1.0])
    if not folded:
        levels = np.concatenate((-levels[:0:-1], levels))
    model = truncated_normals.Histogram(MIXTURE, folded=folded)
    assert model.variance(levels) == pytest.approx(
        psi(density(MIXTURE, folded=folded), levels), rel=1e-4
    )


def test_one_coordinate_step_is_the_rule_for_the_best_level() -> None:
    # l = F^-1(F(b) - integral_a^b (r - a) / (b - a) dF), by scipy, for a single truncated normal.
    mu, sigma = SINGLE[0, :2]
    law = stats.truncnorm((-1 - mu) / sigma, (1 - mu) / sigma, loc=mu, scale=sigma)
    for a, b in ((-1.0, 1.0), (-0.05, 0.1), (0.0, 0.06), (0.02, 0.2)):
        above = integrate.quad(lambda r, a=a, b=b: (r - a) / (b - a) * law.pdf(r), a, b)[0]
        expected = float(law.ppf(law.cdf(b) - above))
        model = truncated_normals.Histogram(SINGLE, folded=False)
        (_, found, _) = truncated_normals.coordinate_descent(
            model, np.array([a, (a + b) / 2, b]), 1
        )
        assert found == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("components", [SINGLE, MIXTURE], ids=["single", "mixture"])
@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize("count", [4, 8, 128])
def test_no_sweep_makes_the_expected_variance_larger(
    components: np.ndarray[Any, Any], folded: bool, count: int
) -> None:
    model = truncated_normals.Histogram(components, folded=folded)
    first = 0.0 if folded else -1.0
    for start in (
        np.linspace(first, 1, count),
        truncated_normals.separate(model.quantiles(np.linspace(0, 1, count))),
    ):
        levels, before = start, model.variance(start)
        for _ in range(6):
            levels = truncated_normals.coordinate_descent(model, levels, 1)
            after = model.variance(levels)
            assert after <= before + 1e-12
            assert (np.diff(levels) > 0).all()
            before = after
        assert (levels[0], levels[-1]) == (first, 1.0)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", range(2, 9))
def test_tables_ascend_from_minus_one_to_one_and_beat_the_first_table(
    symmetric: bool, bits: int
) -> None:
    chosen = parameters_of(bits=bits, symmetric=symmetric)
    first = alq.Alq.initial(chosen)
    levels = alq.Alq.fitted(chosen, MIXTURE, first)
    assert levels.dtype == np.float32
    assert levels.size == first.size == 2**bits - symmetric
    assert (levels[0], levels[-1]) == (-1.0, 1.0)
    assert (np.diff(levels) > 0).all()
    model = truncated_normals.Histogram(MIXTURE, folded=False)
    assert model.variance(levels.astype(np.float64)) <= model.variance(first.astype(np.float64))
    if symmetric:
        assert 0.0 in levels
        np.testing.assert_array_equal(levels, -levels[::-1])


def test_gaussian_gradients_are_rounded_better_than_by_exponential_levels() -> None:
    # r of a bucket of 1024 is nearly N(0, 1 / 1024). For a normal density the companding limit of
    # random rounding with m intervals is (1 / 6) (integral f^(1/3))^3 / m^2 |v|^2 a bucket
    # = (1 / 6) 6 sqrt(3) pi / m^2 = 5.44 / m^2: .028 at m = 14, were no level spent on the tails.
    values = normal(1024 * 300, seed=3)
    energy = float(values.double().square().sum())
    chosen = parameters_of()
    levels = alq.Alq.fitted(
        chosen,
        alq.in_common(alq.statistics(values, Segments.alone(values.numel()), chosen)),
        alq.Alq.initial(chosen),
    )
    fitted = nuqsgd.table_error(values, levels, size=1024, norm="l2") / energy
    exponential = nuqsgd.exponential_levels(4, 0.5, zero=True)
    known = nuqsgd.table_error(values, exponential, size=1024, norm="l2") / energy
    assert 0.028 < fitted < 0.04
    assert known == pytest.approx(0.0955, rel=0.02)


def layered(n: int, kind: str, generator: torch.Generator) -> torch.Tensor:
    """One layer of a gradient: normal, Laplace's law, cubes of normals (tails), or one element."""
    draw = torch.randn(n, generator=generator)
    if kind == "laplace":
        return draw.sign() * torch.rand(n, generator=generator).clamp_min(1e-9).log()
    if kind == "single":
        return draw * (torch.arange(n) == n // 2)
    return draw**3 if kind == "cubes" else draw


def rounded_no_worse(method: Any, options: dict[str, Any], buckets: list[Bucket]) -> list[float]:
    """NMSE of each worker's rounding after a fit, by its law; every tensor against the first table.

    What is drawn is within the law: elements err independently and by at most the gap g between two
    levels, so that the sum of their squares has a deviation of at most g sqrt(expected error).
    """
    team = members(method, len(buckets), **options)
    exchanges = [worker.exchange(bucket, 0) for worker, bucket in zip(team, buckets, strict=True)]
    summed = sum(next(one).tensor for one in exchanges)
    payloads = [one.send(summed).payload for one in exchanges]
    chosen, shapes = team[0].parameters, buckets[0].layout
    tables = [method.initial(chosen), team[0].levels_of(buckets[0])]
    found = []
    for bucket, payload in zip(buckets, payloads, strict=True):
        decoded, total = torch.zeros(shapes.numel), 0.0
        nuqsgd.add_decoded(payload, shapes, decoded, 1.0, tables=tables, chosen=chosen)
        frames = read_frames(payload)
        for (piece, values), frame in zip(shapes.views(bucket.gradient), frames, strict=True):
            first, fitted = (nuqsgd.table_error(values, t, size=1024, norm="l2") for t in tables)
            number = frame.flags >> 4
            expected = (first, fitted)[number]
            assert expected == min(first, fitted)
            error = float((piece.of(decoded) - values).double().square().sum())
            energy = float(values.double().square().sum())
            gap = energy**0.5 * float(np.diff(tables[number]).max())
            assert error <= expected + 5 * gap * expected**0.5 + 1e-6 * energy
            total += expected
        found.append(total / float(bucket.gradient.double().square().sum()))
    return found


@settings(max_examples=12, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["normal", "laplace", "cubes", "single"]),
            st.integers(1, 3000),
            st.integers(-6, 6),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([(alq.Alq, "symmetric"), (alq.Amq, "zero")]),
    st.integers(2, 6),
    st.booleans(),
    st.sampled_from(["mixture", "single"]),
    st.integers(0, 99),
)
def test_no_fit_makes_the_error_larger_than_the_first_tables(
    layers: list[tuple[str, int, int]], method: tuple[Any, str], bits: int, zero: bool, law: str,
    seed: int,
) -> None:  # fmt: skip
    # Of every layer, on every worker, whatever the other layers and workers are.
    generator = torch.Generator().manual_seed(seed)
    shapes = layout_of(*(n for _, n, _ in layers))
    buckets = [
        Bucket(
            layout=shapes,
            gradient=torch.cat([10.0**e * layered(n, k, generator) for k, n, e in layers]),
        )
        for _ in range(2)
    ]
    cls, name = method
    rounded_no_worse(cls, {"bits": bits, "distribution": law, name: zero}, buckets)


@pytest.mark.parametrize("method", [alq.Alq, alq.Amq])
def test_tails_and_recorded_gradients_are_rounded_no_worse_than_by_nuqsgd(method: Any) -> None:
    # NUQSGD's table is ALQ's first, and without zero AMQ's. The fitted tables alone have .72 on
    # cubes of normals in layers of different size and .31 on the recorded gradient, NUQSGD's .098
    # and .094.
    generator = torch.Generator().manual_seed(0)
    shapes = layout_of(30_000, 30_000, 30_000)
    parts = [10.0**-k * layered(30_000, "cubes", generator) for k in range(3)]
    trace = Trace.open(shipped_traces()["resnet20_cifar10-early"])
    pieces = layout_of_shapes(shape for _, shape in trace.parameters).slices
    named = tuple(
        replace(piece, name=name) for piece, (name, _) in zip(pieces, trace.parameters, strict=True)
    )
    for bucket in (
        Bucket(layout=shapes, gradient=torch.cat(parts)),
        trace.bucket(BucketLayout(index=0, slices=named), 0, 0),
    ):
        (found,) = rounded_no_worse(method, {}, [bucket])
        error = nuqsgd.Nuqsgd.properties(
            nuqsgd.NuqsgdParameters.model_validate({"zero": method is alq.Alq})
        ).error_bound
        assert error is not None
        known = sum(error(values) for _, values in bucket.layout.views(bucket.gradient))
        assert found <= known / float(bucket.gradient.double().square().sum())
        assert found < 0.13


def naive_statistics(
    parts: list[torch.Tensor], size: int
) -> list[tuple[float, float, float, float, int]]:
    """By bucket: (norm, mean, within sum of squares, unbiased variance, length) of v / norm."""
    found = []
    for values in parts:
        for part in torch.split(values.double(), size) if values.numel() else ():
            norm = float(part.norm())
            if norm:
                r = (part / norm).numpy()
                unbiased = float(r.var(ddof=1)) if r.size > 1 else 0.0
                found.append((norm, float(r.mean()), float(r.var() * r.size), unbiased, r.size))
    return found


def test_statistics_are_those_of_the_normalised_buckets() -> None:
    parts = [normal(250) + 0.3, torch.zeros(120), normal(0), 5 * normal(1), 2 * normal(101, 4)]
    found = naive_statistics(parts, 100)
    segments, values = Segments.behind([part.numel() for part in parts]), torch.cat(parts)
    single = alq.statistics(values, segments, parameters_of(bucket=100, distribution="single"))
    n = sum(row[4] for row in found)
    assert single.dtype == torch.float64
    assert single.tolist() == [
        [n, pytest.approx(sum(r[1] * r[4] for r in found)), pytest.approx(sum(r[2] for r in found))]
    ]
    mixture = alq.statistics(values, segments, parameters_of(bucket=100, components=4))
    for row, known in zip(mixture.tolist(), sorted(found, reverse=True), strict=False):
        norm, mean, _, variance, _ = known
        expected = (norm, norm * mean, norm * variance)
        assert row == pytest.approx(expected, rel=1e-5, abs=1e-7)
    # as many rows as buckets, all-zero ones too: the same on every worker
    assert alq.statistics(values, segments, parameters_of(bucket=100)).shape == (
        3 + 2 + 0 + 1 + 2,
        3,
    )
    assert alq.statistics(torch.zeros(0), Segments.alone(0), parameters_of()).shape == (0, 3)


@pytest.mark.parametrize("method", [alq.Alq, alq.Amq])
def test_workers_agree_on_the_average_of_their_statistics(method: Any) -> None:
    group = members(method, 3, bucket=64, bits=3, components=5)
    buckets = [bucket_of((rank + 1) * normal(640, rank), normal(7, rank)) for rank in range(3)]
    exchange(group, buckets, 0)
    chosen = group[0].parameters
    rows = [alq.statistics(b.gradient, Segments.of(b.layout), chosen) for b in buckets]
    components = alq.in_common(torch.stack(rows).sum(0))
    expected = method.fitted(chosen, components, method.initial(chosen))
    for worker, bucket in zip(group, buckets, strict=True):
        np.testing.assert_array_equal(worker.levels_of(bucket), expected)
    # by hand: the weights of the k-th component are the sums of the k-th largest norms
    norms = sum(
        torch.tensor(sorted((r[0] for r in naive_statistics([b.gradient[:640]], 64)), reverse=True))
        for b in buckets
    )
    assert isinstance(norms, torch.Tensor)
    assert components[:, 2] == pytest.approx((norms[:5] / norms[:5].sum()).tolist(), rel=1e-5)


@pytest.mark.parametrize("method", [alq.Alq, alq.Amq])
def test_levels_change_only_every_so_many_steps(method: Any) -> None:
    group = members(method, 2, update_every=3, bits=3, bucket=64)
    tables = []
    for step in range(7):
        buckets = [bucket_of(normal(200, 10 * step + r) ** (2 * step + 1)) for r in range(2)]
        requests = [type(next(w.exchange(b, step))) for w, b in zip(group, buckets, strict=True)]
        assert requests == [AllReduce if step % 3 == 0 else AllGather] * 2
        exchange(group, buckets, step)
        tables.append(group[0].levels_of(buckets[0]).tolist())
        assert tables[-1] == group[1].levels_of(buckets[1]).tolist()
    changed = [a != b for a, b in pairwise(tables)]
    assert changed == [False, False, True, False, False, True]
    assert method.period(group[0].parameters) == 3
    assert [method.phase(group[0].parameters, t) for t in range(4)] == [
        "update",
        "step",
        "step",
        "update",
    ]


@pytest.mark.parametrize("bits", [2, 4, 5])
@pytest.mark.parametrize("components", [1, 20])
def test_messages_have_the_length_of_the_formula(bits: int, components: int) -> None:
    (worker,) = workers(1, bits=bits, bucket=100, components=components)
    generator = worker.exchange(bucket_of(normal(1001)), 0)
    request = next(generator)
    assert isinstance(request, AllReduce)
    assert request.tensor.nbytes == 24 * min(components, 11)
    request = generator.send(request.tensor)
    assert isinstance(request, AllGather)
    assert request.payload.numel() == HEADER_BYTES + 4 * 11 + math.ceil(1001 * bits / 8)


def test_each_ddp_bucket_has_its_own_table() -> None:
    (worker,) = workers(1, bucket=64)
    first = bucket_of(normal(640))
    second = Bucket(
        layout=BucketLayout(index=1, slices=first.layout.slices), gradient=normal(640) ** 5
    )
    exchange([worker], [first])
    before = worker.levels_of(first).tolist()
    exchange([worker], [second])
    assert worker.levels_of(first).tolist() == before
    assert worker.levels_of(second).tolist() != before
