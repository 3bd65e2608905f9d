"""Writer of traces, as a whole folder or none: it writes to a temporary folder beside the
destination, renames that after the manifest, and removes it on an error or interrupt. A gradient
with NaN or infinity is refused by name."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Literal

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.errors import InputError
from gcsim.files import becoming
from gcsim.traces.live import WorkerGradients
from gcsim.traces.profile import Costs, ModelFacts, PassTimes
from gcsim.traces.storage.manifest import (
    MANIFEST,
    SCHEMA,
    Kind,
    Manifest,
    StoredFile,
    file_name,
    manifest_text,
)
from gcsim.traces.storage.tensor_file import Shapes, all_finite, file_length, write_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Files that one process wrote, and the values that rounding to float16 lost in them."""

    files: dict[str, StoredFile]
    nonzero: int
    flushed: int


_MANIFEST_RESERVE = 1 << 20
"""Bytes to keep free for the manifest when checking that the disk can hold the trace."""


class TraceWriter:
    """Writer of one trace: call `begin`, `add` for each worker and iteration, `finish`.

    As a context manager it creates the temporary folder, and removes it unless `finish` was called.
    Raises `InputError` if `folder` is not empty or cannot be written. Several processes may write
    one trace: the others enter with `inside`, the temporary folder of the first, which adopts their
    files (`adopt`) and finishes.
    """

    def __init__(self, folder: Path, *, dtype: str = "float32", inside: Path | None = None) -> None:
        if dtype not in ("float32", "float16"):
            raise InputError(f"cannot store {dtype!r}", place="dtype", hint="float32 or float16")
        self._folder = folder
        self._inside = inside
        self._dtype: Literal["float32", "float16"] = "float16" if dtype == "float16" else "float32"
        self._open = ExitStack()
        self._temporary: Path | None = None
        self._files: dict[str, StoredFile] = {}
        self._facts: ModelFacts | None = None
        self._shapes: Shapes = ()
        self._nonzero = self._flushed = 0

    def __enter__(self) -> TraceWriter:
        if self._inside is not None:
            self._temporary = self._inside
            return self
        try:
            if self._folder.exists() and (not self._folder.is_dir() or any(self._folder.iterdir())):
                message = "exists already; a trace never overwrites a folder"
                hint = "choose another folder or remove it"
                raise InputError(message, place=str(self._folder), hint=hint)
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            self._temporary = self._open.enter_context(becoming(self._folder))
        except OSError as error:
            raise self._cannot_write(error) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()
        self._temporary = None

    @property
    def temporary(self) -> Path:
        """Folder that holds the files until `finish`."""
        assert self._temporary is not None
        return self._temporary

    def begin(self, facts: ModelFacts, shapes: Shapes) -> None:
        """Set the model of the gradients: names and shapes of the trained parameters."""
        self._facts = facts
        self._shapes = tuple(shapes)

    def iterations_that_fit(
        self, iterations: int, workers: int, second_moments: bool, max_bytes: int | None
    ) -> int:
        """Return how many whole iterations may be written: at most `iterations`, at least one.
        Raises `InputError` if one does not fit into `max_bytes` or on the disk."""
        of_worker = file_length(self._shapes, self._dtype)
        if second_moments:
            of_worker += file_length(self._shapes, "float32")
        of_iteration = workers * of_worker
        fit = iterations if max_bytes is None else min(iterations, max_bytes // of_iteration)
        if fit < 1:
            raise InputError(
                f"one iteration of {workers} workers takes {of_iteration} bytes, "
                f"more than the {max_bytes} allowed",
                place=str(self._folder),
                hint="allow more, store float16, or record fewer workers",
            )
        needed = fit * of_iteration + _MANIFEST_RESERVE
        free = shutil.disk_usage(self._folder.parent).free
        if needed > free:
            raise InputError(
                f"the trace takes {needed} bytes, {free} are free",
                place=str(self._folder),
                hint="free some space, choose another folder, store float16, or record fewer "
                "iterations or workers",
            )
        return fit

    def add(self, taken: WorkerGradients) -> None:
        """Write one worker's tensors of one iteration. Raises `InputError` if a value is NaN or
        infinite (in the stored precision) or the disk is full."""
        self._write("gradients", self._dtype, taken, taken.gradients)
        if taken.second_moments is not None:
            self._write("second-moments", "float32", taken, taken.second_moments)

    def written(self) -> Written:
        """Return what this process has written so far."""
        return Written(files=dict(self._files), nonzero=self._nonzero, flushed=self._flushed)

    def adopt(self, written: Written) -> None:
        """Take over another process's files in the same temporary folder."""
        self._files |= written.files
        self._nonzero += written.nonzero
        self._flushed += written.flushed

    def _write(
        self, kind: Kind, dtype: str, taken: WorkerGradients, tensors: tuple[Tensor, ...]
    ) -> None:
        assert self._temporary is not None
        stored = [tensor.detach().to("cpu", getattr(torch, dtype)) for tensor in tensors]
        for (name, _), tensor, original in zip(self._shapes, stored, tensors, strict=True):
            if not all_finite(tensor):
                raise not_finite(kind, name, taken, overflow=all_finite(original))
            if dtype == "float16":
                nonzero = int(original.count_nonzero())
                self._nonzero += nonzero
                self._flushed += nonzero - int(tensor.count_nonzero())
        name = file_name(kind, taken.iteration, taken.worker)
        try:
            self._files[name] = write_tensors(self._temporary / name, self._shapes, dtype, stored)
        except OSError as error:
            raise self._cannot_write(error) from error

    def finish(
        self,
        *,
        workers: int,
        iterations: int,
        second_moments: bool,
        moment_costs: Mapping[int, Costs],
        source: Mapping[str, object],
        ready_order: tuple[int, ...] = (),
        passes: PassTimes | None = None,
        buckets: tuple[tuple[str, ...], ...] | None = None,
    ) -> Path:
        """Write the manifest and rename the folder; files of unfinished iterations are dropped.
        `ready_order` completes the facts."""
        assert self._temporary is not None
        assert self._facts is not None
        said = dict(source)
        if self._dtype == "float16":  # gradients below 6e-8 are lost: a reader should know
            said["flushed_to_zero"] = self._flushed / max(1, self._nonzero)
        manifest = Manifest(
            schema=SCHEMA,
            facts=replace(self._facts, ready_order=ready_order),
            parameters=tuple((name, tuple(shape)) for name, shape in self._shapes),
            dtype=self._dtype,
            workers=workers,
            iterations=iterations,
            second_moments=second_moments,
            moment_costs=dict(moment_costs),
            source=said,
            passes=passes,
            buckets=buckets,
        )
        names = list(manifest.expected_files())
        manifest = replace(manifest, files={name: self._files[name] for name in names})
        try:
            for path in self._temporary.iterdir():
                if path.name not in manifest.files:
                    path.unlink()
            (self._temporary / MANIFEST).write_text(manifest_text(manifest), encoding="utf-8")
            self._temporary.rename(self._folder)
        except OSError as error:
            raise self._cannot_write(error) from error
        self._temporary = None
        return self._folder

    def _cannot_write(self, error: OSError) -> InputError:
        message = f"cannot write: {error.strerror or error}"
        hint = "free some space or choose another folder; nothing was left behind"
        return InputError(message, place=str(self._folder), hint=hint)


def not_finite(kind: Kind, name: str, taken: WorkerGradients, *, overflow: bool) -> InputError:
    """Return the error for a value that cannot be stored."""
    if overflow:
        what, hint = "a value too large for float16", "store float32"
    else:
        what, hint = "NaN or infinity", "training diverges: choose a lower learning rate"
    message = f"{what} in the {kind} of iteration {taken.iteration}, worker {taken.worker}"
    return InputError(message, place=f"tensor {name}", hint=hint)
