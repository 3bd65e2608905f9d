"""What does a validation leave behind? Tables and figures, all of them whole, or none.

validation.md    the page; validation.json  everything; points.csv  a line a point, with its
citation; errors.png  how large errors are; scatter.png  predicted against measured; SUITE.png
scaling curves, where a suite has them

python -m gcsim.analysis.validation.report.write docs    # docs/validation.md,
docs/images/validation/
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gcsim.analysis.plots.style import save
from gcsim.analysis.validation.judge import Report, run_suite
from gcsim.analysis.validation.registry import chosen
from gcsim.analysis.validation.report.as_json import point_row, to_json
from gcsim.analysis.validation.report.page import page
from gcsim.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")
Maker = Callable[[Path], None]
"""Writes a file."""


def points_csv(reports: Sequence[Report]) -> str:
    """All points with full precision; the first column is the suite."""
    rows = [
        {"suite": report.suite.name, **point_row(point)}
        for report in reports
        for point in report.findings.points
    ]
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def write(reports: Sequence[Report], folder: Path) -> tuple[Path, ...]:
    """Write all files into `folder`, which is made when it is missing.

    Raises `InputError` when the disk is full or the folder cannot be written; files of an earlier
    validation are then as they were.
    """
    files: dict[str, str | Maker] = {
        "validation.md": "\n".join(page(reports)) + "\n",
        "validation.json": to_json(reports),
        "points.csv": points_csv(reports),
        **figures(reports),
    }
    return write_together({folder / name: content for name, content in files.items()})


def figures(reports: Sequence[Report]) -> dict[str, Maker]:
    """By name of the file: what draws it."""
    from gcsim.analysis.validation.plots.curves import curves_figure, has_curves
    from gcsim.analysis.validation.plots.errors import errors_figure
    from gcsim.analysis.validation.plots.scatter import scatter_figure

    def drawing(figure: Callable[[T], Figure], own: T) -> Maker:
        return lambda path: save(figure(own), path)

    with_points = [
        report for report in reports if any(point.unit != "x" for point in report.findings.points)
    ]
    makers: dict[str, Maker] = {}
    if with_points:
        makers["errors.png"] = drawing(errors_figure, with_points)
        makers["scatter.png"] = drawing(scatter_figure, with_points)
    for report in with_points:
        if has_curves(report):
            makers[f"{report.suite.name}.png"] = drawing(curves_figure, report)
    return makers


def write_together(files: Mapping[Path, str | Maker]) -> tuple[Path, ...]:
    """Write texts and what draws itself; all are renamed to their places when the last is whole."""
    with ExitStack() as renamed_together:
        for path, content in files.items():
            temporary = renamed_together.enter_context(replacing(path))
            if isinstance(content, str):
                temporary.write_text(content, encoding="utf-8", newline="\n")
            else:
                content(temporary)
    return tuple(files)


def main() -> None:
    """Write the page and its figures into a folder of documents."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: {__doc__}")
    docs = Path(sys.argv[1])
    reports = [run_suite(suite) for suite in chosen()]
    text = "\n".join(page(reports, "images/validation/")) + "\n"
    folder = docs / "images" / "validation"
    write_together(
        {docs / "validation.md": text}
        | {folder / name: make for name, make in figures(reports).items()}
    )


if __name__ == "__main__":
    main()
