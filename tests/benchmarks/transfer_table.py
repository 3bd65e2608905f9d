"""Is a metered and priced compressor as fast as a timed one? It writes docs/kernel-transfer.md.

    python tests/benchmarks/transfer_table.py [--threads N] [--quick] > docs/kernel-transfer.md

Calibrates this machine as `gcsim calibrate device` does, times every compressor of the registry
directly at three sizes on other data, and prices what the meter counted. With one thread the clock
is CPU time, which others on the machine do not disturb by taking turns.
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
"""Of the data that are timed directly; those of the calibration have others."""
CALIBRATION_SECONDS = 120.0

HEAD = """# Does pricing transfer?

What a compressor costs is metered (kernels and bytes, on any machine) and then priced for a device.
This page checks it where both can be done: every compressor is timed directly on a CPU, and priced
from what the meter counted. Three ways of pricing:

- **kernels**: as `gcsim calibrate device` leaves it on this machine, with a curve for each kernel
  that was timed inside the shipped compressors, on other data and at other sizes
  ({sizes} elements);
- **others' kernels**: the same without what was timed inside the compressor in question: the
  accuracy for a method that the calibration has not seen. What it shares with others has a curve,
  its own loops are priced by class;
- **classes**: rates of nine classes alone, from torch's own kernels: the accuracy of
  estimates for hardware that was not measured, given correct rates.

Measured {date} on {machine}, {threads}, PyTorch {torch}, {clock}; load of the machine {load} at
the start and {load_after} at the end. Freed memory is kept in all of it. Data: N(0, 1) exp(.8 N(0,
1)) 1e-3, one matrix, default parameters, the lowest of {rounds} rounds. What the meter leaves out
by decision (checksums, checks of what arrives) is not in the times: {left_out:.0%} of the whole.
The calibration took {calibration:.0f} s, all of it {total:.0f} s:

    {command}

## Summary

Errors are |priced / measured - 1| over encoding and decoding of every kind of step of
{compressors} compressors that takes {shortest:.0f} us or more; tau is Kendall's.

"""


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="1 M elements alone")
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
    """Every kind of step of the named compressors, on matrices of `sizes` elements; no more than
    `rounds` times, and no longer than `seconds` each."""
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
    """The tables, Markdown; `also` stands behind the summary."""
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
    yield "| elements | pricing | times | median error | 90th percentile | tau |"
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
            "Encode / decode in ms, then priced / measured of both for each way of pricing.",
            "",
            "| method | step | measured | kernels | others' kernels | classes |",
            "|---|---|--:|--:|--:|--:|",
        )
        for (name, phase), cells_of in lines.items():
            yield f"| `{name}` | {phase} | {cells_of[elements]} |"


def _largest_errors(rows: Sequence[Direct], prices: PriceList) -> Iterator[str]:
    """Where pricing by kernels is off by more than half, or twice."""
    yield "Priced by kernels and still off by a factor of 1.5 or more:"
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
