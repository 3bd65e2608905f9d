"""Facts about the model in a user's loop that the simulator needs.

A trace is replayed without the user's code, so layers, parameters and FLOPs are counted after the
first iteration, on the real module with the arguments of its first forward pass. This takes one
more forward pass, without gradients; buffers and random numbers are restored after it.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from gcsim.compressors.lazy_torch import nn, torch
from gcsim.errors import InputError
from gcsim.traces.models.facts import counted_facts
from gcsim.traces.profile import ModelFacts

_LOG = logging.getLogger(__name__)
_WRAPPERS = {"DistributedDataParallel": "module", "DataParallel": "module"}
_SHARDED = ("FullyShardedDataParallel", "FSDP", "DeepSpeedEngine", "ShardedDataParallel")


def seen_model(model: nn.Module) -> nn.Module:
    """Return the module that owns the parameters, inside wrappers for exchange or compilation.
    Raises `InputError` for anything but a module, or for sharded parameters."""
    if not isinstance(model, torch.nn.Module):
        raise InputError(
            f"record() takes a torch.nn.Module, not {type(model).__name__}",
            place="model",
            hint="gcsim.record_scenario(scenario, folder) records a scenario",
        )
    while True:
        inner = getattr(model, _WRAPPERS.get(type(model).__name__, "_orig_mod"), None)
        if not isinstance(inner, torch.nn.Module):
            break
        model = inner
    kinds = {type(part).__name__ for part in model.modules()}
    kinds |= {type(parameter).__name__ for parameter in model.parameters()}
    sharded = sorted(kinds & {*_SHARDED, "DTensor"})
    if sharded:
        raise InputError(
            f"its parameters are sharded over ranks ({sharded[0]}); no rank has a whole gradient",
            place="model",
            hint="record with DistributedDataParallel, or a smaller model in one process",
        )
    return model


class FirstBatch:
    """Keeps the arguments of the first forward pass, until `facts` or `release`."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._handle: Any = None
        self._given: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def watch(self) -> None:
        """Attach the hook."""
        self._handle = self._model.register_forward_pre_hook(self._saw, with_kwargs=True)

    def release(self) -> None:
        """Remove the hook and drop the batch."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = self._given = None

    def _saw(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._given is None and torch.is_grad_enabled():
            self._given = (args, kwargs)

    def facts(self, module: nn.Module, name: str | None, batch_size: int | None) -> ModelFacts:
        """Return facts about `module`, the model without its wrappers; releases the batch. If the
        forward pass cannot be repeated, FLOPs are 0 and a warning says so. Raises `InputError` if
        no tensor was passed, or none has the batch size."""
        from torch.utils._pytree import tree_leaves

        if self._given is None:
            message = "backward() was called, but the model's forward was not"
            raise InputError(message, place="model", hint="pass the module that the loop calls")
        args, kwargs = self._given
        self.release()
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        sizes = [tensor.shape for tensor in tensors if tensor.dim()]
        samples = batch_size or (sizes[0][0] if sizes else 0)
        if samples < 1 or (sizes and not any(samples in size for size in sizes)):
            shapes = ", ".join(str(list(size)) for size in sizes[:3]) or "no tensor"
            raise InputError(
                f"the first forward pass took {shapes}"
                + (f", and batch_size is {batch_size}" if batch_size else ""),
                place="batch_size",
                hint="state the number of samples of one forward pass",
            )
        called = name or type(module).__name__
        tokens = next(
            (int(t.shape[1]) for t in tensors if t.dtype == torch.int64 and t.dim() == 2), 0
        )
        count = partial(
            counted_facts, called, module, samples=samples, batch=samples, tokens=tokens
        )
        try:
            return count(lambda: module(*args, **kwargs))
        except Exception as error:  # a user's module may fail in any way
            _LOG.warning(
                "the forward pass of %s cannot be repeated to count its FLOPs (%s: %s); the trace "
                "has none, so that a replay needs measured times",
                called,
                type(error).__name__,
                str(error).split("\n")[0],
            )
            return count(lambda: None)
