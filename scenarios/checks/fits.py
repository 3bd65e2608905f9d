"""Check that a scenario fits in its devices' memory, and find settings with which it would fit.

A method is refused only if the low end of its estimate (`simulator/memory.py`) exceeds the device's
memory. The message has the excess, the parts, and single changes that help, or combinations if no
single change does.
"""

from __future__ import annotations

import functools
import itertools
import math
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gcsim.errors import InputError, Problem
from gcsim.scenarios import catalog
from gcsim.scenarios.checks.conflicts import shardable
from gcsim.scenarios.scenario import CompressorChoice, Scenario
from gcsim.simulator.devices.training_rates import PRODUCTS
from gcsim.simulator.memory import STAGES, Memory
from gcsim.traces.models.table import table_facts

_GIB = float(1 << 30)
_NAMED = 4  # parts of the memory that a message names
_MOST_SHARDS, _MOST_CUTS = 4096, 4096
NOTHING = f"nothing known (batch, 16 bits, devices, ZeRO on up to {_MOST_SHARDS:,} GPUs)"
Setting = Mapping[str, Any]
"""Values of fields that change: "batch_size", or of the training."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change with which a method fits, or may fit."""

    text: str
    sure: bool = True  # the high end of the estimate fits, too
    sets: tuple[str, ...] = ()  # assignments of `--set`; empty for other devices or more of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Methods that do not fit, all with the same memory and remedies."""

    labels: tuple[str, ...]
    memory: Memory
    device: str
    remedies: tuple[Remedy, ...]

    @property
    def label(self) -> str:
        """The labels in one string."""
        return ", ".join(self.labels)

    @property
    def cure(self) -> str:
        """ "would fit: --set batch_size=4 | --set cluster.device=b200", or that nothing would." """
        return f"would fit: {' | '.join(one.text for one in self.remedies) or NOTHING}"

    @property
    def sets(self) -> tuple[str, ...]:
        """Assignments of `--set` with which it surely fits; empty if none are known."""
        return next((one.sets for one in self.remedies if one.sure and one.sets), ())

    @property
    def over(self) -> float:
        """The least number of bytes by which the memory is exceeded."""
        return self.memory.low - (self.memory.device or 0)

    @property
    def need(self) -> str:
        """ "DGC 1 %, CSER 1/96 need at least 46.7 GiB" """
        verb = "needs" if len(self.labels) == 1 else "need"
        return f"{self.label} {verb} at least {gib(self.memory.low)}"

    def message(self) -> str:
        """ "dense needs at least 144 GiB of the 80 GiB of h100_sxm, 64 GiB too many (optimizer 60,
        ...)" """
        largest = sorted(self.memory.parts, key=lambda part: -part.low)[:_NAMED]
        parts = ", ".join(f"{part.name} {_digits(part.low)}" for part in largest if part.low)
        return (
            f"{self.need} of the {gib(self.memory.device or 0)} of {self.device}, "
            f"{gib(self.over)} too many ({parts})"
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
            "would_fit": [one.text for one in self.remedies],
        }


class DoesNotFitError(InputError):
    """No method of a scenario fits."""

    def __init__(self, misfit: Misfit, model: str, place: str) -> None:
        self.misfit, self.model, self.place = misfit, model, place
        message = f"{model} does not fit: {misfit.message()}"
        super().__init__(Problem(message=message, place=place, hint=misfit.cure))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.misfit, self.model, self.place)


def gib(nbytes: float) -> str:
    """ "80 GiB" """
    return f"{_digits(nbytes)} GiB"


def span(low: float, high: float) -> str:
    """ "37.3-50.9 GiB" """
    ends = _digits(low), gib(high)
    return ends[1] if f"{ends[0]} GiB" == ends[1] else f"{ends[0]}-{ends[1]}"


def _digits(nbytes: float) -> str:
    return f"{nbytes / _GIB:,.0f}" if nbytes >= 100 * _GIB else f"{nbytes / _GIB:.3g}"


def left_out(found: Iterable[Misfit]) -> tuple[str, ...]:
    """Return a text per misfit, by ascending memory: the first with all changes that surely help,
    the others with the smallest change."""
    texts: list[str] = []
    for one in sorted(found, key=lambda one: one.memory.low):
        cures = tuple(each for each in one.remedies if each.sure) or one.remedies
        has = "" if texts else f" of the {gib(one.memory.device or 0)} of {one.device}"
        shown = replace(one, remedies=cures[:1] if texts else cures)
        texts.append(f"{one.need}{has}; {shown.cure}")
    return tuple(texts)


def misfits(scenario: Scenario, offered: Collection[str] | None = None) -> list[Misfit]:
    """Return the methods that do not fit, with remedies. Other devices are those offered, or those
    of the catalogue."""
    alike: dict[tuple[str, Memory, tuple[bool, ...]], list[CompressorChoice]] = {}
    for choice in scenario.compressors:
        device, found = scenario.tightest(choice)
        if found is not None and found.fits == "no":
            cluster, training = scenario.cluster, scenario.training
            by = tuple(shardable(choice, cluster, training, stage) for stage in STAGES[1:])
            alike.setdefault((device, found, by), []).append(choice)
    return [
        Misfit(
            labels=tuple(choice.label for choice in choices),
            memory=found,
            device=device,
            remedies=tuple(_remedies(scenario, choices[0], offered)),
        )
        for (device, found, _), choices in alike.items()
    ]


def checkpointed(scenario: Scenario, choice: CompressorChoice) -> list[str]:
    """Return the memory with full checkpointing and the longer passes, as text, for a model by
    formula without it; nothing if that does not fit either."""
    if scenario.model.transformer is None or scenario.training.checkpointing == "full":
        return []
    return [one.text for one in _mildest(scenario, choice, [[{"checkpointing": "full"}]])]


def _remedies(
    scenario: Scenario, choice: CompressorChoice, offered: Collection[str] | None
) -> Iterator[Remedy]:
    """Yield settings and devices that help, the smallest change first."""
    axes = list(_axes(scenario, choice))
    alone = [one for axis in axes for one in _mildest(scenario, choice, [[s] for s in axis])]
    if not any(one.sure for one in alone):
        both = itertools.chain.from_iterable(
            itertools.product(*some)
            for n in range(2, len(axes) + 1)
            for some in itertools.combinations(axes, n)
        )
        alone += [one for one in _mildest(scenario, choice, both) if one.sure or not alone]
    yield from alone
    sure = any(one.sure for one in alone)  # then no device needs these settings, too
    others = [[]] if sure else [[], [axis[-1] for axis in axes]]
    for larger in (functools.partial(_device, offered), _sharded):
        found = (larger(scenario, choice, settings) for settings in others)
        yield from map(Remedy, itertools.islice(filter(None, found), 1))


def _sharded(
    scenario: Scenario, choice: CompressorChoice, settings: Sequence[Setting]
) -> str | None:
    """Return the fewest GPUs, and the lowest ZeRO stage on these, with which it fits. Returns None
    if a stage fits on the scenario's own GPUs (then it is one of the settings), or if no stage can
    shard the method's state."""
    settings = [one for one in settings if one not in _STRATEGIES]
    first = max(2, scenario.cluster.workers)
    for workers in (first << n for n in range(max(1, (_MOST_SHARDS // first).bit_length()))):
        for change in _STRATEGIES:
            stage = change["strategy"]
            if stage == "hsdp" or not shardable(choice, scenario.cluster, scenario.training, stage):
                continue
            found = _with(scenario, choice, settings, stage=stage, workers=workers)
            if found is None or found.fits != "yes":
                continue
            if workers == scenario.cluster.workers:
                return None
            text = f"{assigned(_assignments([change]))} on {workers} GPUs ({gib(found.high)})"
            return _with_these(text, settings)
    return None


def _axes(scenario: Scenario, choice: CompressorChoice) -> Iterator[Sequence[Setting]]:
    """Yield settings that save memory, by key, the smallest change first."""
    training, network = scenario.training, scenario.model.transformer
    batch, parts = scenario.batch_size, training.accumulation
    cuts = [n for n in range(2, min(batch, _MOST_CUTS) + 1) if batch % n == 0]
    if cuts:
        yield [{"batch_size": batch // n, "accumulation": n * parts} for n in cuts]
    stages = _STRATEGIES[STAGES.index(training.strategy) :] if scenario.cluster.workers > 1 else []
    timed = [
        one for one in stages if shardable(choice, scenario.cluster, training, one["strategy"])
    ]
    if timed:
        yield timed
    if network is not None and training.checkpointing != "full":
        again = ("selective", "full") if training.checkpointing == "none" else ("full",)
        yield [{"checkpointing": one} for one in again]
    known = scenario.cluster.device.precisions
    name = "bf16" if "tf32" in known else "fp16"  # the same devices multiply bfloat16
    if training.precision in ("fp16", "bf16"):
        name = training.precision
    half = {"precision": name, "gradients": name}
    if training.gradients == "fp32" and "fp16" in known:
        yield [{key: value for key, value in half.items() if getattr(training, key) != value}]


def _mildest(
    scenario: Scenario, choice: CompressorChoice, tried: Iterable[Sequence[Setting]]
) -> list[Remedy]:
    """Return the first settings that surely fit, else the first that may."""
    found: list[Remedy] = []
    for settings in tried:
        held = _with(scenario, choice, settings)
        sure = held is not None and held.fits == "yes"
        if held is None or held.fits == "no" or (found and not sure):
            continue
        slower = "".join(_slower(scenario, change) for change in settings)
        sets = _assignments(settings)
        fits = "fits" if sure else "may fit"
        text = f"{assigned(sets)} ({span(held.low, held.high)}: {fits}{slower})"
        found = [Remedy(text, sure, sets)]
        if sure:
            break
    return found


def _with(
    scenario: Scenario, choice: CompressorChoice, settings: Sequence[Setting], **sharded: Any
) -> Memory | None:
    fields = {key: value for change in settings for key, value in change.items()}
    batch = fields.pop("batch_size", scenario.batch_size)
    training = replace(scenario.training, **fields)
    changed = replace(scenario, batch_size=batch, training=training)
    return changed.tightest(choice, **sharded)[1]


def _slower(scenario: Scenario, change: Mapping[str, Any]) -> str:
    """Return the share of the passes' time that checkpointing adds, as text."""
    model = scenario.model
    if "checkpointing" not in change or model.transformer is None:
        return ""
    flash = scenario.training.flash_attention
    again = model.transformer.computed_again(change["checkpointing"], flash=flash)
    share = again / (PRODUCTS * table_facts(model, 1).forward_flops)
    return f"; passes {100 * share:.0f} % longer"


def _device(
    offered: Collection[str] | None, scenario: Scenario, choice: CompressorChoice,
    settings: Sequence[Setting],
) -> str | None:  # fmt: skip
    """Return the device with the least memory that fits and is no slower, to replace those that do
    not fit; None for groups with unequal batches, which may depend on the device."""
    groups, stated = scenario.cluster.groups, scenario.training.device_memory
    if any(group.batch != 1 for group in groups):
        return None
    replaced = [one for _, _, one in scenario.cluster.kinds]
    known = catalog.devices()
    devices = known if offered is None else {name: known[name] for name in known if name in offered}
    for name, new in sorted(devices.items(), key=lambda item: item[1].memory or 0):
        size = new.memory or 0
        less = [n for n, old in enumerate(replaced) if (stated or old.memory or size) < size]
        least = max((replaced[n].effective_flop_rate for n in less), default=math.inf)
        if new.effective_flop_rate < least:
            continue
        found = _with(scenario, choice, [*settings, {"device_memory": size}])
        if found is not None and found.fits == "yes":
            if stated is not None:
                text = f"{assigned([f'training.device_memory={gib(size)}'])} ({name})"
            elif offered is not None:
                text = f"an offer with {name} ({gib(size)})"
            else:
                named = [f"cluster.groups.{number}." for number in less]
                places = named if groups else ["cluster."]
                changed = [f"{place}device={name}" for place in places]
                if new.bus and scenario.cluster.devices_per_node > 1:
                    changed += [
                        f"{place}intra_node={new.bus}"
                        for place, number in zip(places, less, strict=False)
                        if replaced[number].bus != new.bus
                    ]
                text = f"{assigned(changed)} ({gib(size)})"
            return _with_these(text, settings)
    return None


def _with_these(text: str, settings: Sequence[Setting]) -> str:
    """ "ZeRO-1 on 16 GPUs with --set training.precision=bf16" """
    words = assigned(_assignments(settings))
    return " with ".join(filter(None, (text, words)))


def _assignments(settings: Iterable[Setting]) -> tuple[str, ...]:
    changes = (change for one in settings for change in one.items())
    of = {"batch_size": ""}
    return tuple(f"{of.get(key, 'training.')}{key}={value}" for key, value in changes)


def assigned(assignments: Iterable[str]) -> str:
    """ "--set batch_size=4 --set training.accumulation=2" """
    return " ".join(f"--set {shlex.quote(one)}" for one in assignments)


_STRATEGIES: tuple[Setting, ...] = tuple({"strategy": strategy} for strategy in STAGES[1:])
