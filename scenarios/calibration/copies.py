"""How fast do bytes come to this GPU, and from it? For `cluster.intra_node`.

A library that exchanges host memory copies gradients there and back, each time T = latency +
bytes / bandwidth (`simulator/collectives/staging.py`); the host's side is pinned memory, as there.
A copy within the GPU is the yardstick of what compressors take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.recorder import TimedKernel
from gcsim.compressors.streams import landing
from gcsim.simulator.devices.kernel_fits import Coefficients, coefficients
from gcsim.traces.timing.clock import DeviceClock

Way = Literal["to the host", "from the host", "within the device"]
SIZES = (4_000, 64_000, 1_000_000, 16_000_000, 64_000_000)
"""Bytes."""


def time_copies(
    clock: DeviceClock, *, sizes: Sequence[int] = SIZES, repeats: int = 30
) -> dict[Way, Coefficients]:
    """Latency and bandwidth of each way, over whole copies of `sizes` bytes."""
    device = torch.device(clock.device)
    timed: dict[Way, list[TimedKernel]] = {}
    for nbytes in sizes:
        host, here = landing((nbytes // 4,), device), torch.zeros(nbytes // 4, device=device)
        ends: dict[Way, tuple[torch.Tensor, torch.Tensor]] = {
            "to the host": (host, here),
            "from the host": (here, host),
            "within the device": (torch.zeros_like(here), here),
        }
        for way, (to, source) in ends.items():
            seconds = clock.time(lambda a=to, b=source: a.copy_(b, non_blocking=True), repeats)  # type: ignore[misc]
            cost = KernelCost(
                kind="streaming", launches=1, elements=nbytes // 4, nbytes=here.nbytes
            )
            timed.setdefault(way, []).append(TimedKernel(cost, seconds.lowest))
    return {way: coefficients(copies) for way, copies in timed.items()}


def as_bus(copies: Mapping[Way, Coefficients]) -> str:
    """The slower way between host and device as a scenario takes it; "" where none was timed."""
    both = [copies[way] for way in ("to the host", "from the host") if way in copies]
    rates = [one.bandwidth for one in both if one.bandwidth]
    if not rates:
        return ""
    latency = max(one.launch for one in both) * 1e6
    bandwidth = min(rates) / 1e9
    return f"cluster.intra_node: {{bandwidth: {bandwidth:.4g} GB/s, latency: {latency:.3g} us}}"


def in_words(copies: Mapping[Way, Coefficients]) -> str:
    """Each way, for people."""
    return ", ".join(
        f"{way} {one.launch * 1e6:.3g} us + {one.bandwidth / 1e9:.4g} GB/s"
        for way, one in copies.items()
        if one.bandwidth
    )
