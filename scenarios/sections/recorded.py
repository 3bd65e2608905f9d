"""Settings of a scenario that replays a recorded trace.

`model: recorded` takes the model from the trace, without the user's code; `compute:
{recorded: true}` takes the times that were measured with it.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path

from gcsim.errors import InputError, Problem
from gcsim.scenarios.reading.document import Document
from gcsim.scenarios.sections.file import RECORDED, ScenarioFile
from gcsim.traces.models.registry import MODELS, ModelEntry
from gcsim.traces.storage.manifest import Manifest, read_manifest

_LOG = logging.getLogger(__name__)
_REPLAY = "replay a trace: gradients: {source: recorded, trace: FOLDER}"


def recorded_model(trace: Path) -> tuple[ModelEntry | None, list[Problem]]:
    """Return the model of a trace, or its problems; only the manifest is read."""
    try:
        facts = read_manifest(trace).facts
    except InputError as error:
        return None, list(error.problems)
    shipped = MODELS.get(facts.name)
    if shipped is not None and shipped.parameters == facts.parameters:
        return shipped, []
    entry = ModelEntry(
        name=facts.name,
        title=f"{facts.name}, as recorded",
        build=None,
        input_shape=(facts.tokens,) if facts.tokens else (),
        classes=0,
        parameters=facts.parameters,
        paper="",
        input="tokens" if facts.tokens else "samples",
    )
    return entry, []


def is_recorded(model: ModelEntry) -> bool:
    """Whether the model comes only from a trace."""
    return model.build is None and not model.layers


def micro_batches(manifest: Manifest) -> int:
    """Return the number of micro-batches whose gradients a recording sums in each iteration."""
    recorded = manifest.source.get("micro_batches", 1)
    return recorded if isinstance(recorded, int) else 1


@functools.lru_cache
def warn_once(place: Path, text: str) -> None:
    """Print a warning once per process."""
    _LOG.warning("%s: warning: %s", place, text)


def without_a_trace(document: Document, file: ScenarioFile) -> list[Problem]:
    """Return problems of a scenario that takes something from a trace but replays none."""
    if file.gradients.trace is not None:
        return []
    asking = []
    if file.model == RECORDED:
        asking.append(("model", "recorded is the model of a trace"))
    if file.compute is not None and file.compute.recorded:
        asking.append(("compute.recorded", "recorded times are those of a trace"))
    also = f"and gradients.source is {file.gradients.source}"
    return [document.problem(key, f": {why}, {also}", _REPLAY) for key, why in asking]
