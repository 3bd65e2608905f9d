"""Estimated times of metered compressors against direct timings: docs/kernel-transfer.md.

    python tests/benchmarks/transfer_table.py [--threads N] [--quick] > docs/kernel-transfer.md

Calibrates this machine as `gcsim calibrate device` does, times every compressor of the registry
directly at three sizes on other data, and estimates the time of the meter's counts. With one thread
the clock is CPU time, which excludes the turns of other processes.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import torch

from gcsim.compressors.registry import REGISTRY
from gcsim.scenarios.calibration.device import Calibration, calibrate_device, primitive_curves
from gcsim.scenarios.progress import SilentProgress
from gcsim.simulator.devices.pricing import PriceList
from gcsim.traces.timing.allocator import give_back_freed_memory, keep_freed_memory
from gcsim.traces.timing.clock import DeviceClock
from gcsim.traces.timing.kernels import gradient
from tests.benchmarks.agreement import SHORTEST, Agreement, agreement
from tests.benchmarks.direct_times import Direct, direct_times
from tests.benchmarks.published_costs import published

SIZES = (1_000_000, 10_000_000, 61_000_000)
SEED = 77
"""Seed of the data for direct timings; the calibration uses other seeds."""
CALIBRATION_SECONDS = 120.0

HEAD = """# Estimated and measured times of kernels

gcsim meters a compressor (kernels and bytes, on any machine) and estimates its time on a device.
This page checks the estimates on a CPU, where every compressor can also be timed directly.
Three kinds of estimates:

- **kernels**: by `gcsim calibrate device` on this machine, with a curve for each kernel, timed
  inside the shipped compressors on other data and at other sizes
  ({sizes} elements);
- **others' kernels**: the same without the compressor's own timings: the accuracy for a
  method that the calibration has not seen. Kernels that it shares with others have a curve, its
  own loops are estimated by class;
- **classes**: only the rates of nine classes, from torch's own kernels: the accuracy of
  estimates for hardware that was not measured, given correct rates.

Measured {date} on {machine}, {threads}, PyTorch {torch}, {clock}; machine load {load} at
the start and {load_after} at the end. The allocator keeps freed memory. Data: N(0, 1) exp(.8 N(0,
1)) 1e-3, one matrix, default parameters, minimum of {rounds} rounds. The times exclude what the
meter leaves out by design (checksums, checks of received data): {left_out:.0%} of the whole.
The calibration took {calibration:.0f} s, the whole page {total:.0f} s:

    {command}

## Summary

Errors are |estimated / measured - 1| of encode and decode in every kind of step of
{compressors} compressors, if it takes {shortest:.0f} us or more; tau is Kendall's.

"""


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="only 1 M elements")
    options = parser.parse_args()
    started, load = time.perf_counter(), os.getloadavg()[0]
    if options.threads:
        torch.set_num_threads(options.threads)
    keep_freed_memory()
    calibration = calibrate_device(
        SilentProgress(),
        name="here",
        device="cpu",
        seconds=8.0 if options.quick else CALIBRATION_SECONDS,
        quick=options.quick,
    )
    calibrated = time.perf_counter() - started
    _say(f"calibrated in {calibrated:.0f} s")
    sizes = SIZES[:1] if options.quick else SIZES
    rows = timed_directly(DeviceClock("cpu"), sizes, rounds=options.rounds)
    threads = torch.get_num_threads()
    head = HEAD.format(
        sizes=", ".join(f"{n:,}" for n in sorted({site.elements for site in calibration.sites})),
        date=datetime.now(UTC).date().isoformat(),
        machine=calibration.device.title.split(",")[0],
        threads=f"{threads} thread{'s' * (threads > 1)}",
        torch=torch.__version__,
        clock="CPU time" if threads == 1 else "wall clock",
        load=f"{load:.1f}",
        load_after=f"{os.getloadavg()[0]:.1f}",
        command=" ".join(["python tests/benchmarks/transfer_table.py", *sys.argv[1:]]),
        calibration=calibrated,
        total=time.perf_counter() - started,
        rounds=options.rounds,
        left_out=_left_out(rows),
        compressors=len(REGISTRY),
        shortest=SHORTEST * 1e6,
    )
    lines = page(calibration, rows, also=["", *published()])
    sys.stdout.write(head + "\n".join(lines) + "\n")


def timed_directly(
    clock: DeviceClock,
    sizes: Sequence[int],
    *,
    rounds: int,
    names: Sequence[str] = tuple(REGISTRY),
    seconds: float = math.inf,
) -> list[Direct]:
    """Time every kind of step of the named compressors on matrices of `sizes` elements, each for at
    most `rounds` rounds and `seconds` seconds."""
    rows: list[Direct] = []
    for elements in sizes:
        give_back_freed_memory()
        data = gradient(elements, SEED).to(clock.device)
        for name in names:
            rows += direct_times(name, data, clock.now, rounds=rounds, seconds=seconds)
        _say(f"{elements:,} elements timed")
    return rows


def page(
    calibration: Calibration, rows: Sequence[Direct], *, also: Iterable[str] = ()
) -> Iterator[str]:
    """Yield the tables as Markdown; `also` follows the summary."""
    full = PriceList(calibration.device)
    classes = PriceList(replace(calibration.device, primitives={}))
    without = {}
    for name in dict.fromkeys(row.compressor for row in rows):
        others = [site for site in calibration.sites if site.compressor != name]
        curves = primitive_curves(calibration.samples, others)
        without[name] = PriceList(replace(calibration.device, primitives=curves))
    pairs: dict[tuple[int, str], list[tuple[float, float]]] = {}
    lines: dict[tuple[str, str], dict[int, str]] = {}
    for row in rows:
        cells = []
        ways = (("kernels", full), ("others' kernels", without[row.compressor]))
        for way, prices in (*ways, ("classes", classes)):
            priced = row.priced(prices)
            both = [(priced.encode, row.measured.encode), (priced.decode, row.measured.decode)]
            pairs.setdefault((row.elements, way), []).extend(both)
            cells.append(" ".join(f"{_ratio(*pair):>5}" for pair in both))
        ms = f"{row.measured.encode * 1e3:.3g} / {row.measured.decode * 1e3:.3g}"
        lines.setdefault((row.compressor, row.phase), {})[row.elements] = " | ".join([ms, *cells])
    sizes = sorted({row.elements for row in rows})
    yield "| elements | estimate | times | median error | 90th percentile | tau |"
    yield "|--:|---|--:|--:|--:|--:|"
    for elements in sizes:
        for way in ("kernels", "others' kernels", "classes"):
            yield _summary(elements, way, agreement(pairs[elements, way]))
    yield from ("", *_largest_errors(rows, full), *also)
    for elements in sizes:
        yield from (
            "",
            f"## {elements / 1e6:g} million elements",
            "",
            "Encode / decode in ms, then estimated / measured for both by each kind of estimate.",
            "",
            "| method | step | measured | kernels | others' kernels | classes |",
            "|---|---|--:|--:|--:|--:|",
        )
        for (name, phase), cells_of in lines.items():
            yield f"| `{name}` | {phase} | {cells_of[elements]} |"


def _largest_errors(rows: Sequence[Direct], prices: PriceList) -> Iterator[str]:
    """Yield the times for which the estimate by kernels is off by a factor of 1.5 or more."""
    yield "Estimates by kernels that are off by a factor of 1.5 or more:"
    yield ""
    found = []
    for row in rows:
        priced = row.priced(prices)
        for stage in ("encode", "decode"):
            guess, truth = getattr(priced, stage), getattr(row.measured, stage)
            if truth >= SHORTEST and not 1 / 1.5 <= guess / truth <= 1.5:
                found.append(
                    f"`{row.compressor}` {row.phase} {stage}, {row.elements / 1e6:g} M: "
                    f"{guess / truth:.2f} of {truth * 1e3:.3g} ms"
                )
    yield "; ".join(found) + "." if found else "none."


def _summary(elements: int, way: str, found: Agreement) -> str:
    return (
        f"| {elements:,} | {way} | {found.pairs} | {found.median:.0%} | {found.ninth:.0%} "
        f"| {found.tau:.2f} |"
    )


def _ratio(priced: float, measured: float) -> str:
    return f"{priced / measured:.2f}" if measured >= SHORTEST else "-"


def _left_out(rows: Sequence[Direct]) -> float:
    spent = sum(row.measured.encode + row.measured.decode for row in rows)
    left_out = sum(row.left_out for row in rows)
    return left_out / (spent + left_out)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
