"""Synthetic gradients, drawn from fitted distributions one bucket at a time.

They have the interface of a stored trace (`store.Trace`), for models known only as a table of
layers and gradients too large for a disk. Every number is a pure function of (seed, iteration,
worker, parameter); only one tensor's state is kept. Second moments of samples' gradients are not
fitted: compressors that need them are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice
from gcsim.compressors.lazy_torch import torch
from gcsim.errors import InternalError
from gcsim.traces.profile import Costs, ModelFacts
from gcsim.traces.synthetic.fit_file import DEFAULT_TITLE, ModelFit
from gcsim.traces.synthetic.fit_mapping import Mapped, Parameters, mapped
from gcsim.traces.synthetic.tensor import SyntheticTensor

_NAMED = 2
"""Maximum number of recordings that a report names."""


class SyntheticTrace:
    """Drawn gradients, read like a recorded trace."""

    has_second_moments = False

    def __init__(
        self,
        facts: ModelFacts,
        parameters: Parameters,
        fits: Sequence[ModelFit],
        *,
        workers: int,
        iterations: int,
        seed: int,
        title: str = DEFAULT_TITLE,
    ) -> None:
        """Prepare draws for the model of `facts` with these tensors; reports call the fit `title`.
        Raises `InputError` if a fit of this very model has a tensor of another shape."""
        self.facts = facts
        self.parameters = tuple(parameters)
        """Names and shapes, in the order of the model's trained parameters."""
        self.workers = workers
        self.iterations = iterations
        self.moment_costs: Mapping[int, Costs] = {}
        self._seed = seed
        self._mapped = mapped(fits, facts.name, parameters, facts.samples_per_worker)
        self.source: Mapping[str, object] = {
            "model": facts.name,
            "fit": _origin(title, self._mapped),
            "fitted_by_name": sum(each.exact for each in self._mapped),
            "fitted_by_kind": sum(not each.exact for each in self._mapped),
        }

    def bucket(
        self, layout: BucketLayout, iteration: int, worker: int, second_moments: bool = False
    ) -> Bucket:
        """Draw one worker's bucket in one iteration, float32 `[layout.numel]`."""
        if second_moments:
            raise InternalError("synthetic gradients have no second moments")
        flat = torch.empty(layout.numel, dtype=torch.float32)
        for piece, part in layout.views(flat):
            drawn = self._tensor(piece).draw(iteration, worker)
            part.copy_(torch.from_numpy(drawn).reshape(-1))
        return Bucket(layout=layout, gradient=flat)

    def _tensor(self, piece: TensorSlice) -> SyntheticTensor:
        each = self._mapped[piece.index]
        return SyntheticTensor(
            each.fit,
            each.model,
            piece.shape,
            index=piece.index,
            seed=self._seed,
            rms=each.rms,
            common=each.common,
        )


def _origin(title: str, tensors: Sequence[Mapped]) -> str:
    """Return text such as "the default fit of gcsim (tensors like those of resnet20_cifar10)"."""
    weights: dict[str, int] = {}
    for each in tensors:
        said = f"{each.model.model}, {each.model.samples_per_worker} samples per worker"
        weights[said] = weights.get(said, 0) + math.prod(each.fit.shape)
    named = sorted(weights, key=lambda said: -weights[said])[:_NAMED]
    exact = sum(each.exact for each in tensors)
    if exact == len(tensors):
        how = "each tensor by its name, from a recording of"
    elif exact:
        how = f"{exact} of {len(tensors)} tensors by name, the others by kind and size, from"
    else:
        how = "by kind and size of each tensor, from"
    return f"{title}: {how} {'; '.join(named)}"
