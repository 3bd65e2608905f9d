"""A comparison of ranks' requests in a hook's first steps.

Ranks that ask for different collectives, or for sums of different length or type, wait for each
other until the group's timeout, or Gloo aborts the process. Before each request of the first
`COMPARED` steps, and at the end of an exchange, ranks tell each other what they ask for; where that
differs, every rank raises an error that says which rank asks for what.
"""

from __future__ import annotations

from gcsim.compressors.ddp.collectives import Collectives, as_bytes
from gcsim.compressors.ddp.deadlines import ranks_text
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.mistakes import RefusedRequestError
from gcsim.compressors.requests import AllGather, AllReduce, AllToAll, PushPull, Request

COMPARED = 3
"""Steps of the compressor, from its first."""
_LONGEST = 120
"""Bytes of a text."""


def require_alike(collectives: Collectives, bucket: int, request: Request | None) -> None:
    """Raise `RefusedRequestError` on all ranks where they ask for different things; `request` is
    None at the end of an exchange."""
    own = f"bucket {bucket}, {_text(request)}".encode()[:_LONGEST]
    padded = as_bytes(torch.tensor(list(own.ljust(_LONGEST)), dtype=torch.uint8))
    told = [bytes(text.tolist()).decode().rstrip() for text in collectives.gathered(padded)]
    if len(set(told)) == 1:
        return
    asked = {text: [rank for rank, other in enumerate(told) if other == text] for text in told}
    said = "; ".join(f"{ranks_text(ranks)} for {text}" for text, ranks in asked.items())
    raise RefusedRequestError(
        f"ranks ask for different collectives: {said}",
        hint="whether and what to ask must not depend on the rank or on a rank's own gradient",
        ranks=tuple(range(len(told))),
    )


def _text(request: Request | None) -> str:
    """Facts of a request that are equal on all ranks."""
    if request is None:
        return "nothing more"
    kind = type(request).__name__
    if isinstance(request, AllReduce):
        tensor = request.tensor
        dtype = str(tensor.dtype).removeprefix("torch.")
        return f"{kind} ({request.op}) of {dtype} {list(tensor.shape)}"
    if isinstance(request, AllGather | PushPull | AllToAll) and request.variable:
        return f"{kind} of any length"
    if isinstance(request, AllToAll):
        lengths = {payload.numel() for payload in request.payloads}
        return f"{kind} of {len(request.payloads)} payloads of {sorted(lengths)} bytes"
    if isinstance(request, AllGather | PushPull):
        return f"{kind} of {request.payload.numel()} bytes"
    return kind
