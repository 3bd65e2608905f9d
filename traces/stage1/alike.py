"""Stage 1 of a network of equal blocks: compressors run on one bucket of each kind.

Buckets with tensors of the same shapes are of one kind; all but the root unit's recur in each
block. A bucket of each kind is measured with its matrices cut to `_ROWS` rows and to twice as many,
and its costs are extrapolated linearly to the whole matrix. Bytes, launches and FLOPs that are a
constant plus a part proportional to the rows are exact: element-wise methods, group-wise ones whose
groups end at the cut, one value per tensor or row, and low rank (rank x (rows + columns)). Rounded
counts (k of a ratio) are off by at most one element of the cut, in proportion; sizes that depend on
gradients are those of the cut. Errors are those of the cut matrices, weighted by how often each
kind occurs; for low-rank methods they are lower than for whole matrices.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from fractions import Fraction
from typing import Any

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.kernels import KernelCost, joined
from gcsim.traces.profile import Costs, Exchange, TrafficProfile
from gcsim.traces.stage1.measure import Gradients, Subject, measure

_ROWS = 32
_REACH = re.compile(r"2\^(\d+)")
"""Range of indexed accesses in a kernel's name (`kernels.spread`)."""
_LINEAR = {"launches", "elements", "nbytes", "flops", "work", "sent", "pulled"}


def measure_alike(
    subjects: Sequence[Subject],
    gradients: Gradients,
    layouts: Sequence[BucketLayout],
    *,
    workers: int,
    seed: int,
    provenance: Mapping[str, object],
    advance: Callable[[str], None] = lambda kind: None,
    made: Callable[[int, TrafficProfile], None] = lambda number, profile: None,
) -> list[TrafficProfile]:
    """Return profiles like `measure`, from one bucket of each kind; `gradients` draw any shape."""
    kinds: dict[tuple[tuple[int, ...], ...], list[BucketLayout]] = {}
    for layout in layouts:
        kinds.setdefault(tuple(piece.shape for piece in layout.slices), []).append(layout)
    typical = [found[len(found) // 2] for found in kinds.values()]
    counts = [sum(layout.numel for layout in found) for found in kinds.values()]
    cuts = [[cut(layout, rows) for layout in typical] for rows in (_ROWS, 2 * _ROWS)]

    small, large = (
        measure(
            subjects, gradients, shapes, workers=workers, seed=seed, provenance=provenance,
            weights=[count / shape.numel for count, shape in zip(counts, shapes, strict=True)],
        )
        for shapes in cuts
    )  # fmt: skip
    numbers = {shapes: number for number, shapes in enumerate(kinds)}
    order = [numbers[tuple(piece.shape for piece in layout.slices)] for layout in layouts]
    steps = [_steps(*sizes) for sizes in zip(typical, *cuts, strict=True)]
    found = []
    for number, (one, two) in enumerate(zip(small, large, strict=True)):
        found.append(_whole(one, two, steps, layouts, order))
        made(number, found[-1])
        for _ in layouts:
            advance(two.compressor)
    return found


def cut(layout: BucketLayout, rows: int) -> BucketLayout:
    """Return the bucket with each matrix cut to at most `rows` rows."""
    return BucketLayout.behind(
        layout.index,
        (
            (piece.name, piece.index, (min(piece.shape[0], rows), *piece.shape[1:]))
            if len(piece.shape) > 1
            else (piece.name, piece.index, piece.shape)
            for piece in layout.slices
        ),
    )


def _steps(whole: BucketLayout, small: BucketLayout, large: BucketLayout) -> Fraction:
    """Return the distance from `small` to `whole`, in units of that from `small` to `large`."""
    step = large.numel - small.numel
    return Fraction(whole.numel - small.numel, step) if step else Fraction(0)


def _whole(
    small: TrafficProfile,
    large: TrafficProfile,
    steps: Sequence[Fraction],
    layouts: Sequence[BucketLayout],
    order: Sequence[int],
) -> TrafficProfile:
    """Return the profile of all buckets; `order`: the kind of each."""
    phases = []
    for one, two in zip(small.phases, large.phases, strict=True):
        found = []
        for first, second in zip(one.steps, two.steps, strict=True):
            pairs = zip(first.exchanges, second.exchanges, steps, strict=True)
            kinds = [_extended(*pair) for pair in pairs]
            found.append(replace(second, exchanges=tuple(kinds[kind] for kind in order)))
        phases.append(replace(two, steps=tuple(found)))
    return replace(large, buckets=tuple(layouts), phases=tuple(phases))


def _extended(small: Exchange, large: Exchange, steps: Fraction) -> Exchange:
    if len(small.collectives) != len(large.collectives):  # which the gradients determine
        small, steps = large, Fraction(0)
    found: Exchange = _along(small, large, steps)
    return found


def _along(small: Any, large: Any, steps: Fraction, name: str = "") -> Any:
    """Return the value on the line through `small` and `large`, `steps` of their distances on."""
    if name in _LINEAR and isinstance(large, int):
        return max(0, round(small + steps * (large - small)))
    if isinstance(large, tuple):
        if any(isinstance(each, KernelCost) for each in (*small, *large)):
            return _costs(small, large, steps)
        pairs = zip(small, large, strict=True)
        return tuple(_along(one, two, steps, name) for one, two in pairs)
    if is_dataclass(large):
        names = [field.name for field in fields(large)]
        ends = {name: (getattr(small, name), getattr(large, name)) for name in names}
        values = {name: _along(one, two, steps, name) for name, (one, two) in ends.items()}
        return replace(large, **values)  # type: ignore[type-var]
    return large


def _costs(small: Costs, large: Costs, steps: Fraction) -> Costs:
    """Extrapolate kernels with equal class and name, by launch size if both have as many sizes."""
    found: list[KernelCost] = []
    before = _by_name(small)
    for key, after in _by_name(large).items():
        old, new = before.get(key, []), after
        if len(old) != len(new):
            old, new = [_summed(old, after[0])], [_summed(after, after[0])]
        for one, two in zip(old, new, strict=True):
            cost = _along(one, two, steps)
            found.append(replace(cost, name=_farther(one.name, two.name, steps)))
    return tuple(found)


def _by_name(costs: Costs) -> dict[tuple[str, str, bool], list[KernelCost]]:
    found: dict[tuple[str, str, bool], list[KernelCost]] = {}
    for cost in costs:
        found.setdefault((cost.kind, _REACH.sub("", cost.name), cost.part), []).append(cost)
    return found


def _summed(costs: Iterable[KernelCost], like: KernelCost) -> KernelCost:
    total = replace(like, launches=0, elements=0, nbytes=0, flops=0, work=0)
    for cost in costs:
        total = joined(total, cost)
    return total


def _farther(small: str, large: str, steps: Fraction) -> str:
    """Return a name with the range for the whole matrix, if that depends on its size."""
    reach = _REACH.search(large)
    if reach is None or small == large:
        return large
    more = 2 * round(math.log((1 + float(steps)) / 2, 4))
    return _REACH.sub(f"2^{int(reach[1]) + max(0, more)}", large)
