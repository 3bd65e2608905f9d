"""What do dense training and gradient sampling send for AlexNet? Traffic profiles as plain data.

The sampling of the paper's section 4: in one step of 100 the whole gradient in half precision, in
the others 1 % of every tensor, both by all-reduce, without indices. Which coordinates are drawn
does not matter to a network, and how many are drawn varies around the mean that stands here.
Kernels of the compressor are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from gcsim.analysis.validation.data_files import data_rows
from gcsim.analysis.validation.step_profiles import bare_exchange
from gcsim.analysis.validation.suites.papers.ring import FLOAT32
from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.traces.buckets import CAP_BYTES, FIRST_BYTES, bucket_layouts
from gcsim.traces.models.entry import ModelEntry, TableLayer
from gcsim.traces.models.table import table_entry, table_facts, table_parameters
from gcsim.traces.profile import Phase, Quality, Step, TrafficProfile

FLOAT16 = 2
PERIOD = 100
"""Steps from one whole gradient to the next (tau)."""
RATIO = 0.01
"""Of the coordinates in the other steps."""
BATCH = 32
"""Images a GPU: 2048 on 64."""


def alexnet() -> ModelEntry:
    """The network as a table of its layers."""
    return table_entry(
        "alexnet",
        [
            TableLayer(
                name=row["name"],
                shape=tuple(int(size) for size in row["shape"].split("x")),
                forward_flops=int(row["forward_flops"]),
            )
            for row in data_rows("papers_alexnet")
        ],
    )


def buckets(*, first: int = FIRST_BYTES, cap: int = CAP_BYTES) -> tuple[BucketLayout, ...]:
    """DDP's layout of its gradient."""
    return bucket_layouts(table_parameters(alexnet()), first=first, cap=cap)


def dense(layouts: Sequence[BucketLayout]) -> TrafficProfile:
    """Every gradient as float32."""
    whole = _step(0, [FLOAT32 * layout.numel for layout in layouts], FLOAT32)
    return _profile("none", layouts, Phase(name="every step", count=1, steps=(whole,)))


def sampled(layouts: Sequence[BucketLayout]) -> TrafficProfile:
    """Gradient sampling, whose values travel as float16."""
    whole = _step(0, [FLOAT16 * layout.numel for layout in layouts], FLOAT16)
    few = _step(1, [FLOAT16 * drawn(layout) for layout in layouts], FLOAT16)
    return _profile(
        "gradient_sampling_bayes",
        layouts,
        Phase(name="synchronisation", count=1, steps=(whole,)),
        Phase(name="sampled", count=PERIOD - 1, steps=(few,)),
    )


def drawn(layout: BucketLayout) -> int:
    """Coordinates of a bucket in a step that samples: a share of each tensor, at least one."""
    return sum(max(1, round(RATIO * piece.numel)) for piece in layout.slices)


def _step(number: int, sizes: Sequence[int], element: int) -> Step:
    """An all-reduce a bucket, of these bytes."""
    return Step(
        number=number,
        exchanges=tuple(
            bare_exchange(
                CollectiveRecord(
                    kind="all_reduce",
                    sent=(size,),
                    element=element,
                    dtype="float16" if element == FLOAT16 else "float32",
                )
            )
            for size in sizes
        ),
    )


def _profile(compressor: str, layouts: Sequence[BucketLayout], *phases: Phase) -> TrafficProfile:
    return TrafficProfile(
        compressor=compressor,
        parameters={},
        model=table_facts(alexnet(), BATCH),
        buckets=tuple(layouts),
        workers=1,
        period=sum(phase.count for phase in phases),
        phases=phases,
        quality=Quality(nmse=float("nan"), cosine_similarity=float("nan")),
    )
