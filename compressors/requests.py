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
    """Reduce a tensor (`tensor.nbytes` bytes on the wire) of the same shape and dtype on every
    worker. The driver may overwrite it."""

    tensor: Tensor
    op: Operation = "sum"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AllGather:
    """Give every worker every worker's payload (uint8, one dimension). `variable`: lengths may
    differ between workers; use `gather_variable`, which exchanges them first. `part`: each payload
    is its sender's part of one whole, smaller with more workers."""

    payload: Tensor
    variable: bool = False
    part: bool = False
    lengths: tuple[Iterable[Tensor], ...] = ()
    """Replies of the gathers of lengths, int64 as bytes; several for payloads that are packed into
    this one behind their lengths (`options/fusing.py`)."""


WithoutServer = Literal["alltoall_allgather", "all_gather"]
"""Push-pull without a server. alltoall_allgather: the server treats each element or block by
itself, so each of p ranks serves a stripe of 1 / p (all-to-all, then all-gather of answers).
all_gather: it needs whole payloads, which everybody gets and serves alone."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PushPull:
    """Push a payload to the parameter server and pull what it returns.

    `server` maps all payloads, in rank order, to the payload that every worker pulls. It is called
    once per exchange with worker 0's callable, whose object holds the server's state, or, without a
    server, on every worker with its own: it must not depend on the caller. `variable`: payloads, or
    stripes of them, may differ in length; without a server lengths are then exchanged first.
    """

    payload: Tensor
    server: Callable[[Iterable[Tensor]], Tensor]
    without_server: WithoutServer = "all_gather"
    variable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AllToAll:
    """Send one payload (uint8, one dimension) to each worker, oneself included: parts of one whole.
    `variable`: lengths may differ; the driver first exchanges them (8 bytes each)."""

    payloads: Sequence[Tensor]
    """Payloads by receiving rank."""
    variable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TreeMerge:
    """Merge all payloads pairwise along a binomial tree of any number of workers; all receive the
    result. In round j = 0, 1, … rank r, r mod 2^(j+1) = 2^j, sends its payload to rank r - 2^j,
    which replaces its own by `merge(own, received)`; the root broadcasts along the same tree.
    `merge` must not depend on its caller."""

    payload: Tensor
    merge: Callable[[Tensor, Tensor], Tensor]


Request = AllReduce | AllGather | PushPull | AllToAll | TreeMerge

Exchange = Generator[Request, Any, "Tensor"]
"""One worker's part in one bucket's exchange; returns the update, float32 `[n]`."""


def tensors_sent(request: Request) -> Sequence[Any]:
    """The tensors that one worker hands over."""
    if isinstance(request, AllReduce):
        return [request.tensor]
    return request.payloads if isinstance(request, AllToAll) else [request.payload]


def gather_variable(
    payload: Tensor, *, part: bool = False
) -> Generator[Request, Any, Iterable[Tensor]]:
    """All-gather payloads of unequal length: 8 bytes of length first, then the payloads."""
    from gcsim.compressors.lazy_torch import torch

    length = torch.tensor([payload.numel()], dtype=torch.int64).view(torch.uint8)
    told: Iterable[Tensor] = yield AllGather(payload=length)
    payloads: Iterable[Tensor] = yield AllGather(
        payload=payload, variable=True, part=part, lengths=(told,)
    )
    return payloads
