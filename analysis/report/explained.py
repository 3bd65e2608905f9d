"""Text of `gcsim explain` in 80 cells: a method's kernels, slowest first, and its collectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gcsim.analysis.report.numbers import elapsed, plural, significant
from gcsim.analysis.report.table import bare_table
from gcsim.scenarios.explained import Explanation, Kernel

MOST = 12  # most kernels per stage with a line of their own


def parts(found: Explanation) -> tuple[RenderableType, ...]:
    """Return the text of `gcsim explain`."""
    where = f"{plural(found.nodes, 'node')}, {plural(found.workers, 'worker')} ({found.scenario})"
    return (
        Text(f"{found.label} on {found.device}; {where}", style="bold"),
        "",
        _kernels(found),
        "",
        Text("\n".join(_summary(found))),
        "",
        _collectives(found),
    )


def _summary(found: Explanation) -> Iterator[str]:
    stages: dict[str, float] = {}
    for kernel in found.kernels:
        stages[kernel.stage] = stages.get(kernel.stage, 0.0) + kernel.seconds
    each = ", ".join(f"{stage} {elapsed(seconds)}" for stage, seconds in stages.items())
    launches = round(sum(kernel.launches for kernel in found.kernels))
    yield (
        f"All kernels: {elapsed(found.seconds)} per iteration ({each}) in "
        f"{launches:,} launches; {elapsed(found.fused_s)} if adjacent element-wise kernels were "
        "fused."
    )
    if found.framework_s:
        yield f"The framework's code around the exchanges: {elapsed(found.framework_s)}."
    yield (
        f"In a run: {elapsed(found.encode_s + found.decode_s)} (encode "
        f"{elapsed(found.encode_s)}, decode {elapsed(found.decode_s)})."
    )
    if found.estimated:
        yield f"Estimated kernel times: {', '.join(found.estimated)} (gcsim list devices)."


def _kernels(found: Explanation) -> Table:
    lines = []
    for stage in dict.fromkeys(kernel.stage for kernel in found.kernels):
        kernels = [kernel for kernel in found.kernels if kernel.stage == stage]
        for kernel in kernels[:MOST]:
            lines.append(_line(stage, kernel.name, kernel.kind, [kernel]))
        if rest := kernels[MOST:]:
            others = plural(len(rest), "other")
            lines.append(_line(stage, others, "", rest))
    return bare_table(["stage", "kernel", "class", ">launches", ">MB", ">ms"], lines)


def _line(stage: str, name: str, kind: str, kernels: Sequence[Kernel]) -> list[str]:
    sums = [
        sum(kernel.launches for kernel in kernels),
        sum(kernel.nbytes for kernel in kernels) / 1e6,
        sum(kernel.seconds for kernel in kernels) * 1e3,
    ]
    return [stage, name, kind, *map(significant, sums)]


def _collectives(found: Explanation) -> RenderableType:
    if not found.collectives:
        return Text("No collective.")
    lines = (
        (str(one.bucket), f"{one.elements:,}", one.kind, one.algorithm, significant(one.sent / 1e6))
        for one in found.collectives
    )
    return bare_table([">bucket", ">elements", "collective", "algorithm", ">sent [MB]"], lines)
