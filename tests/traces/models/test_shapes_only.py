"""Are the shapes that are told those that torch works out itself? On passes of shipped models."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from gcsim.traces.models import shapes_only
from gcsim.traces.models.building import _call, sample_batch
from gcsim.traces.models.losses import sample_losses
from gcsim.traces.models.registry import MODELS
from gcsim.traces.models.shapes_only import ShapesOnly, shapes_of

CARRIED = ("resnet20_cifar10", "densenet121", "mobilenet_v2", "vit_b16", "bert_base", "gpt2_128")


class Compared(ShapesOnly):  # type: ignore[no-untyped-call]  # torch leaves it so
    """torch's own results, beside those of the rules."""

    def __init__(self) -> None:
        super().__init__()
        self.ruled: set[Any] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        result = func(*args, **given)
        if (told := shapes_of(func, args, given)) is not None:
            self.ruled.add(func)
            assert outside(told) == outside(result), func
        return result


def outside(results: Any) -> list[tuple[torch.Size, torch.dtype, torch.device]]:
    return [(t.shape, t.dtype, t.device) for t in tree_leaves(results) if isinstance(t, Tensor)]


def test_rules_give_what_torch_gives_and_each_is_of_use() -> None:
    comparing = Compared()
    for name in CARRIED:
        entry = MODELS[name]
        with comparing, torch.device("meta"):
            model = _call(entry)
            output = model(sample_batch(entry, 2, torch.device("meta")))
            shape = (2, *entry.input_shape) if entry.input == "tokens" else (2,)
            losses = sample_losses(entry, output, torch.zeros(shape, dtype=torch.int64))
            losses.sum().backward()  # type: ignore[no-untyped-call]
    assert {str(func) for func in shapes_only._RULES} == {str(func) for func in comparing.ruled}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_other_devices_operators_and_options_are_left_to_torch(device: str) -> None:
    values = torch.ones(3, 2, dtype=torch.int64, device=device)
    with ShapesOnly():
        assert (values + 1.5).dtype == torch.float32
        assert torch.cat([values, values], 1).shape == (3, 4)
        assert torch.softmax(values, 1, dtype=torch.float64).dtype == torch.float64
        assert (values / 2).dtype == torch.float32
        assert values.sort(0)[1].shape == (3, 2)
        assert (torch.empty(0, device=device) + values.float().sum()).shape == (0,)
    if device == "cpu":
        assert torch.equal(values + values, torch.full((3, 2), 2))
