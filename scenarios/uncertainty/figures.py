"""Input figures of a scenario that are known only as a range.

A field `x` of a simulator dataclass has a range if the dataclass also has a field `x_range`; new
fields need no entry here. Figures whose errors are the same are one input: equal values at several
places (NICs of one kind); the coefficients of a device's kernel class; forward and backward
passes, whose range is that of the device's training rates or layer model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.scenarios.uncertainty.kernel_use import COEFFICIENTS
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.devices.device import Device
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.network.links import Link, Uplink
from gcsim.simulator.training import Training

KeyPath = tuple[str | int, ...]
"""Path from the cluster (`cluster`) or training (`training`): fields, keys, places."""

Column = NDArray[np.float64]  # a column has an entry per world
Rows = NDArray[np.float64]  # a column per world

_RANGE = "_range"
_RATES = frozenset({"bandwidth", "efficiency", "flop_rate", "grouped"})
_ABOVE_TIMES = 1000  # larger figures are rates of bytes or FLOPs; times and shares are far smaller
_DIGITS = 5
_SINGLE = frozenset({type(None), bool, int, float, str, Fraction})
_TENS = np.array([float(f"1e{power}") for power in range(23)])  # these are exact


def significant(values: Column, digits: int) -> Column:
    """Round values to significant decimal digits."""
    size = np.abs(np.where(values == 0, 1.0, values))
    places = digits - 1 - np.floor(np.log10(size)).astype(np.int64)
    more, fewer = (_TENS[np.clip(by, 0, len(_TENS) - 1)] for by in (places, -places))
    rounded: Column = np.rint(values * more / fewer) * fewer / more
    return rounded


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure and its range."""

    key_path: KeyPath  # path of the value that owns the field
    field: str
    stated: Any
    low: float
    high: float

    @property
    def rate(self) -> bool:
        """Whether a larger figure is faster."""
        return self.field in _RATES or self.stated > _ABOVE_TIMES

    def at(self, slowness: Any) -> Any:
        """Return the value at a slowness from 0 (fast end) to 1; logarithmic if low > 0."""
        start, end = (self.high, self.low) if self.rate else (self.low, self.high)
        if self.low > 0:
            return start * (end / start) ** slowness
        return start + (end - start) * slowness

    @property
    def far(self) -> float:
        """Slowness of the end whose time differs more from the stated value's."""
        slow, stated, fast = (
            1 / value if self.rate else value
            for value in (self.at(1.0), float(self.stated), self.at(0.0))
        )
        return 1.0 if slow - stated >= stated - fast else 0.0

    def exactly(self, slowness: float) -> Any:
        """Return `at` in the type of the stated value, rounded to keep fractions short."""
        return _exactly(self, slowness)


def values(figures: Sequence[Figure], slowness: Column) -> Column:
    """Return `Figure.exactly`, `[figures, worlds]`; the stated value where slowness is NaN."""
    unmoved, stated = np.isnan(slowness), np.array([[float(one.stated)] for one in figures])
    slow = np.where(unmoved, 0.0, slowness)
    at = np.stack([one.at(row) for one, row in zip(figures, slow, strict=True)])
    return np.where(unmoved, stated, significant(at, _DIGITS))


@lru_cache(maxsize=1 << 14)
def _exactly(figure: Figure, slowness: float) -> Any:
    """Return `Figure.exactly`, cached for all points of a sweep."""
    value = f"{figure.at(slowness):.{_DIGITS}g}"
    return Fraction(value) if isinstance(figure.stated, Fraction) else float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Figures that are drawn together."""

    name: str
    unit: str
    measure: str  # command of gcsim, or keys that state a measurement, joined by " and "
    figures: tuple[Figure, ...]  # the first is reported; for the passes it is no dataclass field

    @property
    def main(self) -> Figure:
        """Reported figure."""
        return self.figures[0]


PASSES: KeyPath = ("compute",)


def uncertain_inputs(
    cluster: Cluster, training: Training, compute: Mapping[str, ComputeTimes]
) -> list[Input]:
    """Return all uncertain inputs, used or not; `compute` as returned by `compute_times`."""
    found = []
    for number in kinds_of_devices(cluster):
        of = cluster.groups[number].device if number else cluster.device
        found += [*_kernels(of, number), *_passes(compute, of, number)]
    groups: dict[tuple[object, str], list[Figure]] = {}
    rest = replace(cluster, device=_WITHOUT_FIGURES, groups=())
    for root, value in (("cluster", rest), ("training", training)):
        for owner, figure in _figures(value, (root,)):
            one = owner if figure.key_path[1:] else root
            groups.setdefault((one, figure.field), []).append(figure)
    for (one, _), figures in groups.items():
        name, unit, measure = _words(one, figures[0])
        found.append(Input(name=name, unit=unit, measure=measure, figures=tuple(figures)))
    return found


_WITHOUT_FIGURES = Device(name="", title="", kernels={}, effective_flop_rate=1.0, source="")


def _figures(value: Any, key_path: KeyPath) -> Iterator[tuple[Any, Figure]]:
    """Yield the figures with a range inside a value, each with the value that owns it."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _figures(each, (*key_path, key))
    elif isinstance(value, tuple):
        for place, each in enumerate(value):
            yield from _figures(each, (*key_path, place))
    elif is_dataclass(value):
        for one in fields(value):
            each = getattr(value, one.name)
            if not one.name.endswith(_RANGE):
                if type(each) in _SINGLE:
                    continue
                yield from _figures(each, (*key_path, one.name))
            elif each is not None:
                name = one.name.removesuffix(_RANGE)
                stated = getattr(value, name, None)
                figure = None if stated is None else _figure(key_path, name, stated, each)
                if figure is not None:
                    yield value, figure


def _figure(key_path: KeyPath, name: str, stated: Any, bounds: tuple[Any, Any]) -> Figure | None:
    """Return a figure, its range widened to include the stated value; None for an empty range."""
    low, high = min(float(bounds[0]), float(stated)), max(float(bounds[1]), float(stated))
    if low == high:
        return None
    return Figure(key_path=key_path, field=name, stated=stated, low=low, high=high)


def kinds_of_devices(cluster: Cluster) -> list[int]:
    """Return the first group with each device; group 0 without groups."""
    found: dict[int, int] = {}
    for number, group in enumerate(cluster.groups):
        found.setdefault(id(group.device), number)
    return list(found.values()) or [0]


def device_path(group: int) -> KeyPath:
    """Return the path of a group's device; the first group's is the cluster's."""
    return ("cluster", "groups", group, "device") if group else ("cluster", "device")


def is_of_device(key_path: KeyPath) -> bool:
    """Whether a figure belongs to a device."""
    return key_path[:2] in {("cluster", "device"), ("cluster", "groups")}


def _kernels(device: Device, group: int) -> Iterator[Input]:
    classes = [("kernels", k, "device", f"of {k} kernels", r) for k, r in device.kernels.items()]
    host = [("host", what, "host", f"of one {what}", rate) for what, rate in device.host.items()]
    for table, kind, owner, named, rate in (*classes, *host):
        figures = [figure for _, figure in _figures(rate, (*device_path(group), table, kind))]
        if figures:
            figures.sort(key=lambda figure: figure.low / figure.high)  # widest range first
            words, unit = COEFFICIENTS[figures[0].field]
            yield Input(
                name=f"the {owner}'s {words} {named}" + (f" ({device.name})" if group else ""),
                unit=unit,
                measure="gcsim calibrate device",
                figures=tuple(figures),
            )


def passes_path(group: int) -> KeyPath:
    """Return the path of a group's passes."""
    return (*PASSES, group) if group else PASSES


def _passes(compute: Mapping[str, ComputeTimes], device: Device, group: int) -> Iterator[Input]:
    times = {name: one.of_group(group).total / 1e12 for name, one in compute.items()}
    figure = _figure(
        passes_path(group), "passes", times["stated"], (min(times.values()), max(times.values()))
    )
    if figure is not None:
        yield Input(
            name="the time of forward and backward" + (f" ({device.name})" if group else ""),
            unit="s",
            measure="compute.forward and compute.backward",
            figures=(figure,),
        )


_PLACES: dict[KeyPath, str] = {
    ("cluster", "network"): "the network's",
    ("cluster", "network", "up"): "the uplink's",
    ("cluster", "intra_node"): "the links' inside a node",
    ("cluster", "shared_memory"): "a node's shared memory's",
    ("cluster", "racks", "uplink"): "the racks' uplinks'",
    ("cluster", "racks", "pod_uplink"): "the pods' uplinks'",
    ("cluster", "collectives", "server_network"): "the servers' network's",
    ("cluster", "host"): "the host's",
    ("cluster", "sums"): "the host's",
    ("training", "interference"): "what slows",
    ("training", "shared_node"): "a shared node's",
    ("training", "code"): "the training code's",
    ("training", "noise"): "the workers'",
    ("training", "reducer"): "the dense exchange's",
    ("training", "hook"): "a hook's",
    ("training", "input"): "the loader's",
}
_FIGURES = {
    "latency": ("latency", "s"),
    "bandwidth": ("bandwidth", "B/s"),
    "efficiency": ("goodput over its line rate", ""),
    "overhead": ("cost per message", "s"),
    "per_message": ("work per message", "s"),
    "per_byte": ("work per byte", "s/B"),
    "per_call": ("work per call", "s"),
    "per_copied_byte": ("work per copied byte", "s/B"),
    "per_received_byte": ("work per received byte", "s/B"),
    "dispatch": ("delay of a call", "s"),
    "computation": ("computations during collectives", ""),
    "bus": ("collectives during computations", ""),
    "per_tensor": ("cost per tensor", "s"),
    "batch": ("time per batch", "s"),
    "per_bucket": ("cost per bucket", "s"),
    "per_step": ("cost per step", "s"),
    "passes": ("passes over the gradient", ""),
}


def _words(owner: Any, figure: Figure) -> tuple[str, str, str]:
    key_path = figure.key_path
    place = _PLACES.get(key_path)
    if place is None and key_path[:2] == ("cluster", "nics"):
        place = f"the NIC's of node {key_path[2]}"
    if place is None and key_path[:2] == ("cluster", "buses"):
        place = f"the links' inside node {key_path[2]}"
    if place is None and key_path[:2] == ("training", "others"):
        return f"{key_path[2]}: {_FIGURES[figure.field][0]}", "s", "implementation"
    within = ("framework",) if key_path[-1] in ("reducer", "hook") else ()
    key = ".".join(map(str, (*key_path[:-1], *within, key_path[-1], figure.field)))
    if figure.field == "exposed":
        return "how long the exchange waits for the backward pass", "", "training.overlap"
    if figure.field == "ring_over_tree":
        return "NCCL's choice between ring and tree", "", "cluster.collectives.all_reduce"
    if figure.field == "grouped":
        return "what all-to-alls reach of the network", "", "cluster.collectives.push_pull"
    if key_path[:2] == ("cluster", "sums"):
        return f"{place} rate of {figure.field} sums", "B/s", "gcsim calibrate link"
    words, unit = _FIGURES.get(figure.field, (figure.field.replace("_", " "), ""))
    measure = "gcsim calibrate link" if isinstance(owner, Link | Uplink) else key
    return f"{place} {words}" if place else key, unit, measure
