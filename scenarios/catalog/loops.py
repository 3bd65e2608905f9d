"""Default costs of a training loop other than its passes, kernels and network.

`catalog/loops.yaml` has interference by transport, contention between a node's devices, the skew of
workers, waits of exchanges by loop, and the code around exchanges by framework. Numbers in a
scenario replace the catalogue's numbers and ranges.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from gcsim.errors import InputError, did_you_mean
from gcsim.fields import Probability, RangeOf, Setting, Text
from gcsim.names import compact
from gcsim.scenarios.catalog import FOLDER
from gcsim.scenarios.reading.checking import Section, shipped_table
from gcsim.scenarios.reading.types import in_catalogue
from gcsim.scenarios.reading.values import As, Spelled
from gcsim.simulator.training import Code, Framework, Interference, Noise, SharedNode

_CITED: dict[str, Any] = {
    "estimate": (bool, ...),
    "source": (Annotated[str, Field(min_length=1)], ...),
}
_CALLED = {"paddlepaddle": "paddle"} | dict.fromkeys(
    ("torch", "pytorch", "torchddp", "pytorchddp", "distributeddataparallel"), "ddp"
)
"""Other words for loops, in small letters without blanks and hyphens."""
_Code = As(Framework)
FRAMEWORK = "pytorch"  # default framework
UNKNOWN = "unknown"  # default loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop(Setting):
    """Training loop of a framework."""

    exposed: Probability  # `Training.exposed`
    exposed_range: RangeOf[Probability] = None
    framework: Text = FRAMEWORK  # entry of its code


class _Exchanges(Section):
    """Code costs of a framework's own exchange, and of an exchange by a communication hook."""

    reducer: Annotated[Spelled, _Code] = Field(default_factory=_Code.section)
    hook: Annotated[Spelled, _Code] = Field(default_factory=_Code.section)

    def codes(self, base: tuple[Framework, Framework]) -> tuple[Framework, Framework]:
        """Return the costs of both exchanges; those not stated are from `base`."""
        return self.reducer.value(Framework, base[0]), self.hook.value(Framework, base[1])


class _FrameworkEntry(_Exchanges):
    estimate: bool
    source: Annotated[str, Field(min_length=1)]


class _Loops(Section):
    workers: Annotated[Spelled, As(Noise, **_CITED)]
    interference: dict[str, Annotated[Spelled, As(Interference, **_CITED)]]
    codes: dict[str, Annotated[Spelled, As(Code, **_CITED)]]
    between_nodes: dict[str, Annotated[Spelled, As(Framework, **_CITED)]]
    shared_node: dict[str, Annotated[Spelled, As(SharedNode, **_CITED)]]
    loops: dict[str, Annotated[Spelled, As(Loop, **_CITED)]]
    frameworks: dict[str, _FrameworkEntry]


@functools.cache
def _loops() -> _Loops:
    return shipped_table(_Loops, FOLDER / "loops.yaml")


def interference(transport: str) -> Interference:
    """Return the interference of a transport's collectives; none without figures."""
    entry = _loops().interference.get(transport)
    return Interference() if entry is None else entry.value(Interference)


def between_nodes(code: Framework, transport: str) -> Framework:
    """Return `code` with the cost of a step on several nodes with this transport."""
    entry = _loops().between_nodes.get(transport)
    return code if entry is None else entry.value(Framework, code)


def workers() -> Noise:
    """Default spread of workers."""
    return _loops().workers.value(Noise)


def shared_node(transport: str) -> SharedNode:
    """Return the contention between a node's devices; none for the ideal transport."""
    return contention("process_each") if transport in _loops().interference else SharedNode()


def contention(name: str) -> SharedNode:
    """Return the contention for processes of this kind; raises `InputError` if unknown."""
    return _entry(_loops().shared_node, name, "kind of processes").value(SharedNode)


def loop_named(word: str) -> str:
    """Return the name of the loop for a word; raises `InputError` if unknown."""
    plain = compact(word)
    name = word if word in _loops().loops else _CALLED.get(plain, plain)
    if name in _loops().loops:
        return name
    named = [one for one in _loops().loops if "_" not in one]
    sharded = re.match("fsdp|hsdp|(?:deepspeed)?zero[123]", plain)
    strategy = sharded and sharded[0].removeprefix("deepspeed")
    way = f"--set training.strategy={strategy}" if strategy else did_you_mean(word, named)
    raise InputError(f"unknown loop {word!r}", hint=way)


def loop(name: str, *, on_devices: bool = False) -> Loop:
    """Return the loop of a name; the `_nccl` variant, if any, when sums are made on devices."""
    known = _loops().loops
    return known.get(f"{name}_nccl" if on_devices else name, known[name]).value(Loop)


def code(name: str) -> Code:
    """Code of the passes; `InputError` for an unknown name."""
    return _entry(_loops().codes, name, "code").value(Code)


def _entry(known: Mapping[str, Spelled], name: str, what: str) -> Spelled:
    if name not in known:
        raise InputError(f"unknown {what} {name!r}", hint=did_you_mean(name, known))
    return known[name]


def frameworks() -> Mapping[str, str]:
    """Sources of known frameworks by name; `none` costs nothing."""
    return {name: entry.source for name, entry in _loops().frameworks.items()} | {"none": ""}


def framework(name: str) -> tuple[Framework, Framework]:
    """Return the code costs of dense and of hooks' exchanges; raises `InputError` if unknown."""
    free = Framework(), Framework()
    if name == "none":
        return free
    entry = _loops().frameworks.get(name)
    if entry is None:
        raise InputError(f"unknown framework {name!r}", hint=did_you_mean(name, frameworks()))
    return entry.codes(free)


class FrameworkSection(_Exchanges):
    """Framework of the catalogue with other figures."""

    like: Annotated[str, in_catalogue(framework)] = FRAMEWORK
