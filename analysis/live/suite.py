"""What must the live suite keep? Bounds that a machine which does other things can keep, too.

They are wider than those of measurements that were made in peace: other programs take the same
cores, and a virtual machine's clock and cores are its host's.
"""

from __future__ import annotations

from collections.abc import Mapping

from gcsim.analysis.validation.suite import Bound

MISSING = (
    "Collectives below 1 MB, and all at 1 Gbit/s, wait for processors: which rank is woken when is "
    "the kernel's choice, and times have several modes. The shaper lets a frame pass for free "
    "after a pause (about a millisecond of data), and a pause of the whole machine that is longer "
    "takes the time away from a link for good. What Python and DDP do around a compressor is "
    "measured on as many ranks as there are cores, which exchange nothing; of more ranks each has "
    "a fair share of the cores, where a real scheduler lets them wait for each other. "
    "Gloo's all-gather of two ranks takes two or three halves of a block, as "
    "they enter; three are predicted. Other programs on this machine are in nobody's model."
)

_LIMITS: tuple[tuple[str, tuple[str, ...], float, float | None], ...] = (
    (
        "collectives of 1 MB and more, 50 and 100 Mbit/s",
        ("all-reduce >= 1 MB, 50, 100 Mbit/s", "all-gather >= 1 MB, 50, 100 Mbit/s"),
        0.10,
        None,
    ),
    (
        "collectives below 1 MB, 50 and 100 Mbit/s",
        ("all-reduce < 1 MB, 50, 100 Mbit/s", "all-gather < 1 MB, 50, 100 Mbit/s"),
        0.25,
        None,
    ),
    ("training steps, 100 Mbit/s", ("training steps, 100 Mbit/s",), 0.20, 0.08),
    ("training steps, 1 Gbit/s", ("training steps, 1 Gbit/s",), 0.25, 0.12),
)
_FEWEST = 4
"""Points that a median is bounded over: fewer say nothing when one of them has two modes."""
_DECISIONS = 0.8
"""Share of decisions, of training."""


def bounds(series: Mapping[str, int]) -> tuple[Bound, ...]:
    """Those over series that were measured, on so many points each."""
    found = [
        Bound(name, tuple(one for one in wanted if one in series), limit=limit, target=target)
        for name, wanted, limit, target in _LIMITS
    ]
    found = [bound for bound in found if sum(series[name] for name in bound.series) >= _FEWEST]
    trained = tuple(sorted(one for one in series if one.startswith("training")))
    if trained:
        found.append(
            Bound("decisions of training", trained, statistic="decisions", limit=_DECISIONS)
        )
    return tuple(found)
