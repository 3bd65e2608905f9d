"""What does a stored trace say of itself? `trace.json`: the model, the source, every file.

The manifest holds the length and SHA-256 of every tensor file, and a SHA-256 of itself over its
canonical JSON, so that truncation, edits and mixed-up folders are found before a number is made
of them. It holds no date and no path: equal recordings have equal manifests, and the manifest's
checksum identifies the whole trace. No torch here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from gcsim.errors import TraceError
from gcsim.traces.passes import PassTimes
from gcsim.traces.profile import Costs, ModelFacts

SCHEMA = 1
MANIFEST = "trace.json"
RECORD_AGAIN = "record the trace again with: gcsim record SCENARIO -o FOLDER"

Kind = Literal["gradients", "second-moments"]


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
    """Of the stored gradients; second moments are float32 always."""
    workers: int
    iterations: int
    second_moments: bool
    moment_costs: dict[int, Costs] = field(default_factory=dict)
    """By parameter, the kernels that made one mini-batch's second moments."""
    source: dict[str, object] = field(default_factory=dict)
    """How the gradients were made: plain values for reports."""
    files: dict[str, StoredFile] = field(default_factory=dict)
    passes: PassTimes | None = None
    """Measured while it was recorded; None when nobody asked for times."""
    buckets: tuple[tuple[str, ...], ...] | None = None
    """Parameters of each bucket that was exchanged, in order; None when none were seen."""

    def expected_files(self) -> Iterator[str]:
        """The names of the files that the trace must have."""
        for iteration in range(self.iterations):
            for worker in range(self.workers):
                yield file_name("gradients", iteration, worker)
                if self.second_moments:
                    yield file_name("second-moments", iteration, worker)


_ADAPTER = TypeAdapter(Manifest)


def file_name(kind: Kind, iteration: int, worker: int) -> str:
    """The file of one worker's tensors in one iteration."""
    return f"{kind}-{iteration:04d}-{worker:04d}.safetensors"


def manifest_text(manifest: Manifest) -> str:
    """The manifest as JSON, with its checksum."""
    body = _ADAPTER.dump_python(manifest, mode="json")
    body["sha256"] = _checksum(body)
    return json.dumps(body, indent=1) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """Read and check `folder`'s manifest; raises `TraceError` when it is missing or damaged."""
    path = folder / MANIFEST
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        what = "is no trace: it has no trace.json" if folder.is_dir() else "there is no such folder"
        raise damaged(folder, what) from error
    except OSError as error:
        raise damaged(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise damaged(path, f"is truncated or no JSON: {error}") from error
    if not isinstance(body, dict):
        raise damaged(path, "is no manifest of a trace")
    if body.get("schema") != SCHEMA:
        raise damaged(path, f"has schema {body.get('schema')!r}; this gcsim reads {SCHEMA}")
    if body.pop("sha256", None) != _checksum(body):
        raise damaged(path, "was changed since it was recorded (SHA-256 differs)")
    try:
        manifest = _ADAPTER.validate_python(body)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(str(part) for part in fault["loc"])
        raise damaged(path, f"{key}: {fault['msg'].lower()}") from error
    odd = sorted(set(manifest.expected_files()) ^ set(manifest.files))
    if odd:
        raise damaged(path, f"its list of files does not fit its iterations and workers: {odd[0]}")
    order = manifest.facts.ready_order
    if order and sorted(order) != list(range(len(manifest.parameters))):
        raise damaged(path, "facts.ready_order does not name each parameter once")
    return manifest


def damaged(path: Path, what: str, hint: str = RECORD_AGAIN) -> TraceError:
    """The error for a file that is not what was recorded."""
    return TraceError(what, place=str(path), hint=hint)


def _checksum(body: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
