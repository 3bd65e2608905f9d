"""How many bytes does GRACE's own code send of a tensor, and which collectives carry them?

GRACE compresses every tensor on its own and packs nothing: a sign, a code of QSGD, a ternary number
is a byte. Of a tensor of n elements, with k = max(1, floor(share n)), each line one collective:

| compressor                  | all-gather of                           | or all-reduce of |
|-----------------------------|-----------------------------------------|------------------|
| none                        |                                         | 4 n              |
| signsgd, signum, natural    | n                                       |                  |
| efsignsgd, 8bit, terngrad   | n; 4 (a scale)                          |                  |
| onebit                      | n; 8 (two means)                        |                  |
| qsgd, q levels              | n, from 128 levels on 2 n; 4 (the norm) |                  |
| sketch, q quantiles         | n, from 256 on 2 n; 4 q (the means)     |                  |
| topk                        | 8 k (values and indices)                |                  |
| dgc                         | about 8 k, and 4: how many              |                  |
| adaq                        | about 4 k + 12, and 4: how many         |                  |
| randomk                     |                                         | 4 k              |
| powersgd, n = a x b, rank 2 |                                         | 8 a; 8 b         |

PowerSGD sees a variable as a matrix of its first dimension a and the rest: of a convolution 3 rows,
or 1, so that little is saved. The rank is never more than a or b; vectors are sent as they are.

What dgc and adaq send depends on the gradient: their loop stops between 0.8 k and 1.25 k, and k
elements are taken here. (adaq keeps a share of the elements that are not 0; of an embedding's
gradient few are.) What threshold and inceptionn send depends on nothing but the gradient: not
predicted.

`counted` is what the release's parser made of it. It adds up tensors in the order in which they
were sent and cuts after as many as it believes an iteration to have: variables times the tensors
of a payload, but on PTB variables alone, and with PowerSGD variables alone, too. Sizes of payloads
(how many) it does not see.

Sources: sands-lab/grace grace_dl/tensorflow/compressor/*.py and communicator/*.py;
sands-lab/grace-data pull_from_wandb.py (parse_*_debug_log).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gcsim.analysis.validation.suites.grace.models import Network, Tensor
from gcsim.errors import InternalError

RANK = 2
"""Of PowerSGD."""
VALUE_DEPENDENT = frozenset({"threshold", "inceptionn"})
"""Compressors whose payload is known with the gradient alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A compressor as it was run."""

    compressor: str
    parameter: float = 0.0
    """Share kept, levels, or quantiles; 0: it has none."""
    memory: bool = False
    """Error feedback."""

    def kept(self, elements: int) -> int:
        """Elements sent of a sparsified tensor."""
        return max(1, int(elements * self.parameter))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One collective of one tensor."""

    kind: Literal["all_gather", "all_reduce"]
    nbytes: int
    counted: bool = True
    """The release's parser sees it."""


def sent(method: Method, tensor: Tensor) -> tuple[Sent, ...]:  # noqa: PLR0911 (a table)
    """What a rank hands to its collectives for a tensor, in order.

    Raises `InternalError` for a compressor that is not of the table.
    """
    n = tensor.elements
    kept = method.kept(n)
    match method.compressor:
        case "none":
            return _reduced(4 * n)
        case "randomk":
            return _reduced(4 * kept)
        case "powersgd":
            return _low_rank(tensor)
        case "signsgd" | "signum" | "natural":
            return _gathered(n)
        case "efsignsgd" | "8bit" | "terngrad":
            return _gathered(n, 4)
        case "onebit":
            return _gathered(n, 8)
        case "qsgd":
            return _gathered(n if method.parameter < 128 else 2 * n, 4)
        case "sketch":
            return _gathered(n if method.parameter < 256 else 2 * n, 4 * int(method.parameter))
        case "topk":
            return _gathered(8 * kept)
        case "dgc":
            return (*_gathered(8 * kept), Sent(kind="all_gather", nbytes=4, counted=False))
        case "adaq":
            return (*_gathered(4 * kept + 12), Sent(kind="all_gather", nbytes=4, counted=False))
    raise InternalError(f"nobody knows what {method.compressor!r} sends")


def counted(method: Method, model: str, network: Network) -> float:
    """Bytes an iteration and worker, as the release's parser reports them."""
    tensors = [[one for one in sent(method, t) if one.counted] for t in network.tensors]
    total = sum(one.nbytes for own in tensors for one in own)
    number = sum(map(len, tensors))
    cut_early = method.compressor == "powersgd" or model == "lstm_ptb_grace"
    return total * len(network.tensors) / number if cut_early else total


def _low_rank(tensor: Tensor) -> tuple[Sent, ...]:
    if len(tensor.shape) == 1:
        return _reduced(4 * tensor.elements)
    rows = tensor.shape[0]
    columns = tensor.elements // rows
    rank = min(RANK, rows, columns)
    return _reduced(4 * rank * rows, 4 * rank * columns)


def _gathered(*sizes: int) -> tuple[Sent, ...]:
    return tuple(Sent(kind="all_gather", nbytes=size) for size in sizes)


def _reduced(*sizes: int) -> tuple[Sent, ...]:
    return tuple(Sent(kind="all_reduce", nbytes=size) for size in sizes)
