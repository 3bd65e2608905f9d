"""Launches of a bucket by methods that round: a bound for each, the same for 1 and 20 tensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.demands import Demands
from gcsim.compressors.registry import create
from tests.compressors.gpu.conftest import whole_methods, wrap_launches
from tests.compressors.shared import layout_of

FREE = {
    *("view", "slice", "select", "expand", "alias", "detach", "unsqueeze", "split", "unbind"),
    *("empty", "empty_like", "new_empty", "as_strided", "_local_scalar_dense", "lift_fresh"),
}
"""Operators that launch nothing."""
MOST: list[tuple[str, dict[str, Any], int]] = [
    ("qsgd", {}, 12),
    ("qsgd", {"coding": "digits", "steps": 2}, 12),
    ("natural", {}, 10),
    ("nuqsgd", {}, 12),
    ("terngrad", {}, 14),
    ("orq", {}, 14),
    ("linear", {}, 14),
    ("fp8", {}, 14),
    ("dynamic_8bit", {}, 14),
]


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes torch's operators and kernels that are launched inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function._schema.name.partition("::")[2]
        self.seen += [name] * (name not in FREE)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("name", "parameters", "most"), MOST)
def test_a_buckets_launches_are_few(
    name: str, parameters: dict[str, Any], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encoding, and decoding of one message; what the exchange checks at its end is in it."""
    operators = Operators()

    def counting(run: Callable[..., None]) -> Callable[..., None]:
        def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
            before = len(operators.seen)
            run(kernel, programs, *arguments, **constants)
            operators.seen[before:] = [kernel.fn.__name__] * (programs > 0)

        return launch

    wrap_launches(monkeypatch, counting)

    def launched(tensors: int) -> list[str]:
        worker = create(name, Worker(rank=0, count=1, seed=3), parameters)
        gradient = torch.randn(9 * tensors, generator=torch.Generator().manual_seed(1))
        bucket, found = Bucket(layout=layout_of(*[9] * tensors), gradient=gradient), list[str]()
        for step in range(2):  # what the host sends is kept on the device from the first one on
            exchange, demands, reply = worker.exchange(bucket, step), Demands(), None
            operators.seen.clear()
            with whole_methods(), demands, operators, suppress(StopIteration):
                while True:
                    request: Any = exchange.send(reply)
                    payload = getattr(request, "payload", None)
                    reply = request.tensor if payload is None else [payload]
            with operators:
                demands.require()
            found = list(operators.seen)
        return found

    alone = launched(1)
    assert len(alone) <= most, " ".join(alone)
    assert len(launched(20)) <= most
