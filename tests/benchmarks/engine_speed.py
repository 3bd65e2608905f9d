"""What does simulating cost? The table of docs/performance.md.

    python tests/benchmarks/engine_speed.py [--only TEXT]       # Markdown; ten minutes

CPU seconds of this process (`time.process_time`), loops compiled before, next to a yardstick that
is measured in the same run: 200,000 numpy operations on rows of 64 numbers, which is what a
simulator without compiled loops would consist of. Others share the machine; ratios to the
yardstick move less than seconds do. Messages are those that the collectives consist of, whether
each of them was computed or a closed form or a repeat of an iteration spared it.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

if __package__ in {None, ""}:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gcsim.simulator.training import Training
from tests.benchmarks import engine_work
from tests.benchmarks.kernel_curve import KERNELS, head
from tests.benchmarks.synthetic_traffic import cluster
from tests.crosscheck import simgrid


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    unit: str
    """What `run` returns one of: s, ms per iteration, MB."""
    target: float
    run: Callable[[], float]
    messages: Callable[[], int] = lambda: 0
    """Of what is timed, if that is known."""
    scale: float = 1.0
    """Seconds to `unit`."""


def rows() -> Iterator[Row]:
    """What is measured, with its target."""
    noisy = Training(noise=engine_work.NOISE, iterations=engine_work.ITERATIONS)
    still = Training(iterations=engine_work.ITERATIONS)
    for name, make, training, target in (
        ("nothing random", cluster, still, 2.0),
        ("compute noise", cluster, noisy, 4.0),
        ("a link each, nothing random", engine_work.own_links, still, 15.0),
        ("a link each, compute noise", engine_work.own_links, noisy, 15.0),
        ("each message late at random", engine_work.jittery, still, 20.0),
    ):
        yield Row(
            name=f"sweep: {name}",
            unit="s",
            target=target,
            run=partial(engine_work.sweep, make, training),
            messages=engine_work.sweep_messages,
        )
    for p, count, name, make, noise, target in (
        (1000, 20, "equal links", cluster, False, 1.0),
        (1000, 20, "equal links, compute noise", cluster, True, 1.0),
        (1000, 20, "a link each, compute noise", engine_work.own_links, True, 60.0),
        (10_000, 50, "equal links", cluster, False, 1.0),
        (10_000, 50, "equal links, compute noise", cluster, True, 1.0),
    ):
        yield Row(
            name=f"{p:,} workers: {name}",
            unit="ms per iteration",
            target=target,
            run=partial(engine_work.iterations, make, p, count, noise=noise),
            messages=partial(engine_work.ring_messages, p),
            scale=1e3,
        )
        if not noise:
            yield Row(
                name=f"{p:,} workers: {name}, a hundred that repeat themselves",
                unit="ms per iteration",
                target=target,
                run=partial(engine_work.repeated, p),
                messages=partial(engine_work.ring_messages, p),
                scale=1e3,
            )
    for name, nodes, devices in (("halving_doubling", 10_000, 1), ("hierarchical", 1250, 8)):
        yield Row(
            name=f"10,000 workers: a link each, {name.replace('_', '-')}",
            unit="ms an all-reduce",
            target=10.0,
            run=partial(engine_work.one_collective, nodes, devices, name),
            scale=1e3,
        )
    for name in engine_work.PEAKS:
        yield Row(
            name=f"peak memory, 10,000 workers: {name}",
            unit="MB",
            target=300.0,
            run=partial(engine_work.peak, name),
        )


HEAD = (
    "| what | measured | target | in yardsticks | messages per CPU second |",
    "|------|---------:|-------:|--------------:|----------------------:|",
)


def line(row: Row, measured: float, unit: float) -> str:
    """A row of the table; `unit` is the yardstick."""
    shown = measured * row.scale
    ratio = "" if row.unit == "MB" else f"{measured / unit:.3g}"
    count = row.messages()
    rate = f"{count / measured / 1e6:,.0f} M" if count and measured else ""
    met = "" if shown <= row.target else " (missed)"
    return f"| {row.name} | {shown:.3g} {row.unit}{met} | {row.target:g} | {ratio} | {rate} |"


def simgrid_line(ranks: int = 128) -> str:
    """What SimGrid's SMPI needs for one ring all-reduce, its start included."""
    if not simgrid.installed():
        return f"{simgrid.MISSING}: no comparison."
    with tempfile.TemporaryDirectory() as folder:
        program = simgrid.compiled(Path(folder))
        sizes = [ranks * 4 * 100] * ranks
        cpu = simgrid.simulate(program, "allreduce", sizes, "smpi/allreduce:lr").cpu_s
    messages = 2 * ranks * (ranks - 1)
    return (
        f"SimGrid (SMPI, CM02), one ring all-reduce of {ranks} ranks: {cpu:.3g} CPU seconds with "
        f"its start, {messages / cpu / 1e6:.3g} M messages per CPU second."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows and kernels whose names have this in them")
    parser.add_argument("--memory", choices=engine_work.PEAKS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        before = engine_work.high_water()
        engine_work.PEAKS[arguments.memory]()
        print((engine_work.high_water() - before) / 1e6)
        return
    unit = engine_work.yardstick()
    print(f"Yardstick: {unit:.3g} CPU seconds.\n")
    print(*HEAD, sep="\n")
    for row in rows():
        if arguments.only in row.name:
            print(line(row, row.run(), unit), flush=True)
    if arguments.only in "SimGrid":
        print(f"\n{simgrid_line()}")
    print()
    print(*head(), sep="\n")
    for name, kernel in KERNELS.items():
        if arguments.only in name:
            print(kernel.line(name), flush=True)


if __name__ == "__main__":
    main()
