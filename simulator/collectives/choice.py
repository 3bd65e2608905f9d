"""Which algorithm does a library choose for a collective of this size on so many ranks?

- textbook: rings.
- gloo: its own rings.
- custom: none; an algorithm must be named.
- nccl: what its tuner predicts to be fastest (`collectives/nccl.py`).
- mpich, all-reduce: recursive doubling up to 2 KiB, and for fewer elements than 2^floor(log2 p);
  else recursive halving and doubling.
- mpich, all-gather: recursive doubling for p = 2^k and less than 512 KiB in all; Bruck's for other
  p and less than 80 KiB; else a ring, which is pipelined where blocks are unequal.

Assumptions: MPICH's reductions inside a node before the all-reduce (`allreduce_intra_smp.c`) are
left out. Its pipelined ring runs in synchronous rounds (`synchronous_allgatherv.py`).

Source: pytorch/gloo, gloo/allreduce.cc and gloo/allgather.cc; Thakur, Rabenseifner and Gropp 2005
(Int. J. High Perform. Comput. Appl. 19), sec. 4.1 and 4.5, and MPICH,
MPIR_CVAR_ALLREDUCE_SHORT_MSG_SIZE, MPIR_CVAR_ALLGATHER_SHORT_MSG_SIZE and _LONG_MSG_SIZE (its
coll_selection.json has 8 bytes in the place of the first).
"""

from __future__ import annotations

from collections.abc import Sequence

from gcsim.errors import InternalError
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives import nccl as nccl_allreduce
from gcsim.simulator.collectives.nccl import Kind

ALLREDUCE_SHORT = 2048
"""Bytes, the last that count as short."""
ALLGATHER_SHORT = 80 * 1024
"""Bytes of all blocks together, the first that do not count as short."""
ALLGATHER_LONG = 512 * 1024
"""Bytes of all blocks together, the first that count as long."""


def algorithm_name(kind: Kind, sent: Sequence[int], element: int, cluster: Cluster) -> str:
    """The algorithm that the cluster's collectives name, or that its transport chooses.

    `sent[r]` is the bytes of rank r, `element` bytes an element of a vector to reduce.
    """
    asked: str = getattr(cluster.collectives, kind)
    if asked == "auto":
        asked = _auto(kind, sent, element, cluster)
    if asked == "nccl":
        nbytes = sent[0] if kind == "all_reduce" else sum(sent)
        return nccl_allreduce.choose(kind, nbytes, cluster).name
    return asked


def _auto(kind: Kind, sent: Sequence[int], element: int, cluster: Cluster) -> str:
    match cluster.collectives.transport:
        case "custom":
            raise InternalError(f"the transport of a user's own has no {kind} that it would choose")
        case "textbook":
            return "ring"
        case "gloo":
            return "gloo_ring"
        case "nccl":
            return "nccl"
        case "mpich" if kind == "all_reduce":
            return _mpich_allreduce(sent[0], element, len(sent))
        case "mpich":
            return _mpich_allgather(sent)


def _mpich_allreduce(nbytes: int, element: int, ranks: int) -> str:
    core = 1 << (ranks.bit_length() - 1)
    short = nbytes <= ALLREDUCE_SHORT or nbytes // element < core
    return "recursive_doubling" if short else "halving_doubling"


def _mpich_allgather(sent: Sequence[int]) -> str:
    total, ranks = sum(sent), len(sent)
    if ranks & (ranks - 1) == 0 and total < ALLGATHER_LONG:
        return "recursive_doubling"
    if total < ALLGATHER_SHORT:
        return "bruck"
    return "ring" if len(set(sent)) == 1 else "pipelined_ring_sync"
