"""How does any driver run a compressor? With a look at the gradient, and errors that name it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gcsim.compressors.base import Compressor
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.scans import all_finite
from gcsim.compressors.meter import unpriced
from gcsim.compressors.requests import Exchange, PushPull, Request, TreeMerge
from gcsim.errors import InputError, Problem

if TYPE_CHECKING:
    from torch import Tensor


def participate(member: Compressor, bucket: Bucket, step: int) -> Exchange:
    """`member.exchange(bucket, step)`, guarded.

    Raises `InputError` that names the compressor: before anything is sent, for a gradient that
    holds NaN or infinity (with the parameter's name); later, for a payload that is damaged.
    """
    title = member.about.title
    with named(title):
        check_finite(bucket)
        exchange = member.exchange(bucket, step)
        return (yield from _guarded(exchange, title))


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
