"""How do values of 0, 8, 16 and 32 bits become tags and three streams of bytes on a GPU?

Twins of `coding/floats/truncated.py`, by torch's operators: the values of a form are selected by
its tag, which keeps their order. The host waits for how many they are.
"""

from __future__ import annotations

from gcsim.compressors.coding.floats.truncated import (
    WIDTHS,
    demand_as_tagged,
    limits_of,
    no_tags,
    scales_of,
)
from gcsim.compressors.coding.frame import as_bytes, from_bytes
from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.gpu.integers.packing import packed_codes, unpacked
from gcsim.compressors.lazy_torch import Tensor, torch


def cut(values: Tensor, bound: int, factor: float) -> tuple[Tensor, int]:
    """See `truncated.cut`."""
    scaled = values * factor
    size = scaled.abs()
    bits = size.view(torch.int32)
    tags = torch.zeros_like(bits, dtype=torch.uint8)
    for limit in limits_of(bound).tolist():
        tags += bits >= limit
    forms = []
    for tag, (steps, top) in enumerate(((2.0 ** (7 + bound // 2), 127), (2.0**15, 32767)), 1):
        own = tags == tag
        code = (size[own] * steps).clamp_(max=top).int()
        code += (top + 1) * (scaled[own].view(torch.int32) < 0)
        forms.append(code.to(torch.uint8 if tag == 1 else torch.int16))
    forms.append(scaled[tags == 3])
    body = torch.cat((packed_codes(tags, 2)[0], *(as_bytes(form) for form in forms)))
    return body, sum(form.numel() for form in forms)


def add_cut(out: Tensor, message: Tensor, *, bound: int, sent: int, weight: float) -> None:
    """See `truncated.add_cut`."""
    n = out.numel()
    at = packed_bytes(n, 2)
    if message.numel() < at or (n % 4 and int(message[at - 1]) >> (2 * (n % 4))):
        raise no_tags(message.numel(), n)
    tags = unpacked(message[:at], n, 2, torch.uint8)
    own = [tags == tag for tag in (1, 2, 3)]
    totals = torch.stack([each.sum() for each in own]).tolist()
    demand_as_tagged(totals, message.numel() - at, sent)
    added = torch.zeros_like(out)
    types = torch.uint8, torch.int16, torch.float32
    scales = scales_of(bound, weight).tolist()
    for here, count, width, dtype, scale in zip(own, totals, WIDTHS, types, scales, strict=True):
        if not count:
            continue
        form = from_bytes(message[at : at + width * count], dtype, count)
        at += width * count
        if dtype != torch.float32:
            top = 1 << (8 * width - 1)
            code = form.int()
            size = (code & (top - 1)).float()
            form = torch.where(code & top != 0, -size, size)
        added[here] = form * scale
    out.add_(added)
