"""INCEPTIONN: a loop over Python floats is the oracle of the forms and of the bits."""

import math

import pytest
import torch

from gcsim.compressors.coding.frames import HEADER_BYTES, Codec, pack_frame
from gcsim.compressors.quantization.floats.inceptionn import Inceptionn, add_cut, cut
from gcsim.compressors.segments import Segments
from gcsim.errors import InputError
from tests.compressors.shared import Team, layout_of, normal


def form(v: float, b: int) -> tuple[int, float]:
    """(bits, decoded value) of one number; bits are cut off towards zero."""
    size = abs(v)
    if size >= 1:
        return 32, v
    if size < 2.0**-b:
        return 0, 0.0
    fraction_bits, bits = (15, 16) if size >= 2.0 ** -(b // 2) else (7 + b // 2, 8)
    return bits, math.copysign(math.floor(size * 2**fraction_bits) / 2**fraction_bits, v)


@pytest.mark.parametrize("b", [1, 2, 7, 10, 13, 14])
@pytest.mark.parametrize("n", [1, 5, 20_000])
def test_every_value_has_its_form_and_its_bits(b: int, n: int) -> None:
    values = normal(n, b) * 10.0 ** torch.linspace(-6, 1.5, n)
    special = torch.tensor([1.0, -1.0, 0.99999994, 2.0**-b, -(2.0**-b), 0.0, 1e9, 1e-40, 0.5])
    values[: 9 if n > 9 else 0] = special[: 9 if n > 9 else 0]
    forms = [form(v, b) for v in values.tolist()]
    crew = Team("inceptionn", [(n,)], workers=1, bound=b)
    (update,) = crew.step([values])
    assert update.tolist() == [value for _, value in forms]
    assert float((update - values).abs().max()) < 2.0**-b
    # lengths go first; 2 n bits of tags, rounded up to bytes, then 8, 16 and 32 for the values
    nbytes = HEADER_BYTES + math.ceil(2 * n / 8) + sum(bits // 8 for bits, _ in forms)
    assert crew.sent == [(8,), (nbytes,)]


def test_the_law_is_the_bound_of_each_form() -> None:
    # by hand, b = 10: below 2^-10 the value, then 2^-12, from 2^-5 on 2^-15, nothing from 1 on
    bound = Inceptionn.properties(Inceptionn.Parameters()).error_bound  # type: ignore[arg-type]
    assert bound is not None
    for v, error in [(2.0**-11, 2.0**-11), (0.01, 2.0**-12), (0.5, 2.0**-15), (1.0, 0.0)]:
        assert bound(torch.tensor([v])) == pytest.approx(error**2)


def test_frames_that_contradict_themselves_are_refused() -> None:
    # with a good checksum; 21 tags leave three of the sixth byte's four places
    body, _, (sent,) = cut(normal(21), Segments.alone(21), 10)
    padded = body.clone()
    padded[5] |= 0xC0
    for changed, nonzero, flags, params in (
        (body[:-1], sent, 10, 0),
        (body, sent - 1, 10, 0),
        (body, sent, 15, 0),
        (body, sent, 10, 500),
        (body[:3], sent, 10, 0),
        (padded, sent, 10, 0),
    ):
        given = {"numel": 21, "nonzero": nonzero, "flags": flags, "params": params}
        frame = pack_frame(Codec.INCEPTIONN, changed, **given)
        with pytest.raises(InputError, match="damaged payload"):
            add_cut(frame, layout_of(21), torch.zeros(21), 1.0)
