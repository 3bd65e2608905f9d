"""Gradients on disk: a folder of safetensors files and a manifest with checksums.

    trace.json                                  the manifest: model, source, every file's SHA-256
    gradients-0002-0001.safetensors             iteration 2, worker 1: one tensor per parameter
    second-moments-0002-0001.safetensors        if they were recorded

A trace has no buckets: any layout of its parameters can be read. Reading unpickles nothing, runs no
code, and reads one bucket's tensors without the rest. Opening and verifying need no torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.errors import InputError
from gcsim.traces.profile import Costs, PassTimes
from gcsim.traces.storage.manifest import (
    MANIFEST,
    RECORD_AGAIN,
    Kind,
    Manifest,
    StoredFile,
    damaged,
    file_name,
    read_manifest,
)
from gcsim.traces.storage.tensor_file import all_finite, measure_file


class Trace:
    """A stored trace, read bucket by bucket. Made by `Trace.open`."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.facts = manifest.facts
        self.parameters = manifest.parameters
        """Names and shapes, in the order of the model's trained parameters."""
        self.workers = manifest.workers
        self.iterations = manifest.iterations
        self.dtype = manifest.dtype
        self.has_second_moments = manifest.second_moments
        self.moment_costs: Mapping[int, Costs] = manifest.moment_costs
        self.source = manifest.source
        noted = manifest.source.get("losses")
        losses = noted if isinstance(noted, list) else []
        losses = [float(loss) for loss in losses if isinstance(loss, int | float)]
        self._losses = losses if len(losses) == self.workers * self.iterations else []
        """Losses by iteration, then by worker; None if some are missing."""
        self.passes = manifest.passes
        """Measured times, if any."""
        self.buckets = manifest.buckets
        """Names of the parameters of each exchanged bucket, where known."""
        self.nbytes = sum(entry.nbytes for entry in manifest.files.values())
        self._finite: set[tuple[Path, tuple[int, ...]]] = set()
        """Files, and indices of the parameters in them, known to be finite."""

    @staticmethod
    def open(folder: Path, *, verify: bool = True) -> Trace:
        """Read the manifest and check every file against it. `verify=False` skips checksums (not
        presence and lengths), for a trace that this process has just written or verified. Raises
        `TraceError` that names the first missing, truncated or changed file and a remedy."""
        manifest = read_manifest(folder)
        for name, entry in manifest.files.items():
            _check_length(folder / name, entry)
        if verify:  # hashing releases the interpreter's lock
            with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
                paths = [folder / name for name in manifest.files]
                for _ in pool.map(_check_content, paths, manifest.files.values()):
                    pass
        return Trace(folder, manifest)

    def bucket(
        self, layout: BucketLayout, iteration: int, worker: int, second_moments: bool = False
    ) -> Bucket:
        """Return one worker's bucket in one iteration, as float32 `[layout.numel]` in its own
        memory. Raises `TraceError` if the trace is too small or of another model, and `InputError`
        with tensor, iteration and worker if a value is NaN or infinite."""
        self._check_reach(iteration, worker, second_moments)
        return Bucket(
            layout=layout,
            gradient=self._read("gradients", layout, iteration, worker),
            second_moment=(
                self._read("second-moments", layout, iteration, worker) if second_moments else None
            ),
            loss=self._losses[iteration * self.workers + worker] if self._losses else None,
        )

    def _check_reach(self, iteration: int, worker: int, second_moments: bool) -> None:
        place = self.folder / MANIFEST
        if not 0 <= worker < self.workers:
            hint = f"use at most {self.workers} workers, or record more"
            raise damaged(place, f"has {self.workers} workers; number {worker} is asked for", hint)
        if not 0 <= iteration < self.iterations:
            raise damaged(
                place,
                f"has {self.iterations} iterations; number {iteration} is asked for",
                f"use at most {self.iterations} iterations, or record more",
            )
        if second_moments and not self.has_second_moments:
            raise damaged(
                place,
                "holds no second moments, which the variance-based compressor needs",
                "record again with --second-moments, or leave that compressor out",
            )

    def _read(self, kind: Kind, layout: BucketLayout, iteration: int, worker: int) -> Tensor:
        from safetensors import SafetensorError, safe_open

        path = self.folder / file_name(kind, iteration, worker)
        # not torch's: glibc fits an aligned block only into a freed one that is 96 bytes longer
        flat = torch.from_numpy(np.empty(layout.numel, dtype=np.float32))
        try:
            with safe_open(path, framework="pt") as file:
                held = set(file.keys())
                for piece, part in layout.views(flat):
                    if piece.name not in held:
                        raise damaged(path, f"holds no tensor {piece.name!r}: of another model?")
                    stored = file.get_tensor(piece.name)
                    if tuple(stored.shape) != piece.shape:
                        shapes = f"{tuple(stored.shape)}, not {piece.shape}: of another model?"
                        raise damaged(path, f"{piece.name!r} has shape {shapes}")
                    part.copy_(stored.view(-1))
        except (OSError, SafetensorError) as error:
            raise damaged(path, f"cannot be read: {error}") from error
        self._check_finite(flat, layout, path)
        return flat

    def _check_finite(self, flat: Tensor, layout: BucketLayout, path: Path) -> None:
        if (path, layout.numbers) in self._finite or all_finite(flat):
            self._finite.add((path, layout.numbers))
            return
        names = [p.name for p, part in layout.views(flat) if not bool(part.isfinite().all())]
        kind, iteration, worker = path.stem.rsplit("-", 2)
        raise InputError(
            f"NaN or infinity in the {kind} of tensor {names[0]!r}, iteration "
            f"{int(iteration)}, worker {int(worker)}",
            place=str(path),
            hint="record where training is stable: a lower learning rate",
        )


def recorded_passes(folder: Path) -> PassTimes:
    """Return the times measured while the trace in `folder` was recorded; needs no torch. Raises
    `TraceError` if the manifest is damaged or has no times."""
    passes = read_manifest(folder).passes
    if passes is None:
        raise damaged(
            folder / MANIFEST,
            "holds no times of the forward and backward pass",
            "record again with gcsim.record, which takes them in iterations behind the recorded "
            "ones, or with gcsim record --times; or state `compute: {forward: ..., backward: ...}`",
        )
    return passes


def _check_length(path: Path, entry: StoredFile) -> None:
    try:
        length = path.stat().st_size
    except OSError as error:
        raise damaged(path, f"is missing or cannot be read: {error.strerror}") from error
    if length != entry.nbytes:
        what = "truncated" if length < entry.nbytes else "changed"
        raise damaged(path, f"is {what}: {length} bytes, {entry.nbytes} were recorded")


def _check_content(path: Path, entry: StoredFile) -> None:
    try:
        found = measure_file(path)
    except OSError as error:
        raise damaged(path, f"cannot be read: {error.strerror}") from error
    if found != entry:
        raise damaged(path, "was changed since it was recorded (SHA-256 differs)", RECORD_AGAIN)


FOLDER = Path(__file__).parent.parent / "shipped"


def shipped_traces() -> dict[str, Path]:
    """Return the shipped traces' folders by name, sorted."""
    return {path.parent.name: path.parent for path in sorted(FOLDER.glob(f"*/{MANIFEST}"))}
