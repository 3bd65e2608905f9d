"""What does it cost to add what was received to one's own?

The gamma of the alpha-beta-gamma model: n bytes of elements of a type take n / rate, by whoever
reduces: a rank, or the server of an all-reduce through servers. The rate belongs to the library,
its generation, the type, and where it runs. Gloo adds on the host, one thread a collective: float32
in vector instructions, half precision element by element in software where its build has nothing
better, at a hundredth of the rate. NCCL adds on the GPU; the bandwidths of its tuner include it.

Assumptions: no core is shared with anything (`host.py`), and the rate does not depend on the size.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction

from gcsim.fields import BytesPerSecond, RangeOf, Setting

Rate = BytesPerSecond | None
"""Of what is added; None: in no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums(Setting):
    """The rates by type of the elements, named as torch names them."""

    float64: Rate = None
    float64_range: RangeOf[BytesPerSecond] = None
    float32: Rate = None
    float32_range: RangeOf[BytesPerSecond] = None
    float16: Rate = None
    float16_range: RangeOf[BytesPerSecond] = None
    bfloat16: Rate = None
    bfloat16_range: RangeOf[BytesPerSecond] = None
    int64: Rate = None
    int64_range: RangeOf[BytesPerSecond] = None
    int32: Rate = None
    int32_range: RangeOf[BytesPerSecond] = None
    int8: Rate = None
    int8_range: RangeOf[BytesPerSecond] = None
    uint8: Rate = None
    uint8_range: RangeOf[BytesPerSecond] = None

    def gamma(self, dtype: str) -> Fraction:
        """Seconds that the addition of a byte takes; a type that is not listed is as float32."""
        rate: Rate = getattr(self, dtype if dtype in DTYPES else "float32")
        return Fraction(0) if rate is None else 1 / rate


DTYPES = tuple(each.name for each in fields(Sums) if not each.name.endswith("_range"))
"""The types that Gloo reduces."""
