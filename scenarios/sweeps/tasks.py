"""Tasks of a sweep's workers: stage 1 for some compressors, or one point from its profiles.

Sums over different numbers of threads differ in their last bits, which training carries into the
bytes of some methods. So stage 1 uses all cores, as in `gcsim run`, and a lock in the cache folder
lets one process of a machine measure at a time, even of several sweeps. Points use one thread each.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gcsim.errors import InputError, Problem
from gcsim.files import cache_folder, waiting_for, write_text
from gcsim.scenarios.checks.doubtful import warn_of_traffic
from gcsim.scenarios.checks.fits import DoesNotFitError
from gcsim.scenarios.progress import Progress
from gcsim.scenarios.result import Result
from gcsim.scenarios.run import simulated_run, traffic_profiles
from gcsim.scenarios.running.gradients import check_trace
from gcsim.scenarios.running.keys import profile_key, profile_keys, same_traffic
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.sections.passes import measured_passes
from gcsim.scenarios.sweeps.point_file import text_of
from gcsim.simulator.devices.device import Device
from gcsim.simulator.devices.pricing import PriceList
from gcsim.traces.profile import TrafficProfile
from gcsim.traces.stage1 import cache, machine

Profiles = tuple[tuple[str, str], ...]
"""Cache keys and contents, in the order of a scenario's compressors."""


class Judge:
    """Addition of facts to a point's simulated result; by default none."""

    def facts(self, scenario: Scenario) -> list[Any]:
        """Return the facts that the addition depends on."""
        return []

    def judged(self, scenario: Scenario, result: Result, prices: PriceList) -> Result:
        """Return the completed result; `prices`: of the scenario's device."""
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task for another process, perhaps on another machine."""

    scenario: Scenario
    measure_only: bool = False  # measure the scenario's profiles without simulating it
    profiles: Profiles = ()  # from an earlier task, for a machine with its own cache
    head: Mapping[str, Any] = field(default_factory=dict)  # begin of the point's file
    judge: type[Judge] = Judge
    set_threads: bool = False
    """Whether to use all cores whatever the environment says: dask limits workers to one."""

    def perform(self, progress: Progress) -> Outcome:
        """Perform the task; return errors as a `Failure`."""
        try:
            with machine.all_cores() if self.set_threads else contextlib.nullcontext():
                return _performed(self, progress)
        except Exception as error:
            return failure(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """Columns of a row without times, since even the smallest method does not fit."""

    label: str
    device_memory_low_bytes: float
    device_memory_high_bytes: float
    fits: Literal["no"] = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Reason why a task has no result."""

    problems: tuple[Problem, ...]
    traceback: str = ""  # of a bug; empty if the cause is the input or the machine
    unfit: Unfit | None = None  # set if the point does not fit in its devices

    @property
    def is_bug(self) -> bool:
        """Whether the cause is a bug of gcsim or of the user's code."""
        return bool(self.traceback)


@dataclass(frozen=True, slots=True, kw_only=True)
class PointOutput:
    """Result of a point, without timelines, and the text of its file."""

    result: Result
    text: str = field(repr=False)


def done(
    judge: Judge, scenario: Scenario, head: Mapping[str, Any], result: Result, prices: PriceList
) -> PointOutput:
    """Complete the result of a point; `head`: begin of its file, `prices`: of its device."""
    judged = judge.judged(scenario, result, prices)
    return PointOutput(
        result=replace(judged, faulty=None, trained=None), text=text_of(head, judged)
    )


Outcome = PointOutput | Profiles | Failure
"""Outcome of a point, requested profiles, or failure."""


def _performed(task: Task, watcher: Progress) -> Outcome:
    _keep(task.profiles)
    scenario = task.scenario
    kept = _cache_for(scenario.cluster.device, task.judge)
    keys = kept.keys(scenario)
    profiles = kept.load(keys)
    if profiles is None:
        with measuring_alone():
            profiles = _measure(task, keys, watcher)
    if task.measure_only:
        return tuple((key, _stored(key)) for key in keys)
    check_trace(scenario)
    warn_of_traffic(scenario, profiles)
    passes = measured_passes(scenario, profiles[0])
    result = simulated_run(
        scenario, keys, profiles, passes, progress=watcher, timelines=False, prices=kept.prices
    )
    # a result that cannot be written fails here, and not in the sweep
    return done(kept.judge, scenario, task.head, result, kept.prices)


class _PointCache:
    def __init__(self, device: Device, judge: type[Judge]) -> None:
        self.device, self.prices, self.points = device, PriceList(device), 0
        self.judge = judge()
        self._profiles: dict[str, TrafficProfile] = {}
        self._asked: tuple[Scenario, list[str]] | None = None

    def keys(self, scenario: Scenario) -> list[str]:
        """Return `profile_keys`, cached for points that share them."""
        if self._asked is None or not same_traffic(self._asked[0], scenario):
            self._asked = scenario, profile_keys(scenario)
        return self._asked[1]

    def load(self, keys: Sequence[str]) -> list[TrafficProfile] | None:
        """Return the profiles if all are in the cache."""
        for key in set(keys) - self._profiles.keys():
            profile = cache.load(key)
            if profile is None:
                return None
            self._profiles[key] = profile
        return [self._profiles[key] for key in keys]


_kept: _PointCache | None = None
_KEPT_FOR = 64  # points after which cached profiles are freed


def _cache_for(device: Device, judge: type[Judge]) -> _PointCache:
    global _kept  # noqa: PLW0603 - a process has one
    if (
        _kept is None
        or _kept.points == _KEPT_FOR
        or _kept.device != device
        or type(_kept.judge) is not judge
    ):
        _kept = _PointCache(device, judge)
    _kept.points += 1
    return _kept


def profile_key_here(scenario: Scenario) -> str:
    """Return a profile's key on the machine that runs this: it depends on cores, CPU and code."""
    with machine.all_cores():
        return profile_key(scenario, scenario.compressors[0])


def failure(error: Exception) -> Failure:
    """Convert an exception to a failure, with `gcsim run`'s message."""
    if isinstance(error, DoesNotFitError):
        found = error.misfit
        unfit = Unfit(
            label=found.label,
            device_memory_low_bytes=found.memory.low,
            device_memory_high_bytes=found.memory.high,
        )
        return Failure(problems=error.problems, unfit=unfit)
    if isinstance(error, InputError):
        return Failure(problems=error.problems)
    if isinstance(error, OSError):
        place = "" if error.filename is None else str(error.filename)
        return Failure(problems=(Problem(place=place, message=error.strerror or str(error)),))
    if isinstance(error, MemoryError):
        hint = "use a smaller model, fewer workers or fewer iterations"
        return Failure(problems=(Problem(message="not enough memory", hint=hint),))
    text = "".join(traceback.format_exception(error))
    first_line = str(error).partition("\n")[0]
    return Failure(
        problems=(Problem(message=f"{type(error).__name__}: {first_line}"),), traceback=text
    )


def _measure(task: Task, keys: list[str], progress: Progress) -> list[TrafficProfile]:
    check_trace(task.scenario)
    with _all_cores() if task.set_threads else contextlib.nullcontext():
        return traffic_profiles(task.scenario, keys, use_cache=True, progress=progress)


@contextlib.contextmanager
def _all_cores() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(machine.threads())
    yield
    torch.set_num_threads(before)


def _keep(profiles: Profiles) -> None:
    for key, text in profiles:
        if cache.load(key) is None:
            write_text(_path(key), text)


def _stored(key: str) -> str:
    try:
        return _path(key).read_text(encoding="utf-8")
    except FileNotFoundError:
        hint = "set GCSIM_CACHE_DIR to a folder with space"
        message = "profiles cannot be stored here, but a sweep needs them"
        raise InputError(message, place=str(cache_folder()), hint=hint) from None


def _path(key: str) -> Path:
    return cache_folder() / f"{key}.json"


@contextlib.contextmanager
def measuring_alone() -> Iterator[None]:
    """Prevent other sweeps' workers from measuring on these cores."""
    cores = hashlib.sha256(repr(machine.usable()).encode()).hexdigest()[:8]
    cache_folder().mkdir(parents=True, exist_ok=True)
    # on a file system without locks, two at once are only slower
    with waiting_for(cache_folder() / f"measuring-{platform.node()}-{cores}.lock"):
        yield


def code_here() -> dict[str, str]:
    """Return the facts that must be equal on all machines of a sweep."""
    from gcsim import version

    return {
        "gcsim": version.__version__,
        "Python": platform.python_version(),
        "gcsim's code, torch, numpy and numba": cache.key({}),
    }
