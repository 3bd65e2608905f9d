"""What may a scenario file say under `training`? How the job runs, beside its compressor.

The keys are the fields of `gcsim.simulator.training.Training`, but for what a framework's code
costs: `framework` names one of the catalogue, or changes figures of one.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, Tag

from gcsim.scenarios.catalog import loops
from gcsim.scenarios.catalog.loops import FrameworkSection
from gcsim.scenarios.reading.checking import NAMED, SPELLED_OUT, by_shape
from gcsim.scenarios.reading.types import in_catalogue
from gcsim.scenarios.reading.values import As, Spelled
from gcsim.simulator.training import Training

_FRAMEWORK = Annotated[
    Annotated[str, in_catalogue(loops.framework), Tag(NAMED)]
    | Annotated[FrameworkSection, Tag(SPELLED_OUT)],
    Discriminator(by_shape),
]

TRAINING = As(Training, reducer=None, hook=None, framework=(_FRAMEWORK, loops.FRAMEWORK))


def build_training(section: Spelled, transport: str) -> Training:
    """How the job runs; what the section does not say is as the catalogue has it."""
    code = section.framework
    if isinstance(code, str):
        reducer, hook = loops.framework(code)
    else:
        reducer, hook = code.codes(loops.framework(code.like))
    usual = Training(
        interference=loops.interference(transport),
        shared_node=loops.shared_node(transport),
        reducer=reducer,
        hook=hook,
        noise=loops.workers(),
    )
    return section.value(Training, usual)
