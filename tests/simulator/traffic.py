"""Traffic profiles made by hand."""

from typing import Any

from gcsim.traces.profile import Exchange, ModelFacts, Phase, Quality, Step, TrafficProfile

TOY = ModelFacts(name="toy", parameters=1000, layers=(), samples_per_worker=1)


def traffic(*exchanges: Exchange, **given: Any) -> TrafficProfile:
    """Of one kind of step, with these exchanges, of two workers, but for what is given."""
    step = Step(number=0, exchanges=exchanges)
    usual: dict[str, Any] = {
        "compressor": "toy", "parameters": {}, "model": TOY, "buckets": (), "workers": 2,
        "period": 1, "phases": (Phase(name="step", count=1, steps=(step,)),),
        "quality": Quality(nmse=0.0, cosine_similarity=1.0),
    }  # fmt: skip
    return TrafficProfile(**{**usual, **given})
