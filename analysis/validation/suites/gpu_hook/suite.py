"""The suite `gpu-hook`: stages and iterations of gcsim's hooks on an H100, by recorded launches."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Literal, NamedTuple

from gcsim.analysis.validation.data_files import Row, read
from gcsim.analysis.validation.folder import suite_of
from gcsim.analysis.validation.suite import Excluded, Factor, Findings, Point
from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.compressors.kernels import KernelClass, KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.compressors.queued import QUEUED, launches
from gcsim.scenarios import catalog
from gcsim.scenarios.calibration.host import Timed, host_prices, stage_clocks
from gcsim.scenarios.running.by_shapes import by_shapes
from gcsim.simulator.clock import PS_PER_SECOND, picoseconds
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.devices.clocks import as_timed, stage_name
from gcsim.simulator.devices.device import Device, KernelRate
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.network.links import Link
from gcsim.simulator.plans import CHECKS, STEP_CHECKS
from gcsim.simulator.predict import predict
from gcsim.simulator.training import Framework, Training
from gcsim.traces import profile as profiles
from gcsim.traces.buckets import bucket_layouts
from gcsim.traces.models.building import build_model, trainable
from gcsim.traces.models.registry import shipped_model

_HERE = Path(__file__).parent
_SOURCE = "gcsim's `make gpu` on an H100 80GB HBM3, 2026-11, suites/gpu_hook/{}.csv"
_FITTED_AT = "1000000"
_BUCKETS = {"bert_base": ("bert_base bucket 5", 14, 199), "resnet50": ("resnet50 bucket 3", 5, 161)}
"""Measured bucket, number of buckets, and number of tensors, by model."""
HOOK = Framework(per_bucket=Fraction(313, 10**6), per_tensor=Fraction(218, 10**7))
"""DDP's code around an exchange, from `gcsim calibrate device` in the same run."""
CHECKED = 2, 6  # launches of Triton and torch by the hook's checks of a bucket at that time
_PHASES = {"gradient_sampling_bayes": "sampled"}
_TORCH: dict[str, tuple[str, dict[str, object]]] = {
    "fp16_compress_hook": ("torch_fp16", {}),
    "powerSGD_hook": ("torch_powersgd", {"rank": 4, "start": 2}),
}
"""Method with the operators of each of PyTorch's hooks."""
_ON_HOST = frozenset({"adacomp"})
"""Methods that copy tensors to the host: launches do not show the time that this takes."""
_TRITON = next(name for name, counts in launches().items() if list(map(float, counts)) == [1, 0, 0])
"""A kernel that is a single launch of Triton."""
_BYTE = 1e-9  # seconds per byte on `recorded`: the suite does not test kernel speeds

Stages = dict[tuple[str, str, str], list[Row]]  # rows of an exchange: encoding and decoding


def timed_stage(row: Row) -> Timed:
    """Return a stage with its recorded launches, waits and busy time of the device."""
    count, triton, waits = (int(row[key]) for key in ("launches", "triton_launches", "waits"))
    busy = round(1e-6 * float(row["device_us"]) / _BYTE)
    one = KernelCost(kind="streaming", launches=0, elements=0, nbytes=0)
    costs = (
        replace(one, name=_TRITON, launches=triton),
        replace(one, name="aten.add", launches=count - triton, nbytes=busy),
        replace(one, name="aten.item", launches=waits, kind="host_sync"),
    )
    stage: Literal["encode", "decode"] = "encode" if row["stage"] == "encode" else "decode"
    return Timed(
        name=stage_name(row["method"], row["phase"], stage),
        elements=int(row["elements"]),
        computes=(profiles.Compute(stage=stage, fixed=costs),),
        seconds=1e-6 * float(row["total_us"]),
    )


def recorded_device() -> Device:
    """Return the catalogue's H100 with kernels that take their recorded time."""
    free = KernelRate(launch=0, source=_SOURCE)
    kernels: dict[KernelClass, KernelRate] = {
        "streaming": replace(free, bandwidth=1 / _BYTE), "host_sync": free,
    }  # fmt: skip
    return replace(catalog.device("h100_sxm"), kernels=kernels, primitives={})


class Devices(NamedTuple):
    """The catalogue's GPU, as it is and calibrated on half of the methods at one length."""

    catalogue: Device
    calibrated: Device


def find() -> Findings:
    """Return the stages, half of whose methods are used in fits, and iterations."""
    stages = [row for row in read(_HERE / "stages.csv") if any(timed_stage(row).launches)]
    kept = [row for row in stages if row["method"] not in _ON_HOST]
    served = set(sorted({row["method"] for row in kept})[::2])
    short = [row for row in kept if row["method"] in served and row["data"] == _FITTED_AT]
    fitted, device = [timed_stage(row) for row in short], recorded_device()
    own = replace(device, host=host_prices(fitted, "", ""))
    devices = Devices(device, replace(own, stages=stage_clocks(fitted, own)))
    both: defaultdict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in kept:
        both[row["method"], row["phase"], row["data"]].append(row)
    return Findings(
        points=(
            *(_stage(row, served, devices) for row in kept),
            *_iterations(both, devices),
            *_of_pytorch(devices),
        ),
        factors=(
            *(
                Factor("stages", f"host time of a {what}", own.host[what].launch, "s", len(short),
                       catalogue=device.host[what].launch)
                for what in QUEUED
            ),
            *(
                Factor("iterations", f"{model} without a hook", _dense(model), "s", 1, given=True)
                for model in _BUCKETS
            ),
        ),
        excluded=(
            Excluded("stages of methods in host memory", len(stages) - len(kept),
                     "copies of the whole gradient are in no launch"),
            Excluded("stages of 2026-11-26", 56,
                     "measured on earlier code, without the launches of a stage"),
            Excluded("iterations of 2026-11-26", 15,
                     "measured on earlier code, whose stages were not recorded"),
        ),
    )  # fmt: skip


def _profile(rows: Sequence[Row], buckets: int, tensors: int) -> profiles.TrafficProfile:
    """Return the traffic profile of an iteration whose buckets all have these stages."""
    row = rows[0]
    computes = [compute for each in rows for compute in timed_stage(each).computes]
    nothing = CollectiveRecord(kind="all_reduce", sent=(1, 1), element=1)
    exchange = profiles.Exchange(
        computes=(*computes, *[profiles.Compute(stage="decode", fixed=())][len(computes) - 1 :]),
        collectives=(nothing,),
    )
    step = profiles.Step(number=0, exchanges=(exchange,) * buckets)
    ends = [tensors * n // buckets for n in range(buckets + 1)]
    layouts = [
        BucketLayout(
            index=number,
            slices=tuple(
                TensorSlice(name=str(n), shape=(1,), offset=n - first, index=n)
                for n in range(first, last)
            ),
        )
        for number, (first, last) in enumerate(itertools.pairwise(ends))
    ]
    layer = profiles.Layer(name="all", parameters=tuple(range(tensors)), forward_flops=0)
    return profiles.TrafficProfile(
        compressor=row["method"],
        parameters={},
        model=profiles.ModelFacts(
            name="", parameters=tensors, layers=(layer,), samples_per_worker=1
        ),
        buckets=tuple(layouts),
        workers=2,
        period=1,
        phases=(profiles.Phase(name=row["phase"], count=1, steps=(step,)),),
        quality=profiles.Quality(nmse=0.0, cosine_similarity=1.0),
    )


def stage_seconds(row: Row, device: Device) -> float:
    """Return the predicted seconds of a stage."""
    profile = as_timed(_profile([row], 1, 1), device.stages)
    (exchange,) = profile.phases[0].steps[0].exchanges
    return float(PriceList(device).priced_by(exchange.computes[0], 1).total / PS_PER_SECOND)


def iteration(
    model: str, profile: profiles.TrafficProfile, device: Device, **code: Framework
) -> float:
    """Return the seconds of an iteration: dense passes, and each bucket's stages around an instant
    exchange. `code`: frameworks by method, for code that is not gcsim's."""
    buckets = len(profile.buckets)
    passes = picoseconds(Fraction(_dense(model)))
    network = Link(name="none", bandwidth=Fraction(10**15), latency=Fraction(0))
    found = predict(
        profile,
        Cluster(nodes=2, devices_per_node=1, device=device, network=network, intra_node=network),
        ComputeTimes(
            forward=0, backward=passes, parts=(passes // buckets,) * buckets, provenance=""
        ),
        training=Training(hook=_hook(device, buckets), others=code),
        spans=False,
    )
    return found.iteration


def _hook(device: Device, buckets: int) -> Framework:
    """Return `HOOK` with the checks of that time instead of today's, which every plan includes."""
    one = CHECKS.fixed[0]
    names = zip((_TRITON, "aten.add"), CHECKED, strict=True)
    then = [replace(one, name=name, launches=count) for name, count in names]
    prices = PriceList(device)
    host, now, step = (
        prices.priced_by(each, 1).host
        for each in (replace(CHECKS, fixed=tuple(then)), CHECKS, STEP_CHECKS)
    )
    more = (host - now - step / buckets) / PS_PER_SECOND
    return replace(HOOK, per_bucket=HOOK.per_bucket + more)


def _stage(row: Row, served: set[str], devices: Devices) -> Point:
    mine = row["method"] in served
    return Point(
        name=f"{row['method']} {row['phase']}, {row['stage']}, {row['data']}",
        series="stages, methods fitted on" if mine else "stages, other methods",
        unit="s",
        measured=timed_stage(row).seconds,
        predicted=stage_seconds(row, devices.calibrated),
        unfitted=stage_seconds(row, devices.catalogue),
        fitted=mine and row["data"] == _FITTED_AT,
        source=_SOURCE.format("stages"),
        workers=1,
        nbytes=4 * float(row["elements"]),
        method=row["method"],
    )


def _dense(model: str) -> float:
    rows = read(_HERE / "deployed.csv")
    return next(
        1e-3 * float(row["iteration_ms"])
        for row in rows
        if row["model"] == model and row["hook"] == "dense"
    )


def _iterations(stages: Stages, devices: Devices) -> Iterator[Point]:
    for row in read(_HERE / "deployed.csv"):
        data, buckets, tensors = _BUCKETS[row["model"]]
        phase = _PHASES.get(row["hook"])
        own = [
            each
            for (method, of, where), each in stages.items()
            if (method, where) == (row["hook"], data) and phase in (None, of)
        ]
        if own:
            yield _iteration(row, "iterations", _profile(own[0], buckets, tensors), devices)


def _of_pytorch(devices: Devices) -> Iterator[Point]:
    """Yield iterations with PyTorch's own hooks, by their operators and the catalogue's kernels."""
    catalogue = catalog.device("h100_sxm")
    both = Devices(catalogue, replace(catalogue, host=devices.calibrated.host))
    for row in read(_HERE / "deployed.csv"):
        named, _, hook = row["hook"].partition(" ")
        if named == "torch":
            profile = _operators(row["model"], hook)
            code = {profile.compressor: HOOK}
            yield _iteration(row, "iterations, PyTorch's hooks", profile, both, **code)


def _iteration(
    row: Row, series: str, profile: profiles.TrafficProfile, devices: Devices, **code: Framework
) -> Point:
    return Point(
        name=f"{row['model']}, {row['hook']}",
        series=series,
        unit="s",
        measured=1e-3 * float(row["iteration_ms"]),
        predicted=iteration(row["model"], profile, devices.calibrated, **code),
        unfitted=iteration(row["model"], profile, devices.catalogue, **code),
        source=_SOURCE.format("deployed"),
        workers=1,
        method=profile.compressor,
    )


@functools.cache
def _operators(model: str, hook: str) -> profiles.TrafficProfile:
    """Return the operators of one of PyTorch's hooks on all DDP buckets."""
    network = build_model(shipped_model(model), seed=0, device="meta")
    shapes = [(name, tuple(one.shape)) for name, one in trainable(network)]
    layouts = bucket_layouts(shapes)
    layer = profiles.Layer(name="all", parameters=tuple(range(len(shapes))), forward_flops=0)
    elements = sum(layout.numel for layout in layouts)
    facts = profiles.ModelFacts(
        name=model, parameters=elements, layers=(layer,), samples_per_worker=1
    )
    kind, given = _TORCH[hook]
    return by_shapes(kind, given, facts, layouts)


SUITE = suite_of(_HERE, "gpu-hook", find)
