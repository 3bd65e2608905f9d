"""What do a mini-batch's samples scatter by, in a loop whose backward pass is the user's own?

The closed forms of `second_moments` work on what each layer took and what came back to it, which
hooks keep during the user's own passes. What has no closed form would need backward passes of
gcsim's own: such a model is refused by the name of the parameter.
"""

from __future__ import annotations

from collections.abc import Sequence

from gcsim.compressors import meter
from gcsim.compressors.lazy_torch import Tensor, nn
from gcsim.traces.moments.second_moments import SecondMoments
from gcsim.traces.profile import Costs


class LoopMoments:
    """Second moments of each iteration's one backward pass, from now until `release`."""

    def __init__(self, model: nn.Module) -> None:
        self._watched = SecondMoments(model)
        self._watched.watch()
        self._watched.follow()
        self.costs: dict[int, Costs] = {}
        """By parameter, the kernels that made one mini-batch's second moments."""

    def take(self, gradients: Sequence[Tensor], scale: float, *, check: bool) -> tuple[Tensor, ...]:
        """Of the iteration that ends: by parameter, float32 on the CPU, in its shape.

        `gradients` are what autograd made of the same batch, over `scale`. Raises `InputError`
        when a parameter has no closed form, or with `check` is used outside its layer.
        """
        found = self._watched.followed(
            gradients, scale, segment=None if self.costs else meter.segment, check=check
        )
        self.costs = self.costs or found.costs
        return tuple((value / scale**2).float().cpu() for value in found.values)

    def clear(self) -> None:
        """Begin an iteration."""
        self._watched.follow()

    def release(self) -> None:
        """Remove the hooks and let go of what they kept."""
        self._watched.release()
