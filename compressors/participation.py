"""Guarded exchanges under any driver: checked inputs and outputs, errors that name the compressor.

Methods may rely on a finite, contiguous float32 `[n]` gradient. A 16-bit sum beyond the format's
range is refused before sending or on return. (All-gathered 16-bit values saturate; a sender with
memory keeps the rest: `coding/sparse.py`.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

from gcsim.compressors import mistakes, requests
from gcsim.compressors.base import Compressor
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.scans import all_finite, fingerprint
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import unpriced
from gcsim.errors import InputError

Finite = bool | Literal["sums"]


def participate(
    member: Compressor, bucket: Bucket, step: int, *, finite: Finite = True, unmodified: bool = True
) -> requests.Exchange:
    """Run `member.exchange(bucket, step)` with checks. A strided gradient is made contiguous first,
    since another order of addition rounds differently.

    Raises `InputError` that names the compressor. Before sending: for a gradient that is not finite
    float32 of the bucket's length (with the parameter's name). Later: for a sum beyond the format's
    range, a damaged payload, a modified gradient (others read it too), an invalid request or
    update, an update that is not finite, and exceptions or refused requests of a user's compressor,
    with file and line. `finite`: check gradient and update, or only sums in 16 bits; `unmodified`:
    compare the gradient. Each takes two passes.
    """
    cls, title = type(member), member.about.title
    with named(title), mistakes.own_mistakes(cls):
        bucket = _in_one_piece(bucket)
        if finite is True:
            check_finite(bucket)
        before = _fingerprint(bucket) if unmodified else 0
        exchange = member.exchange(bucket, step)
        if not isinstance(exchange, Generator):
            raise InputError(
                f"exchange() returned {type(exchange).__name__}, not a generator",
                place=mistakes.location_of_class(cls),
                hint="yield the collectives that it needs, at least behind an `if False:`",
            )
        update = yield from _guarded(exchange, cls, title, finite)
        if unmodified and _fingerprint(bucket) != before:
            message = "exchange() modified bucket.gradient"
            hint = "clone what is to be changed: all compressors see the same gradients"
            raise InputError(message, place=mistakes.location_of_class(cls), hint=hint)
        if fault := _fault_of(update, bucket, finite is True):
            raise InputError(
                fault[0], place=mistakes.location_of_return(exchange, cls), hint=fault[1]
            )
        return update


@unpriced
def _in_one_piece(bucket: Bucket) -> Bucket:
    gradient, moment = bucket.gradient, bucket.second_moment
    for tensor, what in ((gradient, "gradient"), (moment, "second moment")):
        if tensor is None:
            continue
        if tensor.dtype != torch.float32 or tensor.shape != (bucket.layout.numel,):
            given = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            wanted = f"float32 [{bucket.layout.numel}]"
            hint = "flatten the bucket's gradients, one after the other, in float32"
            raise InputError(f"the bucket's {what} is {given}, its layout says {wanted}", hint=hint)
    moment = None if moment is None else moment.contiguous()
    return replace(bucket, gradient=gradient.contiguous(), second_moment=moment)


@unpriced
def _fingerprint(bucket: Bucket) -> int:
    return fingerprint(bucket.gradient)


@unpriced
def _fault_of(update: Any, bucket: Bucket, finite: bool) -> tuple[str, str] | None:
    """Return what is wrong with an update, and a hint; None if nothing is."""
    wanted, device = f"float32 [{bucket.layout.numel}]", bucket.gradient.device
    if not isinstance(update, torch.Tensor):
        returned = type(update).__name__
    elif update.dtype != torch.float32 or update.shape != bucket.gradient.shape:
        returned = f"{update.dtype} {list(update.shape)}"
    elif update.layout != torch.strided or update.device != device:
        returned, wanted = f"{update.layout} on {update.device}", f"on {device}"
    elif finite and not all_finite(update):
        wrong = int((~update.isfinite()).sum())
        hint = "a division by zero, or a number format that cannot hold the gradient"
        return f"{wrong} of {update.numel()} elements of the update are not finite", hint
    else:
        return None
    return f"exchange() returned {returned}, not an update {wanted}", ""


@unpriced
def check_finite(bucket: Bucket) -> None:
    """Raise `InputError` with the parameter's name if a gradient is not finite."""
    if all_finite(bucket.gradient):
        return
    for piece, part in bucket.layout.views(bucket.gradient):
        wrong = int((~part.isfinite()).sum())
        if wrong:
            message = f"{wrong} of {piece.numel} elements of the gradient are not finite"
            hint = "NaN or infinity: lower the learning rate or the loss scale"
            raise InputError(message, place=piece.name, hint=hint)


@contextmanager
def named(title: str) -> Iterator[None]:
    """Put a compressor's title in front of the place of each problem of an `InputError`."""
    try:
        yield
    except InputError as error:
        if any(problem.place.startswith(title) for problem in error.problems):
            raise
        problems = [
            replace(p, place=", ".join(filter(None, (title, p.place)))) for p in error.problems
        ]
        raise type(error)(problems) from error


def _guarded(
    exchange: requests.Exchange, cls: type[Compressor], title: str, finite: Finite
) -> requests.Exchange:
    """Run the exchange with checked requests; errors in server callables get the name too."""

    def ask(request: requests.Request) -> Generator[requests.Request, Any, Any]:
        if fault := _fault_of_request(request, finite):
            raise _told(fault, exchange, cls)
        if isinstance(request, requests.PushPull):
            request = replace(request, server=_naming(request.server, cls, title))
        elif isinstance(request, requests.TreeMerge):
            request = replace(request, merge=_naming(request.merge, cls, title))
        try:
            reply = yield request
        except mistakes.RefusedRequestError as error:
            if not mistakes.is_users(cls):
                raise
            raise _told((error.message, error.hint), exchange, cls) from error
        summed = finite and isinstance(request, requests.AllReduce)
        if summed and (fault := _out_of_range(reply, "the sum over the workers")):
            raise _told(fault, exchange, cls)
        return reply

    return mistakes.passed_on(exchange, ask, partial(named, title))


def _told(fault: tuple[str, str], exchange: requests.Exchange, cls: type[Compressor]) -> InputError:
    return InputError(fault[0], place=mistakes.location_of_request(exchange, cls), hint=fault[1])


@unpriced
def _out_of_range(values: Tensor, what: str) -> tuple[str, str] | None:
    """Return an error and a hint if elements exceed the range of their 16-bit format."""
    if values.dtype not in (torch.float16, torch.bfloat16) or not values.numel():
        return None
    low, high = values.aminmax()
    if math.isfinite(low) and math.isfinite(high):
        return None
    wrong = int((~values.isfinite()).sum())
    name, most = str(values.dtype).removeprefix("torch."), torch.finfo(values.dtype).max
    return (
        f"{wrong} of {values.numel()} elements of {what} are beyond {name}, "
        f"which ends at {most:.6g}",
        "lower the loss scale, or choose a method that sends float32",
    )


def _fault_of_request(  # noqa: PLR0911 - one for each fault
    request: Any, finite: Finite
) -> tuple[str, str] | None:
    """Return what is wrong with a request that a worker yields, and a hint; None if nothing is."""
    kind = type(request).__name__
    if not isinstance(request, requests.Request):
        return (
            f"exchange() yielded {kind}, which is no request",
            "yield AllReduce, AllGather, PushPull, AllToAll or TreeMerge",
        )
    if isinstance(request, requests.AllReduce) and request.op not in get_args(requests.Operation):
        return (
            f"AllReduce of op={request.op!r}",
            f"known: {', '.join(get_args(requests.Operation))}",
        )
    payloads: Any = getattr(request, "payloads", ())
    if not isinstance(payloads, Sequence):
        return f"AllToAll of a {type(payloads).__name__}", "give a list, one a worker"
    functions = {name: getattr(request, name, callable) for name in ("server", "merge")}
    for name, function in functions.items():
        if not callable(function):
            return f"{kind} whose {name} is {function!r}, no function", ""
    for tensor in requests.tensors_sent(request):
        if not isinstance(tensor, torch.Tensor):
            what = f"{type(tensor).__module__}.{type(tensor).__name__}"
            return f"{kind} of a {what}, not of a torch tensor", "torch.from_numpy(...) makes one"
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            what = str(tensor.layout if tensor.layout != torch.strided else tensor.dtype)
            what = "torch tensor without data" if tensor.is_meta else f"{what} tensor"
            return f"{kind} of a {what}", "send values, or bytes that hold them, one behind another"
    if finite and isinstance(request, requests.AllReduce):
        return _out_of_range(request.tensor, "what this worker adds to the sum")
    return None


def _naming(
    function: Callable[..., Tensor], cls: type[Compressor], title: str
) -> Callable[..., Tensor]:
    def call(*payloads: Tensor | Iterable[Tensor]) -> Tensor:
        with named(title), mistakes.own_mistakes(cls):
            answer: Any = function(*payloads)
            if not isinstance(answer, torch.Tensor):
                message = f"its server returned {type(answer).__name__}, not a payload"
                raise InputError(
                    message, place=mistakes.location_of(function) if mistakes.is_users(cls) else ""
                )
            return answer

    return call
