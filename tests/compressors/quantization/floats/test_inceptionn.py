"""INCEPTIONN: a loop over Python floats is the oracle of the forms and of the bits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from gcsim.compressors import check
from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, pack_frame
from gcsim.compressors.quantization.floats.inceptionn import (
    Inceptionn,
    add_decoded,
    cut,
    exponent_above,
)
from gcsim.errors import InputError
from tests.compressors.shared import Draw, layout_of


def form(v: float, b: int) -> tuple[int, float]:
    """(bits, decoded value) of one number; bits are cut off towards zero."""
    size = abs(v)
    if size >= 1:
        return 32, v
    if size < 2.0**-b:
        return 0, 0.0
    fraction_bits, bits = (15, 16) if size >= 2.0 ** -(b // 2) else (7 + b // 2, 8)
    return bits, math.copysign(math.floor(size * 2**fraction_bits) / 2**fraction_bits, v)


def decoded(values: Tensor, **parameters: Any) -> tuple[Tensor, int]:
    """(what a receiver makes of one worker's message, its bytes without the header)."""
    worker = worker_of(**parameters)
    layout = layout_of(values.numel())
    message = worker.encode(values, layout)
    out = torch.zeros(values.numel())
    add_decoded(message, layout, out, 1.0)
    return out, message.numel() - HEADER_BYTES


def worker_of(**parameters: Any) -> Inceptionn:
    from gcsim.compressors.base import Worker
    from gcsim.compressors.registry import create

    worker = create("inceptionn", Worker(rank=0, count=1, seed=0), parameters)
    assert isinstance(worker, Inceptionn)
    return worker


@pytest.mark.parametrize("b", [1, 2, 7, 10, 13, 14])
@pytest.mark.parametrize("n", [1, 5, 4095, 4096, 4097, 20_000])
def test_every_value_has_its_form_and_its_bits(normal: Draw, b: int, n: int) -> None:
    values = normal(n, b) * 10.0 ** torch.linspace(-6, 1.5, n)
    forms = [form(v, b) for v in values.tolist()]
    out, size = decoded(values, bound=b)
    assert out.tolist() == [value for _, value in forms]
    # 2 n bits of tags, rounded up to bytes, then 8, 16 and 32 for the values
    assert size == math.ceil(2 * n / 8) + sum(bits // 8 for bits, _ in forms)


@pytest.mark.parametrize("b", range(1, 15))
def test_the_error_is_below_the_bound(normal: Draw, b: int) -> None:
    values = normal(5000, b)
    values[:9] = torch.tensor([1.0, -1.0, 0.99999994, 2.0**-b, -(2.0**-b), 0.0, 1e9, 1e-40, 0.5])
    out, _ = decoded(values, bound=b)
    assert float((out - values).abs().max()) < 2.0**-b
    assert torch.equal(out[values.abs() >= 1], values[values.abs() >= 1])


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e6, 1e30, 3e38, 1e-35])
def test_a_relative_bound_goes_with_the_largest_element(normal: Draw, scale: float) -> None:
    values = torch.tanh(normal(3000)) * scale
    unit = 2.0 ** math.ceil(math.log2(float(values.abs().max())))
    out, size = decoded(values, bound=10, relative=True)
    assert float((out.double() - values).abs().max()) < 2 * unit * 2.0**-10
    assert size <= math.ceil(2 * 3000 / 8) + 2 * 3000  # nothing takes 32 bits


def test_the_exponent_is_the_one_above() -> None:
    # by hand; 0 has none, and below 2^-126 there is no exponent
    found = [exponent_above(v) for v in (1.0, 0.999, 2.0, 3e38, 0.0, 1e-45, math.inf)]
    assert found == [1, 0, 2, 128, 0, -126, 0]


def test_updates_are_means_and_lengths_go_first(team: Any, normal: Draw) -> None:
    given = [normal(600, rank) * 0.1 for rank in range(3)]
    crew = team("inceptionn", [(500,), (100,)], workers=3)
    expected = torch.tensor([sum(form(float(g[i]), 10)[1] for g in given) / 3 for i in range(600)])
    for update in crew.step(given):
        torch.testing.assert_close(update, expected, rtol=1e-5, atol=1e-7)
    assert crew.sent[0] == (8, 8, 8)
    body = [sum(form(v, 10)[0] for v in g.tolist()) // 8 for g in given]
    assert crew.sent[1] == tuple(2 * HEADER_BYTES + 125 + 25 + b for b in body)


def test_the_law_is_the_bound_of_each_form() -> None:
    # by hand, b = 10: below 2^-10 the value, then 2^-12, from 2^-5 on 2^-15, nothing from 1 on
    bound = Inceptionn.properties(worker_of().parameters).error_bound
    assert bound is not None
    cases = [(2.0**-11, 2.0**-11), (0.01, 2.0**-12), (0.5, 2.0**-15), (1.0, 0.0)]
    for v, error in cases:
        assert bound(torch.tensor([v])) == pytest.approx(error**2)


def test_a_relative_bound_passes_all_checks() -> None:
    check("inceptionn", {"relative": True, "bound": 14})


def test_frames_that_contradict_themselves_are_refused(normal: Draw) -> None:
    values, out = normal(21), torch.zeros(21)
    # frames with a good checksum whose contents contradict each other
    body, sent = cut(values, 10, 1.0)
    for changed, nonzero, flags, params in (
        (body[:-1], sent, 10, 0),
        (body, sent - 1, 10, 0),
        (body, sent, 15, 0),
        (body, sent, 10, 500),
        (body[:3], sent, 10, 0),
    ):
        frame = pack_frame(
            Codec.INCEPTIONN, changed, numel=21, nonzero=nonzero, flags=flags, params=params
        )
        with pytest.raises(InputError, match="damaged payload"):
            add_decoded(frame, layout_of(21), out, 1.0)
    padded = body.clone()
    padded[5] |= 0xC0  # 21 tags leave three of the sixth byte's four places
    frame = pack_frame(Codec.INCEPTIONN, padded, numel=21, nonzero=sent, flags=10)
    with pytest.raises(InputError, match="damaged payload"):
        add_decoded(frame, layout_of(21), out, 1.0)
