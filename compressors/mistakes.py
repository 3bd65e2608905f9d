"""Errors in a user's own compressor, reported as the user's mistakes with file and line. Exceptions
from gcsim's own methods are passed on unchanged: they are our bugs."""

from __future__ import annotations

import dis
import sys
import sysconfig
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from types import CodeType
from typing import Any

from gcsim.compressors.base import Compressor, CompressorParameters, Worker
from gcsim.compressors.demands import Demands, entered
from gcsim.compressors.requests import Exchange, PushPull, Request
from gcsim.errors import InputError, InternalError, Problem


class RefusedRequestError(InternalError):
    """Requests of workers `ranks` that cannot be carried out; `blame` throws the error into their
    exchanges."""

    def __init__(self, message: str, *, hint: str = "", ranks: tuple[int, ...] = (0,)) -> None:
        self.message, self.hint, self.ranks = message, hint, ranks
        super().__init__(f"{message}; {hint}" if hint else message)


def passed_on(
    exchange: Exchange,
    ask: Callable[[Request], Generator[Request, Any, Any]],
    inside: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Exchange:
    """Run an exchange and pass its requests to `ask`, which yields what to carry out and returns
    the reply; a refusal is thrown into the exchange. Deferred checks of payloads run at its end, or
    are handed to the enclosing demands, which run them `inside` a context."""
    reply, demands = None, Demands()
    while True:
        try:
            with demands:
                request = exchange.send(reply)
        except StopIteration as stop:
            if (around := entered()) is None:
                demands.require()
            else:
                around.take_over(demands, inside)
            return stop.value  # type: ignore[no-any-return]  # an `Exchange` returns a tensor
        if isinstance(request, PushPull) and callable(request.server):
            request = replace(request, server=demands.around(request.server))
        try:
            reply = yield from ask(request)
        except RefusedRequestError as error:
            exchange.throw(error)


def blame(exchanges: Iterable[Generator[Any, Any, Any]], error: RefusedRequestError) -> None:
    """Raise `error`; if the code is a user's, as an `InputError` with file and line."""
    told: list[Problem] = []
    for rank, exchange in enumerate(exchanges):
        if rank in error.ranks:
            try:
                exchange.throw(error)
            except InputError as located:
                told += located.problems
            except RefusedRequestError:
                continue
    if told:
        raise InputError(list(dict.fromkeys(told))) from error
    raise error


def is_users(cls: type[Compressor]) -> bool:
    """Whether the class is defined outside gcsim."""
    return not cls.__module__.startswith("gcsim.")


def new_member(
    cls: type[Compressor], worker: Worker, parameters: CompressorParameters
) -> Compressor:
    """Create one worker's instance; errors in a user's `__init__` become an `InputError`."""
    with own_mistakes(cls, "__init__"):
        return cls(worker, parameters)


@contextmanager
def own_mistakes(cls: type[Compressor], method: str = "exchange") -> Iterator[None]:
    """Turn exceptions of a user's compressor into an `InputError` with file and line; if no line of
    the user's raised it, the line of `method`."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        if not is_users(cls):
            raise
        files = _files(cls)
        raised = error.__cause__ if isinstance(error.__cause__, StopIteration) else error
        frames = [f for f in traceback.extract_tb(raised.__traceback__) if f.filename in files]
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        if isinstance(error, InputError):
            raise _located(error, place, location_of_class(cls, method)) from error
        said = f": {error}" if str(error) else ""
        message = f"{cls.__name__} raised {type(error).__name__}{said}"
        raise InputError(message, place=place or location_of_class(cls, method)) from error


def users_line(error: BaseException) -> str:
    """Return the innermost line of the traceback outside gcsim and libraries, or ""."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    libraries = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        path, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] != "gcsim" and not path.startswith(("<", *libraries)):
            found = f"{path}:{line}"
    return found


def location_of(found: Any) -> str:
    """Return file and line of a class or function; "" for anything else."""
    import inspect

    try:
        code = getattr(inspect.unwrap(found), "__code__", None)
        if code is not None:
            return f"{code.co_filename}:{code.co_firstlineno}"
        return f"{inspect.getsourcefile(found)}:{inspect.getsourcelines(found)[1]}"
    except (OSError, TypeError):
        return ""


def _located(error: InputError, place: str, otherwise: str) -> InputError:
    """Put the line in front of each problem's place; use `otherwise` if no place is known."""
    problems = []
    for problem in error.problems:
        known = [] if problem.place.startswith(place) else [place]
        where = ", ".join(filter(None, [*known, problem.place])) or otherwise
        problems.append(replace(problem, place=where))
    return type(error)(problems)


def location_of_request(exchange: Generator[Any, Any, Any], cls: type[Compressor]) -> str:
    """Return the user's line at which a suspended exchange waits."""
    files, found = _files(cls), ""
    inner: Any = exchange
    while (frame := getattr(inner, "gi_frame", None)) is not None:
        if frame.f_code.co_filename in files:
            found = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        inner = inner.gi_yieldfrom
    return found or location_of_class(cls)


def location_of_return(exchange: Generator[Any, Any, Any], cls: type[Compressor]) -> str:
    """Return the line at which a finished exchange returned; its `def` if there are several."""
    code: CodeType = exchange.gi_code  # type: ignore[attr-defined]  # a generator function's
    if code.co_filename not in _files(cls):
        return location_of_class(cls)
    lines = {
        at.positions.lineno
        for at in dis.get_instructions(code)
        if at.opname in {"RETURN_VALUE", "RETURN_CONST"} and at.positions is not None
    }
    line = lines.pop() if len(lines) == 1 else code.co_firstlineno
    return f"{code.co_filename}:{line}"


def location_of_class(cls: type[Compressor], method: str = "exchange") -> str:
    """Return the line of a user's method, or else of the class; "" for gcsim's own."""
    if not is_users(cls):
        return ""
    return location_of(cls.__dict__.get(method)) or location_of(cls)


def _files(cls: type[Compressor]) -> set[str]:
    """Return the files of a class and its bases outside gcsim and Python."""
    modules = {base.__module__ for base in cls.__mro__ if base is not object}
    users = [sys.modules.get(name) for name in modules if not name.startswith(("gcsim.", "abc"))]
    return {file for module in users if (file := getattr(module, "__file__", None))}
