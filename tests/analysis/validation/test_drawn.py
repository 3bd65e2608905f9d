"""Steps in drawn worlds are those of exact simulations, and a source's rates can be left out."""

from dataclasses import replace

import pytest

from gcsim.analysis.validation.drawn import DRAWS, device_without, step_in_worlds
from gcsim.scenarios.catalog import device
from gcsim.scenarios.uncertainty.figures import uncertain_inputs
from gcsim.scenarios.uncertainty.worlds import cluster_in, draw
from gcsim.simulator.devices.step_time import step_time
from gcsim.traces.profile import ModelFacts
from tests.scenarios.test_stated import run


def test_a_steps_draws_are_those_of_exact_simulations() -> None:
    """The ring of a step without overlap is linear in what is drawn."""
    job = run({"grouping": "whole"}, network="10gbe")
    on = job.cluster
    inputs = [
        one
        for one in uncertain_inputs(on, job.training, {"stated": job.passes})
        if one.main.key_path[0] == "cluster"
    ]
    worlds = draw(inputs, DRAWS, 0)
    exact = [replace(job, cluster=cluster_in(world, on, inputs)).seconds for world in worlds]
    drawn = step_in_worlds(on, job.training, job.profile, {"stated": job.passes}, job.seconds)
    assert drawn == pytest.approx(exact, rel=0.01)


def test_a_device_without_a_works_steps_has_the_others() -> None:
    """V100 and ResNet-50: batch 64 is MXNet's alone, 192 Lambda's."""
    v100 = device("v100")
    model = ModelFacts(name="resnet50", parameters=1, layers=(), samples_per_worker=64)
    known = step_time(model, v100).seconds
    others = device_without("lambdal/lambda-tensorflow", v100, model, "fp32")
    assert step_time(model, others).seconds == known
    left = device_without("apache mxnet", v100, model, "fp32")
    assert [step.batch for step in left.measured["resnet50", "fp32", 0].steps] == [192]
    assert left.measured["resnet50", "fp16", 0] == v100.measured["resnet50", "fp16", 0]
    assert step_time(model, left).seconds != known
    assert device_without("nobody/nothing", v100, model, "fp32") is v100
