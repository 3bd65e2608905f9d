"""FLOPs of a pass, by torch's formulas and additional ones for fused kernels.

On a CPU torch runs an LSTM's layer as one oneDNN kernel and attention as one flash kernel, and its
`FlopCounterMode` counts nothing for either; on the meta device it counts their products. The
formulas here give the sum of those: 2 per multiply-add, masked attention not halved, gates and
softmax not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from gcsim.compressors.meter_dispatch import UncompiledMode
from gcsim.traces.models.shapes_only import shapes_of

Shape = Sequence[int]


class FlopCounter(UncompiledMode):
    """Counts like `torch.utils.flop_counter.FlopCounterMode`, as a single number; operators without
    a formula are decomposed if possible."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.flops = 0
        """FLOPs so far, 2 per multiply-add."""
        self._formulas = {**_fused_formulas(), **flop_registry}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        result = shapes_of(func, args, given)
        if result is None:
            if func is not torch.ops.prim.device.default:
                with self:
                    result = func.decompose(*args, **given)
                if result is not NotImplemented:
                    return result
            result = func(*args, **given)
        if formula := self._formulas.get(func.overloadpacket):
            self.flops += formula(*args, **given, out_val=result)
        return result


def _fused_formulas() -> dict[Any, Callable[..., int]]:
    """Return formulas by operator, given its operands; skips operators that this torch lacks."""
    formulas = {
        "mkldnn_rnn_layer": _lstm_layer,
        "_scaled_dot_product_flash_attention_for_cpu": _attention,
    }
    found = {getattr(torch.ops.aten, name, None): rule for name, rule in formulas.items()}
    return {op: _of_tensors(rule) for op, rule in found.items() if op is not None}


def _of_tensors(rule: Callable[..., int]) -> Callable[..., int]:
    return lambda *args, **_: rule(*(v.shape if isinstance(v, Tensor) else v for v in args))


def _lstm_layer(given: Shape, into_gates: Shape, back_into_gates: Shape, *_: Any) -> int:
    """Return the FLOPs of one layer in one direction: input `[length, batch, in]` (or batch first),
    weights `[gates, in]` and `[gates, hidden]`, each applied at every step of every sequence."""
    return 2 * math.prod(given[:-1]) * (math.prod(into_gates) + math.prod(back_into_gates))


def _attention(query: Shape, key: Shape, value: Shape, *_: Any) -> int:
    """Return FLOPs of the products with keys, values: `[batch, heads, length, width]` each."""
    *outer, length, width = query
    keys = key[-2]
    return 2 * math.prod(outer) * length * keys * (width + value[-1])
