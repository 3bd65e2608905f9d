"""Two clocks against stages that `make gpu` has timed: fitted on one half of the methods, judged on
the other, and on all.

    PYTHONPATH=. python -m tests.benchmarks.gpu.fit build/gpu/stages.csv [h100_sxm]

Launches are metered here, on a CPU. The host's prices come from stages of a million elements, all
else is the catalogue's device.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gcsim.compressors.base import Worker
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.meter import Meter
from gcsim.compressors.registry import check_parameters, compressor_class
from gcsim.scenarios import catalog
from gcsim.scenarios.calibration.host import fitted, launched
from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.devices.device import Device
from gcsim.simulator.devices.pricing import PriceList
from gcsim.traces.profile import Compute
from gcsim.traces.stage1.metered import metered_exchange
from gcsim.traces.timing.kernels import gradient, matrix_bucket, steps_of
from tests.benchmarks.gpu.crew import read
from tests.benchmarks.gpu.stages import layout_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One measured stage, and what is metered of it."""

    method: str
    data: str
    seconds: float
    computes: tuple[Compute, ...]

    def priced(self, prices: PriceList) -> float:
        """Seconds."""
        return sum(prices.compute_time(one, 1) for one in self.computes) / PS_PER_SECOND

    @property
    def launches(self) -> tuple[int, ...]:
        """By kind."""
        return launched(cost for one in self.computes for cost in (*one.fixed, *one.per_payload))


def main(file: str, device: str = "h100_sxm") -> None:
    """Print prices and errors."""
    conditions, rows = read(Path(file))
    stages = list(_stages([row for row in rows if row["total_us"] and row["stage"]]))
    methods = sorted({stage.method for stage in stages})
    base = catalog.device(device)
    for title, used in (
        ("first half", methods[::2]),
        ("second half", methods[1::2]),
        ("all", methods),
    ):
        priced = _fitted(base, [stage for stage in stages if stage.method in used], conditions)
        print(
            f"fitted on {title}: ",
            {what: f"{r.launch * 1e6:.1f} us {r.launch_range}" for what, r in priced.host.items()},
        )
        for judged in ("fitted", "others"):
            kept = [one for one in stages if (one.method in used) == (judged == "fitted")]
            for data in dict.fromkeys(stage.data for stage in kept):
                print(f"  {judged}, {data}: {_errors([s for s in kept if s.data == data], priced)}")
    for stage in stages:
        ratio = stage.priced(PriceList(priced)) / stage.seconds
        title = f"{stage.method}, {stage.data}, {stage.launches} launches"
        print(f"{title}: {stage.seconds * 1e6:.0f} us, priced {ratio:.2f} times that")


def _fitted(base: Device, stages: Sequence[Stage], conditions: str) -> Device:
    short = [(one.launches, one.seconds) for one in stages if one.data == "1000000"]
    return replace(base, host=fitted(short, f"{len(short)} stages", conditions))


def _errors(stages: Iterable[Stage], device: Device) -> str:
    prices = PriceList(device)
    off = sorted(abs(one.priced(prices) / one.seconds - 1) for one in stages if any(one.launches))
    ninth = off[int(0.9 * (len(off) - 1))]
    return f"median {statistics.median(off):.0%}, 90th percentile {ninth:.0%} of {len(off)}"


def _stages(rows: Iterable[dict[str, str]]) -> Iterator[Stage]:
    known: dict[tuple[str, str], dict[str, tuple[Compute, ...]]] = {}
    for row in rows:
        method, data = row["method"], row["data"]
        if (method, data) not in known:
            known[method, data] = _metered(method, data)
        *before, last = known[method, data][row["phase"]]
        yield Stage(
            method=method,
            data=data,
            seconds=float(row["total_us"]) * 1e-6,
            computes=(last,) if row["stage"] == "decode" else tuple(before),
        )


def _metered(method: str, data: str) -> dict[str, tuple[Compute, ...]]:
    """By kind of step."""
    cls, parameters = compressor_class(method), check_parameters(method, {})
    model, _, number = data.partition(" bucket ")
    layout = layout_of(model, int(number)) if number else None
    values = gradient(int(data) if layout is None else layout.numel, 1)
    bucket = matrix_bucket(values, second_moments=bool(cls.requires))
    bucket = replace(bucket, layout=layout or bucket.layout)
    member = cls(Worker(rank=0, count=1, seed=0), parameters)
    found = {}
    for step in steps_of(cls, parameters):
        meter = Meter(1)
        with torch.no_grad():
            lockstep([member.exchange(bucket, step)], meter)
        found[cls.phase(parameters, step)] = metered_exchange(meter, None).computes
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
