"""Sign loops do what a plain loop over Python numbers does, at every length and block length."""

from typing import Any

import numpy as np
import pytest
import torch

from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.coding.one_bit.signs import lost_by, pack_signs, put_sign_bits
from gcsim.compressors.coding.one_bit.votes import add_votes, put_more_than, votes_of
from gcsim.compressors.meter import segment
from gcsim.compressors.segments import ZERO, Segments, starts
from gcsim.errors import InputError
from tests.compressors.shared import add_signs, fold, fold_average, fold_nesterov, normal

LENGTHS = [0, 1, 2, 7, 8, 9, 63, 64, 65, 4095, 4096, 4097, 9000]  # a tile has 4096 elements


def blocks_of(n: int, length: int) -> list[slice]:
    return [slice(at, min(at + length, n)) for at in range(0, n, length)]


def scales_of(values: np.ndarray[Any, Any], length: int, norm: str) -> list[float]:
    """Straight from the formulas, in float64."""
    found = []
    for block in blocks_of(values.size, length):
        v = values[block].astype(np.float64)
        mean = np.abs(v).mean() if norm == "mean_abs" else np.sqrt((v * v).mean())
        found.append(float(mean))
    return found


@pytest.mark.parametrize("n", LENGTHS)
def test_bits_are_those_of_numpys_packbits(n: int) -> None:
    values = normal(n, n)
    values[::5] = -0.0
    expected = np.packbits(values.numpy() < 0, bitorder="little")
    assert pack_signs(values).tolist() == expected.tolist()
    assert fold(values, max(1, n))[0].tolist() == expected.tolist()
    bits = torch.zeros(3 + len(expected), dtype=torch.uint8)
    put_sign_bits(values, Segments.alone(n), bits, ZERO + 3)
    assert bits.tolist() == [0] * 3 + expected.tolist()


@pytest.mark.parametrize("norm", ["mean_abs", "rms"])
@pytest.mark.parametrize("length", [1, 3, 8, 100, 4096, 5000])
@pytest.mark.parametrize("n", LENGTHS[1:])
def test_scales_are_the_norms_of_the_blocks(n: int, length: int, norm: Any) -> None:
    values = normal(n, n)
    _, scales = fold(values, length, norm)
    assert scales.dtype == torch.float32
    np.testing.assert_allclose(
        scales.numpy(), scales_of(values.numpy(), length, norm), rtol=1.2e-7, atol=0
    )


@pytest.mark.parametrize("norm", ["mean_abs", "rms"])
@pytest.mark.parametrize("magnitude", [1e-44, 1e-30, 1e30, 3e38])
def test_scales_neither_vanish_nor_overflow(magnitude: float, norm: Any) -> None:
    # Equal magnitudes: both norms are that magnitude.
    values = torch.full((10_000,), magnitude)
    values[::3] *= -1
    _, scales = fold(values, 10_000, norm)
    assert float(scales) == float(values[1])


@pytest.mark.parametrize(("n", "length"), [(1, 1), (9, 9), (9, 2), (5000, 5000), (5000, 37)])
@pytest.mark.parametrize("method", ["plain", "nesterov", "average"])
def test_folding_codes_the_input_plus_what_was_lost(method: str, n: int, length: int) -> None:
    # Oracle: float64, with the error written out: p = x + e, e = p - scale sign(p).
    if method == "average":
        length = n
    beta = 0.8
    coded, scales = torch.zeros(n), torch.zeros(-(-n // length))
    u = torch.zeros(n)
    error, v = np.zeros(n), np.zeros(n)
    for step in range(4):
        values = normal(n, step)
        g = values.double().numpy()
        if method == "plain":
            x = g
            bits, scales = fold(values, length, coded=coded, scales=scales)
        elif method == "nesterov":
            v = beta * v + g
            x = g + beta * v
            bits, scales = fold_nesterov(values, u, coded, scales, length, decay=beta)
            np.testing.assert_allclose(u.numpy(), v, rtol=1e-4, atol=1e-5)
        else:
            average = normal(n, 100 + step)
            kept = average.clone()
            x = beta * average.double().numpy() + (1 - beta) * g
            bits, scales = fold_average(values, average, coded, scales, decay=beta)
            assert torch.equal(average, kept)
        p = x + error
        norm = "rms" if method == "average" else "mean_abs"
        expected = scales_of(p, length, norm)
        np.testing.assert_allclose(coded.numpy(), p, rtol=1e-4, atol=2e-6)
        np.testing.assert_allclose(scales.numpy(), expected, rtol=1e-5)
        assert torch.equal(bits, pack_signs(coded))
        each = np.repeat(expected, length)[:n]
        error = p - np.where(coded.numpy() < 0, -each, each)
        found = lost_by(coded, scales, Segments.alone(n).cells(length)).numpy()
        np.testing.assert_allclose(found, error, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(("n", "length"), [(1, 1), (9, 2), (4097, 4097), (9000, 1), (9000, 1234)])
def test_decoding_adds_weight_times_scale_times_sign(n: int, length: int) -> None:
    values, before = normal(n, 1), normal(n, 2)
    bits, scales = fold(values, length)
    each = scales.repeat_interleave(length)[:n] * 0.25
    expected = torch.where(values < 0, -each, each)
    out = before.clone()
    add_signs(out, bits, scales, length, 0.25)
    assert torch.equal(out, before + expected)
    out.fill_(torch.nan)
    add_signs(out, bits, scales, length, 0.25, overwrite=True)
    assert torch.equal(out, expected)


def test_what_cannot_be_the_signs_of_n_elements_is_refused() -> None:
    out, one = torch.zeros(12), torch.ones(1)
    bits = torch.tensor([255, 15], dtype=torch.uint8)
    add_signs(out, bits, one, 12, 1.0)
    with pytest.raises(InputError, match="padding"):
        add_signs(out, bits | 16, one, 12, 1.0)
    for scale in (-1.0, torch.inf, torch.nan):
        with pytest.raises(InputError, match="finite"):
            add_signs(out, bits, torch.tensor([scale]), 12, 1.0, overwrite=True)


@pytest.mark.parametrize("voters", [1, 2, 3, 4, 5, 8, 17])
@pytest.mark.parametrize("n", [0, 1, 9, 70, 40_000])
def test_votes_are_counted_exactly(n: int, voters: int) -> None:
    generator = np.random.default_rng(voters)
    ballots = generator.random((voters, n)) < 0.5
    segments = Segments.behind([n - n // 3, n // 3])
    cuts, counts = [n - n // 3], votes_of(segments, voters, torch.zeros(0))
    for number, ballot in enumerate(ballots):
        parts = [np.packbits(part, bitorder="little") for part in np.split(ballot, cuts)]
        message = torch.from_numpy(np.concatenate((*parts[::-1], [7]))).byte()
        at = np.array([len(parts[1]), 0])  # anywhere in the message
        add_votes(counts, message, at, segments, first=number == 0)
    total = ballots.sum(0)
    for threshold in range(voters + 2):
        bits, at = torch.empty_like(counts[0]), starts(packed_bytes(segments.length, 1))
        put_more_than(counts, threshold, segments, bits, at)
        each = [np.packbits(part > threshold, bitorder="little") for part in np.split(total, cuts)]
        assert bits.tolist() == np.concatenate(each).tolist()


def test_votes_behind_the_last_element_are_refused() -> None:
    segments = Segments.behind([9])
    counts = votes_of(segments, 1, torch.zeros(0))
    with pytest.raises(InputError, match="padding"):
        add_votes(counts, torch.tensor([0, 2], dtype=torch.uint8), ZERO, segments)


def test_a_fold_is_priced_as_one_pass() -> None:
    # Reads x, p (4 bytes each) and the scale, writes p, n / 8 bytes and a scale: by hand.
    with segment() as recorder:
        fold(normal(800), 800, coded=torch.zeros(800), scales=torch.zeros(1))
    costs = [cost for cost in recorder.costs() if cost.kind == "reduction"]
    assert [(cost.launches, cost.nbytes) for cost in costs] == [(1, 3 * 3200 + 100 + 8)]
