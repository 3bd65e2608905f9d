"""`gcsim fit` and `gcsim list models NAME --layers`: what is behind the two commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gcsim.cli.list import Kind
from gcsim.errors import InputError

if TYPE_CHECKING:
    from gcsim.scenarios.progress import Progress
    from gcsim.traces.synthetic.fit_file import ModelFit


def fit_traces(folders: list[Path], output: Path, progress: Progress) -> tuple[ModelFit, ...]:
    """Fit the traces and write one file for all. Raises `InputError`; nothing is left then."""
    from gcsim.traces.storage.store import Trace
    from gcsim.traces.synthetic.fit_file import write_fits
    from gcsim.traces.synthetic.fitting import fit_trace

    traces = [Trace.open(folder) for folder in folders]
    names = [trace.facts.name for trace in traces]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        message = f"two traces are of {twice[0]!r}: a file holds one fit of a model"
        raise InputError(message, place="TRACE", hint="fit them to two files")
    with progress.task("fit", sum(len(trace.parameters) for trace in traces)) as task:
        fits = tuple(fit_trace(trace, lambda name: task.advance(note=name)) for trace in traces)
    write_fits(output, fits)
    return fits


def fitted_lines(fits: tuple[ModelFit, ...], output: Path) -> list[str]:
    """What was found, in a line a model."""
    from gcsim.analysis.report.numbers import plural

    lines = [f"Written to {output}"]
    for fit in fits:
        elements = sum(tensor.numel for tensor in fit.tensors)
        common = sum(t.common * t.numel * t.rms**2 for t in fit.tensors)
        energy = sum(t.numel * t.rms**2 for t in fit.tensors) or 1.0
        lines.append(
            f"  {fit.model}: {plural(len(fit.tensors), 'tensor')}, {elements:,} elements, from "
            f"{plural(fit.iterations, 'iteration')} of {plural(fit.workers, 'worker')}; "
            f"{common / energy:.0%} of the gradients' energy is common to all workers, lengths "
            f"scatter by {fit.scatter:.2f} (standard deviation of the logarithm)"
        )
    return lines


def layers_text(kind: Kind, name: str | None) -> str:
    """The CSV of a model's layers. Raises `InputError` for anything but a model."""
    if kind is not Kind.models or name is None:
        message = "--layers belongs to one model"
        hint = "write gcsim list models NAME --layers"
        raise InputError(message, place="--layers", hint=hint)
    from gcsim.cli.list import details
    from gcsim.traces.models.registry import shipped_model
    from gcsim.traces.models.table import table_text

    details(kind, name)  # says which models there are
    return table_text(shipped_model(name))
