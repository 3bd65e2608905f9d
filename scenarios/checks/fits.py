"""Fit of a scenario in its devices' memory, and settings with which it would fit.

Only what needs more than the device has at the low end of the estimate is refused
(`simulator/memory.py`): by how much, its parts, and single changes that help, or several where none
does alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gcsim.errors import InputError, Problem
from gcsim.scenarios import catalog
from gcsim.scenarios.scenario import CompressorChoice, Scenario
from gcsim.simulator.devices.training_rates import PRODUCTS
from gcsim.simulator.memory import STRATEGIES, Memory
from gcsim.traces.models.table import table_facts

_GIB = float(1 << 30)
_NAMED = 4  # parts of the memory that a message names
_MOST_SHARDS = 4096
SHARDED = "ZeRO-"
"""Begin of a remedy that takes sharded training, whose time is not simulated."""
Setting = tuple[str, Mapping[str, Any]]
"""Assignment as of `--set`, and the fields that it changes ("batch_size", or of the training)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A setting that does not fit."""

    label: str
    """The method."""
    memory: Memory
    device: str
    remedies: tuple[str, ...]
    """Settings with which it fits, or may fit."""

    @property
    def over(self) -> float:
        """Bytes too many, at least."""
        return self.memory.low - (self.memory.device or 0)

    def message(self) -> str:
        """ "dense needs at least 144 GiB of the 80 GiB of h100_sxm, 64 GiB too many (optimizer 60,
        ...)" """
        largest = sorted(self.memory.parts, key=lambda part: -part.low)[:_NAMED]
        parts = ", ".join(f"{part.name} {_digits(part.low)}" for part in largest if part.low)
        return (
            f"{self.label} needs at least {gib(self.memory.low)} of the "
            f"{gib(self.memory.device or 0)} of {self.device}, {gib(self.over)} too many ({parts})"
        )

    def document(self) -> dict[str, Any]:
        """Plain values, as in `--json`."""
        return {
            "label": self.label,
            "device": self.device,
            "needs_low_bytes": self.memory.low,
            "needs_high_bytes": self.memory.high,
            "device_bytes": self.memory.device,
            "over_bytes": self.over,
            "parts_bytes": {part.name: [part.low, part.high] for part in self.memory.parts},
            "would_fit": list(self.remedies),
        }


class DoesNotFitError(InputError):
    """No method of a scenario fits."""

    def __init__(self, misfit: Misfit, model: str, place: str) -> None:
        self.misfit, self.model, self.place = misfit, model, place
        message = f"{model} does not fit: {misfit.message()}"
        hint = f"would fit: {' | '.join(misfit.remedies)}"
        super().__init__(Problem(message=message, place=place, hint=hint))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.misfit, self.model, self.place)


def gib(nbytes: float) -> str:
    """ "80 GiB" """
    return f"{_digits(nbytes)} GiB"


def _digits(nbytes: float) -> str:
    return f"{nbytes / _GIB:,.0f}" if nbytes >= 100 * _GIB else f"{nbytes / _GIB:.3g}"


def misfits(scenario: Scenario) -> Iterator[Misfit]:
    """Methods that do not fit, each with what would help."""
    for choice in scenario.compressors:
        device, found = scenario.tightest(choice)
        if found is not None and found.fits == "no":
            yield Misfit(
                label=choice.label,
                memory=found,
                device=device,
                remedies=tuple(_remedies(scenario, choice)),
            )


def _remedies(scenario: Scenario, choice: CompressorChoice) -> Iterator[str]:
    """Settings and devices, the least change first."""
    axes = [list(axis) for axis in _axes(scenario)]
    alone = [[one] for axis in axes if (one := _first(scenario, choice, [[s] for s in axis]))]
    if not alone:
        both = itertools.chain.from_iterable(
            itertools.product(*some) for n in (2, 3) for some in itertools.combinations(axes, n)
        )
        one = _first(scenario, choice, both)
        alone = [[one]] if one else []
    yield from (text for texts in alone for text in texts)
    smallest = [axis[-1] for axis in axes]
    if scenario.cluster.groups:
        return
    for settings in ([], smallest):
        device = _device(scenario, choice, settings)
        if device:
            yield ", ".join([f"cluster.device={device}", *(text for text, _ in settings)])
            break
    found = (_sharded(scenario, choice, settings) for settings in ([], smallest))
    yield from itertools.islice(filter(None, found), 1)


def _sharded(
    scenario: Scenario, choice: CompressorChoice, settings: Sequence[Setting]
) -> str | None:
    """The fewest GPUs, and the least of ZeRO's stages on these, with which it fits."""
    workers = scenario.cluster.workers
    while workers <= _MOST_SHARDS:
        for strategy in STRATEGIES[1:] if workers > 1 else ():
            found = _with(scenario, choice, settings, strategy=strategy, workers=workers)
            if found is not None and found.fits == "yes":
                size = f"{gib(found.high)}; not simulated"
                words = [f"{SHARDED}{strategy[-1]} on {workers} GPUs ({size})"]
                return ", ".join([*words, *(text for text, _ in settings)])
        workers *= 2
    return None


def _axes(scenario: Scenario) -> Iterator[Iterator[Setting]]:
    """Settings that save memory, by key, the mildest first."""
    training, network = scenario.training, scenario.model.transformer
    batch = scenario.batch_size
    if batch > 1:
        smaller = itertools.takewhile(bool, (batch >> n for n in itertools.count(1)))
        yield ((f"batch_size={size}", {"batch_size": size}) for size in smaller)
    if network is not None and training.checkpointing != "full":
        again = ("selective", "full") if training.checkpointing == "none" else ("full",)
        yield ((f"training.checkpointing={one}", {"checkpointing": one}) for one in again)
    half = {"precision": "fp16", "gradients": "bf16"}
    if training.gradients == "fp32" and "fp16" in scenario.cluster.device.precisions:
        text = ", ".join(f"training.{key}={value}" for key, value in half.items())
        yield iter([(text, half)])


def _first(scenario: Scenario, choice: CompressorChoice, tried: Any) -> str | None:
    """The first settings that fit, or may, in words."""
    for settings in tried:
        found = _with(scenario, choice, settings)
        if found is None or found.fits == "no":
            continue
        words = [text + _slower(scenario, change) for text, change in settings]
        maybe = "" if found.fits == "yes" else " (may fit)"
        return ", ".join(words) + maybe
    return None


def _with(
    scenario: Scenario, choice: CompressorChoice, settings: Sequence[Setting], **sharded: Any
) -> Memory | None:
    fields: dict[str, Any] = {}
    for _, change in settings:
        fields |= change
    batch = fields.pop("batch_size", scenario.batch_size)
    training = replace(scenario.training, **fields)
    return replace(scenario, batch_size=batch, training=training).memory_of(choice, **sharded)


def _slower(scenario: Scenario, change: Mapping[str, Any]) -> str:
    """Share of FLOPs that checkpointing adds."""
    model = scenario.model
    if "checkpointing" not in change or model.transformer is None:
        return ""
    flash = scenario.training.flash_attention
    again = model.transformer.computed_again(change["checkpointing"], flash=flash)
    share = again / (PRODUCTS * table_facts(model, 1).forward_flops)
    return f" ({share:.0%} more FLOPs)"


def _device(
    scenario: Scenario, choice: CompressorChoice, settings: Sequence[Setting]
) -> str | None:
    """The catalogue's device of the least memory that holds it and is no slower."""
    least = scenario.cluster.device.effective_flop_rate
    devices = catalog.devices().items()
    known = {n: one.memory for n, one in devices if one.memory and one.effective_flop_rate >= least}
    for name, size in sorted(known.items(), key=lambda item: item[1]):
        found = _with(scenario, choice, [*settings, ("", {"device_memory": size})])
        if found is not None and found.fits == "yes":
            return f"{name} ({gib(size)})"
    return None
