"""Traffic of training with gradients stored in 16 bits (`training.gradients`).

Dense training all-reduces 2 bytes per element and casts nothing: one pass divides the bucket by the
number of workers (2 bytes read, 2 written). A cast to that very type is dense training. Other
methods are as measured on float32: kernels, payload and error of code that widens it on reading.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.plans import DENSE
from gcsim.simulator.training import Training
from gcsim.traces.profile import Compute, Exchange, Phase, Quality, Step, TrafficProfile

_TYPES = {"fp16": "float16", "bf16": "bfloat16"}


def as_stored(profile: TrafficProfile, training: Training) -> TrafficProfile:
    """The profile with gradients of the training's type; the same object for float32 and for
    methods that are neither dense nor a cast to it."""
    named = training.gradients
    if named == "fp32" or profile.compressor not in {DENSE, named, f"torch_{named}"}:
        return profile
    exchanges = tuple(
        _exchange(layout.numel, _TYPES[named], training.gradient_bytes, profile.workers)
        for layout in profile.buckets
    )
    step = Step(number=0, exchanges=exchanges)
    return replace(
        profile,
        compressor=DENSE,
        parameters={},
        period=1,
        phases=(Phase(name="every step", count=1, steps=(step,)),),
        order=(),
        quality=Quality(nmse=0.0, cosine_similarity=1.0),
    )


@lru_cache(maxsize=1 << 12)
def _exchange(elements: int, dtype: str, width: int, workers: int) -> Exchange:
    """One object for buckets of a length, of which a `PriceList` knows the price."""
    nbytes = width * elements
    divide = KernelCost(kind="streaming", launches=1, elements=elements, nbytes=2 * nbytes)
    summed = CollectiveRecord(
        kind="all_reduce", sent=(nbytes,) * workers, element=width, dtype=dtype
    )
    return Exchange(
        computes=(Compute(stage="encode", fixed=(divide,)), Compute(stage="decode", fixed=())),
        collectives=(summed,),
    )
