"""A method in other code is priced, deployed and refused as that code."""

from fractions import Fraction
from pathlib import Path

import pytest

from gcsim.analysis.report.paste import paste
from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.registry import REGISTRY
from gcsim.scenarios.advice.engine import Engine
from gcsim.scenarios.advice.other_code import in_other_code, other_code
from gcsim.scenarios.advice.question import Question
from gcsim.scenarios.catalog import implementations
from gcsim.scenarios.load import read_scenario
from gcsim.scenarios.run import measured_run, run
from gcsim.scenarios.running.by_shapes import by_shapes
from gcsim.scenarios.running.installed import as_installed
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.plans import CHECKS, STEP_CHECKS, Planner
from gcsim.traces.profile import weighted
from tests.scenarios.files import check_mistake, load, reread

pytestmark = pytest.mark.usefixtures("own_cache")
FILE = """
model: lenet
batch_size: 32
gradients: {source: synthetic, workers: 1, iterations: 2}
cluster: {nodes: 2, device: h100_sxm, network: 10gbe}
training: {framework: {hook: {per_tensor: 10 us, per_bucket: 100 us, per_step: 0 s, passes: 0}}}
uncertainty: {draws: 0}
compressors:
  - none
"""
PYTORCH = FILE + "  - {kind: powersgd, rank: 2, implementation: pytorch}\n"


def test_pytorchs_hook_is_the_method_with_its_operators_and_parameters(tmp_path: Path) -> None:
    scenario = load(tmp_path, PYTORCH)
    choice = scenario.compressors[1]
    assert (choice.kind, choice.label) == ("torch_powersgd", "powersgd pytorch")
    # the method's defaults, but the hook starts after two dense steps at least
    wanted = {"rank": 2, "start": 2, "min_compression_rate": 2.0, "epsilon": 0.0}
    assert wanted.items() <= choice.parameters.items()
    assert reread(tmp_path, scenario).compressors == scenario.compressors
    by_kind = load(tmp_path, f"{FILE}  - {{kind: torch_powersgd, dense_steps: 3}}\n").compressors[1]
    assert by_kind.parameters["start"] == 1000  # the hook's own default


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("{kind: fp16, implementation: pytroch}", "a.yaml:10:34: error: unknown implementation "
         "'pytroch' of fp16; did you mean 'pytorch'?"),
        ("{kind: qsgd, implementation: pytorch}", "a.yaml:10:34: error: qsgd has only the "
         "implementation gcsim; remove it; known are powersgd: pytorch; fp16: pytorch, "),
        ("{kind: powersgd, implementation: pytorch, alternate: true}",
         "a.yaml:10:47: error: torch_powersgd has no parameter 'alternate'"),
        ("{kind: powersgd, implementation: pytorch, payload: fp16}",
         "PyTorch's powerSGD_hook has no 'payload'; implementation: gcsim has it"),
        ("{kind: powersgd, implementation: 3}", "a.yaml:10:38: error: compressors.1."),
    ],
)  # fmt: skip
def test_what_no_code_is_known_for_is_refused(tmp_path: Path, entry: str, expected: str) -> None:
    check_mistake(tmp_path, f"{FILE}  - {entry}\n", expected)


@pytest.mark.parametrize("method", sorted(implementations._all()))
def test_each_entry_has_a_method_and_code_to_paste(tmp_path: Path, method: str) -> None:
    assert method in REGISTRY
    choice = load(tmp_path, f"{FILE}  - {method}\n").compressors[1]
    codes = list(in_other_code(choice))
    assert [one.implementation for one in codes] == [*implementations._all()[method]]
    for one in codes:
        assert "{" not in "".join(paste(one))
        assert choice in in_other_code(one)


def test_other_code_costs_what_its_entry_says_and_queues_no_launch_of_gcsims(
    tmp_path: Path,
) -> None:
    """LeNet has 10 tensors in one bucket; Horovod takes 64 us a tensor in the place of 10."""
    scenario = load(tmp_path, f"{FILE}  - fp16\n  - {{kind: fp16, implementation: horovod}}\n")
    profiles = measured_run(scenario)[2]
    scenario, profiles = as_installed(scenario, profiles)
    prices = PriceList(scenario.cluster.device)
    none = ComputeTimes(forward=0, backward=0, parts=(0,), provenance="")
    planner = Planner(scenario.cluster, none, scenario.training, prices)
    own, horovods = (
        [float(t) / 1e6 for t in planner.exchange_code_times(one)] for one in profiles[1:]
    )
    checks = sum(float(prices.priced_by(one, 1).host) / 1e6 for one in (CHECKS, STEP_CHECKS))
    assert own == pytest.approx([10 * 10 + 100 + checks])
    assert horovods == pytest.approx([10 * 64 + 100])
    of_code = [
        sum(
            prices.priced_by(each, 2).host
            for _, _, one in weighted(profile)
            for each in one.computes
        )
        for profile in profiles[1:]
    ]
    assert of_code[0] > of_code[1] == Fraction(0)


@pytest.mark.parametrize("model", ["lenet", "gpt2_medium"])
def test_shapes_alone_say_what_pytorchs_hook_does(tmp_path: Path, model: str) -> None:
    scenario = load(tmp_path, PYTORCH.replace("lenet", model).replace("size: 32", "size: 1"))
    profile = measured_run(scenario)[2][1]
    choice = scenario.compressors[1]
    given = choice.kind, choice.parameters, profile.model, profile.buckets
    found = by_shapes(*given, by_formula=model == "gpt2_medium")
    assert found.phases == profile.phases


def test_a_few_rows_of_equal_blocks_stand_for_all(tmp_path: Path) -> None:
    """PowerSGD's bytes are rank x (rows + columns), and its kernels' are linear in the rows."""
    choice = load(tmp_path, PYTORCH).compressors[1]
    layouts = [
        BucketLayout.behind(number, [(f"{number}.weight", 0, (512, 256)), ("bias", 1, (512,))])
        for number in range(2)
    ]
    facts = measured_run(load(tmp_path, PYTORCH))[2][1].model
    whole, few = (
        by_shapes(choice.kind, choice.parameters, facts, layouts, by_formula=few)
        for few in (False, True)
    )
    assert few.phases == whole.phases


@pytest.mark.parametrize("code", ["pytorch", "gcsim"])
def test_advice_says_what_the_other_code_would_take(tmp_path: Path, code: str) -> None:
    other = {"pytorch": "gcsim", "gcsim": "pytorch"}[code]
    files = {name: PYTORCH.replace("pytorch", name) for name in (code, other)}
    expected = run(load(tmp_path, files[other])).rows[1].iteration_s
    load(tmp_path, files[code])
    question = Question(*read_scenario(tmp_path / "a.yaml"))
    (found,) = other_code(Engine(question), question.scenario.compressors[1].label)
    assert found.implementation == other
    assert found.iteration_s == pytest.approx(expected)
