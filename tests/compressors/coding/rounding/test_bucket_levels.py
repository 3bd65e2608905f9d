"""Random rounding to a bucket's own levels is right on average, and exact where it must be."""

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, pack_frame
from gcsim.compressors.coding.integers.digits import digits
from gcsim.compressors.coding.rounding.bucket_levels import quantiles, rounding_error
from gcsim.compressors.coding.rounding.levels import encoded, own
from gcsim.compressors.quantization.rounding.orq import add_decoded
from gcsim.compressors.random import random_key
from gcsim.compressors.segments import Segments
from gcsim.errors import InputError
from tests.compressors.shared import layout_of, normal, round_alone, split_mix


def key(number: int = 0) -> np.uint64:
    return random_key(7, number, 0, "test", 0)


def random_tables(buckets: int, count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(buckets, count, generator=generator).sort(dim=1).values


def message_of(values: Tensor, tables: Tensor, *, size: int, key: np.uint64) -> Tensor:
    cells = Segments.alone(values.numel()).cells(size)
    count = tables.shape[1]
    levels, keys = own(cells, tables, count), np.array([key])
    form = digits(count)
    return encoded(values, levels, keys, Codec.LEVELS, form, flags=count, params=size)


@pytest.mark.parametrize(
    ("n", "size", "count"), [(1000, 96, 9), (77, 7, 5), (64, 64, 3), (5, 8, 3)]
)
def test_codes_are_those_of_the_definition(n: int, size: int, count: int) -> None:
    # Element by element: clip, find the gap, go up when u < (v - l_j) / gap.
    values, tables = normal(n), random_tables(-(-n // size), count)
    codes = round_alone(values, tables, size=size, key=key())
    for i in range(n):
        table = tables[i // size].tolist()
        v = min(max(float(values[i]), table[0]), table[-1])
        j = max(k for k in range(count - 1) if table[k] <= v)
        r = split_mix(int(key()), i // 4) >> (16 * (i % 4)) & 0xFFFF
        up = (v - table[j]) / (table[j + 1] - table[j]) > (r + 0.5) / 65536
        assert int(codes[i]) == j + up


@pytest.mark.parametrize("count", [3, 5, 9])
def test_a_value_that_is_a_level_stays_what_it_is(count: int) -> None:
    # however close levels lie to each other: neighbouring floats from 1 on, and denormal numbers
    for first, step in ((1.0, 2.0**-23), (-1.0, 2.0**-24), (0.0, 2.0**-149), (0.0, 1e30)):
        table = torch.tensor([[first + j * step for j in range(count)]])
        values = table.repeat(1, 500).view(-1)
        codes = round_alone(values, table, size=values.numel(), key=key())
        assert torch.equal(codes, torch.arange(count, dtype=torch.uint8).repeat(500))


@pytest.mark.parametrize("unit", [1.0, 1e-30, 2.0**-149])
def test_the_mean_is_the_value_even_among_denormal_numbers(unit: float) -> None:
    # 40000 elements at 1/3 of the gap: standard error .0024, five of them allowed.
    values = torch.full((40_000,), unit)
    table = torch.tensor([[0.0, 3 * unit, 6 * unit]])
    codes = round_alone(values, table, size=values.numel(), key=key())
    assert int(codes.max()) == 1
    assert float(codes.float().mean()) == pytest.approx(1 / 3, abs=0.012)


def test_levels_whose_distance_overflows_are_chosen_between() -> None:
    # -3e38 to 3e38 is more than float32 holds; 1.5e38 is 3/4 of the way: 5 standard errors.
    values = torch.tensor([-3e38, 3e38, 1.5e38]).repeat(10_000)
    table = torch.tensor([[-3e38, 3e38, 3e38]])
    codes = round_alone(values, table, size=values.numel(), key=key()).view(-1, 3)
    assert not codes[:, 0].any()
    assert bool((codes[:, 1] >= 1).all())
    assert float((codes[:, 2] > 0).float().mean()) == pytest.approx(0.75, abs=0.022)


def test_an_error_by_hand() -> None:
    # Levels 0, 4, 8; 1 costs 1 * 3, 6 costs 2 * 2, 8 nothing; -2 and 10 are cut: 4 and 4.
    values, table = torch.tensor([1.0, 6.0, 8.0, -2.0, 10.0]), torch.tensor([[0.0, 4.0, 8.0]])
    assert rounding_error(values, table, 5) == 3 + 4 + 0 + 4 + 4


def test_clipping_is_to_standard_deviations_of_the_bucket() -> None:
    values = torch.cat((normal(100), 50 + 10 * normal(100, 1), torch.full((100,), 3.0)))
    tables = quantiles(values, Segments.alone(300).cells(100), 3, 1.5)
    for at in (0, 1):
        bucket = values[100 * at : 100 * at + 100].double()
        bound = 1.5 * float(bucket.std(correction=0))
        clipped = bucket.clamp(-bound, bound)
        assert float(tables[at, 0]) == pytest.approx(float(clipped.min()), rel=1e-6)
        assert float(tables[at, 2]) == pytest.approx(float(clipped.max()), rel=1e-6)
    assert tables[2].tolist() == [3.0, 3.0, 3.0]  # no spread: not clipped


@pytest.mark.parametrize("count", [3, 5, 9])
@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 1000])
def test_messages_decode_exactly_and_have_the_length_of_the_formula(n: int, count: int) -> None:
    # 5 base-3 digits in 8 bits, 3 base-5 digits in 7, 5 base-9 digits in 16; 32 bits a level.
    values, size = normal(n), 16
    tables = random_tables(-(-n // size), count)
    message = message_of(values, tables, size=size, key=key())
    group, bits = {3: (5, 8), 5: (3, 7), 9: (5, 16)}[count]
    digits = -(-(-(-n // group) * bits) // 8)
    assert message.numel() == HEADER_BYTES + 4 * tables.numel() + digits
    out = torch.zeros(n)
    add_decoded(message, layout_of(n), out, 0.5)
    codes = round_alone(values, tables, size=size, key=key()).long()
    assert torch.equal(out, 0.5 * tables[torch.arange(n) // size, codes])


@pytest.mark.parametrize(
    ("flags", "params", "spare"), [(4, 10, 0), (3, 0, 0), (3, 10, 1), (3, 5, 0)]
)
def test_headers_that_contradict_the_body_are_refused(flags: int, params: int, spare: int) -> None:
    body = torch.zeros(2 * 3 * 4 + 4 + spare, dtype=torch.uint8)  # two buckets of 3 levels
    message = pack_frame(Codec.LEVELS, body, numel=20, nonzero=20, flags=flags, params=params)
    with pytest.raises(InputError, match="damaged payload"):
        add_decoded(message, layout_of(20), torch.zeros(20), 1.0)


def test_codes_beyond_the_table_are_refused() -> None:
    body = torch.cat((torch.zeros(12, dtype=torch.uint8), torch.tensor([243, 0, 0, 0]).byte()))
    message = pack_frame(Codec.LEVELS, body, numel=20, nonzero=20, flags=3, params=20)
    with pytest.raises(InputError, match="damaged"):
        add_decoded(message, layout_of(20), torch.zeros(20), 1.0)
