"""Can a compressor exchange a model's gradients under DDP, and how do they get to the host?

What the hook needs to know of a method and of a `DistributedDataParallel`: whether DDP can carry
the one, the other's ranks, whether they agree, the kind of gradients and where they lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gcsim.compressors.base import Compressor, CompressorParameters
from gcsim.compressors.lazy_torch import Tensor, nn, torch
from gcsim.errors import InputError, Problem


def require_ddp_support(kind: str, cls: type[Compressor], parameters: CompressorParameters) -> None:
    """Raise `InputError` for a method whose replicas differ, or that a hook cannot give its due."""
    if cls.properties(parameters).replicas != "identical":
        raise InputError(
            Problem(
                message="workers hold different models between synchronisations, "
                "DistributedDataParallel keeps one for all: buffers and checkpoints are rank 0's",
                place=kind,
                hint="choose a method whose update is the same on all workers",
            )
        )
    if cls.requires:
        raise InputError(
            Problem(
                message="needs second moments of the samples' gradients, "
                "a DDP hook is given the mean gradient alone",
                place=kind,
                hint="choose a method without them",
            )
        )


def group_for(model: Any, given: Any) -> Any:
    """A Gloo group of the ranks that `model` exchanges gradients with: `given`, or a new one.

    All of them must call it. Raises `InputError` when `given` is of other ranks or not Gloo's.
    """
    import torch.distributed as dist

    ranks = dist.get_process_group_ranks(model.process_group)
    if given is None:
        # Without the others' help torch names a group by the number of groups that a rank is in:
        # only where it must be, since that may differ between ranks.
        alone = len(ranks) < dist.get_world_size()
        return dist.new_group(ranks, backend="gloo", use_local_synchronization=alone)
    backend, found = dist.get_backend(given), dist.get_process_group_ranks(given)
    problems = []
    if backend != "gloo":
        problems.append(f"its backend is {backend}, payloads lie in host memory")
    if found != ranks:
        problems.append(f"it has {_ranks(found)}, the model is trained by {_ranks(ranks)}")
    if problems:
        raise InputError(
            Problem(message=message, place="process_group", hint="leave it out, and one is made")
            for message in problems
        )
    return given


def agree(group: Any, facts: Mapping[str, Any]) -> None:
    """Raise `InputError` on all ranks of `group` when a fact differs from rank 0's on one."""
    import torch.distributed as dist

    everybody: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everybody, dict(facts), group=group)
    problems = []
    for key in facts:
        others = [r for r, told in enumerate(everybody) if told[key] != everybody[0][key]]
        if others:
            problems.append(
                Problem(
                    message=f"differs between rank 0 and {_ranks(others)}",
                    place=key,
                    hint="all ranks exchange the same parameters in the same way",
                )
            )
    if problems:
        raise InputError(problems)


def require_float32(trained: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Raise `InputError` that names the parameters whose gradients float32 cannot hold."""
    fitting = (torch.float32, torch.float16, torch.bfloat16)
    problems = [
        Problem(
            message=f"{str(parameter.dtype).removeprefix('torch.')} gradients are not compressed",
            place=f"parameter {name}",
            hint="train in float32, float16 or bfloat16",
        )
        for name, parameter in trained
        if parameter.dtype not in fitting
    ]
    if problems:
        raise InputError(problems)


class Fetch:
    """A bucket's buffer on its way to the compressor.

    On a GPU it is complete when the stream of the backward pass says so; it is fetched, and the
    update brought back, on a stream of its own.
    """

    def __init__(self, buffer: Tensor) -> None:
        if buffer.is_sparse:
            raise InputError(
                Problem(
                    message="sparse gradients are not compressed",
                    place="model",
                    hint="make embeddings with sparse=False",
                )
            )
        self._buffer = buffer
        self._stream: Any = None
        self.devices: list[int | str | torch.device] = []
        """Those on which the update will lie, besides the host."""
        if buffer.is_cuda:
            self.devices = [buffer.device]
            self._stream = torch.cuda.Stream(buffer.device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(buffer.device))

    def stream(self) -> AbstractContextManager[Any]:
        """Where to fetch, and to bring back."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def gradient(self) -> Tensor:
        """Float32 `[n]` in host memory; the buffer itself where that is so."""
        return self._buffer.to("cpu", torch.float32)


def _ranks(ranks: list[int]) -> str:
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word} {', '.join(str(rank) for rank in ranks)}"
