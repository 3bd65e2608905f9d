"""The collectives that a compressor may ask for. `exchange` yields a request and receives the
reply, whether the lockstep driver, the meter, the simulator or `torch.distributed` carries it out.

| request     | reply                                                                        |
|-------------|------------------------------------------------------------------------------|
| `AllReduce` | the element-wise sum (or maximum) over workers, same shape and dtype          |
| `AllGather` | the workers' payloads in rank order, as a `Payloads` sequence                |
| `PushPull`  | the payload that the server made of everybody's payloads                     |
| `AllToAll`  | the payloads that the workers addressed to this one, in rank order            |
| `TreeMerge` | the payload that was merged from everybody's payloads, two by two             |
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gcsim.compressors.lazy_torch import Tensor

Operation = Literal["sum", "max"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AllReduce:
    """Reduce tensors of the same shape and dtype on every worker (`tensor.nbytes` bytes each). The
    driver may overwrite the tensor."""

    tensor: Tensor
    op: Operation = "sum"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AllGather:
    """Send every worker's payload (uint8, one-dimensional) to every worker. `variable`: lengths may
    differ between workers; use `gather_variable`, which exchanges them first. `part`: each payload
    is one worker's part of a whole, so it gets smaller with more workers."""

    payload: Tensor
    variable: bool = False
    part: bool = False
    lengths: Iterable[Tensor] | None = None
    """Reply of the preceding gather of lengths, int64 as bytes."""


WithoutServer = Literal["alltoall_allgather", "all_gather"]
"""Ways of a push-pull without a server. alltoall_allgather: the server treats each element or block
separately, so each of p ranks serves a stripe of 1 / p (all-to-all, then all-gather of the
answers). all_gather: it needs whole payloads; every rank gathers all and serves itself."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PushPull:
    """Push a payload to the parameter server and pull the server's answer.

    `server` maps all payloads, in rank order, to the payload that every worker pulls. A server
    calls worker 0's, whose object holds the server's state, once per exchange; without one every
    worker calls its own: the result must not depend on the caller. `variable`: payloads or their
    stripes may differ in length; without a server the lengths are exchanged first.
    """

    payload: Tensor
    server: Callable[[Iterable[Tensor]], Tensor]
    without_server: WithoutServer = "all_gather"
    variable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AllToAll:
    """Send one payload (uint8, one-dimensional) to each worker, including oneself: parts of one
    whole. `variable`: lengths may differ; the driver exchanges them first (8 bytes each)."""

    payloads: Sequence[Tensor]
    """Payloads by the rank that receives them."""
    variable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TreeMerge:
    """Merge all payloads pairwise along a binomial tree of any number of workers; all receive the
    result. In round j = 0, 1, … each rank r with r mod 2^(j+1) = 2^j sends its payload to rank r -
    2^j, which replaces its own by `merge(own, received)`; the root broadcasts along the same tree.
    `merge` must not depend on its caller."""

    payload: Tensor
    merge: Callable[[Tensor, Tensor], Tensor]


Request = AllReduce | AllGather | PushPull | AllToAll | TreeMerge

Exchange = Generator[Request, Any, "Tensor"]
"""One worker's part in the exchange of one bucket; returns the update, float32 `[n]`."""


def tensors_sent(request: Request) -> Sequence[Any]:
    """Return the tensors that one worker sends."""
    if isinstance(request, AllReduce):
        return [request.tensor]
    return request.payloads if isinstance(request, AllToAll) else [request.payload]


def gather_variable(
    payload: Tensor, *, part: bool = False
) -> Generator[Request, Any, Iterable[Tensor]]:
    """All-gather payloads of different lengths, after their lengths (8 bytes each)."""
    from gcsim.compressors.lazy_torch import torch

    length = torch.tensor([payload.numel()], dtype=torch.int64).view(torch.uint8)
    told: Iterable[Tensor] = yield AllGather(payload=length)
    payloads: Iterable[Tensor] = yield AllGather(
        payload=payload, variable=True, part=part, lengths=told
    )
    return payloads
