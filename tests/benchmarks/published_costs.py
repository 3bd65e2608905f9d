"""Published times of compressors on GPUs next to the catalogue's estimates, as a short table.

The gradient has the layers of the published model and is as heavy-tailed as that of the CPU's
table; two workers exchange it once; the second step is priced, encode and decode together.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.meter import Meter
from gcsim.compressors.registry import check_parameters, compressor_class
from gcsim.scenarios import catalog
from gcsim.simulator.devices.pricing import PriceList
from gcsim.traces.models.building import build_model, trainable
from gcsim.traces.models.registry import shipped_model
from gcsim.traces.stage1.metered import metered_exchange
from gcsim.traces.timing.kernels import gradient

_UTILITY = 'Agarwal et al., "On the Utility of Gradient Compression", arXiv:2103.00543'
_GTOPK = "HKBU-HPML/gtopkssgd scripts/icdcs2019/communication.py@6f57343f"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published time."""

    model: str
    hardware: str
    device: str
    """Name in the catalogue."""
    compressor: str
    parameters: dict[str, Any] = field(default_factory=dict)
    milliseconds: float
    recalled: bool
    """From memory of the paper, not verified."""
    source: str
    differs: str


_OLD_TOPK = (
    "selection of PyTorch before 1.12, in one block; MG-WFBP's fit to it (4.997e-10 s * x "
    "log2 x on a V100) gives 314 ms"
)
_UNFUSED = "unfused torch operators, one tensor at a time"

FIGURES = (
    *(
        Published(
            model="resnet50",
            hardware="V100",
            device="v100",
            compressor="powersgd",
            parameters={"rank": rank},
            milliseconds=ms,
            recalled=True,
            source=_UTILITY,
            differs=f"{_UNFUSED}; column-by-column Gram-Schmidt instead of QR",
        )
        for rank, ms in ((4, 45.0), (8, 64.0), (16, 130.0))
    ),
    *(
        Published(
            model="resnet50",
            hardware="V100",
            device="v100",
            compressor="topk",
            parameters={"ratio": ratio},
            milliseconds=ms,
            recalled=True,
            source=_UTILITY,
            differs=_OLD_TOPK,
        )
        for ratio, ms in ((0.01, 240.0), (0.1, 289.0), (0.2, 295.0))
    ),
    Published(
        model="resnet50",
        hardware="V100",
        device="v100",
        compressor="signsgd",
        milliseconds=16.34,
        recalled=True,
        source=_UTILITY,
        differs=f"{_UNFUSED}; includes the vote over all workers' signs",
    ),
    *(
        Published(
            model=model,
            hardware="P102-100",
            device="p100_pcie",
            compressor="gtopk",
            parameters={"ratio": 0.001},
            milliseconds=ms,
            recalled=False,
            source=_GTOPK,
            differs="another board (GP102, about 0.6 of the P100's nominal bandwidth, "
            "unverified) and PyTorch 0.4, which selects in one block per tensor",
        )
        for model, ms in (("alexnet", 383.776), ("resnet50", 154.05))
    ),
)


def published() -> Iterator[str]:
    """Yield the section as Markdown."""
    yield "## Against published figures on GPUs"
    yield ""
    yield (
        "Encode and decode of a step, estimated with the catalogue's class rates: fused kernels of "
        "a careful implementation, not the measured code. *Unverified*: from memory of the paper. "
        "The catalogue's selection is that of current PyTorch."
    )
    yield ""
    yield (
        "| model | method | measured on | published | estimated for | estimated | "
        "what differs | source |"
    )
    yield "|---|---|---|--:|---|--:|---|---|"
    for figure in FIGURES:
        said = "".join(f", {key} {value}" for key, value in figure.parameters.items())
        recalled = " (unverified)" if figure.recalled else ""
        yield (
            f"| {figure.model} | `{figure.compressor}`{said} | {figure.hardware} "
            f"| {figure.milliseconds:.4g} ms{recalled} | `{figure.device}` "
            f"| {1e3 * priced(figure):.3g} ms | {figure.differs} | {figure.source} |"
        )


def priced(figure: Published) -> float:
    """Return the seconds to encode in the second step and to decode one payload."""
    cls = compressor_class(figure.compressor)
    parameters = check_parameters(figure.compressor, figure.parameters)
    team = [cls(Worker(rank=rank, count=2, seed=0), parameters) for rank in range(2)]
    buckets = [_bucket(figure.model, rank) for rank in range(2)]
    for step in range(2):
        meter = Meter(2)
        with torch.no_grad():
            exchanges = [w.exchange(b, step) for w, b in zip(team, buckets, strict=True)]
            lockstep(exchanges, meter)
    exchange = metered_exchange(meter, None)
    prices = PriceList(replace(catalog.device(figure.device), primitives={}))
    stretches = [*exchange.computes, *(server for server in exchange.servers if server)]
    return sum(prices.compute_time(compute, 1) for compute in stretches) / 1e12


def _bucket(model: str, rank: int) -> Bucket:
    """Return the whole gradient in one bucket."""
    tensors = trainable(build_model(shipped_model(model), seed=0, device="meta"))
    shapes = ((name, n, tuple(tensor.shape)) for n, (name, tensor) in enumerate(tensors))
    layout = BucketLayout.behind(0, shapes)
    return Bucket(layout=layout, gradient=gradient(layout.numel, 100 + rank))
