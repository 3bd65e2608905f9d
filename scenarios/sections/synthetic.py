"""Synthetic gradients of a scenario: do they fit, and where do they come from?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gcsim.errors import InputError, Problem
from gcsim.scenarios.scenario import Scenario, SyntheticGradients
from gcsim.traces.models.table import facts_and_parameters, table_parameters
from gcsim.traces.synthetic.fit_file import open_fits
from gcsim.traces.synthetic.fit_mapping import check_shapes

if TYPE_CHECKING:
    from gcsim.traces.synthetic.gradients import SyntheticTrace


def check_synthetic(scenario: Scenario) -> None:
    """Raise `InputError` when the fit cannot be read, or is of this model with other tensors.

    Imports no torch; of a model with code only the fit's file is checked.
    """
    source = scenario.gradients
    if not isinstance(source, SyntheticGradients):
        return
    fits, title = open_fits(source.fit)
    if not scenario.model.layers:
        return
    try:
        check_shapes(fits, scenario.model.name, table_parameters(scenario.model))
    except InputError as error:
        raise InputError(
            [
                Problem(place=title, message=f"{p.place} {p.message}", hint=p.hint)
                for p in error.problems
            ]
        ) from error


def open_synthetic(scenario: Scenario, source: SyntheticGradients) -> SyntheticTrace:
    """The gradients, to be drawn. Raises `InputError` as `check_synthetic`, and when the model
    cannot be built."""
    from gcsim.traces.synthetic.gradients import SyntheticTrace

    fits, title = open_fits(source.fit)
    facts, parameters = facts_and_parameters(scenario.model, scenario.batch_size)
    return SyntheticTrace(
        facts,
        parameters,
        fits,
        workers=source.workers,
        iterations=source.iterations,
        seed=scenario.seed,
        title=title,
    )
