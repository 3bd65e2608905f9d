"""The recorded gradients that come with gcsim: whole, small, and of a training that learns."""

from __future__ import annotations

import pytest

from gcsim.traces.buckets import bucket_layouts
from gcsim.traces.models.registry import shipped_model
from gcsim.traces.models.table import facts_and_parameters
from gcsim.traces.recording.make_shipped import BATCH_SIZE, RECIPES, WORKERS
from gcsim.traces.storage.shipped import FOLDER, shipped_traces
from gcsim.traces.storage.store import Trace


def test_each_model_is_there_early_in_the_middle_and_late() -> None:
    wanted = {f"{model}-{stage}" for model, (_, stages) in RECIPES.items() for stage in stages}
    assert set(shipped_traces()) == wanted
    assert all(list(stages) == ["early", "middle", "late"] for _, stages in RECIPES.values())


def test_they_are_small_enough_to_be_shipped() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 12e6


@pytest.mark.parametrize("name", sorted(shipped_traces()))
def test_a_shipped_trace_is_whole_and_is_what_its_recipe_says(name: str) -> None:
    trace = Trace.open(shipped_traces()[name])  # checks every file's SHA-256
    model, _, stage = name.rpartition("-")
    assert trace.facts.name == model
    assert trace.facts.parameters == shipped_model(model).parameters
    assert trace.facts.ready_order == facts_and_parameters(shipped_model(model), 1)[0].ready_order
    assert (trace.workers, trace.facts.samples_per_worker) == (WORKERS, BATCH_SIZE)
    assert trace.source["warmup_steps"] == RECIPES[model][1][stage]
    (layout, *_) = bucket_layouts(trace.parameters)
    ours, theirs = (trace.bucket(layout, 0, worker).gradient for worker in (0, WORKERS - 1))
    assert ours.isfinite().all()
    assert not ours.equal(theirs)  # own mini-batches


@pytest.mark.parametrize("model", sorted(RECIPES))
def test_the_loss_falls_from_stage_to_stage(model: str) -> None:
    losses = []
    for stage in ("early", "middle", "late"):
        found = Trace.open(shipped_traces()[f"{model}-{stage}"], verify=False).source["losses"]
        assert isinstance(found, list)
        losses.append(sum(found) / len(found))
    assert losses == sorted(losses, reverse=True)
