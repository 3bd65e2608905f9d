"""What is a traffic profile of a measured code's step? Plain data: one kind of step, its exchanges.

No compressor runs here: how well a gradient is kept is not known, and nothing of it is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.traces.profile import Compute, Exchange, ModelFacts, Phase, Quality, Step, TrafficProfile


def one_step(
    compressor: str,
    model: ModelFacts,
    buckets: Sequence[BucketLayout],
    exchanges: Sequence[Exchange],
) -> TrafficProfile:
    """Every step is the same; each worker sends what one exchange says."""
    step = Step(number=0, exchanges=tuple(exchanges))
    return TrafficProfile(
        compressor=compressor,
        parameters={},
        model=model,
        buckets=tuple(buckets),
        workers=1,
        period=1,
        phases=(Phase(name="every step", count=1, steps=(step,)),),
        quality=Quality(nmse=0.0, cosine_similarity=1.0),
    )


def bare_exchange(*collectives: CollectiveRecord) -> Exchange:
    """One collective after the other; what a worker computes for them is not counted."""
    stages = [Compute(stage="encode", fixed=())] * len(collectives)
    return Exchange(computes=(*stages, Compute(stage="decode", fixed=())), collectives=collectives)
