"""Models of ddl-benchmarks: when each gradient tensor is ready, and the optimiser's cost.

Facts of the models are data (`data/ddl_benchmarks_layers.csv` says how they were counted). A pass
takes what one device was measured to take, or what the catalogue knows of the device; the
simulator splits it over the layers by their FLOPs. BERT's word embedding is also its decoder, so
that its gradient, 9 or 21 % of all elements, is there with the last.

The optimisers are those of the benchmark's scripts: plain SGD, but for BERT on Horovod, where it is
AdamW (transformers 2), and on ByteScheduler, Adam; their element-wise kernels run one after another
and are priced at the device's rate. The measurement on one device is taken to be Horovod's script.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Literal

from gcsim.analysis.validation.data_files import data_rows
from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.compressors.kernels import KernelCost
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds
from gcsim.simulator.devices.device import Device
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.devices.step_time import step_time
from gcsim.simulator.devices.training_time import training_times
from gcsim.traces.profile import Compute, Layer, ModelFacts, PassTimes

Optimizer = Literal["sgd", "adam"]
PASSES: dict[Optimizer, tuple[int, int]] = {"sgd": (1, 3), "adam": (7, 18)}
"""Kernels of a tensor, and how often they read or write one of its size. SGD without momentum:
add_. AdamW: mul_, add_, mul_, addcmul_, sqrt, add_, addcdiv_."""
TOKENS = {"resnet50": 0, "bert_large": 64, "bert_base": 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model of the benchmark."""

    facts: ModelFacts
    tensors: tuple[tuple[int, int], ...]
    """Number and elements of each, in the order of the backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """One device's iteration without any exchange, in picoseconds."""

    forward: Picoseconds
    backward: Picoseconds
    ready: tuple[Picoseconds, ...]
    """By tensor, in the order of the backward pass, from its start; ascending."""
    optimizer: Picoseconds


@cache
def model(name: str, batch: int) -> Model:
    """`batch` samples a device."""
    layers: list[Layer] = []
    sizes: dict[int, int] = {}
    for row in data_rows("ddl_benchmarks_layers"):
        if row["model"] != name:
            continue
        numbers = tuple(map(int, row["parameters"].split()))
        sizes.update(zip(numbers, map(int, row["elements"].split()), strict=True))
        layers.append(
            Layer(
                name=row["layer"],
                parameters=numbers,
                forward_flops=int(row["forward_flops"]),
                kind=row["kind"],
                outputs=int(row["outputs"]),
            )
        )
    order = [number for layer in reversed(layers) for number in reversed(layer.parameters)]
    return Model(
        facts=ModelFacts(
            name=name,
            parameters=sum(sizes.values()),
            layers=tuple(layers),
            samples_per_worker=batch,
            tokens=TOKENS[name],
        ),
        tensors=tuple((number, sizes[number]) for number in order),
    )


def passes(of: Model, device: Device, optimizer: Optimizer, alone: float | None) -> Passes:
    """Of one worker; `alone` is the measured iteration of one device, s, None: the catalogue's."""
    own = own_optimizer(of.facts.name)
    if alone is None:
        alone = float(step_time(of.facts, device).seconds)
    both = alone - update_time(of, device, own) / PS_PER_SECOND
    forward = both / (1 + device.backward_over_forward)
    layouts = [
        BucketLayout(
            index=place,
            slices=(TensorSlice(name=str(number), shape=(size,), offset=0, index=number),),
        )
        for place, (number, size) in enumerate(of.tensors)
    ]
    measured = PassTimes(forward=forward, backward=both - forward, source="one device")
    times = training_times(of.facts, layouts, device, measured)
    return Passes(
        forward=times.forward,
        backward=times.backward,
        ready=tuple(accumulate(times.parts)),
        optimizer=update_time(of, device, optimizer),
    )


def own_optimizer(name: str) -> Optimizer:
    """What Horovod's script and the measurement on one device run."""
    return "sgd" if name == "resnet50" else "adam"


def update_time(of: Model, device: Device, optimizer: Optimizer) -> Picoseconds:
    """Of all tensors, kernel after kernel."""
    kernels, moves = PASSES[optimizer]
    count = kernels * len(of.tensors)
    cost = streaming(count, 4 * moves * of.facts.parameters)
    return PriceList(device).compute_time(Compute(stage="decode", fixed=(cost,)), 1)


def streaming(launches: int, nbytes: int) -> KernelCost:
    """Element-wise kernels and copies; `nbytes` read and written."""
    return KernelCost(kind="streaming", launches=launches, elements=nbytes // 4, nbytes=nbytes)
