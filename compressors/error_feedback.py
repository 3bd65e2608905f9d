"""Error feedback: a residual by bucket, added to the next gradient.

    a = e + g;  Q(a) travels;  e = a - Q(a)

Source: F. Seide et al., "1-bit stochastic gradient descent", Interspeech 2014; the name and the
analysis, S. Karimireddy et al., ICML 2019, arXiv:1901.09847.
"""

from __future__ import annotations

from gcsim.compressors.base import Compressor, P, Worker
from gcsim.compressors.bucket import Bucket, bucket_state
from gcsim.compressors.lazy_torch import Tensor


class ErrorFeedback(Compressor[P]):
    """A compressor with a residual, unless its parameter turns it off."""

    def __init__(self, worker: Worker, parameters: P) -> None:
        super().__init__(worker, parameters)
        self.residual: dict[int, Tensor] = {}
        """Residual by bucket: float32 `[n]`, all that was not sent (`bucket_state`)."""

    @property
    def remembers(self) -> bool:
        """Whether there is a residual, as `error_feedback` (or `residual`) says."""
        chosen = self.parameters
        return bool(getattr(chosen, "error_feedback", getattr(chosen, "residual", True)))

    def corrected(self, bucket: Bucket) -> Tensor:
        """The residual with the gradient added, in its memory; else the gradient. float32 `[n]`."""
        if not self.remembers:
            return bucket.gradient
        return bucket_state(self.residual, bucket).add_(bucket.gradient)

    def residual_of(self, bucket: Bucket) -> Tensor | None:
        return bucket_state(self.residual, bucket).clone() if self.remembers else None
