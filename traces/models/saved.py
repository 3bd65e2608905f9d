"""Activations that a built model saves for its backward pass; imports torch."""

from __future__ import annotations

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.traces.models.building import build_model, sample_batch
from gcsim.traces.models.registry import ModelEntry


def saved_bytes(entry: ModelEntry) -> int:
    """Bytes in float32 that autograd keeps of a sample besides the parameters, each storage once.
    Counted by its hooks on the meta device, as the difference between batches of four and two."""
    model = build_model(entry, seed=0, device="meta")
    own = {_storage(parameter) for parameter in model.parameters()}

    def kept(batch: int) -> int:
        found: dict[int, Tensor] = {}

        def pack(tensor: Tensor) -> Tensor:
            found.setdefault(_storage(tensor), tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = model(sample_batch(entry, batch, torch.device("meta")))
        del output
        others = [tensor for storage, tensor in found.items() if storage not in own]
        return sum(tensor.untyped_storage().nbytes() for tensor in others)

    return (kept(4) - kept(2)) // 2


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
