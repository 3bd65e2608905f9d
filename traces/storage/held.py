"""Gradients in the memory of the device that made them: read as a `Trace`, filled as by a
`TraceWriter`. A run on a GPU takes them, so that none crosses to the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.scans import all_finite
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.traces.live import WorkerGradients
from gcsim.traces.profile import Costs, ModelFacts
from gcsim.traces.storage.manifest import Kind
from gcsim.traces.storage.tensor_file import Shapes
from gcsim.traces.storage.writing import not_finite


class HeldTrace:
    """Gradients of workers and iterations, kept on the device that made them."""

    def __init__(self) -> None:
        self.facts: ModelFacts
        self.parameters: Shapes = ()
        """Names and shapes, in the order of the model's trained parameters."""
        self.workers = self.iterations = 0
        self.moment_costs: Mapping[int, Costs] = {}
        self.source: Mapping[str, object] = {}
        self._taken: dict[tuple[int, int], WorkerGradients] = {}

    @contextmanager
    def opened(self) -> Iterator[HeldTrace]:
        """Enter as a writer's context; there is nothing to remove."""
        yield self

    def begin(self, facts: ModelFacts, shapes: Shapes) -> None:
        """Set the model of the gradients: names and shapes of the trained parameters."""
        self.facts, self.parameters = facts, tuple(shapes)

    def iterations_that_fit(self, iterations: int, *_: object) -> int:
        """Return `iterations`: there was room when this was chosen."""
        return iterations

    def add(self, taken: WorkerGradients) -> None:
        """Keep one worker's tensors of one iteration. Raises `InputError` for a value that is NaN
        or infinite."""
        kinds: dict[Kind, Sequence[Tensor]] = {
            "gradients": taken.gradients,
            "second-moments": taken.second_moments or (),
        }
        for kind, tensors in kinds.items():
            for (name, _), tensor in zip(self.parameters, tensors, strict=False):
                if not all_finite(tensor.reshape(-1)):
                    raise not_finite(kind, name, taken, overflow=False)
        self._taken[taken.iteration, taken.worker] = taken

    def finish(
        self, *, workers: int, iterations: int, moment_costs: Mapping[int, Costs],
        source: Mapping[str, object], ready_order: tuple[int, ...], **_: object,
    ) -> None:  # fmt: skip
        """Complete the facts."""
        self.facts = replace(self.facts, ready_order=ready_order)
        self.workers, self.iterations = workers, iterations
        self.moment_costs, self.source = moment_costs, source

    def bucket(
        self, layout: BucketLayout, iteration: int, worker: int, second_moments: bool = False
    ) -> Bucket:
        """Return one worker's bucket in one iteration, like `Trace.bucket`, on the same device."""
        taken = self._taken[iteration, worker]

        def flat(tensors: tuple[Tensor, ...]) -> Tensor:
            return torch.cat([tensors[piece.index].reshape(-1) for piece in layout.slices])

        moments = taken.second_moments if second_moments else None
        return Bucket(
            layout=layout,
            gradient=flat(taken.gradients),
            second_moment=None if moments is None else flat(moments),
            loss=taken.loss,
        )
