"""Which kernels does GRACE's own TensorFlow code launch for a tensor?

Nothing is fused: each operation of the public code is a kernel that reads its operands from memory
and writes its result. They are counted from that code, by class of kernel, as in
`compressors/kernels.py`; a bool or a code of 8 bits is one byte, everything else four.

| stage       | what is counted                                                                |
|-------------|--------------------------------------------------------------------------------|
| encode      | error feedback's correction, `compress`, and the new residual                  |
| per payload | cutting it out of what was gathered, `decompress`, its part of the sum         |
| decode      | `aggregate`, and the division that averages                                    |

Assumptions: DGC and AdaQ look for their threshold in `SEARCH_ROUNDS` rounds (at most 20 are
allowed; how many there were depends on the gradient). A round ends with the host reading a number.

Source: sands-lab/grace grace_dl/tensorflow (compressor/*.py, memory/*.py, communicator/*.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from gcsim.analysis.validation.suites.grace.models import Tensor
from gcsim.analysis.validation.suites.grace.payloads import RANK, Method, sent
from gcsim.compressors.kernels import KernelClass, KernelCost, by_class

SEARCH_ROUNDS = 10

Costs = tuple[KernelCost, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Kernels of one tensor."""

    encode: Costs
    per_payload: Costs
    decode: Costs


@cache
def work(method: Method, tensor: Tensor) -> Work:
    """What a rank computes for one tensor in an iteration."""
    n, kept = tensor.elements, method.kept(tensor.elements)
    if method.compressor == "none":
        return Work(encode=(), per_payload=(), decode=by_class(_element_wise(n, 8)))
    if method.compressor == "powersgd":
        return _low_rank(tensor)
    compress = _compress(method.compressor, n, kept)
    decompress = list(_decompress(method.compressor, n, kept))
    encode = [*_corrected(method, n), *compress]
    if method.memory:
        encode += [*decompress, *_element_wise(n, 12, 8)]
    if sent(method, tensor)[0].kind == "all_reduce":
        decode = [*decompress, *_element_wise(n, 8)]
        return Work(encode=by_class(encode), per_payload=(), decode=by_class(decode))
    payload = sum(one.nbytes for one in sent(method, tensor))
    cut = [_kernel("streaming", 2 * payload, len(sent(method, tensor)))]
    return Work(
        encode=by_class(encode),
        per_payload=by_class([*cut, *decompress, *_element_wise(n, 4)]),
        decode=by_class(_aggregate(method.compressor, n)),
    )


def _corrected(method: Method, n: int) -> Iterable[KernelCost]:
    """Residual times a factor, gradient times another, their sum; signum: its momentum."""
    if method.compressor == "signum":
        return _element_wise(n, 8, 8, 12, 8)
    return _element_wise(n, 8, 8, 12) if method.memory else []


def _compress(compressor: str, n: int, kept: int) -> list[KernelCost]:  # noqa: PLR0911 (a table)
    """`compress`: bytes an element of each element-wise kernel, reductions, and the rest."""
    match compressor:
        case "topk":
            select = _kernel("selection", 4 * n)
            return [*_element_wise(n, 8), select, _indexed(kept), *_element_wise(kept, 8, 16)]
        case "randomk":
            return [_kernel("random", 4 * kept), _indexed(kept)]
        case "signsgd" | "signum":
            return _element_wise(n, 5)
        case "efsignsgd":
            return [*_element_wise(n, 5, 8), _reduction(n)]
        case "onebit":
            masked = [_kernel("gather_scatter", 7 * n, 2)] * 2
            return [*_element_wise(n, 5, 2, 5, 5), *masked, *[_reduction(n)] * 4, *_scalars(8)]
        case "qsgd":
            steps = _element_wise(n, 8, 8, 8, 8, 12, 9, 5, 12, 8, 12, 5)
            return [*steps, _reduction(n), _kernel("random", 4 * n), *_scalars(2)]
        case "terngrad":
            steps = _element_wise(n, 8, 8, 8, 8, 8, 4, 8, 8, 8, 9, 8, 13, 8, 5)
            return [*steps, *[_reduction(n)] * 3, _kernel("random", 4 * n), *_scalars(3)]
        case "natural":
            steps = _element_wise(n, 8, 8, 8, 9, 8, 13, 8, 8, 8, 8, 8, 12, 5)
            return [*steps, _kernel("random", 4 * n)]
        case "8bit":
            find = _kernel("gather_scatter", 8 * n)
            return [*_element_wise(n, 8, 8, 8, 8, 5, 5, 3), _reduction(n), find]
        case "sketch":
            means = [_kernel("gather_scatter", 8 * n)] * 3
            return [_kernel("sort", 8 * n), *_element_wise(n, 8, 5), *means, *_scalars(4)]
        case "dgc":
            return [*_search(n), _kernel("gather_scatter", n + 8 * kept), _indexed(kept)]
        case _:  # adaq, once for each sign
            half = [*_search(n), *_element_wise(n, 5, 5, 9)]
            half += [_kernel("gather_scatter", 5 * n + 4 * kept, 3), _reduction(kept)]
            return [*half, *half, *_scalars(6)]


def _search(n: int) -> list[KernelCost]:
    """A threshold from a sample of 1 %, then rounds: compare, count, and let the host decide."""
    sample = n // 100 + 1
    first = [_indexed(sample), _kernel("selection", 4 * sample), _reduction(sample)]
    one_round = [*_element_wise(n, 8, 5, 5), _reduction(n), *_scalars(4), _kernel("host_sync", 4)]
    return [*first, *one_round * (1 + SEARCH_ROUNDS)]


def _decompress(compressor: str, n: int, kept: int) -> list[KernelCost]:  # noqa: PLR0911
    match compressor:
        case "topk" | "dgc":
            return [*_element_wise(kept, 16), *_element_wise(n, 4), _indexed(kept)]
        case "adaq":
            return [*_element_wise(kept, 12), *_element_wise(n, 4, 8), _indexed(kept), *_scalars(6)]
        case "randomk":
            return [*_element_wise(n, 4), _indexed(kept)]
        case "signsgd" | "signum":
            return _element_wise(n, 5, 8, 8)
        case "efsignsgd":
            return _element_wise(n, 5, 8, 8, 8)
        case "onebit":
            return [*_element_wise(n, 5, 8, 8, 8, 12), *_scalars(1)]
        case "natural":
            return _element_wise(n, 2, 2, 2, 5, 8, 8, 13, 2, 5, 12)
        case "8bit":
            gather = _kernel("gather_scatter", 8 * n)
            return [*_element_wise(n, 5, 8, 8, 8, 12, 8), gather]
        case "sketch":
            return [*_element_wise(n, 5), _kernel("gather_scatter", 8 * n)]
        case _:  # qsgd, terngrad
            return [*_element_wise(n, 5, 8), *_scalars(1)]


def _aggregate(compressor: str, n: int) -> list[KernelCost]:
    """The sum's result; majority votes and the like."""
    more = {"signsgd": (5, 5, 8, 8), "signum": (5, 5, 8, 8), "efsignsgd": (8,)}
    return _element_wise(n, 4, *more.get(compressor, ()))


def _low_rank(tensor: Tensor) -> Work:
    """Two orthogonalisations, two products, the product of the factors, momentum."""
    n = tensor.elements
    if len(tensor.shape) == 1:
        return Work(encode=(), per_payload=(), decode=by_class(_element_wise(n, 8)))
    rows, columns = tensor.shape[0], n // tensor.shape[0]
    rank = min(RANK, rows, columns)
    factors = [_kernel("factorization", 8 * rank * side) for side in (rows, columns)]
    product = _kernel("matmul", 4 * n + 4 * rank * (rows + columns), flops=2 * n * rank)
    return Work(
        encode=by_class([*_element_wise(n, 8, 8, 12, 12, 8), *factors, product, product]),
        per_payload=(),
        decode=by_class([product, *_element_wise(n, 8, 8, 12, 8, 12)]),
    )


def _kernel(kind: KernelClass, nbytes: int, launches: int = 1, flops: int = 0) -> KernelCost:
    return KernelCost(
        kind=kind, launches=launches, elements=nbytes // 4, nbytes=nbytes, flops=flops
    )


def _element_wise(n: int, *nbytes: int) -> list[KernelCost]:
    """Kernels that read and write so many bytes an element together."""
    return [_kernel("streaming", each * n) for each in nbytes]


def _reduction(n: int) -> KernelCost:
    return _kernel("reduction", 4 * n)


def _indexed(kept: int) -> KernelCost:
    """A gather or scatter: an index, a value read, a value written."""
    return _kernel("gather_scatter", 12 * kept)


def _scalars(number: int) -> list[KernelCost]:
    """Kernels on single numbers."""
    return [_kernel("streaming", 8)] * number
