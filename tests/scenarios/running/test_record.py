"""A trace that does not fit its scenario is refused before anything runs, with all reasons."""

from pathlib import Path

import pytest
import torch

from gcsim.errors import TraceError
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.run import run
from gcsim.scenarios.running.gradients import check_trace
from gcsim.traces.live import WorkerGradients
from gcsim.traces.profile import Layer, ModelFacts
from gcsim.traces.storage.writing import TraceWriter

TEXT = """\
model: lenet
batch_size: 8
gradients: {source: recorded, trace: trace}
cluster: {nodes: 2, device: p100_pcie, network: 10gbe}
compressors: [none, topk]
"""
FACTS = ModelFacts(
    name="lenet",
    parameters=3,
    layers=(Layer(name="all", parameters=(0,), forward_flops=6),),
    samples_per_worker=8,
)


@pytest.fixture
def scenario_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scenario beside its trace: one iteration of two workers, without second moments.

    The model is taken to have the trace's one tensor.
    """
    tensors = (("w", (3,)),)
    monkeypatch.setattr("gcsim.scenarios.sections.model_table.known_parameters", lambda _: tensors)
    with TraceWriter(tmp_path / "trace") as writer:
        writer.begin(FACTS, [("w", (3,))])
        writer.iterations_that_fit(1, 2, False, None)
        for worker in range(2):
            gradients = (torch.arange(3.0) + worker,)
            writer.add(
                WorkerGradients(
                    iteration=0, worker=worker, loss=1.0, gradients=gradients, second_moments=None
                )
            )
        writer.finish(workers=2, iterations=1, second_moments=False, moment_costs={}, source={})
    path = tmp_path / "a.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_a_trace_that_fits_is_accepted(scenario_file: Path) -> None:
    check_trace(load_scenario(scenario_file))
    check_trace(load_scenario(scenario_file, ["gradients.workers=2"]))
    check_trace(load_scenario("lenet_2node"))  # live: no trace to check


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ("model=alexnet", "holds gradients of 'lenet', but the scenario trains 'alexnet'",
         "set model: lenet"),
        ("batch_size=16", "8 samples per worker, but the scenario has batch_size 16",
         "set batch_size: 8"),
        ("gradients.workers=3", "holds gradients of 2 workers, but the scenario asks for 3",
         "at most 2"),
        ("compressors=[none, {kind: variance, label: var}]",
         "holds no second moments, which are needed by 'var'", "--second-moments"),
    ],
)  # fmt: skip
def test_each_misfit_is_named_with_a_way_out(
    scenario_file: Path, change: str, message: str, hint: str
) -> None:
    with pytest.raises(TraceError) as caught:
        check_trace(load_scenario(scenario_file, [change]))
    (problem,) = caught.value.problems
    assert problem.place == str(scenario_file.parent / "trace")
    assert message in problem.message
    assert hint in problem.hint


def test_all_misfits_are_told_at_once_and_a_run_tells_the_same(scenario_file: Path) -> None:
    changes = ["model=alexnet", "batch_size=16", "gradients.workers=3", "compressors=[variance]"]
    scenario = load_scenario(scenario_file, changes)
    with pytest.raises(TraceError) as checked:
        check_trace(scenario)
    assert len(checked.value.problems) == 4
    with pytest.raises(TraceError) as ran:
        run(scenario)
    assert ran.value.problems == checked.value.problems


def test_of_a_damaged_trace_the_damage_is_told(scenario_file: Path) -> None:
    victim = sorted((scenario_file.parent / "trace").glob("*.safetensors"))[0]
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(TraceError, match="truncated"):
        check_trace(load_scenario(scenario_file, ["batch_size=16"]))
