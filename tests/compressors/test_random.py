"""Random numbers are keyed, shared where they must be, and touch no global generator."""

from typing import Any

import numpy as np
import torch
from scipy import stats

from gcsim.compressors.conformance.subject import unchanged_global_generators
from gcsim.compressors.loops import array, in_parallel, loop
from gcsim.compressors.random import bits64, fraction64, random_key, stream


@loop
def _numbers(start: int, stop: int, key: Any, out: Any) -> None:
    for i in range(out[start:stop].size):
        out[start + i] = bits64(key, start + i)


@loop
def _fractions(start: int, stop: int, key: Any, out: Any) -> None:
    for i in range(out[start:stop].size):
        out[start + i] = fraction64(key, start + i)


def numbers(key: int, n: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    out = np.zeros(n, dtype=np.uint64)
    in_parallel(_numbers, n, np.uint64(key), out)
    return out


def test_equal_keys_give_equal_numbers_and_any_difference_gives_others() -> None:
    key = (3, 14, 15, "mask", 2)
    same = stream(*key).random(64)
    assert (same == stream(*key).random(64)).all()
    assert random_key(*key) == random_key(*key)
    for place, other in enumerate((4, 15, 16, "level", None)):
        changed: list[Any] = list(key)
        changed[place] = other
        assert not (same == stream(*changed).random(64)).all()
        assert random_key(*key) != random_key(*changed)


def test_numbers_are_pinned_so_that_a_run_can_be_repeated_in_another_version() -> None:
    # Golden: Philox keyed by blake2b-128("1/2/3/shared/golden") as a little-endian integer.
    # It changes only when every stored result may change.
    drawn = stream(1, 2, 3, "golden").bit_generator.random_raw(2)
    assert drawn.tolist() == [9684380393360750681, 14297885659409498307]


def test_a_loops_numbers_are_those_of_splitmix64() -> None:
    # The first five outputs for the seed 1234567 (rosettacode.org, "Pseudo-random numbers/
    # Splitmix64", from S. Vigna's reference implementation)
    assert numbers(1234567, 5).tolist() == [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431,
        16408922859458223821,
    ]  # fmt: skip


def test_numbers_do_not_depend_on_the_threads(same_on_any_threads: Any) -> None:
    same_on_any_threads(lambda: (numbers(9, 500_000).tobytes(),))


def test_fractions_are_uniform_on_the_half_open_interval() -> None:
    out = torch.zeros(200_000, dtype=torch.float64)
    in_parallel(_fractions, out.numel(), random_key(5, 0, 0, "u"), array(out))
    assert 0.0 <= float(out.min()) <= float(out.max()) < 1.0
    # Kolmogorov-Smirnov at one in a million, the seed being fixed
    assert stats.kstest(out.numpy(), "uniform").pvalue > 1e-6


def test_all_four_16_bit_fields_are_uniform_and_uncorrelated() -> None:
    fields = numbers(int(random_key(7, 0, 0, "f")), 1 << 18).view(np.uint16).reshape(-1, 4)
    for place in range(4):
        counts = np.bincount(fields[:, place] >> 8, minlength=256)
        # chi-square with 255 degrees of freedom: beyond 400 one time in 1e8
        assert ((counts - 1024.0) ** 2 / 1024.0).sum() < 400
    correlation = np.corrcoef(fields.T.astype(np.float64))
    # sd 1 / sqrt(2^18) = .002; six of them
    assert np.abs(correlation - np.eye(4)).max() < 0.012


def test_no_global_random_state_is_read_or_set() -> None:
    with unchanged_global_generators():
        first = stream(0, 0, 0, "x").random(10)
        numbers(3, 10)
    torch.rand(3)
    assert (first == stream(0, 0, 0, "x").random(10)).all()
