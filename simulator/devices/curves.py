"""How long does a measured kernel take at a size that was not measured? A line between two points.

Beyond the last point the last slope goes on. Below the first one the first slope does, but a byte
never costs less than at the first point: a line that met the axis at a positive size would make
short kernels free. A single point is a time in proportion to the bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction

from gcsim.errors import InternalError
from gcsim.simulator.devices.device import Curve


class ExactCurve:
    """A `Curve` in exact arithmetic."""

    def __init__(self, points: Curve) -> None:
        """Raises `InternalError` unless the points ascend in bytes and do not descend in time."""
        self._sizes = [nbytes for nbytes, _ in points]
        self._times = [Fraction(seconds) for _, seconds in points]
        if not points or sorted(set(self._sizes)) != self._sizes or self._sizes[0] <= 0:
            raise InternalError(f"a curve's sizes do not ascend: {self._sizes}")
        if sorted(self._times) != self._times or self._times[0] < 0:
            raise InternalError(f"a curve's times descend: {[float(t) for t in self._times]}")

    def seconds(self, nbytes: Fraction | int) -> Fraction:
        """Of one launch that moves `nbytes`."""
        sizes, times = self._sizes, self._times
        in_proportion = times[0] * nbytes / sizes[0]
        if len(sizes) == 1:
            return in_proportion
        left = min(max(bisect_right(sizes, nbytes) - 1, 0), len(sizes) - 2)
        slope = (times[left + 1] - times[left]) / (sizes[left + 1] - sizes[left])
        on_line = times[left] + slope * (nbytes - sizes[left])
        return max(on_line, in_proportion) if nbytes < sizes[0] else on_line
