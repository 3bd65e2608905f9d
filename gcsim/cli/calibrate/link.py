"""`gcsim calibrate link`: fit measurements to a link that a scenario can name."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gcsim.analysis.calibration.measurements.formats import FORMATS
from gcsim.cli.options import option, parsed
from gcsim.cli.outcome import reported, say
from gcsim.errors import InputError

if TYPE_CHECKING:
    from gcsim.analysis.calibration.measurements.collectives import Collective, Reading

DEFAULT_NAME = "calibrated"


@reported
def calibrate_link_command(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE", help="Logs of nccl-tests, iperf3, ping, DeepSpeed, ...: one or several."
        ),
    ],
    *,
    output: Annotated[
        Path | None, option("-o --output FILE.yaml", "Link file, for `network: FILE.yaml`.")
    ] = None,
    name: Annotated[
        str | None, option("--name", "Name of the link. Default: the output file's.")
    ] = None,
    file_format: Annotated[
        str,
        option(
            "--format NAME",
            f"Program that wrote the files. Default: by content. {', '.join(FORMATS)}.",
        ),
    ] = "auto",
    algorithm: Annotated[
        str | None, option("--algorithm", "A transport or an algorithm. Default: the tool's.")
    ] = None,
    ranks: Annotated[
        list[int] | None, option("--ranks", "Fit only this number of ranks. Repeatable.", min=2)
    ] = None,
    devices_per_node: Annotated[
        int | None, option("--devices-per-node", "Ranks per machine.", min=1)
    ] = None,
    intra_node: Annotated[
        str | None,
        option(
            "--intra-node LINK", "Inside a machine. Default: from the GPU's name, else pcie3_x16."
        ),
    ] = None,
    collective: Annotated[
        str | None, option("--collective", "The measured collective, if a log does not name it.")
    ] = None,
    line_rate: Annotated[str | None, option("--line-rate RATE", 'e.g. "10 Gbit/s".')] = None,
) -> None:
    """Fit a link to measured collectives.

    Fits latency and goodput, and how both depend on the size, so that the simulator reproduces the
    measured times. Without collectives, goodput is iperf3's and latency is ping's, or a range if
    one is missing.
    """
    from gcsim.analysis.calibration.measurements.collectives import Stated
    from gcsim.analysis.calibration.measurements.reading import read

    readings = read(
        files,
        file_format,
        Stated(
            ranks=tuple(ranks or ()),
            devices_per_node=devices_per_node,
            collective=_collective(collective),
            algorithm=algorithm,
        ),
    )
    fit_and_report(
        readings,
        output=output,
        name=name,
        intra_node=intra_node,
        line_rate=line_rate,
        command=shlex.join(["gcsim", *sys.argv[1:]]),
    )


def fit_and_report(
    readings: Sequence[Reading],
    *,
    output: Path | None,
    name: str | None,
    intra_node: str | None,
    line_rate: str | None,
    command: str,
) -> None:
    """Fit, print the report, and write the link's file.

    Raises `InputError` for an unknown link or algorithm, or if the file cannot be written.
    """
    from datetime import UTC, datetime

    from gcsim.analysis.calibration.link.checks import check_inside, inside_of, settled
    from gcsim.analysis.calibration.link.direct import compared, direct, entry_direct, report_direct
    from gcsim.analysis.calibration.link.fit import fit
    from gcsim.analysis.calibration.link.report import above_line_rate, entry, report, warnings
    from gcsim.analysis.calibration.link.sums import by_type, fit_sums, sums_report
    from gcsim.files import write_text
    from gcsim.scenarios.sections.named_files import names_a_file
    from gcsim.scenarios.sections.transports import transports

    if output is not None and not names_a_file(str(output)):
        message = "a scenario recognises a link file by its ending"
        raise InputError(message, place=str(output), hint="name it FILE.yaml")
    known = [reading.line_rate for reading in readings if reading.line_rate is not None]
    line = _rate(line_rate) if line_rate is not None else min(known, default=None)
    name = name or (output.stem if output else DEFAULT_NAME)
    measured = [point for reading in readings for point in reading.measurements]
    today = datetime.now(UTC).date().isoformat()
    if not measured:
        plain = direct(readings, line_rate=line, name=name)
        print("\n".join(report_direct(plain, readings)))
        sys.stdout.flush()
        for warning in above_line_rate(plain.link, line):
            say(f"warning: {warning}")
        if output is not None:
            write_text(output, entry_direct(plain, readings, date=today, command=command))
            say(f"wrote {output}; in a scenario: network: {output}")
        return
    points, others = by_type(measured)
    inside = inside_of(intra_node, readings)
    check_inside(points, inside)
    found = fit(points, inside=inside.link, line_rate=line, name=name)
    rates = [
        rate
        for dtype in others
        if (rate := fit_sums(measured, found.link, inside=inside.link, dtype=dtype))
    ]
    several = any(1 < point.devices_per_node < point.ranks for point in points)
    within = [f"inside a machine: {inside.link.name}, {inside.why}"] if several else []
    additions = list(sums_report(rates, others))
    for told in (*report(found, readings), *within, *additions, *compared(found.link, readings)):
        print(told)
    sys.stdout.flush()
    found = settled(found, ", ".join(reading.file for reading in readings))
    for warning in warnings(found):
        say(f"warning: {warning}")
    if output is not None:
        alone = all(point.devices_per_node == point.ranks for point in points)
        key = "intra_node" if alone else "network"
        use = (
            f"in a scenario: {key}: {output}, with the transport that was measured "
            "(cluster.collectives.transport)"
        )
        if any(point.algorithm in transports() for point in points):
            sums = "" if rates else " and cluster.sums: none"
            use += f", cluster.host: none{sums}: the measured times include them"
        comments = "".join(f"# {line}\n" for line in (use, *within, *additions))
        text = entry(found, readings, date=today, command=command)
        write_text(output, comments + text)
        say(f"wrote {output}; {use}")


def _collective(word: str | None) -> Collective | None:
    from gcsim.analysis.calibration.measurements.collectives import (
        as_collective,
        unknown_collective,
    )

    if word is None:
        return None
    known = as_collective(word)
    if known is None:
        message, hint = unknown_collective(word)
        raise InputError(message, place="--collective", hint=hint)
    return known


def _rate(text: str) -> float:
    from gcsim import units

    value = parsed("--line-rate", lambda rate: units.parse(rate, "bandwidth"), text)
    if not value:
        raise InputError(f"{text} is zero", place="--line-rate")
    return float(value)
