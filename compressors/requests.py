"""The collectives that a compressor may ask for: its only contact with the world.

A compressor's `exchange` yields one of these and receives the reply; it does not know whether
the lockstep driver, the meter, the simulator or `torch.distributed` carried it out.

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
    """Reduce a tensor that has the same shape and dtype on every worker.

    The tensor itself is what travels: `tensor.nbytes` bytes. The driver may overwrite it.
    """

    tensor: Tensor
    op: Operation = "sum"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AllGather:
    """Give every worker every worker's payload (uint8, one dimension).

    `variable` says that lengths may differ between workers; use `gather_variable`, which
    exchanges the lengths first, as a real implementation must. `part` says that each payload is
    its sender's part of one whole: with more workers every part is smaller.
    """

    payload: Tensor
    variable: bool = False
    part: bool = False
    lengths: tuple[Iterable[Tensor], ...] = ()
    """Replies of the gathers that told the lengths, int64 as bytes; several: of payloads that are
    packed into this one, behind their lengths (`controllers/fusing.py`)."""


WithoutServer = Literal["alltoall_allgather", "all_gather"]
"""Way of a push-pull without a server. alltoall_allgather: the server treats each element, or block
of elements, by itself, so that each of p ranks serves a stripe of 1 / p (stripes by an all-to-all,
their answers by an all-gather). all_gather: it needs whole payloads, which everybody gets and
serves alone."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PushPull:
    """Push a payload to the parameter server and pull what it returns.

    `server` maps the payloads of all workers, in rank order, to the payload that every worker
    pulls. It is called once per exchange, on the server's side: with worker 0's callable, whose
    object holds the server's state; or, where there is no server, on every worker with its own. So
    it must not depend on who calls it. `variable` says that payloads, or stripes of them, may
    differ in length between workers: without a server lengths are then exchanged first.
    """

    payload: Tensor
    server: Callable[[Iterable[Tensor]], Tensor]
    without_server: WithoutServer = "all_gather"
    variable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AllToAll:
    """Send one payload (uint8, one dimension) to each worker, oneself included.

    Together they are one whole that is cut into as many parts as there are workers. `variable`
    says that the parts may differ in length: then lengths (8 bytes each) are exchanged first,
    by whoever carries out the request.
    """

    payloads: Sequence[Tensor]
    """Payloads by receiving rank."""
    variable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TreeMerge:
    """Merge all payloads pairwise along a binomial tree; everybody receives the result.

    In round j = 0, 1, … the worker of rank r, r mod 2^(j+1) = 2^j, sends what it holds to rank
    r - 2^j, which replaces its own by `merge(own, received)`; any number of workers. The root's
    result is then broadcast along the same tree. `merge` must not depend on who calls it.
    """

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
