"""Maker of the shipped traffic profiles: `python -m tests.benchmarks.shipped_profiles`.

Two hours on one core: first the methods that advice compares, model by model, then all others with
their defaults. Profiles of this code are kept, so the command resumes. A profile of other code is
kept, as of this code, if the model's tensors and layers, and the method's profile on `CONFIRMS`,
come out equal, its errors to `_SAME`: other kinds of processors add in another order. One thread:
equal profiles on processors of one kind with equal versions, which the files name.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

from gcsim.compressors.registry import REGISTRY, compressor_class
from gcsim.errors import InputError
from gcsim.scenarios.advice.other_code import in_other_code
from gcsim.scenarios.advice.question import (
    LARGE_BUCKET,
    LOCAL,
    METHODS,
    name_of,
    path_of,
    scenario_from,
    setting,
)
from gcsim.scenarios.load import load_scenario, shipped_scenarios
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.run import measured
from gcsim.scenarios.scenario import CompressorChoice, DdpBuckets, Scenario
from gcsim.scenarios.trained.make_shipped import with_defaults
from gcsim.traces.models.registry import MODELS, ModelEntry
from gcsim.traces.profile import TrafficProfile
from gcsim.traces.stage1 import shipped
from tests.benchmarks.shipped_trajectories import made_here

ALL_METHODS = 500_000
"""Most parameters of a model with profiles of all methods."""
CONFIRMS = "cnn_digits"
"""Small model, measured first, whose profiles confirm a method."""
_SAME, _ROUNDING = 1e-4, 1e-12
"""Relative difference of equal errors, and errors that are rounding alone."""

Wanted = tuple[CompressorChoice, DdpBuckets]


def models() -> list[ModelEntry]:
    """All models: `CONFIRMS`, then by size."""
    return sorted(MODELS.values(), key=lambda one: (one.name != CONFIRMS, one.parameters or 0))


def scenario_of(model: ModelEntry) -> Scenario:
    """Scenario whose run measures the profiles; its cluster does not matter."""
    cluster = {"nodes": 1, "device": "v100", "network": "10gbe"}
    methods = [dict(one) for one in (*METHODS, LOCAL)]
    training = {"device_memory": "100 TiB"}
    job = {"model": model.name, "cluster": cluster, "compressors": methods, "training": training}
    return scenario_from(job | setting(model))


def compared(scenario: Scenario) -> list[Wanted]:
    """Scenarios that advice runs: without a file, and the shipped ones of the model."""
    large = DdpBuckets(first=LARGE_BUCKET, cap=LARGE_BUCKET)  # as `ddp: {bucket: 100 MiB}`
    few = [choice for choice in scenario.compressors if choice.kind in ("none", "fp16")]
    found = [(choice, scenario.buckets) for choice in scenario.compressors]
    found += [(choice, large) for choice in few]
    found += [
        (one, scenario.buckets) for each in scenario.compressors for one in in_other_code(each)
    ]
    for other in _scenarios():
        if other.model.name == scenario.model.name:
            found += [(choice, other.buckets) for choice in other.compressors]
    known: dict[str, Wanted] = {}
    for choice, buckets in found:
        moments = "second_moments" in compressor_class(choice.kind).requires
        if choice.kind in REGISTRY and not moments:
            known.setdefault(name_of(scenario.model, choice, buckets), (choice, buckets))
    return list(known.values())


@cache
def _scenarios() -> tuple[Scenario, ...]:
    return tuple(load_scenario(name) for name in shipped_scenarios() if name != "compressor_zoo")


def others(scenario: Scenario) -> list[Wanted]:
    """All other methods of a small model with their defaults, except those that need second
    moments, which are not drawn."""
    if (scenario.model.parameters or 0) > ALL_METHODS:
        return []
    return [
        (choice, scenario.buckets)
        for choice in with_defaults([choice for choice, _ in compared(scenario)])
        if "second_moments" not in compressor_class(choice.kind).requires
    ]


def stale(folder: Path = shipped.FOLDER) -> list[str]:
    """Damaged or outdated profiles, and files and profiles that nothing uses."""
    found = []
    asked = {path_of(model, folder): model for model in models()}
    for path in sorted(folder.glob("*.json.xz")):
        model = asked.get(path)
        if model is None or not shipped.read(path):
            found.append(path.name)
            continue
        codes = {name: code for name, code, _ in _names(model)}
        found += [
            f"{path.name}: {name}"
            for name, one in shipped.read(path).items()
            if codes.get(name) != one.code
        ]
    return found


def _names(model: ModelEntry) -> Iterator[tuple[str, str, Wanted]]:
    """Name and code of each profile of a model."""
    scenario = scenario_of(model)
    for choice, buckets in compared(scenario) + others(scenario):
        code = shipped.code_of(model, REGISTRY[choice.kind])
        yield name_of(model, choice, buckets), code, (choice, buckets)


def measure(scenario: Scenario, wanted: Sequence[Wanted]) -> list[TrafficProfile]:
    """Profiles of one model, on one thread; methods with equal buckets share gradients."""
    import torch

    torch.set_num_threads(1)
    found: dict[int, TrafficProfile] = {}
    for buckets in dict.fromkeys(buckets for _, buckets in wanted):
        numbers = [number for number, (_, of) in enumerate(wanted) if of == buckets]
        choices = [wanted[number][0] for number in numbers]
        asked = replace(scenario, buckets=buckets, compressors=tuple(choices))
        found |= dict(zip(numbers, measured(asked, choices, SilentProgress()), strict=True))
    return [found[number] for number in range(len(wanted))]


def _of_this_code(
    scenario: Scenario, found: Mapping[str, shipped.Shipped], confirmed: set[tuple[str, str]]
) -> dict[str, shipped.Shipped]:
    """Profiles of other code that this code would repeat; `confirmed`: methods, with parameters,
    repeated on `CONFIRMS`."""
    same: dict[str, shipped.Shipped] = {}
    layouts: dict[DdpBuckets, TrafficProfile] = {}
    for name, code, (choice, buckets) in _names(scenario.model):
        one = found.get(name)
        if (
            one is None
            or one.code == code
            or (choice.kind, str(choice.parameters)) not in confirmed
        ):
            continue
        if buckets not in layouts:
            (layouts[buckets],) = measure(scenario, [(scenario.compressors[0], buckets)])
        profile, now = one.profile(), layouts[buckets]
        if profile and (profile.model, profile.buckets) == (now.model, now.buckets):
            said = {key: text for key, text in now.gradients.items() if isinstance(text, str)}
            profile = replace(profile, gradients={**profile.gradients, **said})
            same[name] = replace(one, code=code, body=shipped.packed(profile))
    return same


def make(folder: Path = shipped.FOLDER, *, every: bool = True) -> None:
    """Measure stale or missing profiles, and remove unused ones."""
    confirmed = _confirmed(folder)
    for whole in (False, True)[: 1 + every]:
        for model in models():
            scenario, path = scenario_of(model), path_of(model, folder)
            asked = {name: (code, wanted) for name, code, wanted in _names(model)}
            found = {name: one for name, one in shipped.read(path).items() if name in asked}
            found |= _of_this_code(scenario, found, confirmed)
            found = {name: one for name, one in found.items() if one.code == asked[name][0]}
            now = compared(scenario) + (others(scenario) if whole else [])
            left = {
                name: wanted
                for name, (_, wanted) in asked.items()
                if name not in found and wanted in now
            }
            for group in _groups(left):
                for name, profile in _measured(scenario, group).items():
                    found[name] = shipped.Shipped(
                        name=name,
                        code=asked[name][0],
                        made=made_here(),
                        body=shipped.packed(profile),
                    )
            if found.values() != shipped.read(path).values():
                shipped.write(path, found.values())
            print(f"{model.name}: {len(found)} profiles, {path.stat().st_size:,} bytes", flush=True)
    wanted_files = {path_of(model, folder) for model in models()}
    for path in set(folder.glob("*.json.xz")) - wanted_files:
        path.unlink()


def _groups(left: Mapping[str, Wanted]) -> Iterator[dict[str, Wanted]]:
    """Groups of methods: gradients are drawn once per group, and a stop loses no more."""
    names = list(left)
    for start in range(0, len(names), 16):
        yield {name: left[name] for name in names[start : start + 16]}


def _measured(scenario: Scenario, wanted: Mapping[str, Wanted]) -> dict[str, TrafficProfile]:
    """Profile of each method that can be measured so."""
    try:
        return dict(zip(wanted, measure(scenario, list(wanted.values())), strict=True))
    except InputError as error:
        if len(wanted) == 1:
            choice = next(iter(wanted.values()))[0]
            print(f"{scenario.model.name}, {choice.label}: left out: {error}", flush=True)
            return {}
    found: dict[str, TrafficProfile] = {}
    for name, one in wanted.items():
        found |= _measured(scenario, {name: one})
    return found


def _confirmed(folder: Path) -> set[tuple[str, str]]:
    """Methods whose shipped profiles on `CONFIRMS` this code repeats."""
    model = models()[0]
    scenario = scenario_of(model)
    found = shipped.read(path_of(model, folder))
    asked = {name: wanted for name, _, wanted in _names(model) if name in found}
    again = _measured(scenario, asked)
    return {
        (choice.kind, str(choice.parameters))
        for name, (choice, _) in asked.items()
        if name in again and _alike(again[name], found[name].profile())
    }


def _alike(one: TrafficProfile, other: TrafficProfile | None) -> bool:
    """Whether all but the words for the gradients is equal, and errors are to `_SAME`."""
    if other is None:
        return False
    own = replace(one, gradients=other.gradients, quality=other.quality)
    return own == other and all(
        math.isclose(getattr(one.quality, name), figure, rel_tol=_SAME, abs_tol=_ROUNDING)
        for name, figure in asdict(other.quality).items()
    )


if __name__ == "__main__":
    make(every="--compared" not in sys.argv[1:])
