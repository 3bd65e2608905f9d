"""Bytes and FLOPs of torch's kernels: the dispatch mode behind the meter. Only `meter.segment`
imports it, since it imports torch. Operators are classified by name; an unknown one is a reduction
if its result is much smaller than its operands, else streaming."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gcsim.compressors.kernels import KernelClass, KernelCost, spread
from gcsim.compressors.meter import Recorder

_CLASSES: dict[str, KernelClass] = {
    **dict.fromkeys(
        ("sum", "mean", "amax", "amin", "max", "min", "aminmax", "linalg_vector_norm", "norm",
         "dot", "vdot", "std", "var", "var_mean", "prod", "any", "all", "argmax", "argmin",
         "count_nonzero", "cumsum", "_cdist_forward", "histc", "bincount", "equal"),
        "reduction",
    ),
    **dict.fromkeys(
        ("index", "index_select", "gather", "take", "index_put_", "index_put", "_index_put_impl_",
         "scatter_", "scatter", "scatter_add_", "scatter_add", "scatter_reduce_", "index_add_",
         "index_copy_", "index_fill_", "masked_scatter_", "nonzero", "masked_select", "put_",
         "bucketize", "searchsorted", "embedding"),
        "gather_scatter",
    ),
    **dict.fromkeys(("topk", "kthvalue", "median", "nanmedian", "quantile"), "selection"),
    **dict.fromkeys(("sort", "argsort", "_unique2", "unique_consecutive", "msort"), "sort"),
    **dict.fromkeys(
        ("uniform_", "bernoulli_", "bernoulli", "normal_", "random_", "rand", "randn", "randint",
         "exponential_", "geometric_", "randperm", "multinomial"),
        "random",
    ),
    **dict.fromkeys(
        ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "addmv_", "convolution",
         "convolution_backward"),
        "matmul",
    ),
    **dict.fromkeys(
        ("linalg_qr", "linalg_svd", "_linalg_svd", "_linalg_eigh", "linalg_cholesky_ex",
         "geqrf", "linalg_householder_product", "linalg_solve_triangular"),
        "factorization",
    ),
    **dict.fromkeys(("_local_scalar_dense", "is_nonzero"), "host_sync"),
}  # fmt: skip

_FREE = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_",
     "detach", "lift_fresh", "sym_size", "sym_numel", "_has_same_storage_numel"}
)  # fmt: skip
"""Operators that allocate or describe but touch no element."""

_UNREAD = frozenset(
    {"copy_", "fill_", "zero_", "uniform_", "bernoulli_", "normal_", "random_", "zeros_like",
     "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "rand_like", "randn_like"}
)  # fmt: skip
"""Operators that write their first operand, or use only its shape, dtype and device."""

_INDEXED_READ = frozenset({"index", "index_select", "gather", "take", "embedding"})
_INDEXED_WRITE = frozenset(
    {"index_put_", "index_put", "_index_put_impl_", "scatter_", "scatter_add_", "index_add_",
     "index_copy_", "index_fill_", "put_", "scatter_reduce_"}
)  # fmt: skip

_ACCUMULATING = frozenset({"scatter_add_", "index_add_", "scatter_reduce_"})
"""Indexed writes that also read, to add to the values."""


class UncompiledMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it so
    """A dispatch mode under which nothing is compiled."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Exclude it from compilation: the default loads torch's compiler, which takes 2 s."""
        return False


class CountingMode(UncompiledMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._recorder = recorder

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        recorder = self._recorder
        started = recorder.now()
        result = func(*args, **(kwargs or {}))
        if not recorder.paused:
            ended = recorder.now()
            cost = kernel_cost(func, args, kwargs or {}, result)
            if cost is not None:
                recorder.launched(cost, started, ended)
        return result


def kernel_cost(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> KernelCost | None:
    """Return the cost of one dispatched operator; None if it touches no element."""
    name = func.overloadpacket.__name__
    if name in _FREE:
        return None
    destinations = {id(leaf) for leaf in tree_leaves(kwargs.get("out"))}
    operands = [
        leaf
        for leaf in tree_leaves((args, dict(kwargs)))
        if isinstance(leaf, Tensor) and id(leaf) not in destinations
    ]
    results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    if not func._schema.is_mutable and _is_view(operands, results):
        return None
    if results and not any(leaf.numel() for leaf in results):
        return None  # an empty slice has no memory that could show it is a view
    if name in _UNREAD:
        operands = operands[1:]
    accumulates = bool(kwargs.get("accumulate", len(args) > 3 and args[3] is True))
    nbytes = _bytes_moved(name, operands, results, accumulates=accumulates)
    everything = [*operands, *results]
    elements = max((leaf.numel() for leaf in everything), default=0)
    kind = _CLASSES.get(name)
    if kind is None:
        written = sum(leaf.numel() for leaf in results)
        kind = "reduction" if operands and 16 * written < elements else "streaming"
    if kind == "reduction" and name in {"max", "min"} and len(operands) == 2:  # element-wise here
        kind = "streaming"
    flops = _matmul_flops(operands, results) if kind == "matmul" else 0
    return KernelCost(
        kind=kind,
        name=_full_name(name, operands, results, flops / nbytes if nbytes else 0.0),
        launches=1,
        elements=elements,
        nbytes=nbytes,
        flops=flops,
    )


def _full_name(
    name: str, operands: list[Tensor], results: list[Tensor], flops_a_byte: float
) -> str:
    """Return the operator's name and, appended, what else determines its speed: the dtypes of a
    conversion; whether a reduction keeps a dimension; whether indices jump, and their range; a
    product's FLOPs per byte (a power of two) and whether it writes the largest matrix or reads it
    across or along its rows; a factorization's columns."""
    if name in {"_to_copy", "copy_"} and operands and results:
        types = [str(leaf.dtype).removeprefix("torch.") for leaf in (operands[-1], results[0])]
        return f"aten.{name}" if types[0] == types[1] else f"aten.{name}:{'_to_'.join(types)}"
    if flops_a_byte:
        largest = max(operands, key=Tensor.numel)
        way = "across" if largest.dim() == 2 and largest.stride(-1) > 1 else "along"
        shape = "out" if results[0].numel() >= largest.numel() else way
        return f"aten.{name}.{shape}_{2 ** round(math.log2(flops_a_byte)):g}_flop_per_byte"
    if _CLASSES.get(name) == "factorization" and operands:
        return f"aten.{name}.{operands[0].shape[-1]}_columns"
    if name in _INDEXED_READ or name in _INDEXED_WRITE:
        indices = [leaf for leaf in operands[1:] if leaf.dtype in {torch.int64, torch.int32}]
        way = ":jumping" if any(_jumps(leaf) for leaf in indices) else ""
        return f"aten.{name}{way}:{spread(max(leaf.numel() for leaf in operands))}"
    if _CLASSES.get(name) == "reduction" and results and results[0].numel() > 1:
        return f"aten.{name}:some_dimensions"
    return f"aten.{name}"


def _jumps(indices: Tensor) -> bool:
    """Whether indices do not ascend, so that each element needs another line of memory."""
    return indices.numel() > 1 and bool((indices.flatten().diff() < 0).any())


def _is_view(operands: list[Tensor], results: list[Tensor]) -> bool:
    if not results or not operands:
        return False
    storages = {leaf.untyped_storage().data_ptr() for leaf in operands}
    return all(
        leaf.untyped_storage().data_ptr() in storages and leaf.numel() > 0 for leaf in results
    )


def _bytes_moved(
    name: str, operands: list[Tensor], results: list[Tensor], *, accumulates: bool
) -> int:
    if name in _INDEXED_READ:
        indices = sum(_span(leaf) for leaf in operands[1:])
        return indices + 2 * sum(_span(leaf) for leaf in results)
    if name in _INDEXED_WRITE:
        given = operands[1:]
        touched = max((leaf.numel() for leaf in given), default=0) * operands[0].element_size()
        visits = 2 if name in _ACCUMULATING or accumulates else 1  # read and written, or written
        return sum(_span(leaf) for leaf in given) + visits * touched
    return sum(_span(leaf) for leaf in operands) + sum(_span(leaf) for leaf in results)


def _span(leaf: Tensor) -> int:
    """Return the bytes of the distinct elements: an expanded tensor counts its source."""
    distinct = math.prod(
        size for size, stride in zip(leaf.shape, leaf.stride(), strict=True) if stride != 0
    )
    return distinct * leaf.element_size()


def _matmul_flops(operands: list[Tensor], results: list[Tensor]) -> int:
    """Return 2 m k n for products [.., m, k] [.., k, n]; for convolutions from the weight."""
    factors = [leaf for leaf in operands if leaf.dim() >= 1]
    if not factors or not results:
        return 0
    if results[0].dim() == 4 and len(factors) >= 2:  # convolution: weight [out, in/groups, h, w]
        weight = factors[1]
        return 2 * results[0].numel() * math.prod(weight.shape[1:])
    return 2 * results[0].numel() * factors[-2 if len(factors) >= 2 else 0].shape[-1]
