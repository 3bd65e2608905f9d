"""Traffic profile of a method whose kernels and bytes depend only on the tensors' shapes.

The method runs on gradients of ones: their values do not matter, so no training is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.options.method import method_of
from gcsim.traces.profile import ModelFacts, TrafficProfile
from gcsim.traces.stage1.alike import measure_alike
from gcsim.traces.stage1.measure import Subject, measure


@dataclass(frozen=True, slots=True)
class _Ones:
    facts: ModelFacts
    workers = 1
    iterations = 2
    moment_costs: Mapping[int, tuple[KernelCost, ...]]

    def bucket(
        self, layout: BucketLayout, iteration: int, worker: int, second_moments: bool = False
    ) -> Bucket:
        """Gradient of a bucket."""
        return Bucket(layout=layout, gradient=torch.ones(layout.numel))


def by_shapes(
    kind: str,
    parameters: Mapping[str, object],
    facts: ModelFacts,
    layouts: Sequence[BucketLayout],
    *,
    by_formula: bool = False,
) -> TrafficProfile:
    """Measure a registered method; ignore the quality in the profile. `by_formula`: the network has
    equal blocks, of which only one is measured."""
    method = method_of(kind, parameters)
    subject = Subject(kind=kind, compressor=method.compressor, parameters=method.parameters)
    (found,) = (measure_alike if by_formula else measure)(
        [subject], _Ones(facts, {}), layouts, workers=1, seed=0, provenance={"source": "ones"}
    )
    return found
