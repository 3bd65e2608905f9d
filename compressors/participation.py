"""How does any driver run a compressor? With a look at the gradient, and errors that name it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gcsim.compressors.base import Compressor
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.scans import all_finite, fingerprint
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.meter import unpriced
from gcsim.compressors.requests import Exchange, PushPull, Request, TreeMerge
from gcsim.errors import GcsimError, InputError, Problem

if TYPE_CHECKING:
    from torch import Tensor


def participate(
    member: Compressor,
    bucket: Bucket,
    step: int,
    *,
    finite: bool = True,
    unmodified: bool = True,
) -> Exchange:
    """`member.exchange(bucket, step)`, guarded.

    Raises `InputError` that names the compressor: before anything is sent, for a gradient that
    holds NaN or infinity (with the parameter's name); later, for a payload that is damaged, for a
    gradient that the compressor has modified (others are to see it too), for what is no request or
    no update, and for whatever a compressor that is not gcsim's own raises. `finite` and
    `unmodified` say whether to look at the gradient, which takes a pass over it and two.
    """
    title = member.about.title
    with named(title), own_mistakes(member):
        if finite:
            check_finite(bucket)
        before = _fingerprint(bucket) if unmodified else 0
        exchange = member.exchange(bucket, step)
        if not isinstance(exchange, Generator):
            raise InputError(
                Problem(
                    message=f"exchange() returned {type(exchange).__name__}, not a generator",
                    hint="yield the collectives that it needs, at least behind an `if False:`",
                )
            )
        update = yield from _guarded(exchange, title)
        if unmodified and _fingerprint(bucket) != before:
            raise InputError(
                Problem(
                    message="exchange() modified bucket.gradient",
                    hint="clone what is to be changed: all compressors see the same gradients",
                )
            )
        return _checked_update(update, bucket)


@unpriced
def _fingerprint(bucket: Bucket) -> int:
    return fingerprint(bucket.gradient)


def _checked_update(update: Any, bucket: Bucket) -> Tensor:
    wanted = f"float32 [{bucket.layout.numel}]"
    if not isinstance(update, torch.Tensor):
        raise InputError(f"exchange() returned {type(update).__name__}, not an update {wanted}")
    if update.dtype != torch.float32 or update.shape != bucket.gradient.shape:
        raise InputError(
            f"exchange() returned {update.dtype} {list(update.shape)}, not an update {wanted}"
        )
    return update


@contextmanager
def own_mistakes(member: Compressor) -> Iterator[None]:
    """Turn what a compressor of the user's raises into an `InputError` with file and line."""
    try:
        yield
    except (GcsimError, GeneratorExit, MemoryError):
        raise
    except Exception as error:
        if type(member).__module__.startswith("gcsim."):
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        said = f": {error}" if str(error) else ""
        raise InputError(
            Problem(
                message=f"{type(member).__name__} raised {type(error).__name__}{said}",
                place=f"{frame.filename}:{frame.lineno}",
            )
        ) from error


@unpriced
def check_finite(bucket: Bucket) -> None:
    """Raise `InputError` with the parameter's name when a gradient is not finite."""
    if all_finite(bucket.gradient):
        return
    for piece, part in bucket.layout.views(bucket.gradient):
        wrong = int((~part.isfinite()).sum())
        if wrong:
            raise InputError(
                Problem(
                    message=f"{wrong} of {piece.numel} elements of the gradient are not finite",
                    place=piece.name,
                    hint="NaN or infinity: lower the learning rate or the loss scale",
                )
            )


@contextmanager
def named(title: str) -> Iterator[None]:
    """Put a compressor's title in front of the place of an `InputError`'s problems."""
    try:
        yield
    except InputError as error:
        if any(problem.place.startswith(title) for problem in error.problems):
            raise
        raise type(error)(
            [
                replace(problem, place=", ".join(filter(None, (title, problem.place))))
                for problem in error.problems
            ]
        ) from error


def _guarded(exchange: Exchange, title: str) -> Generator[Request, Any, Tensor]:
    """The exchange, whose callables on the server's side name the compressor too."""
    reply: Any = None
    while True:
        try:
            request = exchange.send(reply)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # an `Exchange` returns a tensor
        if not isinstance(request, Request):
            raise InputError(
                Problem(
                    message=f"exchange() yielded {type(request).__name__}, which is no request",
                    hint="yield AllReduce, AllGather, PushPull, AllToAll or TreeMerge",
                )
            )
        if isinstance(request, PushPull):
            request = replace(request, server=_naming(request.server, title))
        elif isinstance(request, TreeMerge):
            request = replace(request, merge=_naming(request.merge, title))
        reply = yield request


def _naming(function: Callable[..., Tensor], title: str) -> Callable[..., Tensor]:
    def call(*payloads: Tensor | Iterable[Tensor]) -> Tensor:
        with named(title):
            return function(*payloads)

    return call
