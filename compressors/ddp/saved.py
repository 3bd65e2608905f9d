"""The state of a deployed method on one rank, in a form for `torch.save` and `weights_only=True`.

    {"schema": 2, "compressor": "topk", "parameters": {...}, "other_buckets": {}, "seed": 0,
     "rank": 0, "workers": 4, "step": 8,
     "buckets": {0: {"slices": [[name, shape, offset, index], ...],
                     "tensors": {"0": tensor, ...}, "on_device": ["0"], "state": [...]}, ...}}

`state` refers to the tensors (`compressors/state.py`). Random numbers are keyed by seed, step and
rank, and have no state. A state is valid for its rank and number of ranks; if the steps of a method
are independent, for any rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gcsim.compressors.base import Compressor, Worker
from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.compressors.ddp.steps import Members
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.state import CannotBeKeptError, plain, restored
from gcsim.errors import InputError, Problem

SCHEMA = 2
Trained = tuple[str, int, tuple[int, ...]]
"""Name of a parameter, its index among the trained ones, and its shape."""
_FIXED = ("worker", "parameters")
"""Attributes of a compressor that are not part of its state."""
_KEYS = {"rank", "workers", "step", "buckets"}
_WRITER = "DdpHook.state_dict() returns it"


def state_of(
    facts: Mapping[str, Any], worker: Worker, step: int, members: Members
) -> dict[str, Any]:
    """Return the state after iteration `step` of the method in `facts`. Raises `InputError` for a
    compressor that stores anything but tensors, numbers and text."""
    buckets = {}
    for number, (layout, member) in sorted(members.items()):
        try:
            state, tensors = plain(_memory(member))
        except CannotBeKeptError as error:
            message = f"{member.about.title} holds {error}, which a state cannot"
            hint = "keep tensors, numbers, text, and lists, dicts and dataclasses of them"
            raise InputError(message, place="state", hint=hint) from error
        buckets[number] = {
            "slices": [[s.name, list(s.shape), s.offset, s.index] for s in layout.slices],
            "tensors": tensors,
            "on_device": [name for name, one in tensors.items() if one.device.type != "cpu"],
            "state": state,
        }
    return {
        "schema": SCHEMA, **facts, "rank": worker.rank, "workers": worker.count, "step": step,
        "buckets": buckets,
    }  # fmt: skip


def require_method(state: Any, facts: Mapping[str, Any]) -> None:
    """Raise `InputError` unless `state` belongs to the method in `facts`."""
    if not isinstance(state, Mapping) or state.get("schema") != SCHEMA or not state.keys() >= _KEYS:
        message = f"is not a hook's state of schema {SCHEMA}"
        raise InputError(message, place="state", hint=_WRITER)
    problems = [
        Problem(
            message=f"the state has {state.get(key)!r}, the hook {value!r}",
            place=key,
            hint="make the hook with the arguments of the one that was saved",
        )
        for key, value in facts.items()
        if state.get(key) != value
    ]
    if problems:
        raise InputError(problems)


def require_rank(state: Mapping[str, Any], worker: Worker, *, remembers: bool) -> None:
    """Raise `InputError` unless this rank may continue; `remembers`: steps need earlier ones."""
    if remembers and state["workers"] != worker.count:
        told = f"the state is of {state['workers']} ranks, now {worker.count} train"
        hint = "ranks hold back gradients of their own: train on as many, or begin without a state"
        raise InputError(told, place="workers", hint=hint)
    if remembers and state["rank"] != worker.rank:
        told = f"the state is of rank {state['rank']}, this is rank {worker.rank}"
        hint = "save and load a state on every rank, in a file of its own"
        raise InputError(told, place="rank", hint=hint)


@contextmanager
def whole() -> Iterator[None]:
    """Turn errors caused by an altered state into an `InputError`."""
    try:
        yield
    except (CannotBeKeptError, LookupError, TypeError, ValueError, AttributeError) as error:
        message = f"is damaged: {type(error).__name__}: {error}"
        raise InputError(message, place="state", hint=_WRITER) from error


def layouts_of(state: Mapping[str, Any], trained: Iterable[Trained]) -> list[BucketLayout]:
    """Return the buckets of a state. Raises `InputError` if its model differs from `trained`."""
    layouts = []
    for number, bucket in state["buckets"].items():
        slices = (
            TensorSlice(name=name, shape=tuple(shape), offset=offset, index=index)
            for name, shape, offset, index in bucket["slices"]
        )
        layouts.append(BucketLayout(index=number, slices=tuple(slices)))
    found = {(piece.name, piece.index, piece.shape) for one in layouts for piece in one.slices}
    if layouts and (odd := found ^ set(trained)):
        message = f"the state is of another model: {min(odd)[0]} differs"
        hint = "load it into the hook of the model that was saved"
        raise InputError(message, place="model", hint=hint)
    return layouts


def recall(
    member: Compressor, state: Mapping[str, Any], layout: BucketLayout, device: torch.device
) -> None:
    """Set a bucket's new member to a saved state, on the device of the gradients."""
    bucket = state["buckets"][layout.index]
    tensors = {
        name: one.to(device if name in bucket["on_device"] else "cpu").clone()
        for name, one in bucket["tensors"].items()
    }
    vars(member).update(restored(bucket["state"], tensors, _memory(member)))


def _memory(member: Compressor) -> dict[str, Any]:
    return {name: value for name, value in vars(member).items() if name not in _FIXED}
