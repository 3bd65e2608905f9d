"""The manifest of a stored trace, `trace.json`: the model, the source, all files. No torch here.

It holds the length and SHA-256 of every tensor file, and a SHA-256 of its own canonical JSON, so
that truncation, edits and mixed-up folders are found first. It holds no date and no path: equal
recordings have equal manifests, and its checksum identifies the whole trace.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from gcsim.compressors.bucket import Shape
from gcsim.errors import TraceError
from gcsim.fields import Count, Limits, Text, Whole
from gcsim.json_file import broken, read_object
from gcsim.traces.profile import AS_WRITTEN, Costs, ModelFacts, PassTimes

SCHEMA = 1
MANIFEST = "trace.json"
RECORD_AGAIN = "record the trace again with: gcsim record SCENARIO -o FOLDER"

Kind = Literal["gradients", "second-moments"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """Expected properties of a file."""

    nbytes: Whole
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Contents of `trace.json`, beside its own checksum."""

    __pydantic_config__: ClassVar[ConfigDict] = AS_WRITTEN

    schema: int
    facts: ModelFacts
    parameters: Annotated[tuple[tuple[Text, Shape], ...], Limits(least=1)]
    """Names and shapes, in the order of the model's trained parameters."""
    dtype: Literal["float32", "float16"]
    """Dtype of the stored gradients; second moments are always float32."""
    workers: Count
    iterations: Count
    second_moments: bool
    moment_costs: dict[Whole, Costs] = field(default_factory=dict)
    """Kernels that made a mini-batch's second moments, by parameter."""
    source: dict[str, object] = field(default_factory=dict)
    """Source of the gradients: plain values for reports."""
    files: dict[str, StoredFile] = field(default_factory=dict)
    passes: PassTimes | None = None
    """Times measured during recording; None when not requested."""
    buckets: tuple[tuple[str, ...], ...] | None = None
    """Parameters of each exchanged bucket, in order; None if none were seen."""

    def disagreements(self) -> Iterator[str]:
        """Contradictions between its figures."""
        elements = sum(math.prod(shape) for _, shape in self.parameters)
        if self.facts.parameters != elements:
            yield f"facts.parameters = {self.facts.parameters}: the shapes have {elements} elements"
        names = Counter(name for name, _ in self.parameters)
        if len(names) < len(self.parameters):
            yield f"parameters: {names.most_common(1)[0][0]!r} appears more than once"
        count, owned = len(self.parameters), {p for e in self.facts.layers for p in e.parameters}
        if owned != set(range(count)):
            yield f"facts.layers: their parameters are not the numbers 0 to {count - 1}"
        if self.facts.ready_order and sorted(self.facts.ready_order) != list(range(count)):
            yield "facts.ready_order does not name each parameter once"
        if not self.moment_costs.keys() <= set(range(count)):
            yield f"moment_costs: {max(self.moment_costs)} is not the number of a parameter"
        if self.passes is not None and self.passes.ready is not None:
            last = max(self.passes.ready, default=0)
            if len(self.passes.ready) != count:
                yield f"passes.ready: must have {count} entries, one a parameter"
            elif last > self.passes.backward:
                yield f"passes.ready: {last} is after the end of the backward pass"
        for key, value in self.source.items():
            if not (value is None or isinstance(value, str) or _numbers(value)):
                yield f"source.{key}: must be text, a finite number, or a list of such"
        unknown = [name for bucket in self.buckets or () for name in bucket if name not in names]
        if unknown:
            yield f"buckets: there is no parameter {unknown[0]!r}"
        count = self.workers * self.iterations * (2 if self.second_moments else 1)
        if len(self.files) != count or set(self.expected_files()) != set(self.files):
            yield "its list of files does not fit its iterations and workers"

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
    if not path.exists():
        what = "is no trace: it has no trace.json" if folder.is_dir() else "there is no such folder"
        raise damaged(folder, what)
    body = read_object(path, str(path), "manifest of a trace", RECORD_AGAIN, TraceError)
    if body.get("schema") != SCHEMA:
        raise damaged(path, f"has schema {body.get('schema')!r:.40}; this gcsim reads {SCHEMA}")
    if body.pop("sha256", None) != _checksum(body):
        raise damaged(path, "was changed since it was recorded (SHA-256 differs)")
    try:
        manifest = _ADAPTER.validate_json(json.dumps(body))
    except ValidationError as error:
        raise TraceError(broken(error, body, str(path), RECORD_AGAIN)) from error
    for what in manifest.disagreements():
        raise damaged(path, what)
    return manifest


def damaged(path: Path, what: str, hint: str = RECORD_AGAIN) -> TraceError:
    """The error for a file that is not as recorded."""
    return TraceError(what, place=str(path), hint=hint)


def _numbers(value: object) -> bool:
    entries = value if isinstance(value, list) else [value]
    return all(isinstance(entry, int | float) and math.isfinite(entry) for entry in entries)


def _checksum(body: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
