"""Errors in a user's own model, reported with their line. Exceptions from gcsim's models are passed
on unchanged: they are our bugs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from gcsim.compressors.lazy_torch import nn
from gcsim.compressors.mistakes import location_of, users_line
from gcsim.errors import InputError
from gcsim.traces.models.registry import ModelEntry


def refusal(
    entry: ModelEntry,
    message: str,
    hint: str,
    *,
    model: nn.Module | None = None,
    error: Exception | None = None,
) -> InputError:
    """Return an error for a model that cannot be trained, with the line that raised `error`, or
    that of its `forward` or of the function that builds it."""
    if error is not None:
        first_line = str(error).strip().split("\n")[0]
        message += f": {type(error).__name__}" + (f": {first_line}" if first_line else "")
    place = ", ".join(filter(None, ["model", _line(entry, model, error)]))
    return InputError(f"model {entry.name!r}: {message}", place=place, hint=hint)


@contextmanager
def own_mistakes(entry: ModelEntry, model: nn.Module, doing: str) -> Iterator[None]:
    """Turn exceptions of a user's model while `doing` into an `InputError` with its line, and add
    missing lines to others."""
    if not _is_users(entry):
        yield
        return
    try:
        yield
    except MemoryError:
        raise
    except InputError as known:
        line = _line(entry, model, None)
        problems = [
            each if line in each.place else replace(each, place=f"{each.place}, {line}")
            for each in known.problems
        ]
        raise type(known)(problems) from known
    except Exception as error:
        hint = "it is called with one batch after another, and torch differentiates its output"
        raise refusal(entry, f"{doing} failed", hint, model=model, error=error) from error


def _is_users(entry: ModelEntry) -> bool:
    return bool(entry.loss) or (entry.build is not None and not entry.build.startswith("gcsim."))


def _line(entry: ModelEntry, model: nn.Module | None, error: Exception | None) -> str:
    """Return the most exact known line of the user's; "" for gcsim's own models."""
    if entry.build is None or not _is_users(entry):
        return ""
    name, _, attribute = entry.build.partition(":")
    module = sys.modules.get(name)
    forward = None if model is None else type(model).forward
    found = users_line(error) if error is not None else ""
    if not found and forward is not None and not str(forward.__module__).startswith("torch."):
        found = location_of(forward)
    found = found or location_of(getattr(module, attribute, None))
    file = getattr(module, "__file__", None)
    return found or (f"{file}:1" if file else "")
