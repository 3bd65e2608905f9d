"""Trust in a method's update, as far as single updates can tell. There are three kinds of methods:

*Safe*: steps are independent (no memory) and the update is practically the dense one, NMSE <= 2e-5.
Half precision has about 1e-7 and bfloat16 about 3e-6, and networks train with either (P.
Micikevicius et al., "Mixed precision training", ICLR 2018; D. Kalamkar et al., "A study of bfloat16
for deep learning training", arXiv:1905.12322); 8-bit uniform quantization of a Gaussian has 8e-5.
*To try*: the update differs, and only training shows the cost. *Left out*: unfit for training in
the steps observed, or most seeds missed the scenario's target. Only a few steps from empty memories
are observed, and a method with memory delivers later what it retains, so only an update with next
to nothing of the gradient counts against it.
"""

from __future__ import annotations

import math

from gcsim.analysis.report.numbers import significant
from gcsim.scenarios.result import Result, Row
from gcsim.simulator.training import DENSE

NO_MEMORY = "none"  # `Row.memory` of a method whose steps are independent
SAFE_NMSE = 2e-5
NO_BETTER = 1.0  # NMSE of a zero update
ASTRAY = 0.2
"""Cosine similarity below which an update without memory has next to nothing of the gradient: at
the best scale it still misses 1 - 0.2^2 = 96 % of the squared gradient."""
ASTRAY_WITH_MEMORY = 0.02  # the same for a method that retains the rest in its memory
SUM_COSINE, SUM_SLACK = 0.7, 0.1
"""Cosine above which an update may be a sum, and tolerance of its scale around the workers."""


def is_safe(row: Row) -> bool:
    """Whether the update is practically the dense one at every step."""
    if row.compressor == DENSE:
        return True
    return row.memory == NO_MEMORY and row.nmse is not None and row.nmse <= SAFE_NMSE


def scale_of(row: Row) -> float | None:
    """Return the least-squares scale of the update relative to the dense one; None if the errors do
    not determine it. With r the ratio of lengths and c the cosine, NMSE = r^2 - 2 c r + 1 and the
    scale is c r. If the NMSE is 1 or more and c > 0, only one r is positive."""
    cosine = row.cosine_similarity
    if row.nmse is None or row.nmse < 0.99 or cosine <= 0:  # 1, but for rounding
        return None
    return cosine * (cosine + math.sqrt(max(0.0, cosine**2 + row.nmse - 1)))


def fault_of(row: Row, recorded_workers: int | None) -> str:
    """Return why the method is unfit for training, as far as observed; empty if no reason is known.
    `recorded_workers`: number of workers whose gradients were compressed."""
    short = row.seeds_trained is not None and row.steps_to_target_vs_dense is None
    if row.compressor == DENSE or short:
        reached = f"{row.seeds_at_target} of {row.seeds_trained} seeds reached the target"
        return f"trained, {reached}" if short else ""
    if not row.wire_bytes_per_worker and row.workers > 1:
        return f"it sent nothing in {row.steps_run} steps"
    scale = scale_of(row)
    if (
        scale is not None
        and recorded_workers is not None
        and recorded_workers > 1
        and row.cosine_similarity >= SUM_COSINE
        and abs(scale / recorded_workers - 1) <= SUM_SLACK
    ):
        return (
            f"its update is {significant(scale)} times the dense one: the sum over the "
            f"{recorded_workers} workers that were run, not their mean"
        )
    alone = row.memory == NO_MEMORY
    cosine = f"cosine similarity {row.cosine_similarity:.3f}"
    if row.cosine_similarity < (ASTRAY if alone else ASTRAY_WITH_MEMORY):
        return f"its update contains almost none of the gradient ({cosine})"
    if alone and row.nmse is not None and row.nmse >= NO_BETTER:
        return f"a zero update would be as close (NMSE {significant(row.nmse)}, {cosine})"
    return ""


def recorded_workers(result: Result) -> int | None:
    """Return the number of workers whose gradients were compressed, if known."""
    workers: int | None = result.provenance.get("gradients", {}).get("workers")
    return workers
