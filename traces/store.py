"""Gradients on disk: a folder of safetensors files under a manifest with checksums.

    trace.json                                   the manifest: model, parameters, source, files
    gradients-0002-0001.safetensors              iteration 2, worker 1: one tensor a parameter
    moments-0002-0001.safetensors                second moments, where they were recorded

The manifest holds the length and SHA-256 of every file, and of itself. A folder is written under
a temporary name beside its place and renamed when whole. Reading opens no pickle, runs no code,
and reads the tensors of one bucket without the rest. Opening and verifying need no torch.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from pydantic import TypeAdapter, ValidationError

from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.lazy_torch import torch
from gcsim.errors import InputError, Problem, TraceError
from gcsim.traces.profile import Costs, ModelFacts

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = 1
MANIFEST = "trace.json"
_AGAIN = "record the trace again with: gcsim record SCENARIO -o FOLDER"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """What a file must be."""

    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What `trace.json` holds, beside its own checksum."""

    schema: int
    facts: ModelFacts
    parameters: tuple[tuple[str, tuple[int, ...]], ...]
    """Names and shapes, in the order of the model's trained parameters."""
    dtype: Literal["float32", "float16"]
    workers: int
    iterations: int
    second_moments: bool
    moment_costs: dict[int, Costs] = field(default_factory=dict)
    """What computing second moments cost, by a layer's first parameter."""
    source: dict[str, object] = field(default_factory=dict)
    """How the gradients were made: plain values for reports."""
    files: dict[str, StoredFile] = field(default_factory=dict)


_MANIFEST = TypeAdapter(Manifest)


def _file_name(kind: str, iteration: int, worker: int) -> str:
    return f"{kind}-{iteration:04d}-{worker:04d}.safetensors"


class TraceWriter:
    """Writes a trace; as a context, it leaves a whole folder or none."""

    def __init__(self, folder: Path, *, dtype: Literal["float32", "float16"]) -> None:
        if folder.exists():
            raise InputError(
                Problem(
                    message="exists already",
                    place=str(folder),
                    hint="choose another folder or remove it",
                )
            )
        self._folder = folder
        self._dtype: Literal["float32", "float16"] = dtype
        self._files: dict[str, StoredFile] = {}
        self._temporary = folder

    @property
    def nbytes(self) -> int:
        """Bytes written so far."""
        return sum(entry.nbytes for entry in self._files.values())

    def __enter__(self) -> TraceWriter:
        try:
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            made = tempfile.mkdtemp(prefix=f".{self._folder.name}.", dir=self._folder.parent)
        except OSError as error:
            raise self._cannot_write(error) from error
        self._temporary = Path(made)
        self._temporary.chmod(0o755)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._temporary != self._folder and self._temporary.exists():
            shutil.rmtree(self._temporary, ignore_errors=True)

    def add(
        self,
        kind: Literal["gradients", "moments"],
        iteration: int,
        worker: int,
        tensors: Mapping[str, Tensor],
    ) -> None:
        """Store one worker's tensors of one iteration, by parameter name."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        dtype = torch.float16 if self._dtype == "float16" else torch.float32
        name = _file_name(kind, iteration, worker)
        path = self._temporary / name
        try:
            save_file({key: t.detach().to("cpu", dtype) for key, t in tensors.items()}, path)
            self._files[name] = _measured(path)
        except (OSError, SafetensorError) as error:
            raise self._cannot_write(error) from error

    def finish(
        self,
        facts: ModelFacts,
        parameters: Sequence[tuple[str, tuple[int, ...]]],
        *,
        workers: int,
        iterations: int,
        second_moments: bool,
        moment_costs: Mapping[int, Costs],
        source: Mapping[str, object],
    ) -> Path:
        """Write the manifest and give the folder its name."""
        manifest = Manifest(
            schema=SCHEMA,
            facts=facts,
            parameters=tuple(parameters),
            dtype=self._dtype,
            workers=workers,
            iterations=iterations,
            second_moments=second_moments,
            moment_costs=dict(moment_costs),
            source=dict(source),
            files=self._files,
        )
        body = _MANIFEST.dump_python(manifest, mode="json")
        body["sha256"] = _own_checksum(body)
        try:
            text = json.dumps(body, indent=1)
            (self._temporary / MANIFEST).write_text(text + "\n", encoding="utf-8")
            self._temporary.rename(self._folder)
        except OSError as error:
            raise self._cannot_write(error) from error
        return self._folder

    def _cannot_write(self, error: Exception) -> InputError:
        reason = getattr(error, "strerror", None) or str(error)
        return InputError(
            Problem(
                message=f"cannot write: {reason}",
                place=str(self._folder),
                hint="free some space, choose another folder, or lower --iterations",
            )
        )


class Trace:
    """A stored trace, verified, read bucket by bucket."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.facts = manifest.facts
        self.parameters = manifest.parameters
        self.workers = manifest.workers
        self.iterations = manifest.iterations
        self.dtype = manifest.dtype
        self.has_second_moments = manifest.second_moments
        self.moment_costs: Mapping[int, Costs] = manifest.moment_costs
        self.source = manifest.source
        self.nbytes = sum(entry.nbytes for entry in manifest.files.values())

    @staticmethod
    def open(folder: Path, *, verify: bool = True) -> Trace:
        """Read the manifest and check every file against it.

        `verify=False` skips the files' checksums (their lengths are always checked). Raises
        `TraceError` that names the file that is missing, truncated or edited.
        """
        manifest = _read_manifest(folder)
        expected = set(_expected_files(manifest))
        if set(manifest.files) != expected:
            odd = sorted(expected ^ set(manifest.files))[0]
            raise _damaged(folder / MANIFEST, f"its list of files does not fit: {odd}")
        for name, entry in manifest.files.items():
            path = folder / name
            try:
                length = path.stat().st_size
                if length != entry.nbytes:
                    raise _damaged(path, f"has {length} bytes, {entry.nbytes} were recorded")
                if verify and _measured(path).sha256 != entry.sha256:
                    raise _damaged(path, "was changed since it was recorded (SHA-256 differs)")
            except OSError as error:
                raise _damaged(path, f"cannot be read: {error.strerror}") from error
        return Trace(folder, manifest)

    def bucket(
        self, layout: BucketLayout, iteration: int, worker: int, second_moments: bool = False
    ) -> Bucket:
        """One worker's bucket as float32 `[layout.numel]`.

        Raises `InputError` that names tensor, iteration and worker when a gradient is NaN or
        infinite.
        """
        return Bucket(
            layout=layout,
            gradient=self._read("gradients", layout, iteration, worker),
            second_moment=(
                self._read("moments", layout, iteration, worker) if second_moments else None
            ),
        )

    def _read(self, kind: str, layout: BucketLayout, iteration: int, worker: int) -> Tensor:
        from safetensors import SafetensorError, safe_open

        path = self.folder / _file_name(kind, iteration, worker)
        flat = torch.empty(layout.numel)
        try:
            with safe_open(path, framework="pt") as file:
                for piece, part in layout.views(flat):
                    stored = file.get_tensor(piece.name)
                    if tuple(stored.shape) != piece.shape:
                        raise _damaged(path, f"{piece.name} has shape {tuple(stored.shape)}")
                    part.copy_(stored.flatten())
        except (OSError, SafetensorError) as error:
            raise _damaged(path, str(error)) from error
        # A sum is finite only if every element is; it may overflow, so look closer then.
        if not math.isfinite(float(flat.sum())):
            for piece, part in layout.views(flat):
                if not bool(torch.isfinite(part).all()):
                    raise InputError(
                        Problem(
                            message=f"NaN or infinity in the {kind} of {piece.name!r}, "
                            f"iteration {iteration}, worker {worker}",
                            place=str(path.name),
                            hint="lower the learning rate, or record where training is stable",
                        )
                    )
        return flat


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _damaged(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise _damaged(path, f"is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise _damaged(path, "is not a manifest")
    if body.get("schema") != SCHEMA:
        raise TraceError(
            Problem(
                message=f"has schema {body.get('schema')!r}, this gcsim reads {SCHEMA}",
                place=str(path),
                hint=_AGAIN,
            )
        )
    if body.pop("sha256", None) != _own_checksum(body):
        raise _damaged(path, "was changed since it was recorded (SHA-256 differs)")
    try:
        return _MANIFEST.validate_python(body)
    except ValidationError as error:
        raise _damaged(path, f"is not a manifest: {error.errors()[0]['msg']}") from error


def _expected_files(manifest: Manifest) -> Iterable[str]:
    kinds = ["gradients", "moments"] if manifest.second_moments else ["gradients"]
    for iteration in range(manifest.iterations):
        for worker in range(manifest.workers):
            for kind in kinds:
                yield _file_name(kind, iteration, worker)


def _own_checksum(body: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _measured(path: Path) -> StoredFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return StoredFile(nbytes=path.stat().st_size, sha256=digest)


def _damaged(path: Path, what: str) -> TraceError:
    return TraceError(Problem(message=what, place=str(path), hint=_AGAIN))
