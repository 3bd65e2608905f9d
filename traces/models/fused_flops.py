"""How many FLOPs has a fused kernel that torch's counter does not know?

On a CPU torch runs an LSTM's layer as one oneDNN kernel and attention as one flash kernel; its
`FlopCounterMode` counts nothing for either, while the same module on the meta device is taken
apart into products that it does count. The formulas here give what those products sum to: 2 per
multiply-add, masked attention not halved, gates and softmax not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gcsim.compressors.lazy_torch import torch

Shape = Sequence[int]


def fused_formulas() -> dict[Any, Callable[..., int]]:
    """What `FlopCounterMode(custom_mapping=…)` takes: a formula of shapes for each operator.

    Operators that this build of torch lacks, or already counts, are left out.
    """
    from torch.utils.flop_counter import flop_registry

    formulas = {
        "mkldnn_rnn_layer": _lstm_layer,
        "_scaled_dot_product_flash_attention_for_cpu": _attention,
    }
    found = {getattr(torch.ops.aten, name, None): rule for name, rule in formulas.items()}
    return {op: rule for op, rule in found.items() if op is not None and op not in flop_registry}


def _lstm_layer(given: Shape, into_gates: Shape, back_into_gates: Shape, *_: Any, **__: Any) -> int:
    """One layer in one direction: input `[length, batch, in]` (or batch first), weights
    `[gates, in]` and `[gates, hidden]`, each applied at every step of every sequence."""
    return 2 * math.prod(given[:-1]) * (math.prod(into_gates) + math.prod(back_into_gates))


def _attention(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """`[batch, heads, length, width]` each; the products with the keys, then with the values."""
    *outer, length, width = query
    keys = key[-2]
    return 2 * math.prod(outer) * length * keys * (width + value[-1])
