"""Random rounding to a table is right on average and has the variance of its formula."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frames import Codec, pack_frame, read_frames
from gcsim.compressors.coding.integers.digits import fixed
from gcsim.compressors.coding.integers.packing import pack_bits, packed_bytes, unpack_bits
from gcsim.compressors.coding.rounding.levels import CHUNK, KNOWN, Levels, Table, add_rounded
from gcsim.compressors.quantization.rounding.nuqsgd import (
    TableParameters,
    add_decoded,
    encode_message,
    exponential_levels,
    table_error,
)
from gcsim.compressors.random import random_key
from gcsim.compressors.segments import ZERO
from gcsim.errors import InputError
from tests.compressors.shared import bucket_norms, bucket_of, cells_of, normal, random16, rounded

KEY = random_key(1, 2, 3, "test", 4)


def random_levels(count: int, seed: int) -> Table:
    inner = np.random.default_rng(seed).normal(0, 0.2, count - 2).clip(-0.999, 0.999)
    return np.sort(np.concatenate(([-1.0], inner, [1.0]))).astype(np.float32)


TABLES = {
    "ternary": np.array([-1, 0, 1], dtype=np.float32),
    "two": np.array([-1, 1], dtype=np.float32),
    "exponential 4": exponential_levels(4, 0.5, zero=False),
    "random 16": random_levels(16, 0),
    "random 31": random_levels(31, 1),
    "random 33": random_levels(33, 2),  # more than are counted
    "random 256": random_levels(256, 3),
    "exponential 8": exponential_levels(8, 0.8, zero=True),
    "uniform 256": np.linspace(-1, 1, 256).astype(np.float32),
}
EVERY_TABLE = pytest.mark.parametrize("name", list(TABLES))


def known(values: torch.Tensor, norms: torch.Tensor, levels: Table, size: int) -> Levels:
    """A table for a tensor alone."""
    return Levels(kind=KNOWN, cells=cells_of(values, size), numbers=norms, tables=[levels])


def encode_table(
    values: torch.Tensor, norms: torch.Tensor, levels: Table, key: np.uint64, *, size: int,
    bits: int,
) -> torch.Tensor:  # fmt: skip
    """The packed codes of a tensor alone."""
    return rounded(values, known(values, norms, levels, size), key, fixed(bits))


def add_table(
    out: torch.Tensor, packed: torch.Tensor, norms: torch.Tensor, levels: Table, *, size: int,
    bits: int, weight: float,
) -> None:  # fmt: skip
    """Undo `encode_table`."""
    add_rounded(out, known(out, norms, levels, size), packed, ZERO, fixed(bits), weight)


def fractions_of(key: np.uint64, n: int) -> NDArray[np.float32]:
    """u of each element: (16 bits of SplitMix64 + 1/2) / 65536."""
    bits = random16(int(key), n).astype(np.float32)
    return bits * np.float32(2**-16) + np.float32(2**-17)


@EVERY_TABLE
@pytest.mark.parametrize("n", [0, 1, 9, CHUNK - 1, 2 * CHUNK + 3])
def test_codes_are_those_of_a_search_and_a_draw(name: str, n: int) -> None:
    # Independent: find the two neighbours, take the upper one with probability
    # (r - lo) / (hi - lo). At ties of float32 rounding, about 1 in 10^5, the two may differ.
    levels = TABLES[name]
    bits = (levels.size - 1).bit_length()
    values = normal(n, seed=n) * (normal(n, seed=n + 1)).exp()
    norms = bucket_norms(values, 100, "max")
    packed = encode_table(values, norms, levels, KEY, size=100, bits=bits)
    assert packed.numel() == packed_bytes(n, bits)
    codes = unpack_bits(packed, n, bits).numpy().astype(int)
    shares = (values.numpy() / np.repeat(norms.numpy(), 100)[:n]).astype(np.float64)
    low = np.clip(np.searchsorted(levels, shares, side="right") - 1, 0, levels.size - 2)
    gaps = levels[low + 1].astype(np.float64) - levels[low]
    up = fractions_of(KEY, n) * gaps < shares - levels[low]
    assert (codes != low + up).sum() <= 1e-4 * n + (n > 1000)
    out = torch.ones(n)
    add_table(out, packed, norms, levels, size=100, bits=bits, weight=0.5)
    expected = 1 + 0.5 * levels[codes] * np.repeat(norms.numpy(), 100)[:n]
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_the_variance_is_that_of_a_loop_over_elements() -> None:
    values, levels = normal(300, seed=4), TABLES["random 16"]
    total = 0.0
    for part in torch.split(values.double(), 128):
        norm = float(part.square().sum().sqrt())
        for r in (part / norm).tolist():
            low = max(level for level in levels.tolist() if level <= r)
            high = min(level for level in levels.tolist() if level >= r)
            total += norm**2 * (r - low) * (high - r)
    assert table_error(values, levels, size=128, norm="l2") == pytest.approx(total, rel=1e-5)
    assert table_error(values[:0], levels, size=None, norm="l2") == 0
    assert table_error(torch.zeros(9), levels, size=None, norm="l2") == 0


@EVERY_TABLE
def test_levels_stay_what_they_are(name: str) -> None:
    # r exactly on a level is not moved, whatever the random number: 40 copies of each
    levels = TABLES[name]
    gaps = np.diff(levels)
    apart = np.concatenate(([True], gaps > 1e-4)) & np.concatenate((gaps > 1e-4, [True]))
    values = torch.from_numpy(np.repeat(levels[apart], 40))
    bits = (levels.size - 1).bit_length()
    packed = encode_table(values, torch.ones(1), levels, KEY, size=values.numel(), bits=bits)
    out = torch.zeros_like(values)
    add_table(out, packed, torch.ones(1), levels, size=values.numel(), bits=bits, weight=1.0)
    assert torch.equal(out, values)


@EVERY_TABLE
def test_extremes_saturate_and_zero_norms_give_zeros(name: str) -> None:
    levels = TABLES[name]
    bits = (levels.size - 1).bit_length()
    values = torch.tensor([5.0, -5.0, 0.0, 1e-44, 0.0, -0.0])
    norms = torch.tensor([1.0, 1e-44, 0.0])
    packed = encode_table(values, norms, levels, KEY, size=2, bits=bits)
    out = torch.zeros(6)
    add_table(out, packed, norms, levels, size=2, bits=bits, weight=1.0)
    assert out[:2].tolist() == [1.0, -1.0]
    assert float(out[2:4].abs().max()) <= 1e-44
    assert out[4:].tolist() == [0.0, 0.0]


def test_exponential_levels_are_the_powers() -> None:
    # Faghri et al.'s code at 3 bits, p = 1/2: ±1, ±.5, ±.25, ±.125; with zero one power less
    assert exponential_levels(3, 0.5, zero=False).tolist() == [
        *(-1.0, -0.5, -0.25, -0.125),
        *(0.125, 0.25, 0.5, 1.0),
    ]
    assert exponential_levels(3, 0.5, zero=True).tolist() == [-1.0, -0.5, -0.25, 0, 0.25, 0.5, 1.0]
    assert exponential_levels(2, 0.3, zero=True).tolist() == [-1.0, 0.0, 1.0]
    for bits in range(2, 9):
        assert exponential_levels(bits, 0.5, zero=False).size == 2**bits
        assert exponential_levels(bits, 0.5, zero=True).size == 2**bits - 1


def test_codes_that_cannot_have_been_sent_are_refused() -> None:
    levels, norms, out = TABLES["ternary"], torch.ones(1), torch.zeros(5)
    for packed in (
        pack_bits(torch.tensor([0, 1, 2, 3, 0], dtype=torch.uint8), 2),  # there is no level 3
        torch.tensor([0, 4], dtype=torch.uint8),  # a bit behind the fifth code
    ):
        with pytest.raises(InputError, match="damaged"):
            add_table(out, packed, norms, levels, size=5, bits=2, weight=1.0)


def message(bucket: Bucket, levels: Table, size: int | None = 100) -> torch.Tensor:
    worker, chosen = (
        Worker(rank=1, count=2, seed=3),
        TableParameters.model_validate({"bucket": size}),
    )
    return encode_message(bucket, [levels], chosen, worker, 5, "test")


def test_a_message_of_other_parameters_or_damage_is_refused() -> None:
    bucket, levels = bucket_of(normal(250)), TABLES["random 16"]
    sent = message(bucket, levels)
    (frame,) = read_frames(sent)
    cut = pack_frame(Codec.TABLE, frame.body[:-1], numel=250, nonzero=250, flags=4, params=100)

    def decode(damaged: torch.Tensor, bits: int = 4, size: int | None = 100) -> None:
        chosen = TableParameters.model_validate({"bits": bits, "bucket": size})
        add_decoded(damaged, bucket.layout, torch.zeros(250), 1.0, tables=[levels], chosen=chosen)

    decode(sent)
    wrong: list[Any] = [(sent, 3), (sent, 4, 99), (sent, 4, None), (cut,), (sent[:-1],)]
    for arguments in wrong:
        with pytest.raises(InputError):
            decode(*arguments)
    for position in range(0, sent.numel(), 5):
        damaged = sent.clone()
        damaged[position] ^= 0x10
        with pytest.raises(InputError):
            decode(damaged)
