"""Measurement of collectives on a cluster with torch.distributed, and the fit of a link.

    torchrun --nnodes 4 --nproc-per-node 1 ... -m gcsim.calibrate_link -o measured.csv

Sizes grow by factors of four. For each, batches of collectives run back to back after a barrier,
long enough for the clock. A batch takes the slowest rank's time; the file has the median over
batches. A size and all larger ones are left out if the remaining time is too short.
Sizes are defined in `analysis/calibration/measurements/collectives.py`. `gcsim calibrate link
measured.csv` can fit the file again with other options.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcsim.errors import InputError

if TYPE_CHECKING:
    import torch

Operation = Callable[[], object]
Job = tuple[str, str]  # collective, and element type

_GROWTH = 4
_BATCH_SECONDS = 2e-3
_MOST_IN_BATCH, _LEAST_BATCHES, _MOST_BATCHES = 100, 3, 25
_WARM_UP = 2
_TIMEOUT_SECONDS = 300
_MEASURED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write and fit; return the exit code. All ranks run this, only rank 0 prints."""
    options = _parser().parse_args(arguments)
    try:
        _run(options)
    except InputError as error:
        if os.environ.get("RANK", "0") == "0":
            for problem in error.problems:
                print(problem, file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchrun ... -m gcsim.calibrate_link",
        description="Measure collectives on a running cluster, and fit a link to them.",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.csv", help="the measurements")
    parser.add_argument("--link", type=Path, metavar="FILE.yaml", help="the link")
    parser.add_argument("--name", help="name of the link")
    parser.add_argument("--backend", choices=("gloo", "nccl"), help="default: nccl with GPUs")
    parser.add_argument(
        "--collective",
        default="all_reduce,all_gather",
        metavar="NAME,...",
        help=f"any of {', '.join(_MEASURED)}",
    )
    parser.add_argument(
        "--dtype",
        default="float32",
        metavar="NAME,...",
        help="types to all-reduce; two types also give the summation rate (Gloo)",
    )
    parser.add_argument("--min-size", default="1 KiB", metavar="SIZE")
    parser.add_argument("--max-size", default="64 MiB", metavar="SIZE")
    parser.add_argument("--seconds-budget", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--line-rate", metavar="RATE", help='of the network, e.g. "10 Gbit/s"')
    return parser


def _run(options: argparse.Namespace) -> None:
    sizes = list(_sizes(options))
    names = list(_jobs(_split(options.collective), _split(options.dtype)))
    if options.seconds_budget <= 0:
        raise InputError("must be more than 0", place="--seconds-budget")
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        message = "the ranks of the cluster are not known"
        hint = "start it with: torchrun --nproc-per-node N -m gcsim.calibrate_link"
        raise InputError(message, hint=hint)
    import datetime

    import torch
    import torch.distributed as dist

    backend = options.backend or ("nccl" if torch.cuda.is_available() else "gloo")
    if backend == "nccl" and not torch.cuda.is_available():
        raise InputError("there is no GPU here", place="--backend nccl")
    if int(os.environ["WORLD_SIZE"]) < 2:
        raise InputError("one rank alone sends nothing", hint="start two or more")
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    limit = datetime.timedelta(seconds=_TIMEOUT_SECONDS)
    dist.init_process_group(backend, timeout=limit)
    try:
        cluster = _Cluster.here(device)
        lines, notes = _measure(cluster, names, sizes, options.seconds_budget)
        speaks = dist.get_rank() == 0
    finally:
        dist.destroy_process_group()
    if speaks:
        _tell(options, backend, cluster, lines, notes)


def _sizes(options: argparse.Namespace) -> Iterator[int]:
    from gcsim.cli.options import parsed
    from gcsim.units import parse_bytes

    smallest = parsed("--min-size", parse_bytes, options.min_size)
    largest = parsed("--max-size", parse_bytes, options.max_size)
    if not 0 < smallest * _GROWTH**2 <= largest:
        message = f"from {smallest:,} to {largest:,} bytes there are fewer than three sizes"
        raise InputError(message, place="--min-size", hint=f"sizes grow by factors of {_GROWTH}")
    while smallest <= largest:
        yield smallest
        smallest *= _GROWTH


def _split(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def _jobs(names: Sequence[str], dtypes: Sequence[str]) -> Iterator[Job]:
    """Yield collectives with element types; only all-reduces, which add, are timed by type."""
    from gcsim.analysis.calibration.measurements.csv_table import ELEMENTS

    for place, given, known in (
        ("--collective", names, _MEASURED),
        ("--dtype", dtypes, tuple(ELEMENTS)),
    ):
        unknown = [name for name in given if name not in known]
        if unknown:
            message = f"{', '.join(map(repr, unknown))}: not measured here"
            raise InputError(message, place=place, hint=f"known: {', '.join(known)}")
    for name in names:
        for dtype in dtypes if name == "all_reduce" else ("float32",):
            yield name, dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cluster:
    ranks: int
    devices_per_node: int
    device: torch.device

    @classmethod
    def here(cls, device: torch.device) -> _Cluster:
        """Describe the cluster as torchrun started it. Raises `InputError` if machines differ."""
        import torch.distributed as dist

        local = float(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        most, least = _largest(local, device), -_largest(-local, device)
        if most != least:
            message = f"machines have different numbers of ranks: {least:.0f} to {most:.0f}"
            raise InputError(message, hint="start the same number on each")
        return cls(ranks=dist.get_world_size(), devices_per_node=int(local), device=device)

    def operation(self, job: Job, nbytes: int) -> tuple[Operation, int]:
        """Return a function that runs the collective, and the bytes that it actually moves."""
        import torch
        import torch.distributed as dist

        collective, dtype = job
        kind = getattr(torch, dtype)

        def buffer(elements: int) -> torch.Tensor:
            return torch.zeros(elements, dtype=kind, device=self.device)

        part = max(1, nbytes // (kind.itemsize * self.ranks))
        one, all_of_them = buffer(part), part * self.ranks * kind.itemsize
        if collective == "all_reduce":
            vector = buffer(max(1, nbytes // kind.itemsize))
            return lambda: dist.all_reduce(vector), vector.nbytes
        whole = buffer(part * self.ranks)
        if collective == "all_gather":
            gather = _function("all_gather_single", "all_gather_into_tensor")
            return lambda: gather(whole, one), all_of_them
        if collective == "reduce_scatter":
            scatter = _function("reduce_scatter_single", "reduce_scatter_tensor")
            return lambda: scatter(one, whole), all_of_them
        other = buffer(part * self.ranks)
        return lambda: dist.all_to_all_single(other, whole), all_of_them

    def batch(self, run: Operation, count: int) -> float:
        """Return seconds per operation of `count` back to back, on the slowest rank."""
        import torch.distributed as dist

        dist.barrier()
        self.wait()
        start = time.perf_counter()
        for _ in range(count):
            run()
        self.wait()
        return _largest((time.perf_counter() - start) / count, self.device)

    def wait(self) -> None:
        """Wait until the device has finished all launched work."""
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.device)


def _function(*names: str) -> Callable[..., object]:
    """Return a function of torch.distributed, by the first of its names that this version has."""
    import torch.distributed as dist

    known: Callable[..., object] = next(
        found for name in names if (found := getattr(dist, name, None)) is not None
    )
    return known


def _largest(value: float, device: torch.device) -> float:
    """Return the largest value over all ranks."""
    import torch
    import torch.distributed as dist

    # NCCL and Gloo both reduce doubles
    largest = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return float(largest.item())


def _measure(
    cluster: _Cluster, names: Sequence[Job], sizes: Sequence[int], budget: float
) -> tuple[list[str], list[str]]:
    """Return rows of the CSV and notes on omitted sizes; all ranks use the slowest rank's clock."""
    begin = time.perf_counter()
    rows, notes = [], []
    for number, name in enumerate(names):
        last = 0.0
        for place, size in enumerate(sizes):
            left = budget - _largest(time.perf_counter() - begin, cluster.device)
            share = left / (len(names) - number)
            needed = _GROWTH * last * (_WARM_UP + 1 + _LEAST_BATCHES)
            if place >= 3 and needed > share:
                what = " of ".join(name)
                notes.append(f"{what} from {size} bytes on is left out: it would take too long")
                break
            run, nbytes = cluster.operation(name, size)
            cluster.batch(run, _WARM_UP)
            last = cluster.batch(run, 1)
            count = max(1, min(_MOST_IN_BATCH, round(_BATCH_SECONDS / max(last, 1e-9))))
            spend = share / (len(sizes) - place)
            batches = int(min(_MOST_BATCHES, max(_LEAST_BATCHES, spend / (count * last + 1e-9))))
            last = statistics.median(cluster.batch(run, count) for _ in range(batches))
            collective, dtype = name
            rows.append(f"{collective},{cluster.ranks},{nbytes},{last:.9g},{dtype}")
    return rows, notes


def _tell(
    options: argparse.Namespace,
    backend: str,
    cluster: _Cluster,
    rows: Sequence[str],
    notes: Sequence[str],
) -> None:
    from gcsim.analysis.calibration.measurements.collectives import Stated
    from gcsim.analysis.calibration.measurements.csv_table import COLUMNS, parse
    from gcsim.cli.calibrate.link import fit_and_report
    from gcsim.cli.outcome import say
    from gcsim.files import write_text

    command = shlex.join(["torchrun", "-m", "gcsim.calibrate_link", *sys.argv[1:]])
    facts = [f"{key}: {value}" for key, value in _facts(options, backend, cluster, command)]
    lines = [*(f"# {fact}" for fact in [*facts, *notes]), ",".join([*COLUMNS, "dtype"]), *rows]
    text = "\n".join(lines) + "\n"
    if options.output is not None:
        write_text(options.output, text)
        say(f"wrote {options.output}")
    for note in notes:
        say(f"note: {note}")
    fit_and_report(
        [parse(str(options.output or "this cluster"), text, Stated())],
        output=options.link,
        name=options.name,
        intra_node=None,
        line_rate=options.line_rate,
        command=command,
    )


def _facts(
    options: argparse.Namespace, backend: str, cluster: _Cluster, command: str
) -> Iterator[tuple[str, Any]]:
    import datetime

    import torch

    from gcsim.version import __version__

    yield "tool", f"gcsim {__version__}, torch {torch.__version__}, {backend}"
    yield "backend", backend
    yield "devices_per_node", cluster.devices_per_node
    yield "date", datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    yield "host_of_rank_0", f"{platform.node()}, {platform.system()} {platform.release()}"
    if cluster.device.type == "cuda":
        yield "device", torch.cuda.get_device_name(cluster.device)
    if options.line_rate is not None:
        yield "line_rate", options.line_rate
    yield "command", command


if __name__ == "__main__":
    sys.exit(main())
