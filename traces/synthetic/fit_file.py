"""Fit of recorded gradients: its contents, read from and written to a file.

For each parameter tensor a fit has a scale, the workers' common share, the energies of its rank-one
terms and the distributions of their vectors; for each recorded model, how scales scatter and how
the common part turns from iteration to iteration (use: `synthetic/tensor.py`; estimation:
`synthetic/fitting.py`). A file holds fits of models as JSON, checked in full before anything is
drawn. The default fit comes with gcsim. No torch here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gcsim.errors import InputError
from gcsim.files import write_text
from gcsim.json_file import broken, read_object

SCHEMA = 1
DEFAULT = Path(__file__).with_name("default_fit.json")
"""Default fit, to recordings of shipped models; made by `tests/benchmarks/default_fit.py`."""
DEFAULT_TITLE = "the default fit of gcsim"
_WHAT = "fit of gradients"
FIT_AGAIN = "fit again with: gcsim fit TRACE -o FILE"

Kind = Literal["convolution", "linear", "embedding", "scale", "shift", "bias"]
"""Kinds of parameters; scale and shift: of a normalisation; bias: of a multiplying layer."""
Family = Literal["normal", "laplace", "generalized_normal", "student_t"]

POINTS = (
    0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.985, 0.99, 0.995,
    0.998, 1.0,
)  # fmt: skip
"""Probabilities of the quantiles: close together where few entries hold most of the energy."""

_Share = Annotated[float, Field(ge=0, le=1)]
_Positive = Annotated[float, Field(gt=0)]
_NotNegative = Annotated[float, Field(ge=0)]


class _Part(BaseModel):
    """Base model: strict, without NaN or infinity."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class VectorFit(_Part):
    """Distribution of the vectors of one side (rows: outputs; columns: inputs)."""

    scale: Annotated[list[_NotNegative], Field(min_length=len(POINTS), max_length=len(POINTS))]
    """Quantiles at `POINTS` of an entry's root mean square over the recording, with mean square
    about 1; 0 for unused entries."""
    silent: list[_Share]
    """Share of samples in which an entry is exactly zero, at the same quantiles; may be empty."""
    population: list[_Share]
    """Shares of the vectors' energy in persistent directions; the rest is drawn afresh."""
    family: Family
    """Distribution family of an entry divided by its scale."""
    shape: _Positive
    """Exponent of generalized_normal, degrees of freedom of student_t, else 1."""
    coherence: _Share
    """Share of the energy that the positions of a convolution kernel have in common."""
    offset: Annotated[float, Field(ge=-1, le=1)]
    """Mean of the entries over their root mean square: inputs after a ReLU have one sign."""

    @model_validator(mode="after")
    def _fits_together(self) -> VectorFit:
        if self.silent and len(self.silent) != len(self.scale):
            raise ValueError("silent has another length than scale")
        if sum(self.population) > 1 + 1e-3:
            raise ValueError("the shares of population are more than 1 in all")
        if not any(self.scale):
            raise ValueError("scale has no entry above 0")
        if self.family == "student_t" and self.shape <= 2:
            raise ValueError("student_t has a variance with more than 2 degrees of freedom only")
        if self.family == "generalized_normal" and self.shape < 0.2:
            raise ValueError("generalized_normal needs a shape of at least 0.2")
        return self


class TensorFit(_Part):
    """Fit of the gradient of one parameter tensor."""

    name: Annotated[str, Field(min_length=1)]
    shape: Annotated[list[Annotated[int, Field(ge=1)]], Field()]
    kind: Kind
    depth: _Share
    """0 for the first tensor of the model, 1 for the last."""
    rms: _NotNegative
    """Root mean square of an element over the recording."""
    common: _Share
    """Share of the expected squared length that all workers have in common."""
    scatter: _NotNegative
    """Standard deviation of the log of a worker's length, in addition to `ModelFit.scatter`."""
    spectrum: Annotated[list[_Share], Field(min_length=1)]
    """Energies of the rank-one terms; the remainder to 1 is noise without structure."""
    aligned: _Share
    """Share of the energy of a worker's own column vectors along the common vectors."""
    rows: VectorFit
    columns: VectorFit

    @model_validator(mode="after")
    def _fits_together(self) -> TensorFit:
        if sum(self.spectrum) > 1 + 1e-3:
            raise ValueError("the energies of spectrum are more than 1 in all")
        return self

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class Wave(_Part):
    """A part of the workers' common gradient that rotates with the iterations."""

    frequency: Annotated[float, Field(ge=0, le=3.15)]
    """Radians per iteration; 0 stays constant, pi changes sign each time."""
    share: _Share


class ModelFit(_Part):
    """Fit of the gradients of one recorded model."""

    model: Annotated[str, Field(min_length=1)]
    samples_per_worker: Annotated[int, Field(ge=1)]
    workers: Annotated[int, Field(ge=2)]
    iterations: Annotated[int, Field(ge=2)]
    recording: dict[str, Any]
    """Source of the gradients: plain values for reports."""
    scatter: _NotNegative
    """Standard deviation of the logarithm of a worker's length in one iteration, common to all its
    tensors."""
    levels: list[float]
    """Log of the scale by iteration, about 0; empty if iterations do not differ."""
    waves: list[Wave]
    """Waves of the common part; the rest (to 1) is new in each iteration."""
    tensors: Annotated[list[TensorFit], Field(min_length=1)]


class Fits(_Part):
    """Contents of a file."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    fits: Annotated[list[ModelFit], Field(min_length=1)]


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return rows and columns of a tensor as a matrix: the first axis, and all others; a vector is
    a column."""
    rows = shape[0] if shape else 1
    return rows, math.prod(shape[1:])


def read_fits(path: Path) -> tuple[ModelFit, ...]:
    """Return the fits of a file. Raises `InputError` with the first three faults if it cannot be
    read, is not JSON, was written by another version, holds NaN, or is wrong otherwise."""
    place = str(path)
    body = read_object(path, place, _WHAT, FIT_AGAIN)
    if "schema" not in body:
        raise InputError(f"is no {_WHAT}", place=place, hint=FIT_AGAIN)
    if body["schema"] != SCHEMA:
        message = f"has schema {body['schema']!r:.40}; this gcsim reads {SCHEMA}"
        raise InputError(message, place=place, hint=FIT_AGAIN)
    try:
        return tuple(Fits.model_validate(body).fits)
    except ValidationError as error:
        raise InputError(broken(error, body, place, FIT_AGAIN)) from error


def default_fits() -> tuple[ModelFit, ...]:
    """Return the fits that come with gcsim."""
    return read_fits(DEFAULT)


def open_fits(path: Path | None) -> tuple[tuple[ModelFit, ...], str]:
    """Return the fits of a file (None: the default ones), and their name in reports. Raises
    `InputError` like `read_fits`."""
    return (default_fits(), DEFAULT_TITLE) if path is None else (read_fits(path), path.name)


def write_fits(path: Path, fits: tuple[ModelFit, ...]) -> None:
    """Write a file for `read_fits`, atomically. Raises `InputError`."""
    document = {"schema": SCHEMA, "fits": [_rounded(fit.model_dump(mode="json")) for fit in fits]}
    write_text(path, _json(document) + "\n")


def _rounded(value: Any) -> Any:
    """Round to four significant digits: an estimate has no more."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    return value


def _json(document: Mapping[str, Any]) -> str:
    """Write one line per tensor: small, and a change of one tensor is one line of a diff."""
    parts = []
    for fit in document["fits"]:
        head = {key: value for key, value in fit.items() if key != "tensors"}
        tensors = ",\n  ".join(json.dumps(t, separators=(",", ":")) for t in fit["tensors"])
        parts.append(f'{json.dumps(head)[:-1]}, "tensors": [\n  {tensors}]}}')
    return f'{{"schema": {document["schema"]}, "fits": [\n {("," + chr(10) + " ").join(parts)}\n]}}'
