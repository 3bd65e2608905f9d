"""Kernels give the bytes that loops give, for the same input and key; run by an interpreter.

Expected values are those of the compiled loops, which have their own tests against independent
constructions.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors import gpu, on_device
from gcsim.compressors.coding import frames as framing
from gcsim.compressors.coding.floats import narrow_floats
from gcsim.compressors.coding.indices.index_coding import Coder, coded_positions
from gcsim.compressors.coding.integers import packing
from gcsim.compressors.coding.integers.digits import fixed
from gcsim.compressors.coding.one_bit import votes
from gcsim.compressors.coding.one_bit.signs import pack_signs, put_sign_bits, unpack_signs
from gcsim.compressors.coding.rounding.levels import TREE, Levels, add_rounded, round_levels
from gcsim.compressors.coding.rounding.norms import clipped_magnitudes
from gcsim.compressors.coding.scans import (
    all_finite,
    fingerprint,
    finite_part,
    not_finite,
    squared_lengths,
)
from gcsim.compressors.coding.selecting import marks
from gcsim.compressors.coding.selecting.largest import largest
from gcsim.compressors.coding.selecting.selection import kth_magnitude
from gcsim.compressors.coding.sparse import scatter_add
from gcsim.compressors.meter import segment
from gcsim.compressors.quantization.floats.natural import powers
from gcsim.compressors.quantization.one_bit import signsgd
from gcsim.compressors.segments import ZERO, Segments, starts
from gcsim.errors import InputError
from tests.compressors import shared
from tests.compressors.gpu import examples
from tests.compressors.gpu.conftest import demand_same, equal, kernels, outcome


def test_every_primitive_has_a_kernel_with_its_parameters() -> None:
    for module in pkgutil.walk_packages(gpu.__path__, f"{gpu.__name__}."):
        importlib.import_module(module.name)
    assert len(on_device.primitives) >= 14
    for loop, kernel in on_device.primitives.items():
        own, named = (list(inspect.signature(each).parameters) for each in (kernel, loop))
        assert own == named, loop.__name__


# --- packing --------------------------------------------------------------------------------------


@examples.few
@given(values=examples.VECTORS)
def test_packed_signs(values: Tensor) -> None:
    packed = demand_same(pack_signs, values)
    demand_same(unpack_signs, packed, values.numel())


# --- rounding to levels ---------------------------------------------------------------------------


@examples.few
@given(
    values=examples.VECTORS, size=st.sampled_from((1, 5, 512, 4096, 5000)),
    steps=st.integers(1, 127), key=examples.KEYS, bound=st.sampled_from((np.inf, 0.5)),
)  # fmt: skip
def test_levels(values: Tensor, size: int, steps: int, key: np.uint64, bound: float) -> None:
    norms = demand_same(shared.bucket_norms, values, size, "max")
    form = {"size": size, "steps": steps, "bits": (2 * steps).bit_length()}
    packed = demand_same(shared.encode_levels, values, norms, key, bound=bound, **form)
    out = torch.linspace(-1, 1, values.numel())
    demand_same(shared.add_packed_levels, out, packed, norms, weight=1 / 3, **form)


@examples.few
@given(values=examples.VECTORS, size=st.sampled_from((1, 5, 512, 4096, 5000)), exact=examples.EXACT)
def test_euclidean_norms_are_equal_or_neighbours(values: Tensor, size: int, exact: Tensor) -> None:
    demand_same(shared.bucket_norms, exact, size, "l2")
    with kernels():
        found = shared.bucket_norms(values, size, "l2")
    distance = found.view(torch.int32) - shared.bucket_norms(values, size, "l2").view(torch.int32)
    assert not values.numel() or int(distance.abs().max()) <= 1


def test_norms_of_what_is_not_finite_and_levels_that_do_not_exist() -> None:
    for what in (np.inf, np.nan):
        values = examples.spoilt(examples.vector(1000, "normal", 0), by=what)
        norms = demand_same(shared.bucket_norms, values, 300, "max")
        assert not norms.isfinite().all()
    over = torch.full((100,), 255, dtype=torch.uint8)
    form: dict[str, Any] = {"size": 100, "steps": 5, "bits": 8, "weight": 1.0}
    assert demand_same(shared.add_packed_levels, torch.zeros(100), over, torch.ones(1), **form)[
        0
    ] is (InputError)


@examples.few
@given(values=examples.EXACT)
def test_moments(values: Tensor) -> None:
    """Of small whole numbers, whose sums and squares are exact."""
    for clip, at_bound in ((None, False), (1.7, False), (1.7, True)):
        demand_same(clipped_magnitudes, values, Segments.alone(values.numel()), clip, at_bound)


# --- signs ----------------------------------------------------------------------------------------


def blocks_of(n: int, length: int) -> int:
    return -(-n // length)


def fold_plain(values: Tensor, coded: Tensor, scales: Tensor, length: int) -> Any:
    return shared.fold(values, length, coded=coded, scales=scales)


@examples.few
@given(
    values=examples.VECTORS,
    exact=examples.EXACT,
    length=st.sampled_from((1, 100, 4096, 4097)),
    seed=examples.SEEDS,
)
def test_signs(values: Tensor, exact: Tensor, length: int, seed: int) -> None:
    """At most 65 blocks, each of which has a program of its own."""
    length = max(length, values.numel() // 64, exact.numel() // 64)
    bits, scales = demand_same(shared.fold, exact, length, "mean_abs")
    demand_same(shared.fold, exact, length, "rms")
    n = exact.numel()
    for overwrite in (False, True):
        out = examples.vector(n, "normal", seed)
        demand_same(shared.add_signs, out, bits, scales, length, 1 / 3, overwrite)
    n = values.numel()
    memory, scales = examples.vector(n, "normal", seed), torch.rand(blocks_of(n, length))
    other = examples.vector(n, "ties", seed)
    average = values, other, memory, scales[:1]
    ways: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
        (fold_plain, (values, memory, scales, length), {}),
        (shared.fold_nesterov, (values, other, memory, scales, length), {"decay": 0.9}),
        (shared.fold_average, average, {"decay": 0.9}),
    ]
    for folding, given_tensors, options in ways:
        loop, changed = outcome(folding, *given_tensors, **options)
        with kernels():
            twin, also = outcome(folding, *given_tensors, **options)
        assert equal(changed, also)
        assert isinstance(loop, tuple)
        assert isinstance(twin, tuple)
        assert equal(loop[0], twin[0])
        distance = loop[1].view(torch.int32) - twin[1].view(torch.int32)
        assert not n or int(distance.abs().max()) <= 1


@pytest.mark.parametrize("scale", [-1.0, np.inf, np.nan])
def test_scales_that_are_none_are_refused(scale: float) -> None:
    bits = torch.zeros(13, dtype=torch.uint8)
    scales = torch.tensor([1.0, scale])
    given_ = torch.zeros(100), bits, scales, 50, 1.0
    expected = outcome(shared.add_signs, *given_)[0]
    assert isinstance(expected, tuple)
    assert expected[0] is InputError
    with kernels():  # whose `out` is then worthless
        assert outcome(shared.add_signs, *given_)[0] == expected


@examples.few
@given(n=st.sampled_from(examples.LENGTHS), voters=st.integers(1, 9), seed=examples.SEEDS)
def test_votes(n: int, voters: int, seed: int) -> None:
    segments = Segments.behind([n, n // 2])
    sizes = packing.packed_bytes(segments.length, 1)

    def count() -> list[Tensor]:
        rng = np.random.default_rng(seed)
        counts = votes.votes_of(segments, voters, torch.zeros(0))
        for voter in range(voters):
            message = torch.zeros(int(sizes.sum()), dtype=torch.uint8)
            drawn = torch.from_numpy(rng.standard_normal(n + n // 2).astype(np.float32))
            put_sign_bits(drawn, segments, message, starts(sizes))
            votes.add_votes(counts, message, starts(sizes), segments, first=voter == 0)
        found = torch.zeros((3, int(sizes.sum())), dtype=torch.uint8)
        for bits, threshold in zip(found, (0, voters // 2, 2 * voters), strict=True):
            votes.put_more_than(counts, threshold, segments, bits, starts(sizes))
        return [found]

    expected = count()
    with kernels():
        assert equal(count(), expected)


# --- selection ------------------------------------------------------------------------------------


@examples.few
@given(values=examples.VECTORS, share=st.sampled_from((0.0, 0.01, 0.5, 1.0)), added=st.booleans())
def test_the_largest(values: Tensor, share: float, added: bool) -> None:
    segments = examples.parts_of(values.numel())
    k = np.rint(share * segments.length).astype(np.int64)
    memory = values.flip(0) / 2 if added else None
    demand_same(lambda own, kept: largest(own, segments, k, memory=kept), values, memory)
    demand_same(kth_magnitude, values, segments, k)


@examples.few
@given(
    values=examples.VECTORS, limit=st.sampled_from((0.0, 0.5, 1.0, 3.0)), clear=st.booleans(),
    added=st.booleans(), raised=st.booleans(), share=st.sampled_from((0.01, 0.3, 1.0)),
)  # fmt: skip
def test_what_passes_a_threshold(
    values: Tensor, limit: float, clear: bool, added: bool, raised: bool, share: float
) -> None:
    """And the first k of those that pass limits that were adjusted to k, or the k largest."""
    segments = examples.parts_of(values.numel())

    def run() -> list[object]:
        own, more, other = values.clone(), values.flip(0) / 2, values.clone()
        found = marks.mark(more, segments, limit, memory=own if added else None)
        own = own if added else more
        passed, taken = found.passed, marks.take(own.clone(), segments, found, clear=clear)
        k = np.ceil(share * segments.length).astype(np.int64)
        marks.adjust(own, segments, found, k, raised=raised)
        ranked = np.array([True, False, False])
        sent = np.where(ranked, k, np.minimum(found.passed, k))
        chosen = largest(own, segments, sent, marks=found, ranked=ranked, cleared=[own, other])
        return [passed, taken, found.passed, found.up[segments.length > 0], chosen, own, other]

    expected = run()
    with kernels():
        assert equal(run(), expected)


def test_not_a_number_is_selected_by_nobody() -> None:
    values, one = examples.spoilt(examples.vector(100, "normal", 0), by=np.nan), np.array([1])
    alone = Segments.alone(100)
    assert demand_same(largest, values, alone, 3 * one)[0] is InputError
    assert demand_same(kth_magnitude, values, alone, one).isnan().all()
    with kernels(), pytest.raises(InputError, match="not a number"):
        marks.passing(values, alone, 1.0)


# --- indices --------------------------------------------------------------------------------------


@examples.few
@given(
    vectors=st.lists(examples.VECTORS, min_size=1, max_size=3), half=st.booleans(),
    seed=examples.SEEDS, coders=st.lists(st.sampled_from(Coder), min_size=3, max_size=3),
)  # fmt: skip
def test_values_are_added_at_their_coded_places(
    vectors: list[Tensor], half: bool, seed: int, coders: list[Coder]
) -> None:
    """In the order of tensors, whatever codes their places; and damage is refused."""
    rng = np.random.default_rng(seed)
    each = [torch.from_numpy(np.flatnonzero(rng.random(len(v)) < 0.3)) for v in vectors]
    segments = Segments.behind([len(v) for v in vectors])
    k, columns = segments.column([len(one) for one in each]), segments.column(coders[: len(each)])
    coded, sizes = coded_positions(torch.cat(each), segments, k, columns)
    values = torch.cat([v[one] for v, one in zip(vectors, each, strict=True)])
    values = values.half() if half else values
    out = torch.linspace(-1, 1, int(segments.length.sum()))
    expected, start = out.clone(), 0
    for one, begin in zip(each, segments.begin.tolist(), strict=True):
        own = values[start : start + len(one)].float()
        expected[begin + one] += own * float(np.float32(1 / 3))
        start += len(one)
    given_ = segments, coded, sizes, columns, values, k, 1 / 3
    (_, (added, *_)), (_, (also, *_)) = both_outcomes(scatter_add, out, *given_)
    assert equal(added, expected)
    assert equal(also, expected)


def both_outcomes(call: Callable[..., Any], *given_: Any) -> tuple[Any, Any]:
    """By the loop, by kernels."""
    first = outcome(call, *given_)
    with kernels():
        return first, outcome(call, *given_)


# --- shorter numbers ------------------------------------------------------------------------------


@examples.few
@given(
    values=examples.VECTORS,
    bits=st.sampled_from((8, 9)),
    key=examples.KEYS,
    what=st.sampled_from((0, np.inf)),
)
def test_powers_of_two(values: Tensor, bits: int, key: np.uint64, what: float) -> None:
    values = examples.spoilt(values, by=what)
    n = values.numel()
    levels, sizes = powers(Segments.alone(n), bits)
    given = values, levels, np.array([key]), torch.zeros(int(sizes[0]), dtype=torch.uint8), ZERO
    demand_same(round_levels, *given, fixed(8))
    round_levels(*given, fixed(8))
    demand_same(add_rounded, torch.linspace(-1, 1, n), levels, given[3], ZERO, fixed(8), 1 / 3)


@examples.few
@given(
    values=examples.VECTORS, factor=st.sampled_from((1.0, 1 / 3, 2.0**40)),
    what=st.sampled_from((0, np.inf, np.nan)),
)  # fmt: skip
def test_formats_of_8_and_16_bits(values: Tensor, factor: float, what: float) -> None:
    values = examples.spoilt(values, by=what)
    n, alone = values.numel(), Segments.alone(values.numel())
    for form in ("FLOAT16", "BFLOAT16", "E4M3", "E5M2"):
        chosen = getattr(narrow_floats, form)
        codes = demand_same(narrow_floats.narrow, values, chosen, factor)
        if chosen.bits == 8:
            levels = narrow_floats.scaled_tables(alone, chosen, torch.tensor([4.0]), 1 / 3)
            demand_same(add_rounded, torch.ones(n), levels, codes, ZERO, fixed(8), 1.0)


@examples.few
@given(values=examples.VECTORS, largest=st.sampled_from((0.0, 1.0, 2.5, 3e38)))
def test_dynamic_codes(values: Tensor, largest: float) -> None:
    codes, cells = torch.zeros(len(values), dtype=torch.uint8), Segments.alone(len(values)).whole
    levels = Levels(kind=TREE, cells=cells, numbers=torch.tensor([largest]))
    demand_same(round_levels, values, levels, None, codes, ZERO, fixed(8))


@examples.few
@given(parts=st.lists(examples.VECTORS, min_size=1, max_size=3))
def test_casts_of_many_tensors(parts: list[Tensor]) -> None:
    values, segments = torch.cat(parts), Segments.behind([len(part) for part in parts])
    demand_same(narrow_floats.largest_magnitudes, values, segments)
    codes, at = torch.zeros(len(values), dtype=torch.uint8), segments.begin
    factors = torch.linspace(1, 2, len(parts))
    largest = narrow_floats.largest_magnitudes(values, segments)
    for each, fit in ((factors, False), (largest, True)):
        chosen = segments, narrow_floats.E4M3, each, codes, at
        demand_same(narrow_floats.cast, values, *chosen, fit=fit)
    levels = narrow_floats.scaled_tables(segments, narrow_floats.E4M3, factors, 1.0)
    demand_same(add_rounded, values, levels, codes, at, fixed(8), 1.0)


# --- sums, and what stands around kernels ---------------------------------------------------------


@examples.few
@given(values=examples.VECTORS, what=st.sampled_from((0, np.inf, np.nan)), exact=examples.EXACT)
def test_scans(values: Tensor, what: float, exact: Tensor) -> None:
    values = examples.spoilt(values, by=what)
    demand_same(all_finite, values)
    for scale in (1.0, 3.0, torch.tensor(3.0)):
        demand_same(finite_part, values, scale, torch.zeros(1, dtype=torch.int64))
        demand_same(finite_part, values.half(), scale, torch.zeros(1, dtype=torch.int64))
    with kernels():
        wrong = not_finite(values.half())
    assert int(wrong) == not_finite(values.half()) == int((~values.half().isfinite()).sum())
    demand_same(fingerprint, values)
    demand_same(squared_lengths, exact, exact.flip(0))


@examples.few
@given(
    lengths=st.lists(st.integers(0, 40) | st.sampled_from(examples.LENGTHS), min_size=1, max_size=5)
)
def test_frames_and_their_checksums(lengths: list[int]) -> None:
    rng = np.random.default_rng(len(lengths))
    bodies = [torch.from_numpy(rng.integers(0, 256, n, dtype=np.uint8)) for n in lengths]
    codec, layout = framing.Codec.SIGN, shared.layout_of_shapes([(9,)] * len(bodies))
    frames = [demand_same(framing.pack_frame, codec, each, numel=9) for each in bodies]
    message = torch.cat(frames)
    with kernels():
        unsealed = torch.cat([torch.cat((one[:16], one.new_zeros(4), one[20:])) for one in frames])
        sizes = np.array(lengths)
        at = np.cumsum(sizes + framing.HEADER_BYTES) - sizes
        assert torch.equal(framing.seal(unsealed, at, sizes), message)
        read = [each.body for _, each in framing.frames_of(message, layout, codec)]
        assert equal(read, bodies)


@examples.few
@given(at=st.integers(0, 99), flip=st.integers(1, 255), cut=st.integers(0, 3))
def test_damaged_frames_are_refused_alike(at: int, flip: int, cut: int) -> None:
    """With the same words: which frame it is, and what is wrong with it."""
    body, codec = torch.arange(30, dtype=torch.uint8), framing.Codec.SIGN
    message = torch.cat([framing.pack_frame(codec, body, numel=9) for _ in range(2)])
    message[at] ^= flip
    layout = shared.layout_of_shapes([(9,)] * 2)

    def read(sent: Tensor) -> list[Tensor]:
        return [each.body for _, each in framing.frames_of(sent, layout, codec)]

    demand_same(read, message[cut:])


def test_the_meter_tells_kernels_by_the_names_of_their_loops() -> None:
    values = examples.vector(3000, "normal", 0)

    def run() -> list[object]:
        with segment() as recorder:
            norms = shared.bucket_norms(values, 512, "max")
            shared.encode_levels(values, norms, np.uint64(5), size=512, steps=7, bits=4)
            largest(values, Segments.alone(3000), np.array([30]))
            marks.passing(values, Segments.alone(3000), 1.0, memory=values.clone())
            signsgd.encode(values, shared.layout_of_shapes(((30, 50), (1500,))))
            pack_signs(values)
        return list(recorder.costs())

    expected = run()
    assert "levels.encode_levels" in str(expected)
    assert "packing.pack_signs" in str(expected)
    with kernels():
        assert run() == expected
